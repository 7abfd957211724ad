// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "host_backend/command/attach/attach.h"
#include "host_backend/command/attach/control_client.h"
#include "host_backend/command/attach/xen_domain.h"
#include "host_backend/command/libvirt/placed_domain.h"
#include "host_backend/common/control_socket.h"
#include "host_backend/common/plain_name.h"

namespace causeway::command {
namespace {

std::string VmName(const std::string& region) {
  return region.substr(std::string(kRegionPrefix).size());
}

// What causewayd says of the VM; null: it serves none of that name.
Result<Json> ServedVm(const DetachOptions& options, const std::string& name) {
  auto list = AskControl(options.host.control_socket, {{"do", "list"}});
  if (!list.ok()) return Error{list.error()};
  for (const Json& vm : list.value()["vms"]) {
    if (vm.value("name", "") == name) return vm;
  }
  return Json();
}

// Asks the guest, which has to let go of the device, and waits until the running domain has it no more.
std::string Unplug(PlacedDomain& placed, const RegionDevice& device, uint32_t timeout_s) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(timeout_s);
  std::string why;
  bool asked = false;
  do {
    if (!asked) {
      bool for_now = false;
      why = placed.domain.Detach(device.xml, &for_now);
      asked = why.empty();
      if (!asked && !for_now) return why;
    }
    if (!placed.domain.active()) return {};
    const auto xml = placed.domain.Xml(false);
    if (xml.ok()) {
      bool there = false;
      for (const RegionDevice& left : xml.value().Regions()) there = there || left.region == device.region;
      if (!there) return {};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(asked ? 200 : 1000));
  } while (Clock::now() < end);
  return !why.empty() ? why
                      : "The guest of domain " + placed.domain.name() +
                            " did not let go of the region within " + std::to_string(timeout_s) +
                            " s (is it still starting, or paused?); try again, with a longer --timeout, or "
                            "shut it down first.";
}

std::string RemoveFromDaemon(const DetachOptions& options, const std::string& name, bool force) {
  const auto removed =
      AskControl(options.host.control_socket, {{"do", "remove"}, {"name", name}, {"force", force}});
  if (!removed.ok()) return removed.error();
  // A user's own file is the user's to delete. Which one that is does not come from the daemon: it is not to say what root deletes.
  if (removed.value().value("file_left", false) && IsPlainName(name)) {
    const std::string file = RegionFileOf(name);
    if (unlink(file.c_str()) != 0 && errno != ENOENT)
      std::fprintf(stderr, "causeway: the region's file is left; run `rm %s` as its owner.\n", file.c_str());
  }
  return {};
}

Result<std::string> DetachRegion(const DetachOptions& options, const HostLink& link, PlacedDomain& placed,
                                 const std::string& region) {
  const std::string name = VmName(region), domain = placed.domain.name();
  const auto served = ServedVm(options, name);
  if (!served.ok()) return Error{served.error()};
  const Json& vm = served.value();
  const auto live = FindRegion(placed.live, region), next = FindRegion(placed.next, region);
  const uint64_t sessions = vm.is_null() ? 0 : vm.value("sessions", uint64_t{0});
  if (sessions != 0 && !options.force) {
    return Error{"Domain " + domain + " uses its region: " + std::to_string(sessions) +
                 " programs have a session. End them first, or use --force, which ends them."};
  }
  // QEMU leaves its handler of the interrupt's eventfd behind, and calls it when another file gets that number. With KVM there
  // is none, because the kernel takes the interrupt (tests/vm/qemu_unplug.py).
  if (live && !live->doorbell.empty() && placed.live->IsEmulated() && !options.force) {
    return Error{
        "Domain " + domain +
        " runs without KVM and in doorbell mode, and such a QEMU may crash at its next save, snapshot or "
        "plugged-in device once the region was taken away; shut it down first, or use --force and start it "
        "anew soon."};
  }
  Undo undo;
  std::string why;
  if (next) {
    auto changed = DomainXml::Parse(placed.next->Text());
    if (!changed.ok()) return Error{changed.error()};
    changed.value().RemoveRegion(region);
    why = link.Define(changed.value());
    undo.Add([&] { return link.Define(*placed.next); });
  }
  if (why.empty() && live) {
    why = Unplug(placed, *live, options.timeout_s);
    if (why.empty()) undo.Add([&] { return placed.domain.Attach(live->xml); });
  }
  // Nothing uses it any more, so that what is left of its sessions ends as well.
  const bool added = !vm.is_null() && vm.value("added", false);
  if (why.empty() && added) why = RemoveFromDaemon(options, name, true);
  if (!why.empty()) return Error{undo.All(why)};
  std::string done = "Domain " + domain + " has no region any more";
  for (const std::string& other : placed.RegionNames()) {
    if (other != region)
      done = "Domain " + domain + " has the region " + region + " no more, and still " + other;
  }
  return done + (added || vm.is_null() ? "."
                                       : "; causewayd serves VM " + name +
                                             " as its configuration file says, until that is changed.");
}

// `name` is causewayd's of a VM, whose domain has another name, or is not there any more; or it is nothing's.
Result<std::string> DetachByVmName(const DetachOptions& options, const HostLink& link,
                                   const std::string& unknown) {
  const std::string region = kRegionPrefix + options.domain;
  if (const std::string owner = OtherOwner(link, region, ""); !owner.empty()) {
    auto domain = link.Find(owner);
    if (!domain.ok()) return Error{domain.error()};
    auto placed = Place(std::move(domain.value()));
    if (!placed.ok()) return Error{placed.error()};
    return DetachRegion(options, link, placed.value(), region);
  }
  const auto served = ServedVm(options, options.domain);
  if (!served.ok() || served.value().is_null()) return Error{served.ok() ? unknown : served.error()};
  if (const std::string why = RemoveFromDaemon(options, options.domain, options.force); !why.empty())
    return Error{why};
  return "No domain has the region " + region + "; causewayd does not serve it any more.";
}

// `attach` gives a VM one region; others are written by hand.
Result<std::string> ChooseRegion(const DetachOptions& options, const PlacedDomain& placed) {
  const auto regions = placed.RegionNames();
  std::string names;
  for (const std::string& region : regions) {
    if (regions.size() == 1 || region == kRegionPrefix + options.domain) return region;
    names += (names.empty() ? "" : " and ") + region;
  }
  return Error{"Domain " + placed.domain.name() + " has the regions " + names +
               "; name one of them, as causewayd does: `causeway detach " + VmName(regions[0]) + "`."};
}

Result<std::string> Detach(const DetachOptions& options) {
  auto link = HostLink::Open(options.host.connect);
  if (!link.ok()) return Error{link.error()};
  auto domain = link.value().Find(options.domain);
  if (!domain.ok()) return DetachByVmName(options, link.value(), domain.error());
  auto placed = Place(std::move(domain.value()));
  if (!placed.ok()) return Error{placed.error()};
  if (placed.value().RegionNames().empty())
    return DetachByVmName(options, link.value(),
                          "Domain " + placed.value().domain.name() + " has no region.");
  const auto region = ChooseRegion(options, placed.value());
  if (!region.ok()) return Error{region.error()};
  return DetachRegion(options, link.value(), placed.value(), region.value());
}

}  // namespace

int RunDetach(const DetachOptions& options) {
  const auto done = IsXenHost(options.host) ? DetachXenDomain(options) : Detach(options);
  std::fprintf(done.ok() ? stdout : stderr, "%s%s\n",
               done.ok() ? "" : "causeway: ", (done.ok() ? done.value() : done.error()).c_str());
  return done.ok() ? 0 : 1;
}

}  // namespace causeway::command
