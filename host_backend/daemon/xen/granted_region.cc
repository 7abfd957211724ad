// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/xen/granted_region.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "host_backend/daemon/process/log.h"
#include "host_backend/daemon/xen/xen_values.h"

namespace causeway::daemon {
namespace {

constexpr std::chrono::milliseconds kLook{100};
constexpr std::chrono::milliseconds kStorm{2};  // after more rings than are answered
constexpr std::chrono::seconds kPatience{3};
constexpr std::chrono::milliseconds kLookAgain{
    500};  // a guest that rings is looked at more often than once a second

constexpr const char* kOffers = "/local/domain/0/backend/causeway";  // a folder for each domain

std::string FolderOf(uint16_t domain) {
  return std::string(kOffers) + "/" + std::to_string(domain) + "/0";
}

std::string GuestsFolderOf(uint16_t domain) {
  return "/local/domain/" + std::to_string(domain) + "/device/causeway/0";
}

std::string TextOf(XenbusState state) {
  return std::to_string(int(state));
}

// The domains to which this causewayd grants pages, and those of them from which it has taken the region away.
class Holders {
 public:
  static Holders& Get() {
    static Holders& holders = *new Holders;  // a thread of its own may outlive main
    return holders;
  }
  void Set(uint16_t domain, bool leaving) {
    const std::lock_guard lock(lock_);
    leaving_[domain] = leaving;
  }
  void Remove(uint16_t domain) {
    const std::lock_guard lock(lock_);
    leaving_.erase(domain);
  }
  bool Has(uint16_t domain) {
    const std::lock_guard lock(lock_);
    return leaving_.contains(domain);
  }
  bool IsLeaving(uint16_t domain) {
    const std::lock_guard lock(lock_);
    const auto found = leaving_.find(domain);
    return found != leaving_.end() && found->second;
  }

