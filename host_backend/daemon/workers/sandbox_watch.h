// SPDX-License-Identifier: Apache-2.0
// Answers the seccomp user notifications of one worker: mappings of the region are checked; in the modes that
// report, what the filter would have ended the worker for is logged once and goes on.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "host_backend/daemon/loop/event_loop.h"
#include "host_backend/daemon/loop/worker_fd.h"
#include "host_backend/daemon/workers/open_question.h"

namespace causeway::daemon {

// The arguments of an mmap of the region, as in the registers that the kernel goes on with.
struct RegionMapping {
  uint64_t offset;
  uint64_t bytes;
};

class SandboxWatch {
 public:
  using Judge = std::function<bool(const RegionMapping&)>;  // false: the worker's call fails
  using MayAsk = std::function<bool()>;                     // false: its next question waits for a moment

  // `report`: calls outside of the filter may go on. `kind` names them in the log: "cuda" or "nvml". `question` is where
  // each question is read, one after the other, also those of other workers. `may_ask` is asked before each.
  SandboxWatch(EventLoop& loop, WorkerFd listener, bool report, std::string kind, OpenQuestion& question,
               MayAsk may_ask, Judge judge);
  ~SandboxWatch();
  // Of a worker that was taken over, when its session can judge: what the daemon of before had not answered.
  void AnswerWhatWasLeft();
  int listener() const { return listener_.get(); }
  // Whether the descriptor is a seccomp listener, since a worker that was taken over may send any other.
  static bool IsListener(int descriptor);
  SandboxWatch(const SandboxWatch&) = delete;
  SandboxWatch& operator=(const SandboxWatch&) = delete;

 private:
  void Watch();
  void OnQuestion(uint32_t events);
  void Answer(const seccomp_notif& question);

  EventLoop& loop_;
  const WorkerFd listener_;
  const bool report_;
  const std::string kind_;
  OpenQuestion& question_;
  const MayAsk may_ask_;
  const Judge judge_;
  EventLoop::WatchId watch_ = 0;
  EventLoop::TimerId pause_ = 0;
};

}  // namespace causeway::daemon
