// SPDX-License-Identifier: Apache-2.0
// Wakes the workers' threads that sleep until a VM's process sends something: a guest cannot wake what sleeps
// in the host's kernel. One thread looks at the rings of all such sessions, so that none of theirs has to.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "host_backend/daemon/region/region.h"
#include "host_backend/daemon/region/vain_wakes.h"

namespace causeway::daemon {

class IdleWatch {
 public:
  IdleWatch() = default;
  ~IdleWatch();
  IdleWatch(const IdleWatch&) = delete;
  IdleWatch& operator=(const IdleWatch&) = delete;

  // From now on until Remove, which is repeatable; a look that has begun goes on. The first call starts the
  // thread. Neither call waits for a look.
  void Add(std::shared_ptr<Region> region, uint32_t slot);
  void Remove(const Region& region, uint32_t slot);

 private:
  struct Watched {
    std::shared_ptr<Region> region;
    uint32_t slot;
  };
  using List = std::vector<Watched>;
  void Watch();
  bool Look(const List& watched);  // whether anybody was woken

  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<const List> watched_ = std::make_shared<List>();  // replaced, never changed
  VainWakes vain_wakes_;                                            // the thread's
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace causeway::daemon
