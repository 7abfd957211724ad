// SPDX-License-Identifier: Apache-2.0
#include "host_backend/tls/strangers.h"

#include <algorithm>

namespace causeway::tls {

bool Strangers::Budget::Take(double most, double per_s, Time now) {
  const std::chrono::duration<double> passed = now - looked;
  looked = now;
  left = std::min(most, left + per_s * passed.count());
  if (left < 1) return false;
  left -= 1;
  return true;
}

Strangers::Network* Strangers::Find(const std::string& network) {
  const auto known = networks_.find(network);
  return known != networks_.end() ? &known->second : nullptr;
}

// Where there is no room it is not remembered, unless others are as if they had never come.
Strangers::Network* Strangers::Remember(const std::string& network, Time now) {
  if (networks_.size() >= kMostNetworks)
    std::erase_if(networks_, [&](const auto& entry) {
      const Network& each = entry.second;
      const std::chrono::duration<double> passed = now - each.budget.looked;
      return each.budget.left + kOfNetworkPerS * passed.count() >= kOfNetwork && !IsGuest(each, now);
    });
  if (networks_.size() >= kMostNetworks) return nullptr;
  return &networks_.emplace(network, Network{{kOfNetwork, now}}).first->second;
}

bool Strangers::IsGuest(const Network& network, Time now) {
  return network.is_guest && now - network.proved <= kGuestTime;
}

bool Strangers::Admit(const std::string& network, Time now) {
  Network* known = Find(network);
  const bool is_guest = known != nullptr && IsGuest(*known, now);
  if (known != nullptr &&
      !known->budget.Take(is_guest ? kOfGuests : kOfNetwork, is_guest ? kOfGuestsPerS : kOfNetworkPerS, now))
    return false;
  if (!all_.Take(kOfAll, kOfAllPerS, now)) return is_guest;
  // Only now, so that what is remembered grows no faster than strangers are admitted.
  if (known == nullptr && (known = Remember(network, now)) != nullptr)
    known->budget.Take(kOfNetwork, kOfNetworkPerS, now);
  return true;
}

void Strangers::Prove(const std::string& network, Time now) {
  all_.left = std::min(kOfAll, all_.left + 1);
  Network* known = Find(network);
  if (known == nullptr) known = Remember(network, now);
  if (known == nullptr) return;
  known->budget.left = IsGuest(*known, now) ? std::min(kOfGuests, known->budget.left + 1) : kOfGuests;
  known->is_guest = true;
  known->proved = now;
}

}  // namespace causeway::tls
