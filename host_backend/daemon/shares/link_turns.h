// SPDX-License-Identifier: Apache-2.0
// Both directions of one GPU's link: what workers say of their copies, added up for each share, and what they are granted.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "host_backend/common/shares/link_words.h"
#include "host_backend/daemon/shares/link_arbiter.h"
#include "host_backend/daemon/shares/looking.h"

namespace causeway::daemon {

// Of one GPU. Not for several threads. Words and grants outlive their Close.
class LinkTurns {
 public:
  using Bytes = std::array<uint64_t, kLinkDirections>;

  // A worker of the scope, which belongs to the share. `worker` is the caller's number for it. All of a scope have one grant.
  // `before`: what the worker had copied when its session began, or was taken over.
  void Open(const std::string& share, const std::string& scope, uint32_t worker, const ShareTerms& terms,
            const LinkWords& words, const Bytes& before, LinkGrantWords& grant);
  // What the share owes outlives its last worker.
  void Close(const std::string& share, const std::string& scope, uint32_t worker, uint64_t now_ns);
  // Forgets shares that have no worker and owe nothing any more.
  void Forget(uint64_t now_ns);
  bool empty() const { return members_.empty(); }
  void Set(const std::string& share, const ShareTerms& terms);

  // Nothing of a scope that is paused is copied, whatever its share may.
  NextLook Look(uint64_t now_ns, const std::function<bool(const std::string& scope)>& is_paused);
  // Of a share that has a worker.
  LinkFigures FiguresOf(const std::string& share, uint32_t direction) const;

 private:
  struct Worker {
    const LinkWords* words;
    LinkGrantWords* grant;
    Bytes before;

    uint64_t Copied(uint32_t direction) const;
  };
  struct Member {
    std::array<size_t, kLinkDirections> vm{};                    // the arbiters' numbers
    std::map<std::pair<std::string, uint32_t>, Worker> workers;  // by scope and number
    Bytes ended{};                                               // what workers that have ended had copied
    uint64_t left_ns = 0;                                        // since when it has no worker
  };
  using IsPaused = std::function<bool(const std::string& scope)>;
  static LinkDemand DemandOf(const Member& member, uint32_t direction, const IsPaused& is_paused);
  static void Publish(const Worker& worker, uint32_t direction, LinkGrant grant, uint32_t window_kib,
                      OtherCopies others);

  std::array<LinkArbiter, kLinkDirections> arbiters_;
  std::map<std::string, Member> members_;  // by share
};

}  // namespace causeway::daemon
