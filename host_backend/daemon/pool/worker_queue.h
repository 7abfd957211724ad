// SPDX-License-Identifier: Apache-2.0
// Sessions that wait for a worker: a queue for each scope, served in turn. Each is bounded as sessions are.
#pragma once
#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>

#include "host_backend/daemon/workers/worker_process.h"

namespace causeway::daemon {

class WorkerClient;

class WorkerQueue {
 public:
  struct Waiting {
    WorkerClient* client = nullptr;
    WorkerWish wish;
    std::string scope;
  };

  void Add(Waiting waiting);
  void Remove(const WorkerClient& client);
  // Takes out the next in turn for which `may` says true: the first such one of the scope whose turn it is.
  std::optional<Waiting> Next(const std::function<bool(const Waiting&)>& may);
  // How many of them, or of those of that scope, any spare can serve.
  size_t any_wishes() const;
  size_t any_wishes(const std::string& scope) const;
  bool empty() const { return turns_.empty(); }

 private:
  struct Turn {
    std::string scope;
    std::list<Waiting> waiting;  // never empty
    size_t any_wishes() const;
  };
  std::list<Turn> turns_;
};

// How many spare workers each scope was given lately. The guaranteed ones are for scopes that take few, so
// that one that takes all it can get leaves them to the others.
class SpareUse {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void Note(const std::string& scope, Time now);
  // How many it was given lately; what is long ago counts less.
  double Taken(const std::string& scope, Time now) const;
  // True for a scope that was given few, or less than half of what another one was.
  bool MayTakeGuaranteed(const std::string& scope, Time now) const;

 private:
  struct Use {
    double spares = 0;  // halved every kUseHalfLife
    Time at{};
  };
  static double At(const Use& use, Time now);
  std::map<std::string, Use> uses_;
};

}  // namespace causeway::daemon
