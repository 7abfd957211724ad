// SPDX-License-Identifier: Apache-2.0
// A GPU, the processes that use it, their workers' gates and the daemon's arbiter under one virtual clock, for tests of
// how its time is divided: kernels of stated durations, and a round of contexts with a slice each and a cost of
// switching. Gates, shared words and arbiter are the product's. Nothing here takes real time, and each run gives the
// same.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "host_backend/common/shares/turn_words.h"
#include "host_backend/daemon/shares/arbiter.h"
#include "host_backend/daemon/shares/cell_watch.h"
#include "host_backend/worker/gate/gate.h"

namespace causeway::test {

struct VirtualProcess {
  size_t vm = 0;
  uint64_t kernel_ns = 200'000;
  bool waits = false;   // launches one kernel and waits for it
  uint64_t gap_ns = 0;  // of one that waits: from its end to the next launch
  // Of one that waits: launches are due at fixed times, so far apart. After a late one, those already due follow at once. 0: by gap_ns.
  uint64_t period_ns = 0;
  uint64_t slice_ns = 2'000'000;
  uint64_t react_ns = 0;    // from the end of a kernel until its worker sees the mark behind it
  bool alternates = false;  // each launch goes to another stream than the last, and has a mark of its own
  bool spins = false;       // its first kernel ends only when a second one was launched
  bool lies = false;        // its worker always says that it has work on the GPU, and wants more
  size_t burst = 0;  // queues so many kernels at once where it may, and no more before all of them are done
  // Of one that queues at once: so many bursts are a request, with a pause between them and another one after each request.
  size_t bursts = 1;
  uint64_t burst_gap_ns = 0, pause_ns = 0;

  // What it is doing.
  struct Kernel {
    uint64_t left_ns = 0;
    std::vector<std::pair<std::atomic<uint32_t>*, uint32_t>> marks{};  // words and values behind it
  };
  std::deque<Kernel> queue{};
  struct SeenMark {
    uint64_t at_ns;
    std::atomic<uint32_t>* word;
    uint32_t value;
  };
  std::deque<SeenMark> written{};  // marks that the worker does not see yet
  uint64_t next_ns = 0, asked_ns = 0, submitted = 0, finished = 0;
  size_t burst_left = 0, bursts_done = 0;
  bool in_burst = false;
  std::vector<uint64_t> latencies_ns{};  // of kernels of one that waits, and of requests
};

// A worker's gate, without threads: whoever does not pass asks again later.
class VirtualWorker final : public host::Surroundings {
 public:
  VirtualWorker(const uint64_t& now_ns, const GrantWords& grant, VirtualProcess& process)
      : now_ns_(now_ns), process_(process), gate_(grant, words, *this) {}
  uint64_t NowNs() override { return now_ns_; }
  bool Mark(std::atomic<uint32_t>& word, uint32_t value) override {
    if (process_.queue.empty()) {
      word = value;
    } else {
      process_.queue.back().marks.emplace_back(&word, value);
    }
    return true;
  }
  void Sleep(const std::atomic<uint32_t>&, uint32_t, uint64_t) override {}
  host::Gate& gate() { return gate_; }

  TurnWords words{};

 private:
  const uint64_t& now_ns_;
  VirtualProcess& process_;
  host::Gate gate_;
};

class VirtualGpu {
 public:
  static constexpr uint64_t kTickNs = 5'000, kLookNs = 50'000, kSwitchNs = 135'000;
  static constexpr uint64_t kAheadNs =
      4'000'000;  // of work that a process has queued, where nothing else bounds it
  static constexpr uint64_t kEndlessNs = uint64_t{1} << 60;

  explicit VirtualGpu(const daemon::TurnTerms& terms = {}) : arbiter(terms) {}

  size_t AddVm(const ShareTerms& terms) {
    vm_ns.push_back(0);
    grants.emplace_back();
    watches.emplace_back();
    return arbiter.Add(terms);
  }
  VirtualProcess& Start(const VirtualProcess& process) {
    VirtualProcess& started = processes.emplace_back(process);
    workers.push_back(std::make_unique<VirtualWorker>(now_ns, grants[process.vm], started));
    watches[process.vm].Open(static_cast<uint32_t>(workers.size()), workers.back()->words);
    return started;
  }

  // The daemon has been killed, and another one has come: it knows nothing but what the workers' words say, and meets one VM after the
  // other, so many nanoseconds apart. All have the usual terms then.
  void RestartDaemon(uint64_t apart_ns) {
    const size_t vms = watches.size();
    arbiter = daemon::Arbiter();
    for (size_t vm = 0; vm < vms; ++vm) {
      watches[vm] = daemon::CellWatch();
      arbiter.Add({});
      for (size_t i = 0; i < processes.size(); ++i) {
        if (processes[i].vm == vm) watches[vm].Open(static_cast<uint32_t>(i + 1), workers[i]->words);
      }
      arbiter_hangs = false;
      Run(apart_ns / kTickNs * kTickNs);
    }
  }

