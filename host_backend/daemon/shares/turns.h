// SPDX-License-Identifier: Apache-2.0
// The turns of VMs on the GPUs of this host: looks at what their workers say, lets each GPU's Arbiter decide, and
// writes the grants on the pages that the workers read (host_backend/common/shares/account_page.h).
//
// A thread of its own does so, because the daemon's loop may be late by milliseconds. It sleeps while at most one VM
// uses each GPU: grants are then Grant::kOpen for that VM and kAsleep for the others, and the first of them that submits
// has the daemon call Wake.
#pragma once
#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "host_backend/common/monotonic.h"
#include "host_backend/common/shares/account_page.h"
#include "host_backend/common/shares/share_terms.h"
#include "host_backend/common/shares/turn_gpus.h"
#include "host_backend/daemon/shares/arbiter.h"
#include "host_backend/daemon/shares/cell_watch.h"
#include "host_backend/daemon/shares/link_turns.h"
#include "host_backend/daemon/shares/looking.h"
#include "host_backend/daemon/shares/share_status.h"

namespace causeway::daemon {

// Any thread but where it says otherwise.
class Turns {
 public:
  Turns() = default;
  // For tests: this object has no thread of its own. Its owner calls Look() instead, and `now` takes the clock's place, so that a test
  // decides what happens when.
  explicit Turns(uint64_t (*now)()) : now_(now), has_thread_(false) {}
  ~Turns();
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // What scopes and shares have from their first session on. Called by Open, on its thread.
  void AskForTerms(std::function<ShareTerms(const std::string& scope)> terms_of);
  // In force at the thread's next look, which comes at once. Of a scope or share that has a session: what a share is to have
  // holds for all its scopes together, but each scope is paused by itself.
  void Set(const std::string& scope, const ShareTerms& terms);
  void SetTurns(std::function<TurnTerms(uint64_t device)> terms);

  // A worker has that cell of its scope's page from now on. The page stays until its last Close. `share`: all scopes with
  // the same one take part as one (Scope::share). `gpus`: on which GPUs its workers may take part.
  void Open(const std::string& scope, const std::string& share, AccountPage* page, uint32_t cell,
            const TurnGpus& gpus);
  // Its worker has begun to end (CellWatch::Ends).
  void Ends(const std::string& scope, uint32_t cell);
  // Its worker is gone. Before the cell is cleared or another's.
  void Close(const std::string& scope, uint32_t cell);
  // A worker has said that it works, so that another than the known ones may use a GPU.
  void Wake();

  std::vector<ShareStatus> Status() const;

  // What the thread does again and again.
  NextLook Look();

 private:
  // One scope's part of a member.
  struct Part {
    GrantWords* grant = nullptr;
    CellWatch watch;
  };
  struct Member {
    size_t vm = 0;                      // the arbiter's number
    std::map<std::string, Part> parts;  // by scope
    Demand demand;
    uint64_t ended = 0;      // what scopes had submitted that have no session any more
    uint64_t active_ns = 0;  // when it last had something to do
    uint64_t told = 0;       // Demand::submitted, as the arbiter was last told
    uint64_t left_ns = 0;    // since when it has no parts
    bool capped = false;     // when it had its last one
  };
  struct Gpu {
    explicit Gpu(const TurnTerms& terms) : arbiter(terms) {}
    Arbiter arbiter;
    std::map<std::string, Member> members;  // by share
    LinkTurns link;
    bool in_turns = false;
  };
  struct Cell {
    uint32_t places = 0;  // as bits, which ones are known
    // What its worker had copied over the link of each device when its session began, or was taken over.
    std::array<LinkTurns::Bytes, kAccountDevices> copied{};
  };
  struct Scope {
    std::string share;
    AccountPage* page = nullptr;
    TurnGpus gpus;
    std::map<uint32_t, Cell> cells;
  };

  void Run();
  NextLook LookLocked();
  void Discover();
  static void AddWaits(const Scope& scope, std::array<uint64_t, kWaitPlaces>* waits);
  void CloseOn(Gpu& gpu, const std::string& share, const std::string& scope, uint32_t cell, uint64_t now_ns);
  void Forget(uint64_t now_ns);
  void Join(uint64_t device, const std::string& scope, uint32_t cell, uint32_t place);
  NextLook Look(Gpu& gpu, uint64_t now_ns);
  NextLook Rest(Gpu& gpu, uint64_t now_ns);
  NextLook LookAtLink(Gpu& gpu, uint64_t now_ns) const;
  Demand DemandOf(Member& member, uint64_t now_ns) const;
  struct News {
    uint32_t slice_us = 0;
    bool asks = false;  // for marks (Arbiter::asks)
    uint32_t queue_us = 0;
  };
  void Publish(Member& member, Grant grant, const News& news, uint64_t now_ns) const;
  static void Publish(Part& part, Grant grant, const News& news, uint64_t now_ns);
  ShareTerms TermsOf(const std::string& name) const;
  bool IsPaused(const std::string& scope) const { return TermsOf(scope).paused; }

  uint64_t (*const now_)() = MonotonicNs;
  const bool has_thread_ = true;
  mutable std::mutex mutex_;  // of all that follows
  std::condition_variable changed_;
  std::function<ShareTerms(const std::string& scope)> terms_of_;
  std::map<std::string, ShareTerms> terms_;  // of scopes and shares; others have the usual ones
  std::function<TurnTerms(uint64_t device)> turns_ = [](uint64_t) { return TurnTerms{}; };
  std::map<std::string, Scope> scopes_;
  std::map<uint64_t, Gpu> gpus_;
  bool wanted_ = false;  // a look, and one for new cells before it
  bool stop_ = false;
  std::thread thread_;  // from the first Open on
};

}  // namespace causeway::daemon
