// SPDX-License-Identifier: Apache-2.0
// A GPU, the processes that use it and the daemon's arbiter under one virtual clock, for tests of how its time is
// divided: kernels of stated durations, a round of contexts with a slice each and a cost of switching, and gates
// that do what the workers' do. Nothing here takes real time, and each run gives the same.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "host_backend/daemon/shares/arbiter.h"

namespace causeway::test {

struct VirtualProcess {
  size_t vm = 0;
  uint64_t kernel_ns = 200'000;
  bool waits = false;   // launches one kernel and waits for it
  uint64_t gap_ns = 0;  // of one that waits: from its end to the next launch
  uint64_t slice_ns = 2'000'000;
  bool spins = false;  // its first kernel ends only when a second one was launched
  bool lies = false;   // its worker always says that it has work on the GPU, and wants more

  // What it is doing.
  std::deque<uint64_t> queue{};  // nanoseconds left of each kernel
  uint64_t next_ns = 0, asked_ns = 0, finished_ns = 0, used_ns = 0, submitted = 0, finished = 0;
  bool waiting = false;
  std::vector<uint64_t> latencies_ns{};
};

class VirtualGpu {
 public:
  static constexpr uint64_t kTickNs = 5'000, kLookNs = 50'000, kSwitchNs = 135'000;
  static constexpr uint64_t kWindowNs = 500'000, kStuckNs = 50'000'000, kDriverQueueNs = 4'000'000;
  static constexpr uint64_t kEndlessNs = uint64_t{1} << 60;

  explicit VirtualGpu(const daemon::TurnTerms& terms = {}) : arbiter(terms) {}

  size_t AddVm(const ShareTerms& terms) {
    vm_ns.push_back(0);
    return arbiter.Add(terms);
  }
  VirtualProcess& Start(const VirtualProcess& process) {
    processes.push_back(process);
    return processes.back();
  }

  // Runs for so long, and returns what each VM had of it, from 0 to 1.
  std::vector<double> Run(uint64_t nanoseconds) {
    const std::vector<uint64_t> before = vm_ns;
    for (const uint64_t end = now_ns + nanoseconds; now_ns < end; now_ns += kTickNs) {
      for (VirtualProcess& process : processes) Submit(process);
      RunGpu();
      if (now_ns % kLookNs == 0 && !arbiter_hangs) Look();
    }
    std::vector<double> shares;
    for (size_t i = 0; i < vm_ns.size(); ++i)
      shares.push_back(static_cast<double>(vm_ns[i] - before[i]) / static_cast<double>(nanoseconds));
    return shares;
  }

  uint64_t now_ns = kLookNs;
  daemon::Arbiter arbiter;
  std::deque<VirtualProcess> processes;
  std::vector<uint64_t> vm_ns;  // GPU time of each VM
  uint64_t switches = 0;
  bool arbiter_hangs = false;

 private:
  static uint64_t Outstanding(const VirtualProcess& process) {
    uint64_t sum = 0;
    for (uint64_t left : process.queue) sum += left;
    return sum;
  }
  // What may be outstanding doubles while nothing is finished, so that what a kernel waits for comes at last.
  uint64_t Room(const VirtualProcess& process, daemon::Grant grant) const {
    if (grant == daemon::Grant::kOpen) return kDriverQueueNs;
    const uint64_t since = process.queue.empty() ? 0 : now_ns - process.finished_ns;
    if (process.spins && process.submitted == 1 && since > kStuckNs) return ~uint64_t{0};
    return kWindowNs << std::min<uint64_t>(since / kStuckNs, 10);
  }

  void Submit(VirtualProcess& process) {
    const bool due = process.waits ? process.queue.empty() && now_ns >= process.next_ns : true;
    process.waiting = false;
    if (!due) return;
    const daemon::Grant grant = arbiter.grant(process.vm);
    if (process.asked_ns == 0) process.asked_ns = now_ns;
    if (grant != daemon::Grant::kClosed) {
      while (process.queue.empty() || (!process.waits && Outstanding(process) < Room(process, grant))) {
        if (process.queue.empty()) process.finished_ns = now_ns;
        process.queue.push_back(process.spins && process.submitted == 0 ? kEndlessNs : process.kernel_ns);
        ++process.submitted;
        if (process.spins && process.submitted == 2) process.queue.front() = kTickNs;
        if (process.waits) break;
      }
    }
    process.waiting = process.waits ? process.queue.empty() : true;
  }

  void RunGpu() {
    const auto has_work = [this](size_t i) { return !processes[i].queue.empty(); };
    const bool others = [&] {
      for (size_t i = 0; i < processes.size(); ++i) {
        if (i != current_ && has_work(i)) return true;
      }
      return false;
    }();
    if (switching_ns_ > 0) {
      switching_ns_ -= std::min(switching_ns_, kTickNs);
      return;
    }
    const bool here = current_ < processes.size() && has_work(current_);
    if (others && (!here || slice_used_ns_ >= processes[current_].slice_ns)) {
      do current_ = (current_ + 1) % processes.size();
      while (!has_work(current_));
      slice_used_ns_ = 0;
      if (last_ != current_) {
        ++switches;
        switching_ns_ = kSwitchNs;
        last_ = current_;
        return;
      }
    } else if (!here) {
      return;
    }
    last_ = current_;
    VirtualProcess& process = processes[current_];
    slice_used_ns_ += kTickNs;
    vm_ns[process.vm] += kTickNs;
    process.used_ns += kTickNs;
    uint64_t& left = process.queue.front();
    left -= std::min(left, kTickNs);
    if (left != 0) return;
    process.queue.pop_front();
    process.finished_ns = now_ns;
    ++process.finished;
    if (!process.waits) return;
    process.latencies_ns.push_back(now_ns + kTickNs - process.asked_ns);
    process.asked_ns = 0;
    process.next_ns = now_ns + kTickNs + process.gap_ns;
  }

  void Look() {
    std::vector<daemon::Demand> demands(arbiter.size());
    std::vector<uint64_t> progress(arbiter.size());
    for (const VirtualProcess& process : processes) {
      daemon::Demand& demand = demands[process.vm];
      demand.waiting = demand.waiting || process.waiting || process.lies;
      demand.busy = demand.busy || !process.queue.empty() || process.lies;
      demand.submitted += process.submitted;
      progress[process.vm] = std::max(progress[process.vm], process.finished_ns);
    }
    for (size_t i = 0; i < demands.size(); ++i)
      demands[i].stuck = demands[i].busy && now_ns - progress[i] > kStuckNs;
    arbiter.Look(now_ns, demands);
  }

  size_t current_ = 0, last_ = ~size_t{0};
  uint64_t slice_used_ns_ = 0, switching_ns_ = 0;
};

}  // namespace causeway::test
