// SPDX-License-Identifier: Apache-2.0
// What each scope is to have of the GPUs' time, from three places: the configuration, what `causeway set` has changed since
// it was read, and who is paused. The daemon's thread calls all functions; none of them waits.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "host_backend/common/shares/share_terms.h"
#include "host_backend/daemon/process/config.h"
#include "host_backend/daemon/shares/arbiter.h"

namespace causeway::daemon {

// What an administrator asks to be changed of a scope's terms. What is empty stays as it is. Every value is in its range.
struct ShareChange {
  std::optional<uint32_t> weight, cap_percent, reserve_percent;
  std::optional<ShareClass> share_class;

  bool empty() const { return !weight && !cap_percent && !reserve_percent && !share_class; }
  ShareTerms On(ShareTerms terms) const;
};

class ShareSettings {
 public:
  // `config` outlives this, and is the one that a reload assigns to.
  explicit ShareSettings(const Config& config) : config_(config) {}

  // `changed` is called whenever an answer of TermsOf or TurnsOf may have changed, within the call that has changed it. The
  // callee asks again for the scopes and GPUs that it knows.
  void OnChange(std::function<void()> changed) { changed_ = std::move(changed); }

  // Of a scope that has a session or may get one; of one that nobody has named, the terms are those of its kind.
  ShareTerms TermsOf(const std::string& scope) const;
  // `device`: DeviceHash of a GPU's UUID (account_page.h).
  TurnTerms TurnsOf(uint64_t device) const;

  // The configuration has changed: what Set and SetTurn have changed is dropped. Who is paused stays paused.
  void Reconfigured();
  // A VM that the control socket has added, with the terms that it was stored with. Forget: it is removed.
  void Keep(const VmConfig& vm);
  void Forget(const std::string& vm);

  // Whether there is such a scope: a VM that is configured or was added, a user's number, a container's user, or a peer's
  // numeric address. `name` is what an administrator writes ("guest1", "vm:guest1", "uid:1000"); the result is the scope's
  // name, or one sentence.
  Result<std::string> ScopeOf(const std::string& name) const;

  // Each of the following is "" or the sentence why nothing was changed.
  std::string Set(const std::string& scope, const ShareChange& change);
  std::string Pause(const std::string& scope, bool paused);
  // `gpu`: a UUID as nvidia-smi -L shows it.
  std::string SetTurn(const std::string& gpu, double turn_ms);

  // What Set would make of that scope, checked against the reservations of the others.
  Result<ShareTerms> Checked(const std::string& scope, const ShareChange& change) const;
  bool is_set(const std::string& scope) const { return set_.contains(scope); }
  bool is_paused(const std::string& scope) const { return paused_.contains(scope); }
  // Every scope that has terms of its own, by name: of the configuration, of Keep, Set and Pause.
  std::vector<std::string> Named() const;

 private:
  const Config& config_;
  std::function<void()> changed_;
  std::map<std::string, VmConfig> added_;   // by scope
  std::map<std::string, ShareChange> set_;  // by scope
  std::set<std::string> paused_;            // scopes
  std::map<uint64_t, double> turns_;        // by device, in ms
};

}  // namespace causeway::daemon
