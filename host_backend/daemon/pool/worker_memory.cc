// SPDX-License-Identifier: Apache-2.0
// A scope's limit of device memory against what NVML says that its workers hold: also what no call asked for
// by size (code, heaps, stacks, contexts). What one held as a spare is the driver's start and free.
#include <algorithm>

#include "host_backend/daemon/pool/worker_pool.h"

namespace causeway::daemon {
namespace {

// The driver takes memory in steps and keeps some of what is freed.
uint64_t Slack(uint64_t limit) {
  return std::max<uint64_t>(64 * kMib, limit / 16);
}

}  // namespace

bool WorkerPool::WatchesMemory(const Entry& entry) const {
  return entry.client != nullptr && entry.kind == SessionKind::kCuda && entry.process->assigned() &&
         entry.end_reason.empty() && accounts_.LimitOf(entry.seat) != 0;
}

void WorkerPool::WantMemoryWatch() {
  memory_watch_.Want(!stopping_ && std::any_of(workers_.begin(), workers_.end(),
                                               [this](const Entry& entry) { return WatchesMemory(entry); }));
}

void WorkerPool::OnMemoryRound(const MemoryRound& round) {
  struct Held {
    uint64_t bytes = 0;
    Entry* largest = nullptr;  // of what no call asked for by size
    uint64_t unasked = 0;
    bool lies = false;
  };
  std::map<std::pair<std::string, DeviceUuid>, Held> scopes;
  bool any = false, listed = false;
  for (Entry& entry : workers_) {
    if (entry.client == nullptr && !entry.own) {
      // The next session's start value, also for workers that are started for one.
      for (auto& [place, bytes] : round) {
        if (place.first == entry.process->pid())
          start_bytes_[place.second] = entry.start_bytes[place.second] = bytes;
      }
    }
    if (!WatchesMemory(entry)) continue;
    any = true;
    for (auto at = round.lower_bound({entry.process->pid(), DeviceUuid{}});
         at != round.end() && at->first.first == entry.process->pid(); ++at) {
      listed = true;
      const DeviceUuid& device = at->first.second;
      const auto own = entry.start_bytes.find(device);
      const auto usual = start_bytes_.find(device);
      // One that was never seen as a spare: as others start, or as it was seen first.
      if (own == entry.start_bytes.end())
        entry.start_bytes[device] = usual != start_bytes_.end() ? usual->second : at->second;
      const uint64_t start = entry.start_bytes[device];
      const uint64_t counted = accounts_.OnDevice(entry.seat, device);
      const uint64_t taken = at->second > start ? at->second - start : 0;
      Held& held = scopes[{entry.scope, device}];
      // What it holds is NVML's word; what it says of itself decides at most which session of its scope ends,
      // and one that says more than its scope may hold has said it of itself.
      held.bytes += taken;
      const bool lies = counted > accounts_.LimitOf(entry.seat);
      const uint64_t unasked = lies ? taken : taken - std::min(taken, counted);
      if (held.largest != nullptr && std::pair(held.lies, held.unasked) >= std::pair(lies, unasked)) continue;
      held.lies = lies;
      held.largest = &entry;
      held.unasked = unasked;
    }
  }
  for (const auto& [place, held] : scopes) {
    const uint64_t limit = accounts_.LimitOf(held.largest->seat);
    if (held.bytes <= limit + Slack(limit) || !held.largest->end_reason.empty()) continue;
    EndForMemory(*held.largest, held.bytes, held.unasked, limit);
  }
  unlisted_rounds_ = any && !listed ? unlisted_rounds_ + 1 : 0;
  constexpr uint32_t kRoundsToBelieve = 10;
  if (unlisted_rounds_ == kRoundsToBelieve && !std::exchange(said_unlisted_, true)) {
    LogWarning(
        "NVML lists none of the workers on this host, so device_memory_mib holds for what sessions ask for "
        "and for "
        "what is seen when modules, contexts and limits are made, not for all that the driver takes for "
        "them");
  }
}

void WorkerPool::EndForMemory(Entry& entry, uint64_t held, uint64_t unasked, uint64_t limit) {
  const auto mib = [](uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; };
  entry.end_reason = "was ended, because " + entry.scope + " held " + mib(held) +
                     " of a GPU's memory, more than the " + mib(limit) + " of device_memory_mib, of which " +
                     mib(unasked) + " are this process's code, heaps, stacks and contexts";
  entry.process->Kill();
}

}  // namespace causeway::daemon
