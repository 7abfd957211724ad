// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/attach/attach.h"

#include <unistd.h>

#include <bit>
#include <cstdio>

#include "host_backend/command/attach/control_client.h"
#include "host_backend/command/attach/host_checks.h"
#include "host_backend/command/attach/xen_domain.h"
#include "host_backend/command/libvirt/placed_domain.h"
#include "host_backend/common/control_socket.h"

namespace causeway::command {
namespace {

constexpr uint64_t kDefaultMib = 1024;

// One attachment from its checks to its end.
class Attachment {
 public:
  Attachment(const AttachOptions& options, HostLink link, PlacedDomain domain)
      : options_(options), link_(std::move(link)), domain_(std::move(domain)) {}

  // The sentence that says what was done, or why nothing was.
  Result<std::string> Run();

 private:
  std::string Check();
  std::string CheckMachine();
  std::string CheckSecurity(const std::string& capabilities) const;
  std::string AddToDaemon();
  std::string ChangeNextStart();
  std::string PlugIn();
  std::string Done() const;
  std::string WhyOtherRegion(const RegionDevice& device) const;
  void ChooseMode(const RegionDevice* had);
  uint64_t MibInForce(const RegionDevice* had) const;

  const AttachOptions& options_;
  const HostLink link_;
  PlacedDomain domain_;
  std::string region_;  // the file's name in /dev/shm
  std::string file_;
  uint64_t mib_ = 0;
  std::optional<QemuUser> qemu_;
  bool wants_doorbell_ = false;
  bool chosen_ = false;   // the user has said nothing of the mode, and there was none
  std::string doorbell_;  // the socket where causewayd gives the region to QEMU; empty: plain mode
  std::string note_;      // what causewayd could not look up
  bool change_next_ = false;
  bool plug_in_ = false;
  std::optional<uint32_t> live_port_;  // of a running q35 machine
  Undo undo_;
};

std::string Attachment::WhyOtherRegion(const RegionDevice& device) const {
  const std::string who = "Domain " + domain_.domain.name() + " has the region " + region_;
  if (!device.usable)
    return who +
           ", but not as ivshmem-plain, or ivshmem-doorbell with a server, with role='peer'; detach it, and "
           "attach it "
           "again.";
  if (device.doorbell.empty() == wants_doorbell_) {
    return who + " in " + (wants_doorbell_ ? "plain" : "doorbell") + " mode; detach it first, or leave --" +
           (wants_doorbell_ ? "doorbell" : "plain") + " out.";
  }
  if (wants_doorbell_) return {};  // causewayd knows the size
  if (device.mib != mib_) {
    return who + " with " + std::to_string(device.mib) + " MiB in its XML, not " + std::to_string(mib_) +
           "; detach it first, or attach it with --memory " + std::to_string(device.mib) + "M.";
  }
  return {};
}

// A VM that runs gets its region without a server's help: nothing but the file has to be right then, and AppArmor's rule for
// files is there. One that starts later is woken by interrupts.
void Attachment::ChooseMode(const RegionDevice* had) {
  if (options_.mode != RegionMode::kChoose) {
    wants_doorbell_ = options_.mode == RegionMode::kDoorbell;
  } else if (had != nullptr) {
    wants_doorbell_ = !had->doorbell.empty();
  } else {
    chosen_ = true;
    wants_doorbell_ = !domain_.live || options_.config;
  }
}

// As the domain's XML says, or causewayd where that does not.
uint64_t Attachment::MibInForce(const RegionDevice* had) const {
  if (had == nullptr) return kDefaultMib;
  if (had->mib != 0) return had->mib;
  const auto list = AskControl(options_.host.control_socket, {{"do", "list"}});
  if (list.ok()) {
    for (const Json& vm : list.value()["vms"]) {
      if (vm.value("file", "") == kRegionFolder + region_) return vm.value("memory_mib", kDefaultMib);
    }
  }
  return kDefaultMib;
}

// Region, size, mode and what is left to do. Empty, or a sentence.
std::string Attachment::Check() {
  const auto names = domain_.RegionNames();
  const std::string own = domain_.domain.name() + (link_.session() ? "-u" + std::to_string(getuid()) : "");
  region_ = kRegionPrefix + (options_.name.empty() ? own : options_.name);
  if (options_.name.empty() && !names.empty()) region_ = names[0];
  if (!names.empty() && names[0] != region_) {
    return "Domain " + domain_.domain.name() + " has the region " + names[0] +
           " already; a VM has one region. Detach it first, or leave --name out.";
  }
  const auto next = FindRegion(domain_.next, region_), live = FindRegion(domain_.live, region_);
  const RegionDevice* had = next ? &*next : live ? &*live : nullptr;
  mib_ = options_.memory_bytes != 0 ? options_.memory_bytes / kMib : MibInForce(had);
  if (options_.memory_bytes % kMib != 0 || !std::has_single_bit(mib_)) {
    return "The region's size must be a power of two, in MiB or GiB, and is " +
           std::to_string(options_.memory_bytes) + " bytes; correct --memory, for example to 1G.";
  }
  ChooseMode(had);
  for (const auto& device : {next, live}) {
    if (!device) continue;
    if (const std::string why = WhyOtherRegion(*device); !why.empty()) return why;
  }
  if (const std::string other = OtherOwner(link_, region_, domain_.domain.name()); !other.empty()) {
    return "Domain " + other + " has the region " + region_ +
           "; two VMs with one region could read each other's data. Choose another by --name.";
  }
  change_next_ = domain_.next && !next;
  plug_in_ = domain_.live && !live && !options_.config;
  if (options_.config && !domain_.next)
    return "Domain " + domain_.domain.name() +
           " is transient, so that there is no next start; leave --config out.";
  return CheckMachine();
}

std::string Attachment::CheckMachine() {
  const DomainXml& xml = domain_.any();
  const bool known = xml.IsPc() || xml.IsQ35();
  if (xml.Arch() != "x86_64" || !known) {
    return "Domain " + xml.Name() + " is a machine " + xml.Machine() + " of " + xml.Arch() +
           "; regions can be plugged into machines pc and q35 of x86_64.";
  }
  if (plug_in_ && xml.IsPc() && !domain_.live->HasFreeSlot()) {
    return "The running domain " + xml.Name() +
           " has no free slot on its first PCI bus, and behind a bridge its guest could not use the region; "
           "unplug another "
           "device, or run `causeway attach " +
           options_.domain + " --config`, then shut it down and start it.";
  }
  if (!plug_in_ || !xml.IsQ35()) return {};
  live_port_ = domain_.live->FreePort(PortReserveBytes(mib_));
  if (live_port_) return {};
  return "The running domain " + xml.Name() +
         " is a q35 machine without a free root port that has room for " + std::to_string(mib_) +
         " MiB (pref64-reserve), which only a start can give it; run `causeway attach " + options_.domain +
         " --config`, then shut it down and start it.";
}

std::string Attachment::CheckSecurity(const std::string& capabilities) const {
  if (plug_in_ && HasSecurityModel(capabilities, "apparmor")) {
    const std::string profile = domain_.live->AppArmorProfile();
    const std::string path = wants_doorbell_ ? doorbell_ : file_;
    const std::string why = profile.empty() ? "" : WhyAppArmorRefuses(path, profile, {});
    if (!why.empty()) return why;
  }
  if (qemu_) {
    if (const std::string why = WhyNotUsable(file_, mib_ * kMib, *qemu_); !why.empty()) return why;
  }
  if (!HasSecurityModel(capabilities, "selinux")) return {};
  const std::string why = WhySelinuxRefuses(file_, SelinuxLabelOf(file_));
  // Before the next start there is time to do what it says.
  if (!plug_in_ && !why.empty()) std::fprintf(stderr, "causeway: %s\n", why.c_str());
  return plug_in_ && !why.empty() ? why + " Attach it by --config first, so that the file is there." : "";
}

std::string Attachment::AddToDaemon() {
  Json request = {
      {"do", "add"}, {"name", region_.substr(std::string(kRegionPrefix).size())}, {"memory_mib", mib_}};
  if (link_.session()) {
    if (getuid() != 0) request["user"] = getuid();
  } else if (qemu_ && qemu_->gid != 0) {
    const std::string group = GroupName(qemu_->gid);
    if (group.empty())
      return "QEMU runs as group " + std::to_string(qemu_->gid) + ", which has no name on this host.";
    request["group"] = group;
  }
  if (!options_.gpus.empty()) request["gpus"] = options_.gpus;
  if (wants_doorbell_) request["doorbell"] = true;
  const auto answer = AskControl(options_.host.control_socket, request);
  if (!answer.ok()) return answer.error();
  if (wants_doorbell_) doorbell_ = answer.value().value("doorbell", "");
  note_ = NoteOf(answer.value());
  if (!answer.value().value("added", false)) return {};
  undo_.Add([this, name = request["name"]]() -> std::string {
    const auto removed =
        AskControl(options_.host.control_socket, {{"do", "remove"}, {"name", name}, {"force", true}});
    if (!removed.ok()) return removed.error();
    if (removed.value().value("file_left", false)) unlink(file_.c_str());
    return {};
  });
  return {};
}

// Of a q35 machine the port is prepared, so that the region can be plugged out and in again while it runs.
std::string Attachment::ChangeNextStart() {
  auto changed = DomainXml::Parse(domain_.next->Text());
  if (!changed.ok()) return changed.error();
  std::optional<uint32_t> bus;
  if (changed.value().IsQ35()) {
    const uint64_t reserve = PortReserveBytes(mib_);
    bus = changed.value().FreePort(reserve);
    if (!bus) bus = changed.value().AddPort(reserve);
  }
  changed.value().AddDevice(ShmemXml(region_, mib_, doorbell_, bus));
  if (const std::string why = link_.Define(changed.value()); !why.empty()) return why;
  undo_.Add([this] { return link_.Define(*domain_.next); });
  return {};
}

std::string Attachment::PlugIn() {
  const std::string why = domain_.domain.Attach(ShmemXml(region_, mib_, doorbell_, live_port_));
  const std::string profile = domain_.live->AppArmorProfile();
  if (profile.empty() || why.find("Permission denied") == std::string::npos) return why;
  return why + " AppArmor's rule is newer than the running VM; run " + AppArmorReload(profile) +
         " and attach it again.";
}

std::string Attachment::Done() const {
  const std::string name = domain_.domain.name();
  const std::string what = "region " + file_ + " of " + std::to_string(mib_) + " MiB, in " +
                           (wants_doorbell_ ? "doorbell" : "plain") + " mode,";
  const std::string why =
      !chosen_ ? ""
      : wants_doorbell_
          ? " A call after idle time is answered at once. causewayd must run whenever the VM "
            "starts, or QEMU refuses to start it; where that cannot be, choose --plain."
          : " A VM that runs gets it without a server; for quicker calls after idle time detach "
            "it, and attach it by --doorbell.";
  if (!change_next_ && !plug_in_) return "Domain " + name + " has its " + what + " already.";
  if (plug_in_ && domain_.next)
    return "Domain " + name + " has its " + what + " now and from its next start on." + why;
  if (plug_in_) return "Domain " + name + " has its " + what + " until it ends: it is transient." + why;
  if (domain_.live) return "Domain " + name + " will have its " + what + " from its next start on." + why;
  return "Domain " + name + " has its " + what + " when it starts." + why;
}

Result<std::string> Attachment::Run() {
  if (std::string why = Check(); !why.empty()) return Error{why};
  file_ = kRegionFolder + region_;
  const std::string capabilities = link_.Capabilities();
  std::string label = domain_.any().DacLabel();
  if (label.empty() && !link_.session()) label = BaseDacLabel(capabilities, "qemu");
  qemu_ = link_.session() ? QemuUser{getuid(), getgid()} : ParseDacLabel(label);
  std::string why = AddToDaemon();
  if (why.empty()) why = CheckSecurity(capabilities);
  if (why.empty() && change_next_) why = ChangeNextStart();
  if (why.empty() && plug_in_) why = PlugIn();
  if (!why.empty()) return Error{undo_.All(why)};
  undo_.Keep();
  return Done() + note_;
}

Result<std::string> Attach(const AttachOptions& options) {
  auto link = HostLink::Open(options.host.connect);
  if (!link.ok()) return Error{link.error()};
  auto domain = link.value().Find(options.domain);
  if (!domain.ok()) return Error{domain.error()};
  auto placed = Place(std::move(domain.value()));
  if (!placed.ok()) return Error{placed.error()};
  return Attachment(options, std::move(link.value()), std::move(placed.value())).Run();
}

}  // namespace

int RunAttach(const AttachOptions& options) {
  const auto done = IsXenHost(options.host) ? AttachXenDomain(options) : Attach(options);
  std::fprintf(done.ok() ? stdout : stderr, "%s%s\n",
               done.ok() ? "" : "causeway: ", (done.ok() ? done.value() : done.error()).c_str());
  return done.ok() ? 0 : 1;
}

int RunXml(const XmlOptions& options) {
  if (!std::has_single_bit(options.memory_mib)) {
    std::fprintf(stderr,
                 "causeway: The region's size must be a power of two, in MiB or GiB; correct --memory.\n");
    return 1;
  }
  std::fputs(SnippetText(options).c_str(), stdout);
  return 0;
}

}  // namespace causeway::command
