// SPDX-License-Identifier: Apache-2.0
// How many spare workers should be ready, and how many should start at once: decided from what sessions asked for
// and from how long workers took to become ready. Pure: it is told the time, and does nothing itself. One
// thread uses an object.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>

namespace causeway::daemon {

// What may be taken for spares beyond the least number (`spare_workers` and what is guaranteed to others).
struct SpareRoom {
  uint32_t configured = 0;          // max_spare_workers, less spare_workers
  uint32_t processors = 1;          // that the daemon may use
  uint64_t host_free_bytes = 0;     // as the host has them available now, without what is held already
  uint64_t host_spare_bytes = 0;    // that one spare holds; 0: not known, and a usual size is taken
  uint64_t device_free_bytes = 0;   // of the fullest GPU that is known; 0: none is known, and none counts
  uint64_t device_spare_bytes = 0;  // as host_spare_bytes
  uint32_t held = 0;  // spares beyond the least that there are already: what they hold counts too

  // How many spares beyond the least there may be: they hold at most an eighth of what would be free without
  // them, of the host's memory and of the GPU's.
  uint32_t Count() const;
};

// Spares beyond the least number follow the sessions of the last seconds. By Little's law a stream of sessions takes
// (sessions a second) x (seconds until a worker is ready) spares before their successors are ready; and where several
// sessions of a scope waited at the same time, as many will come together again.
class SpareDemand {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  // A session of that scope has asked for a worker that any spare can be; `waiting`: how many sessions of
  // the scope wait for one now, because there was no spare.
  void Asked(const std::string& scope, uint32_t waiting, Time now);
  // A worker became ready so long after its start.
  void Ready(Duration took);
  // Workers cannot start: nothing is called for until sessions ask again.
  void Forget() { scopes_.clear(); }
  // Spares wanted beyond the least number: at most `room`, of which one scope's sessions call for at most half (but
  // for one), so that a scope that floods the daemon leaves memory, and the making of spares, to others.
  uint32_t Extra(uint32_t room, Time now) const;
  // How long a worker took to become ready lately; 0: none has.
  Duration ready_time() const { return ready_time_; }

 private:
  struct Scope {
    double asked = 0;  // sessions, each forgotten by and by
    double need = 0;   // spares that its sessions called for, halved every kNeedHalfLife
    Time at{};         // of both
  };
  std::map<std::string, Scope> scopes_;
  Duration ready_time_{0};
};

// How many workers start at once. Their starts share processors and the driver's locks: more at once may make
// more ready in a second, or fewer. This compares what it has seen of each number, and stays with the best.
class StartingLimit {
 public:
  using Duration = std::chrono::steady_clock::duration;
  static constexpr uint32_t kLeast = 2, kMost = 4;

  // How many may start at once now.
  uint32_t limit() const { return limit_; }
  // A worker became ready `took` after its start, while `beside` workers started on average, itself included.
  void Ready(Duration took, double beside);

 private:
  struct Level {
    double a_second = 0;  // workers that become ready, with so many starting; 0: not known
    uint32_t seen = 0;    // since the limit was last changed to this one
  };
  Level& At(uint32_t limit) { return levels_[limit - kLeast]; }
  std::array<Level, kMost - kLeast + 1> levels_{};
  uint32_t limit_ = kLeast;
};

}  // namespace causeway::daemon
