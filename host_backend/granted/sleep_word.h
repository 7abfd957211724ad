// SPDX-License-Identifier: Apache-2.0
// Where a worker's threads sleep whose rings lie in memory that is granted to a domain of Xen: a futex refuses a word of
// such memory, because no file has its pages. So daemon and worker have a word in memory of their own.
#pragma once
#include <cstdint>
#include <memory>

#include "host_backend/common/unique_fd.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway {

// Of one session. Any thread, several at once.
class SleepWord final : public Bell {
 public:
  // Null: the system gives none, and the session's threads look at times.
  static std::unique_ptr<SleepWord> Make();
  // One that Make has made, maybe in another process. Null: it is none, or its memory could shrink.
  static std::unique_ptr<SleepWord> Of(UniqueFd fd);
  ~SleepWord() override;
  SleepWord(const SleepWord&) = delete;
  SleepWord& operator=(const SleepWord&) = delete;

  int fd() const { return fd_.get(); }
  void Sleep(const HotWord& word, uint32_t seen, uint64_t us) const override;
  // Wakes all of them, whatever they sleep for: each looks at its own word.
  void Ring() const override { Wake(); }
  // The same; how many slept.
  uint32_t Wake() const;

 private:
  SleepWord(UniqueFd fd, uint32_t* rings) : fd_(std::move(fd)), rings_(rings) {}
  const UniqueFd fd_;
  uint32_t* const rings_;  // how many came; shared, and written by both
};

}  // namespace causeway