  // Runs for so long, and returns what each VM had of it, from 0 to 1.
  std::vector<double> Run(uint64_t nanoseconds) {
    const std::vector<uint64_t> before = vm_ns;
    for (const uint64_t end = now_ns + nanoseconds; now_ns < end; now_ns += kTickNs) {
      for (size_t i = 0; i < processes.size(); ++i) Submit(processes[i], *workers[i]);
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
  std::vector<std::unique_ptr<VirtualWorker>> workers;  // of the process of the same place
  std::deque<GrantWords> grants;                        // by VM
  std::deque<daemon::CellWatch> watches;
  std::vector<uint64_t> vm_ns;  // GPU time of each VM
  uint64_t switches = 0;
  bool arbiter_hangs = false;
  bool sets_slices = true;  // workers can set the time slices of their processes

 private:
  void ShowMarks(VirtualProcess& process) {
    for (; !process.written.empty() && process.written.front().at_ns <= now_ns; process.written.pop_front())
      *process.written.front().word = process.written.front().value;
  }

  void Submit(VirtualProcess& process, VirtualWorker& worker) {
    ShowMarks(process);
    EndBurst(process);
    const bool due =
        process.waits ? process.queue.empty() && now_ns >= process.next_ns : now_ns >= process.next_ns;
    worker.words.waiting = 0;
    if (process.lies) worker.words.unmarked = worker.words.waiting = 1;
    if (!due) return;
    if (process.asked_ns == 0) process.asked_ns = process.period_ns == 0 ? now_ns : process.next_ns;
    const size_t most = MostQueued(process);
    while (process.queue.size() < most || process.spins) {
      if (!worker.gate().MayPass(now_ns)) {
        worker.words.waiting = 1;
        return;
      }
      worker.gate().Enter(stop_);
      process.queue.push_back({process.spins && process.submitted == 0 ? kEndlessNs : process.kernel_ns});
      ++process.submitted;
      process.in_burst = process.burst != 0;
      if (process.burst_left != 0 && --process.burst_left == 0) {
        worker.gate().Leave(true);
        if (process.pause_ns != 0) worker.gate().MarkRest();  // because the guest waits for it
        break;
      }
      if (process.spins && process.submitted == 2) process.queue.front().left_ns = kTickNs;
      worker.gate().Leave(!process.waits && !process.alternates);
      if (process.spins) break;
    }
  }

  void EndBurst(VirtualProcess& process) const {
    if (process.pause_ns == 0 || !process.in_burst || process.burst_left != 0 || !process.queue.empty())
      return;
    process.in_burst = false;
    const bool is_last = ++process.bursts_done % process.bursts == 0;
    process.next_ns = now_ns + (is_last ? process.pause_ns : process.burst_gap_ns);
    if (!is_last) return;
    process.latencies_ns.push_back(now_ns - process.asked_ns);
    process.asked_ns = 0;
  }

  static size_t MostQueued(VirtualProcess& process) {
    if (process.waits) return 1;
    if (process.burst == 0) return std::max<size_t>(4, kAheadNs / process.kernel_ns);
    if (process.queue.empty() && process.burst_left == 0) process.burst_left = process.burst;
    return process.burst_left == 0 ? 0 : process.burst;
  }

  uint64_t SliceOf(const VirtualProcess& process) const {
    const uint32_t slice_us = sets_slices ? grants[process.vm].slice_us.load() : 0;
    return slice_us == 0 ? process.slice_ns : slice_us * uint64_t{1000};
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
    if (others && (!here || slice_used_ns_ >= SliceOf(processes[current_]))) {
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
    VirtualProcess::Kernel& kernel = process.queue.front();
    kernel.left_ns -= std::min(kernel.left_ns, kTickNs);
    if (kernel.left_ns != 0) return;
    for (const auto& [word, value] : kernel.marks)
      process.written.push_back({now_ns + process.react_ns, word, value});
    ShowMarks(process);
    process.queue.pop_front();
    ++process.finished;
    if (!process.waits) return;
    process.latencies_ns.push_back(now_ns + kTickNs - process.asked_ns);
    process.next_ns =
        process.period_ns != 0 ? process.asked_ns + process.period_ns : now_ns + kTickNs + process.gap_ns;
    process.asked_ns = 0;
  }

  // A thread of each worker does so when it hears of another VM.
  void MarkQueued(size_t vm) {
    for (size_t at = 0; at < processes.size(); ++at) {
      if (processes[at].vm == vm) workers[at]->gate().MarkQueued();
    }
  }

  void Look() {
    std::vector<daemon::Demand> demands(arbiter.size());
    for (size_t i = 0; i < demands.size(); ++i) demands[i] = watches[i].Look(now_ns, grants[i].slice_us);
    arbiter.Look(now_ns, demands);
    for (size_t i = 0; i < demands.size(); ++i) {
      const auto grant = static_cast<uint32_t>(arbiter.grant(i));
      grants[i].seen_ns = now_ns;
      if (arbiter.asks(i)) MarkQueued(i);
      grants[i].slice_us = arbiter.slice_us(i);
      grants[i].queue_us = arbiter.queue_us(i);
      for (size_t at = 0; at < processes.size(); ++at) {
        if (processes[at].vm == i && sets_slices) workers[at]->words.slice_us = arbiter.slice_us(i);
      }
      if (grants[i].grant.exchange(grant) != grant && arbiter.grant(i) == Grant::kOpen) ++grants[i].openings;
    }
  }

  const std::atomic<bool> stop_{false};
  size_t current_ = 0, last_ = ~size_t{0};
  uint64_t slice_used_ns_ = 0, switching_ns_ = 0;
};

}  // namespace causeway::test
