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

#include "host_backend/common/json.h"
#include "host_backend/common/shares/share_terms.h"
#include "host_backend/daemon/process/config.h"
#include "host_backend/daemon/shares/arbiter.h"

namespace causeway::daemon {

// What an administrator asks to be changed of a scope's terms. What is empty stays as it is. Every value is in its range.
struct ShareChange {
  std::optional<uint32_t> weight{}, cap_percent{}, reserve_percent{}, pcie_mib_per_s{};
  std::optional<ShareClass> share_class{};

  bool empty() const {
    return !weight && !cap_percent && !reserve_percent && !share_class && !pcie_mib_per_s;
  }
  ShareTerms On(ShareTerms terms) const;
  void Take(const ShareChange& later);  // what it has is in force then
  void Drop(const ShareChange& other);  // what that has is not changed by this any more
  // The keys of the configuration that say the same: `weight = 200`, `class = "latency"`.
  std::string Keys() const;
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
  TurnTerms TurnsOf(uint64_t device) const { return Turns()(device); }
  // The same as of now, for any thread.
  std::function<TurnTerms(uint64_t device)> Turns() const;

  // "" or the sentence why that configuration cannot be in force: its reservations and those of added VMs are too much.
  std::string WhyNot(const Config& next) const;
  // The configuration has changed: what Set and SetTurn have changed is dropped. Who is paused stays paused.
  void Reconfigured();
  // A VM that the control socket has added, or that the configuration has no more while sessions of it live: it keeps
  // the terms of `vm`. Forget: it is served no more.
  void Keep(const VmConfig& vm);
  void Forget(const std::string& vm);
  // The configuration has it again, with the same sessions.
  void Release(const std::string& vm);
  // An added VM was stored with that change, which a reload does not drop any more.
  void Persisted(const VmConfig& vm, const ShareChange& change);

  // The scope that an administrator means by a VM's name, or by a scope's name as `causeway status` shows it ("vm:guest1",
  // "uid:1000", "container:uid:1000", "tcp:10.0.0.5"), whether it has a session or not; else one sentence.
  Result<std::string> ScopeOf(const std::string& name) const;

  // What Set would make of that scope, or one sentence: its reservation is above its cap, or all are too much.
  Result<ShareTerms> Checked(const std::string& scope, const ShareChange& change) const;
  // Each is "" or the sentence why nothing was changed.
  std::string Set(const std::string& scope, const ShareChange& change);
  // `gpu`: a whole UUID.
  std::string SetTurn(const std::string& gpu, double turn_ms);
  std::string Pause(const std::string& scope, bool paused);

  // What Set, SetTurn and Pause have changed, for the next daemon that goes on with the sessions, and how that one takes it over.
  // Null: nothing is changed. Restore leaves out values that are not in their ranges.
  Json State() const;
  void Restore(const Json& state);
  // After Restore, when all is kept (Keep): drops what Set would refuse now, because files were changed meanwhile; the log has a
  // line for each.
  void DropWhatCannotBeKept();

  bool is_set(const std::string& scope) const { return set_.contains(scope); }
  // Every scope that has terms of its own, in order: of the configuration, of Keep, Set and Pause.
  std::vector<std::string> Named() const;
  // Every GPU that the configuration or SetTurn names, as it is named there.
  std::vector<std::string> Gpus() const;

 private:
  const VmConfig* FindVm(const Config& config, const std::string& scope) const;
  ShareTerms ConfiguredIn(const Config& config, const std::string& scope) const;
  ShareTerms Unpaused(const std::string& scope) const;
  const std::vector<std::string>& GpusIn(const Config& config, const std::string& scope) const;
  std::set<std::string> NamedIn(const Config& config) const;
  void Changed() const {
    if (changed_) changed_();
  }

  const Config& config_;
  std::function<void()> changed_;
  std::map<std::string, VmConfig> kept_;    // by scope
  std::map<std::string, ShareChange> set_;  // by scope
  std::set<std::string> paused_;            // scopes
  std::map<std::string, double> turn_ms_;   // of SetTurn, by UUID
};

}  // namespace causeway::daemon