 private:
  std::mutex lock_;
  std::map<uint16_t, bool> leaving_;
};

// What is left of a region that was taken away from a domain that lives. The descriptor keeps the pages.
struct Leaving {
  std::unique_ptr<XenStore> store;
  UniqueFd pages;
  uint16_t domain;
  std::string name;
  uint64_t mib;
};

bool HasLetGo(XenStore& store, uint16_t domain) {
  const auto state = store.Read(GuestsFolderOf(domain) + "/state");
  // Its keys may hold anything; only the end of its domain proves more than they say, and Xen keeps count as well.
  const XenbusState theirs = ReadXenbusState(state);
  return !state || theirs == XenbusState::kClosed || theirs == XenbusState::kInitialising ||
         !store.IsAlive(domain);
}

// The guest's folder goes as well, so that its kernel forgets the device.
void Forget(Leaving& left) {
  left.store->Remove(GuestsFolderOf(left.domain));
  left.store->Remove(FolderOf(left.domain));
}

// The wait ends with the domain, at the latest.
void AwaitAside(Leaving left) {
  const auto begun = Clock::now();
  bool said = false;
  while (!HasLetGo(*left.store, left.domain)) {
    std::this_thread::sleep_for(kLook);
    if (said || Clock::now() - begun < 10 * kPatience) continue;
    said = true;
    LogWarning("domain " + left.name + " still has " + std::to_string(left.mib) +
               " MiB mapped of a region that was taken away from it; they stay its own until it ends");
  }
  Forget(left);
  left.pages.reset();
  NoteGrantsGivenBack();
  Holders::Get().Remove(left.domain);
}

// Nobody has the pages of an offer any more whose causewayd has ended. Its bytes are what a causewayd wrote, in domain 0's folder.
void NoteOfferEnded(XenStore& store, const std::string& folder) {
  const auto bytes = store.Read(folder + "/bytes");
  NoteGrantsDepart(ReadXenNumber(bytes.value_or(""), 0, kMaxRegionMib * kMib).value_or(0));
}

bool IsOffered(XenStore& store, const std::string& folder) {
  const auto state = store.Read(folder + "/state");
  return state == TextOf(XenbusState::kConnected) || state == TextOf(XenbusState::kClosing);
}

// Offers to domains that have ended, of a causewayd that ended before them.
void ForgetEndedDomains(XenStore& store) {
  for (const std::string& entry : store.List(kOffers)) {
    const auto domain = ReadXenNumber(entry, 0, kLastXenDomain);
    if (!domain || store.IsAlive(uint16_t(*domain)) || Holders::Get().Has(uint16_t(*domain))) continue;
    const std::string folder = FolderOf(uint16_t(*domain));
    if (IsOffered(store, folder)) NoteOfferEnded(store, folder);
    store.Remove(std::string(kOffers) + "/" + entry);
  }
}

// Whether the domain has let go of what it was offered before, by a causewayd that has ended or by this one. It is asked to,
// because Xen's table of grants may have no room for two regions, and Linux gives no page back that is mapped.
bool LetsGo(XenStore& store, uint16_t domain) {
  if (Holders::Get().IsLeaving(domain)) return false;
  const std::string folder = FolderOf(domain);
  if (!IsOffered(store, folder)) return true;
  if (store.Read(folder + "/state") == TextOf(XenbusState::kConnected))
    store.Write(folder + "/state", TextOf(XenbusState::kClosing));
  if (!HasLetGo(store, domain)) return false;
  NoteOfferEnded(store, folder);
  store.Write(folder + "/state", TextOf(XenbusState::kClosed));
  return true;
}

}  // namespace

Result<GrantedRegion::Memory> GrantedRegion::Grant(const VmConfig& vm, std::chrono::milliseconds patience) {
  auto store = XenStore::Open();
  if (!store.ok()) return Error{"VM " + vm.name + ": " + store.error()};
  const auto domain = store.value()->FindDomain(vm.xen_domain);
  if (!domain) return Error{"VM " + vm.name + ": the Xen domain " + vm.xen_domain + " does not run"};
  ForgetEndedDomains(*store.value());
  for (const auto end = Clock::now() + patience; !LetsGo(*store.value(), *domain);) {
    if (Clock::now() >= end)
      return Error{"VM " + vm.name + ": the Xen domain " + vm.xen_domain +
                   " still has a region mapped that was taken away from it, or whose causewayd has ended; "
                   "it is asked to let go, and gets another region when it has, or when it starts again"};
    std::this_thread::sleep_for(kLook);
  }
  auto pages = MakeGrantMemory(*domain, vm.region_mib * kMib);
  if (!pages.ok()) return Error{"VM " + vm.name + ": " + pages.error()};
  return Memory{*domain, std::move(pages.value())};
}

Result<std::unique_ptr<RegionSource>> GrantedRegion::Open(EventLoop& loop, Vault& vault, const VmConfig& vm,
                                                          Memory memory) {
  auto store = XenStore::Open();
  if (!store.ok()) return Error{"VM " + vm.name + ": " + store.error()};
  auto region = Region::Map(std::move(memory.pages.fd), vm.region_mib * kMib, "of domain " + vm.xen_domain);
  if (!region.ok()) return Error{region.error()};
  std::unique_ptr<GrantedRegion> made(
      new GrantedRegion(loop, vault, vm, std::move(store.value()), memory.domain, std::move(region.value())));
  made->directory_ = memory.pages.directory;
  while (made->epoch_ == 0) made->epoch_ = RandomWord();
  made->OpenChannels();
  made->KeepRecord(vm);
  return std::unique_ptr<RegionSource>(std::move(made));
}

std::unique_ptr<RegionSource> GrantedRegion::Resume(EventLoop& loop, Vault& vault, const VmConfig& vm) {
  for (Vault::Record* record : vault.All(Vault::Kind::kRegion)) {
    const Json& state = record->state;
    if (state.at("vm") != vm.name || state.at("xen_domain") != vm.xen_domain ||
        state.at("mib") != vm.region_mib)
      continue;
    auto store = XenStore::Open();
    if (!store.ok()) return nullptr;
    const auto domain = state.at("domain").get<uint16_t>();
    const auto epoch = state.at("epoch").get<uint64_t>();
    const std::string place = FolderOf(domain);
    if (!store.value()->IsAlive(domain) || store.value()->Read(place + "/epoch") != std::to_string(epoch) ||
        store.value()->Read(place + "/state") != TextOf(XenbusState::kConnected))
      continue;
    Vault::Record taken = vault.Adopt(*record);
    auto region = Region::Map(taken.Take("memory"), vm.region_mib * kMib, "of domain " + vm.xen_domain);
    if (!region.ok()) {
      vault.Drop(taken.key);
      continue;
    }
    std::unique_ptr<GrantedRegion> made(
        new GrantedRegion(loop, vault, vm, std::move(store.value()), domain, std::move(region.value())));
    made->directory_ = taken.state.at("directory").get<uint32_t>();
    made->epoch_ = epoch;
    made->offered_ = true;
    made->key_ = taken.key;
    made->TakeChannels(taken);
    return made;
  }
  return nullptr;
}

GrantedRegion::GrantedRegion(EventLoop& loop, Vault& vault, const VmConfig& vm,
                             std::unique_ptr<XenStore> store, uint16_t domain, std::shared_ptr<Region> region)
    : RegionSource(std::move(region)),
      loop_(loop),
      vault_(vault),
      name_(vm.xen_domain),
      store_(std::move(store)),
      domain_(domain) {
  Holders::Get().Set(domain_, false);
}

// Without them everything works as without doorbells.
void GrantedRegion::OpenChannels() {
  Channels& channels = channels_.emplace();
  for (EventChannel* channel : {&channels.work_channel, &channels.control, &channels.interrupt}) {
    auto opened = EventChannel::Open(domain_);
    if (!opened.ok()) {
      LogWarning("domain " + name_ + " is looked at instead of ringing: " + opened.error());
      return channels_.reset();
    }
    *channel = std::move(opened.value());
  }
}

// The guest has bound these.
void GrantedRegion::TakeChannels(Vault::Record& record) {
  const Json& ports = record.state.at("ports");
  if (ports.empty()) return;
  Channels& channels = channels_.emplace();
  channels.work_channel = {record.Take("work"), ports.at(0).get<uint32_t>()};
  channels.control = {record.Take("control"), ports.at(1).get<uint32_t>()};
  channels.interrupt = {record.Take("interrupt"), ports.at(2).get<uint32_t>()};
}

void GrantedRegion::KeepRecord(const VmConfig& vm) {
  Json state = {{"vm", vm.name},         {"xen_domain", vm.xen_domain}, {"mib", vm.region_mib},
                {"domain", domain_},     {"directory", directory_},     {"epoch", epoch_},
                {"ports", Json::array()}};
  Vault::Descriptors descriptors = {{"memory", region().fd()}};
  if (channels_) {
    state["ports"] = {channels_->work_channel.port, channels_->control.port, channels_->interrupt.port};
    descriptors.emplace_back("work", channels_->work());
    descriptors.emplace_back("control", channels_->control.fd.get());
    descriptors.emplace_back("interrupt", channels_->guest());
  }
  key_ = vault_.NewKey(Vault::Kind::kRegion);
  vault_.Put(key_, state, descriptors);
}

GrantedRegion::~GrantedRegion() {
  aside_.reset();
  vault_.Drop(key_);
  loop_.Unwatch(domain_watch_);
  loop_.Unwatch(ring_watch_);
  loop_.Cancel(ring_timer_);
  NoteGrantsGivenBack();
  Holders::Get().Remove(domain_);
  if (!offered_ || !store_->Write(Ours() + "/state", TextOf(XenbusState::kClosing))) return;
  auto store = XenStore::Open();
  if (!store.ok()) return;
  if (daemon_goes_on_) {
    Holders::Get().Set(domain_, true);
    Leaving left{std::move(store.value()), UniqueFd(fcntl(region().fd(), F_DUPFD_CLOEXEC, 0)), domain_, name_,
                 region().bytes() / kMib};
    std::thread(AwaitAside, std::move(left)).detach();
    return;
  }
  const auto end = Clock::now() + kPatience;
  while (!HasLetGo(*store.value(), domain_)) {
    if (Clock::now() >= end) return;  // the next causewayd sees by our state that it may not have
    std::this_thread::sleep_for(kLook);
  }
  store.value()->Write(Ours() + "/state", TextOf(XenbusState::kClosed));
}

void GrantedRegion::Leave() {
  RegionSource::Leave();
  daemon_goes_on_ = true;
}

bool GrantedRegion::IsAwaited(const VmConfig& vm) {
  if (vm.xen_domain.empty()) return false;
  auto store = XenStore::Open();
  return store.ok() && !store.value()->FindDomain(vm.xen_domain);
}

std::string GrantedRegion::Ours() const {
  return FolderOf(domain_);
}

std::string GrantedRegion::Guests() const {
  return GuestsFolderOf(domain_);
}

std::string GrantedRegion::Name() const {
  return "memory granted to domain " + name_ + " (" + std::to_string(domain_) + "), a region";
}

// xenstored may be held up for seconds, with which no VM's beat must wait: a thread of its own asks it, and what it found last holds.
void GrantedRegion::BeginLook() {
  if (looking_) return;
  looking_ = true;
  looked_ = Clock::now();
  if (aside_ == nullptr) aside_ = std::make_unique<Aside>(loop_);
  const auto seen = std::make_shared<Seen>(seen_);
  aside_->Do(
      [seen, domain = domain_] {
        const auto store = XenStore::Open();
        if (!store.ok()) return;
        seen->lives = store.value()->IsAlive(domain);
        seen->guests = ReadXenbusState(store.value()->Read(GuestsFolderOf(domain) + "/state"));
      },
      [this, seen] {
        looking_ = false;
        const bool changed = seen->lives != seen_.lives || seen->guests != seen_.guests;
        seen_ = *seen;
        if (changed && look_) look_();
      });
}

RegionSource::Finding GrantedRegion::Check() {
  if (Clock::now() - looked_ >= kLookAgain) BeginLook();
  if (seen_.lives) {
    if (!offered_ || seen_.guests != XenbusState::kClosed) return {};
    return {State::kWarning, "the Xen domain " + name_ +
                                 " has not mapped its region: the module causeway was unloaded there, or its "
                                 "kernel's log (dmesg) names what is too small, such as max_maptrack_frames"};
  }
  offered_ = false;
  store_->Remove(std::string(kOffers) + "/" + std::to_string(domain_));
  return {State::kLost,
          "the Xen domain " + name_ + " (" + std::to_string(domain_) + ") has ended; its sessions end"};
}

void GrantedRegion::WatchRings() {
  ring_watch_ = loop_.Watch(channels_->control.fd.get(), EPOLLIN, "a Xen domain's ring",
                            [this](uint32_t) { OnRung(); });
}

// A guest that rings all the time is answered now and then: what it rang for is found by the next answer.
void GrantedRegion::OnRung() {
  if (!rings_.Take(Clock::now())) {
    loop_.Unwatch(ring_watch_);
    ring_timer_ = loop_.After(kStorm, "an event channel's pause", [this] { WatchRings(); });
    return;
  }
  if (TakeEvents(channels_->control.fd.get())) rung_();
}

std::string GrantedRegion::Offer(const std::function<void()>& rung, const std::function<void()>& look) {
  rung_ = rung;
  look_ = look;
  if (channels_ && ring_watch_ == 0 && ring_timer_ == 0) WatchRings();
  if (const int domains = domain_watch_ == 0 ? store_->WatchDomains() : -1; domains >= 0) {
    domain_watch_ = loop_.Watch(domains, EPOLLIN, "the end of a Xen domain", [this](uint32_t) {
      store_->TakeWatches();
      BeginLook();
    });
  }
  if (offered_) return {};  // by a daemon of before
  XenStore::Folder ours{Ours(),
                        0,
                        domain_,
                        {{"frontend", Guests()},
                         {"frontend-id", std::to_string(domain_)},
                         {"version", "1"},
                         {"bytes", std::to_string(region().bytes())},
                         {"directory", std::to_string(directory_)},
                         {"epoch", std::to_string(epoch_)}}};
  if (channels_) {
    ours.keys.emplace_back("port-work", std::to_string(channels_->work_channel.port));
    ours.keys.emplace_back("port-control", std::to_string(channels_->control.port));
    ours.keys.emplace_back("port-interrupt", std::to_string(channels_->interrupt.port));
  }
  ours.keys.emplace_back("state", TextOf(XenbusState::kConnected));
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
