// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/pool/worker_queue.h"

#include <algorithm>
#include <cmath>

namespace causeway::daemon {
namespace {

constexpr std::chrono::seconds kUseHalfLife{10};
constexpr double kFew = 4;
constexpr double kForgottenUse = 0.01;

}  // namespace

void WorkerQueue::Add(Waiting waiting) {
  for (Turn& turn : turns_) {
    if (turn.scope == waiting.scope) return turn.waiting.push_back(std::move(waiting));
  }
  turns_.push_back({waiting.scope, {}});
  turns_.back().waiting.push_back(std::move(waiting));
}

void WorkerQueue::Remove(const WorkerClient& client) {
  for (Turn& turn : turns_)
    turn.waiting.remove_if([&](const Waiting& waiting) { return waiting.client == &client; });
  turns_.remove_if([](const Turn& turn) { return turn.waiting.empty(); });
}

std::optional<WorkerQueue::Waiting> WorkerQueue::Next(const std::function<bool(const Waiting&)>& may) {
  for (auto turn = turns_.begin(); turn != turns_.end(); ++turn) {
    const auto found = std::find_if(turn->waiting.begin(), turn->waiting.end(), may);
    if (found == turn->waiting.end()) continue;
    Waiting next = std::move(*found);
    turn->waiting.erase(found);
    if (turn->waiting.empty()) {
      turns_.erase(turn);
    } else {
      turns_.splice(turns_.end(), turns_, turn);  // the others come first now
    }
    return next;
  }
  return std::nullopt;
}

size_t WorkerQueue::Turn::any_wishes() const {
  return size_t(
      std::count_if(waiting.begin(), waiting.end(), [](const Waiting& each) { return each.wish.any(); }));
}

size_t WorkerQueue::any_wishes() const {
  size_t count = 0;
  for (const Turn& turn : turns_) count += turn.any_wishes();
  return count;
}

size_t WorkerQueue::any_wishes(const std::string& scope) const {
  for (const Turn& turn : turns_) {
    if (turn.scope == scope) return turn.any_wishes();
  }
  return 0;
}

double SpareUse::At(const Use& use, Time now) {
  const std::chrono::duration<double> age = now - use.at;
  return use.spares * std::exp2(-age / std::chrono::duration<double>(kUseHalfLife));
}

void SpareUse::Note(const std::string& scope, Time now) {
  std::erase_if(uses_, [&](const auto& entry) { return At(entry.second, now) < kForgottenUse; });
  Use& use = uses_[scope];
  use = {At(use, now) + 1, now};
}

double SpareUse::Taken(const std::string& scope, Time now) const {
  const auto own = uses_.find(scope);
  return own != uses_.end() ? At(own->second, now) : 0;
}

bool SpareUse::MayTakeGuaranteed(const std::string& scope, Time now) const {
  const double taken = Taken(scope, now);
  if (taken < kFew) return true;
  return std::any_of(uses_.begin(), uses_.end(), [&](const auto& other) {
    return other.first != scope && taken < At(other.second, now) / 2;
  });
}

}  // namespace causeway::daemon
