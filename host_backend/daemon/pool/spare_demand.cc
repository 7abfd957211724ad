// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/pool/spare_demand.h"

#include <algorithm>
#include <cmath>

namespace causeway::daemon {
namespace {

using Seconds = std::chrono::duration<double>;

// Sessions of so long ago count about a third, for the sessions a second.
constexpr Seconds kRateMemory{3};
constexpr std::chrono::seconds kLongAgo{15};
// What was needed is half forgotten after so long.
constexpr Seconds kNeedHalfLife{3};
constexpr double kForgottenNeed = 0.5;
// Sessions lately, this one included, of which the last tells that more will come.
constexpr double kStream = 1.5;
// Of a new measurement of the time to become ready, in the mean.
constexpr double kNewest = 0.25;
// Of the memory that is free.
constexpr uint64_t kPart = 8;
// Where it is not known: what NVIDIA's driver takes of the host and of a GPU (H100, driver 580) and some more.
constexpr uint64_t kUsualHostBytes = uint64_t{256} << 20, kUsualDeviceBytes = uint64_t{640} << 20;
// So many starts tell how many become ready in a second.
constexpr uint32_t kEnough = 4;
// Another number of workers at once has to be so much better to be worth what they take of the host.
constexpr double kBetter = 1.1;
// After so many the numbers beside the best one are tried again, because hosts and their load change.
constexpr uint32_t kTryAgain = 64;

double Halved(double value, SpareDemand::Duration age) {
  return value * std::exp2(-Seconds(age) / kNeedHalfLife);
}

uint32_t SparesIn(uint64_t free, uint64_t held, uint64_t of_one) {
  return uint32_t(std::min<uint64_t>((free + held * of_one) / kPart / of_one, UINT32_MAX));
}

}  // namespace

uint32_t SpareRoom::Count() const {
  uint32_t count = std::min(configured, processors);
  count = std::min(
      count, SparesIn(host_free_bytes, held, host_spare_bytes != 0 ? host_spare_bytes : kUsualHostBytes));
  if (device_free_bytes == 0) return count;
  return std::min(count, SparesIn(device_free_bytes, held,
                                  device_spare_bytes != 0 ? device_spare_bytes : kUsualDeviceBytes));
}

void SpareDemand::Asked(const std::string& scope, uint32_t waiting, Time now) {
  std::erase_if(scopes_, [&](const auto& entry) {
    const Duration age = now - entry.second.at;
    return age > kLongAgo && Halved(entry.second.need, age) < kForgottenNeed;
  });
  Scope& own = scopes_[scope];
  const Duration age = now - own.at;
  own.asked = own.asked * std::exp(-Seconds(age) / kRateMemory) + 1;
  const double by_rate = std::round(own.asked / kRateMemory.count() * Seconds(ready_time_).count());
  // A session that waits alone, with none before it lately, is no stream: the daemon has just begun, perhaps.
  const double by_waiting = waiting == 1 && own.asked < kStream ? 0 : double(waiting);
  own.need = std::max({Halved(own.need, age), by_rate, by_waiting});
  own.at = now;
}

void SpareDemand::Ready(Duration took) {
  if (ready_time_.count() == 0) {
    ready_time_ = took;
  } else {
    ready_time_ += std::chrono::duration_cast<Duration>(kNewest * (took - ready_time_));
  }
}

uint32_t SpareDemand::Extra(uint32_t room, Time now) const {
  const double part = std::max<double>(room / 2, 1);
  double extra = 0;
  for (const auto& [name, scope] : scopes_)
    extra += std::min(std::floor(Halved(scope.need, now - scope.at) + 1 - kForgottenNeed), part);
  return uint32_t(std::min(extra, double(room)));
}

void StartingLimit::Ready(Duration took, double beside) {
  const double seconds = Seconds(took).count();
  if (seconds <= 0 || std::abs(beside - limit_) > 0.5) return;  // it tells nothing of this limit
  Level& now = At(limit_);
  const double a_second = beside / seconds;
  now.a_second = now.seen == 0 ? a_second : now.a_second + kNewest * (a_second - now.a_second);
  if (++now.seen < kEnough) return;
  const auto move_to = [&](uint32_t limit) {
    limit_ = limit;
    At(limit_).seen = 0;
  };
  const double* fewer = limit_ > kLeast ? &At(limit_ - 1).a_second : nullptr;
  const double* more = limit_ < kMost ? &At(limit_ + 1).a_second : nullptr;
  if (fewer != nullptr && *fewer * kBetter > now.a_second) return move_to(limit_ - 1);
  if (more != nullptr && (*more == 0 || *more > now.a_second * kBetter)) return move_to(limit_ + 1);
  if (fewer != nullptr && *fewer == 0) return move_to(limit_ - 1);
  if (now.seen < kTryAgain) return;
  now.seen = 0;
  for (Level& level : levels_) {
    if (&level != &now) level.a_second = 0;
  }
}

}  // namespace causeway::daemon
