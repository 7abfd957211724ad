// SPDX-License-Identifier: Apache-2.0
// How often peers that prove no key may connect. Each connection costs a process that is started for it, some milliseconds of a
// processor, so that a flood would take all of them. A connection is counted when it is accepted, and no more once its peer has
// proved a key: guests may connect as often as they like.
//
// Not thread-safe. Times are those of a steady clock and do not go back.
#pragma once
#include <chrono>
#include <map>
#include <string>

namespace causeway::tls {

class Strangers {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Of one network (NetworkOf): so many at once, and so many a second from then on.
  static constexpr double kOfNetwork = 64, kOfNetworkPerS = 2;
  // Of a network from which a key was proved within kGuestTime: a stranger may share its address, and guests have to come back.
  static constexpr double kOfGuests = 256, kOfGuestsPerS = 16;
  // Of all together. Beyond it only networks are admitted from which a key was proved within kGuestTime.
  static constexpr double kOfAll = 512, kOfAllPerS = 32;
  static constexpr std::chrono::hours kGuestTime{24};
  // Networks that are remembered. One for which there is no room counts only among all.
  static constexpr size_t kMostNetworks = 4096;

  explicit Strangers(Time now) : all_{kOfAll, now} {}

  // Counts a connection of that network. False: it is to be refused, and does not count.
  bool Admit(const std::string& network, Time now);
  // A peer of a connection that was admitted has proved a key.
  void Prove(const std::string& network, Time now);

 private:
  struct Budget {
    double left;
    Time looked;
    bool Take(double most, double per_s, Time now);
  };
  struct Network {
    Budget budget;
    bool is_guest = false;
    Time proved{};
  };
  static bool IsGuest(const Network& network, Time now);
  // Null: it is not remembered.
  Network* Find(const std::string& network);
  Network* Remember(const std::string& network, Time now);

  Budget all_;
  std::map<std::string, Network> networks_;
};

}  // namespace causeway::tls
