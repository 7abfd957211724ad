// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/xen/granted_region.h"

#include <fcntl.h>

#include <chrono>
#include <thread>

#include "host_backend/daemon/process/log.h"
#include "host_backend/daemon/xen/grant_memory.h"
#include "host_backend/daemon/xen/xen_values.h"

namespace causeway::daemon {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLook{100};
constexpr std::chrono::seconds kPatience{3};

std::string TextOf(XenbusState state) {
  return std::to_string(int(state));
}

// What is left of a region that was taken away from a domain that lives. The descriptor keeps the pages.
struct Leaving {
  std::unique_ptr<XenStore> store;
  UniqueFd pages;
  uint16_t domain;
  std::string name, ours, guests;
  uint64_t mib;
};

bool HasLetGo(Leaving& left) {
  const auto state = left.store->Read(left.guests + "/state");
  // Its keys may hold anything; only the end of its domain proves more than they say, and Xen keeps count as well.
  const XenbusState theirs = ReadXenbusState(state);
  return !state || theirs == XenbusState::kClosed || theirs == XenbusState::kInitialising ||
         !left.store->IsAlive(left.domain);
}

// The guest's folder goes as well, so that its kernel forgets the device.
void Forget(Leaving& left) {
  left.store->Remove(left.guests);
  left.store->Remove(left.ours);
}

// The wait ends with the domain, at the latest.
void AwaitAside(Leaving left) {
  const auto begun = Clock::now();
  bool said = false;
  while (!HasLetGo(left)) {
    std::this_thread::sleep_for(kLook);
    if (said || Clock::now() - begun < 10 * kPatience) continue;
    said = true;
    LogWarning("domain " + left.name + " still has " + std::to_string(left.mib) +
               " MiB mapped of a region that was taken away from it; they stay its own until it ends");
  }
  Forget(left);
}

}  // namespace

Result<std::unique_ptr<RegionSource>> GrantedRegion::Open(const VmConfig& vm) {
  auto store = XenStore::Open();
  if (!store.ok()) return Error{"VM " + vm.name + ": " + store.error()};
  const auto domain = store.value()->FindDomain(vm.xen_domain);
  if (!domain) return Error{"VM " + vm.name + ": the Xen domain " + vm.xen_domain + " does not run"};
  auto memory = MakeGrantMemory(*domain, vm.region_mib * kMib);
  if (!memory.ok()) return Error{"VM " + vm.name + ": " + memory.error()};
  auto region = Region::Map(std::move(memory.value().fd), vm.region_mib * kMib, "of domain " + vm.xen_domain);
  if (!region.ok()) return Error{region.error()};
  return std::unique_ptr<RegionSource>(new GrantedRegion(vm, std::move(store.value()), *domain,
                                                         memory.value().directory,
                                                         std::shared_ptr<Region>(std::move(region.value()))));
}

GrantedRegion::GrantedRegion(const VmConfig& vm, std::unique_ptr<XenStore> store, uint16_t domain,
                             uint32_t directory, std::shared_ptr<Region> region)
    : RegionSource(std::move(region)),
      name_(vm.xen_domain),
      store_(std::move(store)),
      domain_(domain),
      directory_(directory) {}

GrantedRegion::~GrantedRegion() {
  if (!offered_ || !store_->Write(Ours() + "/state", TextOf(XenbusState::kClosing))) return;
  auto store = XenStore::Open();
  if (!store.ok()) return;
  Leaving left{std::move(store.value()),
               UniqueFd(fcntl(region().fd(), F_DUPFD_CLOEXEC, 0)),
               domain_,
               name_,
               Ours(),
               Guests(),
               region().bytes() / kMib};
  if (removed_) {
    std::thread(AwaitAside, std::move(left)).detach();
    return;
  }
  const auto end = Clock::now() + kPatience;
  while (!HasLetGo(left) && Clock::now() < end) std::this_thread::sleep_for(kLook);
}

bool GrantedRegion::Delete() {
  removed_ = true;
  return true;
}

bool GrantedRegion::IsAwaited(const VmConfig& vm) {
  if (vm.xen_domain.empty()) return false;
  auto store = XenStore::Open();
  return store.ok() && !store.value()->FindDomain(vm.xen_domain);
}

std::string GrantedRegion::Ours() const {
  return "/local/domain/0/backend/causeway/" + std::to_string(domain_) + "/0";
}

std::string GrantedRegion::Guests() const {
  return "/local/domain/" + std::to_string(domain_) + "/device/causeway/0";
}

std::string GrantedRegion::Name() const {
  return "memory granted to domain " + name_ + " (" + std::to_string(domain_) + "), a region";
}

RegionSource::Finding GrantedRegion::Check() {
  if (store_->IsAlive(domain_)) return {};
  offered_ = false;
  store_->Remove("/local/domain/0/backend/causeway/" + std::to_string(domain_));
  return {State::kLost,
          "the Xen domain " + name_ + " (" + std::to_string(domain_) + ") has ended; its sessions end"};
}

std::string GrantedRegion::Offer() {
  uint64_t epoch = 0;
  while (epoch == 0) epoch = RandomWord();
  XenStore::Folder ours{Ours(),
                        0,
                        domain_,
                        {{"frontend", Guests()},
                         {"frontend-id", std::to_string(domain_)},
                         {"version", "1"},
                         {"bytes", std::to_string(region().bytes())},
                         {"directory", std::to_string(directory_)},
                         {"epoch", std::to_string(epoch)},
                         {"state", TextOf(XenbusState::kConnected)}}};
  // The guest's folder stays if there is one: its kernel knows the device already, and sees our state change.
  XenStore::Folder guests{
      Guests(),
      domain_,
      0,
      {{"backend", Ours()}, {"backend-id", "0"}, {"state", TextOf(XenbusState::kInitialising)}},
      true};
  if (!store_->Replace({ours, guests}))
    return "the keys for the Xen domain " + name_ + " cannot be written: " + ErrnoText();
  offered_ = true;
  return {};
}

}  // namespace causeway::daemon
