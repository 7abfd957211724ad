// SPDX-License-Identifier: Apache-2.0
// What the event loop's thread does with its time, by kinds of work. Three things make it late: its processor
// time, its waits for others (a file system, the launcher, a lock), which are the daemon's own fault as well,
// and the time that it was ready to run and the kernel ran something else.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "host_backend/common/unique_fd.h"
#include "host_backend/daemon/loop/lateness.h"

namespace causeway::daemon {

// Of the thread that made it.
class ThreadClock {
 public:
  using Duration = Lateness::Duration;
  struct Reading {
    Lateness::Time now{};
    Duration processor{0};
    Duration unscheduled{0};  // ready to run, but not running
    uint64_t sleeps = 0;      // how often it began to wait for something
  };

  ThreadClock();
  Reading Read() const;
  // False: the kernel does not tell how long the thread was not scheduled, which then reads as 0.
  bool tells_unscheduled() const { return bool(schedstat_); }

 private:
  UniqueFd schedstat_;
};

class LoopWork {
 public:
  using Duration = Lateness::Duration;
  using Reading = ThreadClock::Reading;

  // One piece of work: how long it kept the thread (`busy`), of which the thread ran on a processor for
  // `processor` and waited for something for the rest. A thread that did not wait, but neither ran, gave way
  // to others, or to other machines on the same processors. Where the kernel does not tell how long it gave
  // way, that is counted as waiting if there was any.
  struct Piece {
    Duration busy{0};
    Duration processor{0};
  };
  static Piece Between(const Reading& begin, const Reading& end);

  // A kind of work in the last one to two minutes.
  struct Kind {
    std::string_view what;
    uint64_t times = 0;
    Piece longest;
    Duration sum{0};  // of `busy`
  };

  const ThreadClock& clock() const { return clock_; }
  // `what`: a literal.
  void Note(std::string_view what, const Piece& piece, Lateness::Time now);
  void Note(std::string_view what, const Reading& begin, const Reading& end) {
    Note(what, Between(begin, end), end.now);
  }
  // Those that took longest, the longest first.
  std::vector<Kind> Longest(size_t most, Lateness::Time now) const;

 private:
  static constexpr std::chrono::minutes kWindow{1};
  struct Window {
    std::map<std::string_view, Kind> kinds;
    Lateness::Time begin{};
  };
  ThreadClock clock_;
  Window now_, before_;
};

// A part of a handler that the status names separately, from here to the end of the block. Parts may lie in
// others. In a thread that runs no event loop it does nothing.
class LoopPart {
 public:
  explicit LoopPart(std::string_view what);
  ~LoopPart();
  LoopPart(const LoopPart&) = delete;
  LoopPart& operator=(const LoopPart&) = delete;

  // Sets where parts in the calling thread are noted; null: nowhere.
  static void SetWork(LoopWork* work);

 private:
  const std::string_view what_;
  ThreadClock::Reading begin_;
};

}  // namespace causeway::daemon
