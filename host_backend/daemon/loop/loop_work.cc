// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/loop/loop_work.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace causeway::daemon {
namespace {

thread_local LoopWork* own_work = nullptr;

// The second of the file's three numbers, in nanoseconds. The first one lags behind by up to a tick.
bool ReadUnscheduled(int file, ThreadClock::Duration* unscheduled) {
  char text[128];
  const ssize_t bytes = pread(file, text, sizeof text - 1, 0);
  if (bytes <= 0) return false;
  text[bytes] = '\0';
  unsigned long long nanoseconds = 0;
  if (std::sscanf(text, "%*u %llu", &nanoseconds) != 1) return false;
  *unscheduled = ThreadClock::Duration(nanoseconds);
  return true;
}

}  // namespace

ThreadClock::ThreadClock() : schedstat_(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {
  Duration unscheduled{0};
  if (schedstat_ && !ReadUnscheduled(schedstat_.get(), &unscheduled)) schedstat_.reset();
}

ThreadClock::Reading ThreadClock::Read() const {
  Reading reading;
  timespec processor{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &processor);
  reading.processor = std::chrono::seconds(processor.tv_sec) + std::chrono::nanoseconds(processor.tv_nsec);
  if (schedstat_) ReadUnscheduled(schedstat_.get(), &reading.unscheduled);
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  reading.sleeps = uint64_t(usage.ru_nvcsw);
  reading.now = std::chrono::steady_clock::now();
  return reading;
}

LoopWork::Piece LoopWork::Between(const Reading& begin, const Reading& end) {
  Piece piece;
  piece.processor = end.processor - begin.processor;
  const Duration kept = end.now - begin.now - (end.unscheduled - begin.unscheduled);
  piece.busy = end.sleeps != begin.sleeps ? std::max(piece.processor, kept) : piece.processor;
  return piece;
}

void LoopWork::Note(std::string_view what, const Piece& piece, Lateness::Time now) {
  if (now - now_.begin >= kWindow) {
    before_ = now - now_.begin < 2 * kWindow ? std::move(now_) : Window{};
    now_ = Window{};
    now_.begin = now;
  }
  Kind& kind = now_.kinds[what];
  kind.what = what;
  ++kind.times;
  kind.sum += piece.busy;
  if (piece.busy > kind.longest.busy) kind.longest = piece;
}

std::vector<LoopWork::Kind> LoopWork::Longest(size_t most, Lateness::Time now) const {
  std::map<std::string_view, Kind> all;
  for (const Window* window : {&now_, &before_}) {
    if (now - window->begin >= 2 * kWindow) continue;
    for (const auto& [what, kind] : window->kinds) {
      Kind& sum = all[what];
      sum.what = what;
      sum.times += kind.times;
      sum.sum += kind.sum;
      if (kind.longest.busy > sum.longest.busy) sum.longest = kind.longest;
    }
  }
  std::vector<Kind> kinds;
  for (const auto& [what, kind] : all) kinds.push_back(kind);
  std::sort(kinds.begin(), kinds.end(),
            [](const Kind& one, const Kind& other) { return one.longest.busy > other.longest.busy; });
  if (kinds.size() > most) kinds.resize(most);
  return kinds;
}

LoopPart::LoopPart(std::string_view what) : what_(what) {
  if (own_work != nullptr) begin_ = own_work->clock().Read();
}

LoopPart::~LoopPart() {
  if (own_work != nullptr) own_work->Note(what_, begin_, own_work->clock().Read());
}

void LoopPart::SetWork(LoopWork* work) {
  own_work = work;
}

}  // namespace causeway::daemon
