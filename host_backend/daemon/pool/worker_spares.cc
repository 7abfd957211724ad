// SPDX-License-Identifier: Apache-2.0
// How many spares the pool keeps: the demand of the last seconds, within what the host has room for.
#include <sched.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "host_backend/daemon/pool/worker_pool.h"

namespace causeway::daemon {
namespace {

// A failure this fresh answers a request; an older one is tried again for it.
constexpr std::chrono::milliseconds kFreshFailure{1'000};

uint32_t Processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? uint32_t(CPU_COUNT(&set)) : 1;
}

// What the kernel says that new processes may take without driving others to swap; 0: it does not say.
uint64_t HostFreeBytes() {
  std::ifstream lines("/proc/meminfo");
  std::string name, unit;
  uint64_t kib = 0;
  while (lines >> name >> kib) {
    if (name == "MemAvailable:") return kib << 10;
    std::getline(lines, unit);
  }
  return 0;
}

// What a process holds for itself: neither files nor memory that it shares. 0: it cannot be seen.
uint64_t OwnBytesOf(pid_t process) {
  std::ifstream figures("/proc/" + std::to_string(process) + "/statm");
  uint64_t all = 0, resident = 0, shared = 0;
  if (!(figures >> all >> resident >> shared) || shared > resident) return 0;
  return (resident - shared) * uint64_t(sysconf(_SC_PAGESIZE));
}

}  // namespace

// Sessions that wait come first: a driver that starts beside the one that a session waits for delays that one. So where
// nothing calls for more than the usual spares, these are started when nobody waits any more.
size_t WorkerPool::SparesWanted() const {
  const size_t waiting = waiting_.any_wishes();
  const uint32_t extra = wanted_spares() - least_spares();
  const size_t ordinary =
      extra == 0 ? std::max<size_t>(waiting, spares_.least) : waiting + spares_.least + extra;
  return ordinary + spares_.guaranteed + own_spares_->total();
}

SpareRoom WorkerPool::SpareRoomNow() const {
  SpareRoom room;
  room.configured = spares_.most - spares_.least;
  room.processors = processors_;
  room.host_free_bytes = host_free_bytes_;
  room.host_spare_bytes = spare_host_bytes_;
  room.device_free_bytes = device_free_bytes_;
  for (const auto& [device, bytes] : start_bytes_)
    room.device_spare_bytes = std::max(room.device_spare_bytes, bytes);
  const size_t ready = ready_spares();
  room.held = ready > least_spares() ? uint32_t(ready) - least_spares() : 0;
  return room;
}

// Not at each session of a burst: the kernel adds up figures of all processors for it.
void WorkerPool::LookAtHost() {
  constexpr std::chrono::milliseconds kStillTrue{100};
  if (spares_.most == spares_.least || Clock::now() - looked_ < kStillTrue) return;
  const LoopPart part("a look at the host's memory");
  processors_ = Processors();
  host_free_bytes_ = HostFreeBytes();
  looked_ = Clock::now();
}

// The worker is ready: what its start tells of those that come.
void WorkerPool::NoteReady(const Entry& entry, const WorkerReady& ready) {
  const auto took = Clock::now() - entry.process->started();
  starting_limit_.Ready(took, double(entry.starting_beside + starting() + 1) / 2);
  if (entry.own) return;  // its GPUs may be others, and its environment
  demand_.Ready(took);
  device_free_bytes_ = ready.device_free_bytes;
  spare_host_bytes_ = OwnBytesOf(entry.process->pid());
}

void WorkerPool::StartSpares() {
  const auto has_place = [this] {
    return starting() < starting_limit() ||
           starting() == StartingFor("");  // or only such as are no spares start
  };
  while (!stopping_ && has_place() && Spares() < SparesWanted()) {
    const auto age = Clock::now() - last_failure_;
    const bool may_start =
        failure_.empty() || age >= back_off_ || (waiting_.any_wishes() != 0 && age >= kFreshFailure);
    if (!may_start || !StartWorker(nullptr, {})) return;
    if (!failure_.empty()) return;  // one attempt tells whether the cause is gone
  }
}

void WorkerPool::Reconfigure(SpareNumbers spares, OwnSpares::Counts own) {
  spares_ = spares;
  KeepSpares(std::move(own));
  OwnSpares::Counts kept;
  for (Entry& entry : workers_) {
    if (!entry.IsReadySpare() || entry.kept_for.empty()) continue;
    const auto wanted = own_spares_->wanted().find(entry.kept_for);
    const uint32_t most = wanted != own_spares_->wanted().end() ? wanted->second : 0;
    if (++kept[entry.kept_for] > most) entry.process->End();
  }
  LookAtHost();
  Pump();
}

// Spares that were started for sessions which gave up, or for a demand that is over, hold memory of the host and of
// every GPU. At most every few seconds those end that nothing calls for any more: a flood of short-lived
// sessions makes them and takes them again.
void WorkerPool::EndSurplus() {
  constexpr std::chrono::seconds kUntaken{5};
  if (Spares() <= least_spares()) return loop_.Cancel(surplus_timer_);
  if (surplus_timer_ != 0) return;
  surplus_timer_ = loop_.After(kUntaken, "surplus spares", [this] {
    surplus_timer_ = 0;
    LookAtHost();
    for (size_t spares = Spares(), wanted = SparesWanted(); spares > wanted; --spares) {
      Entry* spare = ReadySpare("");
      if (spare == nullptr) break;
      spare->process->End();
    }
    EndSurplus();
  });
}

}  // namespace causeway::daemon
