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
  const bool memory = std::any_of(workers_.begin(), workers_.end(),
                                  [this](const Entry& entry) { return WatchesMemory(entry); });
  memory_watch_.Want(!stopping_ && memory, !stopping_ && devices_timer_ != 0);
}

std::optional<std::vector<PoolGpu>> WorkerPool::DevicesFor(const std::string& scope, const GpuShare& share) {
  constexpr std::chrono::seconds kInterest{60};  // after which nobody asks any more
  loop_.Cancel(devices_timer_);
  devices_timer_ = loop_.After(kInterest, "the end of the questions for the GPUs", [this] {
    devices_timer_ = 0;
    WantMemoryWatch();
  });
  WantMemoryWatch();
  const std::vector<WorkerDeviceUse>* known = memory_watch_.devices();
  if (known == nullptr) return std::nullopt;
  std::vector<PoolGpu> gpus;
  for (const WorkerDeviceUse& device : *known) {
    DeviceUuid uuid;
    std::copy(std::begin(device.uuid), std::end(device.uuid), uuid.begin());
    const auto is_it = [&](const std::string& text) { return UuidOf(text) == uuid; };
    if (!share.gpus.empty() && std::none_of(share.gpus.begin(), share.gpus.end(), is_it)) continue;
    static_assert(kDeviceLoadUnknown == kLoadUnknown);
    PoolGpu gpu{device.memory_bytes, device.free_bytes, device.load_percent, 0, {}, {}};
    static_assert(sizeof gpu.uuid == sizeof device.uuid && sizeof gpu.name == sizeof device.name);
    std::copy(uuid.begin(), uuid.end(), gpu.uuid);
    std::copy(std::begin(device.name), std::end(device.name), gpu.name);
    if (const uint64_t limit = share.device_memory_mib * kMib; limit != 0) {
      uint64_t held = 0;
      for (const Entry& entry : workers_)
        if (entry.scope == scope && entry.seat.taken()) held += accounts_.OnDevice(entry.seat, uuid);
      gpu.memory_bytes = std::min(gpu.memory_bytes, limit);
      gpu.free_bytes = std::min(gpu.free_bytes, gpu.memory_bytes - std::min(held, gpu.memory_bytes));
    }
    gpus.push_back(gpu);
  }
  return gpus;
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
