// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/control/vm_set.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <utility>

#include "host_backend/common/control_socket.h"
#include "host_backend/daemon/control/known_gpus.h"
#include "host_backend/daemon/region/region_file.h"
#include "host_backend/daemon/xen/granted_region.h"

namespace causeway::daemon {
namespace {

constexpr size_t kMaxAdded = 128;

bool SameOwner(const VmConfig& one, const VmConfig& other) {
  return one.region_file == other.region_file && one.xen_domain == other.xen_domain &&
         one.region_mib == other.region_mib && one.region_group == other.region_group &&
         one.region_user == other.region_user;
}

bool SameRegion(const VmConfig& one, const VmConfig& other) {
  return SameOwner(one, other) && one.share.gpus == other.share.gpus;
}

// Pages of a region come from its file system when they are first used; a VM would die when there are none left.
std::string WhyTooLarge(const VmConfig& vm) {
  struct statvfs room {};
  if (statvfs(kRegionFolder, &room) != 0)
    return std::string(kRegionFolder) + " cannot be examined: " + ErrnoText() + ".";
  const uint64_t all = room.f_blocks * room.f_frsize / kMib, free = room.f_bavail * room.f_frsize / kMib;
  if (vm.region_mib <= free) return {};
  return "A region of " + std::to_string(vm.region_mib) + " MiB does not fit into " + kRegionFolder +
         ", which has " + std::to_string(free) + " MiB free of " + std::to_string(all) +
         " MiB; choose a smaller --memory, or run `mount -o remount,size=SIZE " + kRegionFolder + "`.";
}

}  // namespace

VmSet::VmSet(Services& services) : services_(services), store_(services.config.state_folder) {
  std::vector<std::string> problems;
  added_before_ = store_.Load(problems);
  for (const std::string& problem : problems) LogError(problem);
}

VmSet::~VmSet() = default;

std::vector<gid_t> VmSet::Groups() {
  std::vector<std::string> names = services_.config.attach_groups;
  for (const VmConfig& vm : services_.config.vms) names.push_back(vm.region_group);
  for (const VmConfig& vm : added_before_) names.push_back(vm.region_group);
  std::vector<gid_t> groups;
  for (const std::string& name : names) {
    // One that does not exist is told of where it is used.
    if (const auto group = GroupId(name, "region_group"); !name.empty() && group.ok())
      groups.push_back(group.value());
  }
  groups_ = groups;
  return groups;
}

std::string VmSet::Start() {
  for (const VmConfig& vm : services_.config.vms) {
    auto server = VmServer::Start(services_, vm);
    if (!server.ok()) return server.error();
    vms_[vm.name] = {std::move(server.value())};
  }
  for (VmConfig& vm : added_before_) {
    if (vms_.count(vm.name) != 0) {
      LogError("VM " + vm.name +
               " is in the configuration and was added by `causeway attach` as well; what was added is "
               "left out");
      continue;
    }
    vm.guaranteed_sessions = GuaranteeFor(services_.config, Configs(), vm.max_sessions);
    services_.share_settings.Keep(vm);
    auto server = VmServer::Start(services_, vm);
    if (!server.ok()) LogError(server.error());
    vms_[vm.name] = {
        server.ok() ? std::move(server.value()) : VmServer::StartWithout(services_, vm, server.error()),
        true};
  }
  return {};
}

bool VmSet::quiet() const {
  return std::none_of(vms_.begin(), vms_.end(), [](const auto& vm) { return vm.second.busy; });
}

void VmSet::Stop() {
  for (auto& [name, vm] : vms_) vm.server->Stop();
}

// Where the region or who has it differs, the VM that was is another one than the VM that is wanted.
std::vector<std::string> VmSet::Apply() {
  std::vector<std::string> told;
  const auto& wanted = services_.config.vms;
  const auto find = [&](const std::string& name) {
    return std::find_if(wanted.begin(), wanted.end(), [&](const VmConfig& vm) { return vm.name == name; });
  };
  std::vector<std::string> names;
  for (const auto& [name, vm] : vms_) {
    if (!vm.added) names.push_back(name);
  }
  for (const std::string& name : names) {
    const auto found = find(name);
    VmServer& server = *vms_[name].server;
    if (found == wanted.end()) {
      told.push_back(Leave(name, "was taken out of the configuration of causewayd"));
    } else if (!SameOwner(server.config(), *found)) {
      told.push_back(Leave(name, "has another region in the configuration of causewayd"));
    } else {
      if (std::exchange(vms_[name].leaving, false)) services_.share_settings.Release(name);
      server.SetLimits(*found);
    }
  }
  for (const VmConfig& vm : wanted) AddConfigured(vm, &told);
  ShareOutToAdded();
  return told;
}

void VmSet::AddConfigured(const VmConfig& vm, std::vector<std::string>* told) {
  if (const auto found = vms_.find(vm.name); found != vms_.end()) {
    if (found->second.added) {
      told->push_back("VM " + vm.name +
                      " was added by `causeway attach` and stays so; run `causeway detach " + vm.name +
                      "` first.");
    }
    return;
  }
  const auto group = GroupId(vm.region_group, "region_group");
  if (!vm.region_group.empty() &&
      (!group.ok() || std::find(groups_.begin(), groups_.end(), group.value()) == groups_.end())) {
    told->push_back("VM " + vm.name + " is served when causewayd is stopped and started: the group " +
                    vm.region_group + " was in no `region_group` or `attach_groups` when it started.");
    return;
  }
  auto server = VmServer::Add(services_, vm);
  told->push_back(server.ok() ? "VM " + vm.name + " is served from now on." : server.error());
  vms_[vm.name] = {server.ok() ? std::move(server.value())
                               : VmServer::StartWithout(services_, vm, server.error())};
}

// The sentence that says so.
std::string VmSet::Leave(const std::string& name, const std::string& why) {
  Vm& vm = vms_[name];
  const uint32_t sessions = vm.server->session_count();
  vm.leaving = true;
  // Its sessions have what they had, but for what was kept for them.
  VmConfig kept = vm.server->config();
  kept.share.terms.reserve_percent = 0;
  services_.share_settings.Keep(kept);
  vm.server->Close("VM " + name + " " + why + ": no program of it can start using the GPU.");
  vm.server->WhenIdle([this, name] { OnIdle(name); });
  return "VM " + name + " " + why + "; " +
         (sessions == 0 ? "it is served no more."
                        : "its " + std::to_string(sessions) +
                              " sessions go on, and it is served until they have ended.");
}

// The region's file stays: its VM may have it mapped, and the configuration may name it again.
void VmSet::OnIdle(const std::string& name) {
  const auto found = vms_.find(name);
  if (found == vms_.end() || !found->second.leaving || found->second.busy) return;
  found->second.busy = true;
  found->second.server->Remove([this, name] {
    const VmConfig gone = vms_[name].server->config();
    services_.scopes.ForgetVm(gone);
    services_.share_settings.Forget(name);
    vms_.erase(name);
    LogInfo("VM " + name + " is served no more; its region " + gone.region_file +
            " stays until it is deleted");
    std::vector<std::string> told;
    for (const VmConfig& vm : services_.config.vms) {
      if (vm.name == name) AddConfigured(vm, &told);
    }
    for (const std::string& line : told) LogInfo(line);
  });
}

// The configured ones come first.
void VmSet::ShareOutToAdded() {
  for (auto& [name, vm] : vms_) {
    if (!vm.added) continue;
    VmConfig config = vm.server->config();
    config.guaranteed_sessions = 0;
    vm.server->SetLimits(config);
    config.guaranteed_sessions = GuaranteeFor(services_.config, Configs(), config.max_sessions);
    vm.server->SetLimits(config);
  }
}

bool VmSet::Drain(const std::string& name, bool undo) {
  const auto found = vms_.find(name);
  if (found == vms_.end()) return false;
  if (!found->second.leaving) {
    found->second.server->Close(
        undo ? ""
             : "VM " + name +
                   " is being drained: no program of it can start using the GPU until the "
                   "host's administrator runs `causeway drain --undo`.");
  }
  return true;
}

bool VmSet::IsAdded(const std::string& name) const {
  const auto found = vms_.find(name);
  return found != vms_.end() && found->second.added;
}

void VmSet::Persist(const std::string& name, const ShareChange& change,
                    const std::function<void(const std::string&)>& done) {
  Vm& vm = vms_[name];
  if (vm.busy) return done("VM " + name + " is being added or removed; try again.");
  VmConfig config = vm.server->config();
  ShareTerms& terms = config.share.terms;
  terms = change.On(terms);
  if (terms.reserve_percent > terms.cap_percent) {
    return done("VM " + name + " would be stored with a reserve of " + std::to_string(terms.reserve_percent) +
                " % above its stored cap of " + std::to_string(terms.cap_percent) + " %; store both.");
  }
  vm.busy = true;
  const auto problem = std::make_shared<std::string>();
  if (!aside_) aside_ = std::make_unique<Aside>(services_.loop);
  aside_->Do([this, config, problem] { *problem = store_.Save(config); },
             [this, config, change, problem, done] {
               Vm& stored = vms_[config.name];
               stored.busy = false;
               if (problem->empty()) {
                 stored.server->SetTerms(config.share.terms);
                 services_.share_settings.Persisted(config, change);
               }
               done(*problem);
             });
}

uint32_t VmSet::SessionsOf(const std::string& name) const {
  const auto found = vms_.find(name);
  return found == vms_.end() ? 0 : found->second.server->session_count();
}

std::vector<VmConfig> VmSet::Configs() const {
  std::vector<VmConfig> configs;
  for (const auto& [name, vm] : vms_) configs.push_back(vm.server->config());
  return configs;
}

void VmSet::Handle(const ControlRequest& request, const LocalPeer& peer, Answer answer) {
  switch (request.what) {
    case ControlRequest::What::kAdd:
      return Add(request, peer, answer);
    case ControlRequest::What::kRemove:
      return Remove(request, peer, answer);
    case ControlRequest::What::kList:
      return answer(List());
    default:  // the daemon's own
      return;
  }
}

// Why a VM of that configuration is not added; empty: it may be.
std::string VmSet::WhyNot(const VmConfig& vm, const LocalPeer& peer) const {
  const Config& config = services_.config;
  const auto& groups = config.attach_groups;
  if (!vm.region_group.empty() && std::find(groups.begin(), groups.end(), vm.region_group) == groups.end()) {
    return "QEMU runs as group " + vm.region_group +
           ", to which causewayd gives no region; add that group to attach_groups in its configuration and "
           "restart it.";
  }
  const bool for_itself = vm.region_user == 0 || peer.uid == 0 || peer.uid == vm.region_user;
  if (!for_itself) return "Only root gives a region to another user than itself.";
  for (const auto& [name, other] : vms_) {
    if (PlaceOf(other.server->config()) == PlaceOf(vm))
      return "VM " + name + " has the region " + PlaceOf(vm) + "; regions are never shared.";
  }
  if (vms_.size() >= config.vms.size() + kMaxAdded)
    return "There are " + std::to_string(kMaxAdded) + " added VMs, as many as there may be; remove one.";
  return vm.xen_domain.empty() ? WhyTooLarge(vm) : "";
}

void VmSet::Add(const ControlRequest& request, const LocalPeer& peer, const Answer& answer) {
  VmConfig vm = AddedVm(request, services_.config.socket);
  Json done = {{"ok", true}, {"file", PlaceOf(vm)}, {"added", true}, {"doorbell", vm.doorbell_socket}};
  if (const auto found = vms_.find(vm.name); found != vms_.end()) {
    if (found->second.busy)
      return answer(Refused("VM " + vm.name + " is being added or removed; try again."));
    if (!SameRegion(found->second.server->config(), vm)) {
      return answer(
          Refused("causewayd serves VM " + vm.name +
                  " already, with another size, owner or GPUs; see `causeway list`, and detach it first."));
    }
    // A Xen domain that does not run has none yet.
    if (const std::string& problem = found->second.server->problem();
        !problem.empty() && vm.xen_domain.empty())
      return answer(Refused("VM " + vm.name + " has no region: " + problem + "."));
    done["added"] = false;
    // A VM that is served by doorbell is served without as well, where its XML says so (VmServer).
    const std::string& doorbell = found->second.server->config().doorbell_socket;
    if (request.doorbell && doorbell.empty())
      return answer(Refused("causewayd serves VM " + vm.name +
                            " in plain mode; detach it first, or leave --doorbell out."));
    if (request.doorbell) done["doorbell"] = doorbell;
    return answer(done);
  }
  if (const std::string why = WhyNot(vm, peer); !why.empty()) return answer(Refused(why));
  const GpuAnswer gpus = LookUpGpus(vm.share.gpus, services_.pool.devices());
  if (!gpus.refusal.empty()) return answer(Refused(gpus.refusal));
  if (!gpus.note.empty()) done["note"] = gpus.note;
  vm.guaranteed_sessions = GuaranteeFor(services_.config, Configs(), vm.max_sessions);
  auto server = VmServer::Add(services_, vm);
  if (!server.ok()) return answer(Refused(server.error()));
  services_.share_settings.Keep(vm);
  vms_[vm.name] = {std::move(server.value()), true, true};
  if (!aside_) aside_ = std::make_unique<Aside>(services_.loop);
  const auto problem = std::make_shared<std::string>();
  aside_->Do([this, vm, problem] { *problem = store_.Save(vm); },
             [this, vm, problem, answer, done, uid = peer.uid] {
               if (!problem->empty())
                 return Drop(vm.name, [problem, answer](bool) { answer(Refused(*problem)); });
               vms_[vm.name].server->WhenGranted([this, vm, answer, done, uid](const std::string& why) {
                 // A domain that does not run gets its memory when it does.
                 if (!why.empty() && !GrantedRegion::IsAwaited(vm)) return TakeBack(vm.name, why, answer);
                 vms_[vm.name].busy = false;
                 LogInfo("VM " + vm.name + " was added by user " + std::to_string(uid));
                 answer(done);
               });
             });
}

// It was added and stored, but its memory cannot be had.
void VmSet::TakeBack(const std::string& name, const std::string& why, const Answer& answer) {
  aside_->Do([this, name] { store_.Delete(name); },
             [this, name, why, answer] { Drop(name, [why, answer](bool) { answer(Refused(why)); }); });
}

// Ends its sessions and deletes its region.
void VmSet::Drop(const std::string& name, const std::function<void(bool file_left)>& done) {
  Vm& vm = vms_[name];
  vm.busy = true;
  vm.server->Remove([this, name, done] {
    const Vm& gone = vms_[name];
    const bool file_left = !gone.server->DeleteFile();
    services_.scopes.ForgetVm(gone.server->config());
    services_.share_settings.Forget(name);
    vms_.erase(name);
    done(file_left);
  });
}

void VmSet::Remove(const ControlRequest& request, const LocalPeer& peer, const Answer& answer) {
  const std::string& name = request.name;
  const auto found = vms_.find(name);
  if (found == vms_.end())
    return answer(Refused("causewayd serves no VM " + name + "; see `causeway list`."));
  Vm& vm = found->second;
  if (!vm.added) {
    return answer(Refused(
        "VM " + name +
        " is in causewayd's configuration file; delete its [[vm]] table there and run `causeway reload`."));
  }
  if (vm.busy) return answer(Refused("VM " + name + " is being added or removed; try again."));
  const VmConfig& config = vm.server->config();
  if (config.region_user != 0 && peer.uid != 0 && peer.uid != config.region_user)
    return answer(Refused("VM " + name + " is another user's; only that user and root remove it."));
  if (const uint32_t sessions = vm.server->session_count(); sessions != 0 && !request.force) {
    return answer(Refused("VM " + name + " has " + std::to_string(sessions) +
                          " sessions; end its programs first, or use --force, which ends them."));
  }
  vm.busy = true;
  const auto problem = std::make_shared<std::string>();
  if (!aside_) aside_ = std::make_unique<Aside>(services_.loop);
  aside_->Do([this, name, problem] { *problem = store_.Delete(name); },
             [this, name, file = PlaceOf(config), problem, answer, uid = peer.uid] {
               if (!problem->empty()) {
                 vms_[name].busy = false;
                 return answer(Refused(*problem));
               }
               LogInfo("VM " + name + " was removed by user " + std::to_string(uid));
               Drop(name, [file, answer](bool file_left) {
                 answer({{"ok", true}, {"file", file}, {"file_left", file_left}});
               });
             });
}

Json VmSet::List() const {
  Json list = Json::array();
  for (const auto& [name, vm] : vms_) {
    const VmConfig& config = vm.server->config();
    list.push_back({{"name", name},
                    {"file", PlaceOf(config)},
                    {"xen_domain", config.xen_domain},
                    {"granted", !config.xen_domain.empty() && vm.server->has_region()},
                    {"memory_mib", config.region_mib},
                    {"group", config.region_group},
                    {"user", config.region_user},
                    {"gpus", config.share.gpus},
                    {"sessions", vm.server->session_count()},
                    {"problem", vm.server->problem()},
                    {"added", vm.added},
                    {"doorbell", config.doorbell_socket},
                    {"polled", vm.server->is_polled()}});
  }
  return {{"ok", true}, {"vms", list}};
}

void VmSet::AppendStatus(std::vector<SessionStatus>& sessions, std::vector<RegionStatus>& regions) const {
  for (const auto& [name, vm] : vms_) vm.server->AppendStatus(sessions, regions);
}

}  // namespace causeway::daemon
