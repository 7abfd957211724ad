// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/servers/vm_server.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "host_backend/daemon/region/region_file.h"
#include "ivshmem_ring/transport/packet.h"

namespace causeway::daemon {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kBusyPoll{1};
constexpr milliseconds kIdlePoll{10};
constexpr std::chrono::seconds kBusyTime{1};
constexpr milliseconds kVmBeat{100};
constexpr uint32_t kBeatsPerFileCheck = 10;
// Bounds what a guest that writes garbage costs: changes handled in one look, and slower looks after each
// violation.
constexpr uint32_t kMaxChangesPerTick = 16;
constexpr std::chrono::seconds kPenalty{1};
constexpr double kChangesPerMs = 1;
constexpr double kMaxChangesAtOnce = kMaxSlots;  // after a pause
constexpr std::chrono::seconds kFindAgain{10};   // after no process of the VM was found
constexpr milliseconds kStartZeroing{5'000};
constexpr uint32_t kNothingSeen = ~uint32_t{0};

// Sessions are 24 bits that grow and wrap.
bool IsNewer(uint32_t session, uint32_t than) {
  const uint32_t distance = (session - than) & 0xffffff;
  return distance != 0 && distance < 0x800000;
}

}  // namespace

Result<std::unique_ptr<RegionSource>> VmServer::OpenRegion(Services& services, const VmConfig& vm,
                                                           bool starts, bool* was_there) {
  if (vm.xen_domain.empty()) return RegionFile::Open(vm, services.pool.launcher(), starts, was_there);
  if (was_there != nullptr) *was_there = true;
  return Granting(services.loop, services.vault).Now(vm);
}

Result<std::unique_ptr<VmServer>> VmServer::Start(Services& services, const VmConfig& vm) {
  bool was_there = false;
  auto file = OpenRegion(services, vm, true, &was_there);
  // What a guest or a user of the host has made of the region keeps no other VM waiting.
  if (!file.ok() && !was_there) return Error{file.error()};
  if (!file.ok() && vm.xen_domain.empty()) LogError(file.error());
  if (!file.ok()) return StartWithout(services, vm, file.error());
  auto server = With(services, vm, std::move(file.value()));
  // A region is ready once the daemon answers, unless it is very large or its owner holds it up.
  if (server.ok() && server.value()->starting_) services.zeroing.Await(kStartZeroing);
  return server;
}

Result<std::unique_ptr<VmServer>> VmServer::Add(Services& services, const VmConfig& vm) {
  if (!vm.xen_domain.empty()) {
    auto server = StartWithout(services, vm, "its memory is being granted");
    server->BeginGranting();
    return server;
  }
  auto file = OpenRegion(services, vm, false);
  if (!file.ok()) return Error{file.error()};
  return With(services, vm, std::move(file.value()));
}

Result<std::unique_ptr<VmServer>> VmServer::With(Services& services, const VmConfig& vm,
                                                 std::unique_ptr<RegionSource> file) {
  std::unique_ptr<VmServer> server(new VmServer(services, vm));
  if (std::string problem = server->OpenDoorbell(); !problem.empty()) return Error{problem};
  server->Adopt(std::move(file));
  server->BeginLooking();
  return server;
}

std::unique_ptr<VmServer> VmServer::StartWithout(Services& services, const VmConfig& vm,
                                                 const std::string& problem) {
  std::unique_ptr<VmServer> server(new VmServer(services, vm));
  server->problem_ = problem;
  if (std::string text = server->OpenDoorbell(); !text.empty()) server->Log(LogLevel::kError, ": " + text);
  server->BeginLooking();
  return server;
}

void VmServer::BeginLooking() {
  Beat();
  Tick();
}

std::string VmServer::OpenDoorbell() {
  if (vm_.doorbell_socket.empty()) return {};
  auto doorbell =
      Doorbell::Bind(services_.loop, services_.vault, &services_.pool.launcher(), vm_,
                     {[this] { OnConnected(); }, [this] { OnDisconnected(); }, [this] { OnRung(); },
                      [this](LogLevel level, const std::string& text) { Log(level, text); }});
  if (!doorbell.ok()) return doorbell.error();
  doorbell_ = std::move(doorbell.value());
  return {};
}

void VmServer::OnConnected() {
  Log(LogLevel::kInfo, ": its QEMU has connected to its doorbell");
  by_path_ = false;
  if (file_) file_->region().SetDoorbell(true);
  OnRung();
}

// By its path: the device is ivshmem-plain. Or a QEMU was found that an earlier daemon gave the region to.
void VmServer::OnOpened() {
  if (doorbell_->connected() || std::exchange(by_path_, true)) return;
  Log(LogLevel::kInfo, ": a process has its region and no doorbell: it is looked at as in plain mode");
  OnRung();
}

// By a guest: it has changed its page, or one of its threads waits for long and asks whether the daemon lives.
void VmServer::OnRung() {
  services_.loop.Cancel(tick_timer_);
  services_.loop.Cancel(beat_timer_);
  Beat();
  Tick();
}

// The region's source calls this, which a look may destroy.
void VmServer::LookSoon(bool at_file) {
  if (at_file) beats_ = kBeatsPerFileCheck - 1;
  services_.loop.Cancel(tick_timer_);
  tick_timer_ = services_.loop.After({}, "a VM's ring", [this] { OnRung(); });
}

void VmServer::OnDisconnected() {
  if (!file_) return;
  file_->region().SetDoorbell(false);
  OnVmExit();
  services_.loop.Cancel(tick_timer_);
  services_.loop.Cancel(beat_timer_);
  BeginLooking();
}

const Bells* VmServer::ConnectedBells() const {
  const Bells* bells = file_ && file_->bells() != nullptr ? file_->bells() : doorbell_.get();
  return bells != nullptr && bells->connected() ? bells : nullptr;
}

bool VmServer::IsRung() const {
  return ConnectedBells() != nullptr && file_ && (file_->region().LoadGuestFeatures() & kGuestRings) != 0;
}

// Without a connection there is no guest, unless an earlier daemon had one.
bool VmServer::IsQuiet() const {
  if (!file_ || (doorbell_ == nullptr && file_->bells() == nullptr)) return false;
  const Region& region = file_->region();
  if (ConnectedBells() != nullptr) return IsRung();
  return !by_path_ && region.LoadGuestEpoch() == 0 && region.LoadGuestFeatures() == 0;
}

VmServer::~VmServer() {
  services_.loop.Unwatch(finding_watch_);
  services_.loop.Unwatch(vm_process_watch_);
  services_.zeroing.Cancel(zeroing_);
  services_.loop.Cancel(tick_timer_);
  services_.loop.Cancel(beat_timer_);
}

void VmServer::Adopt(std::unique_ptr<RegionSource> file) {
  file_ = std::move(file);
  problem_.clear();
  Region& region = file_->region();
  if (doorbell_ != nullptr)
    opened_ = std::make_unique<OpenWatch>(services_.loop, region.fd(), [this] { OnOpened(); });
  if (doorbell_ != nullptr) doorbell_->Offer(region.fd());
  const bool known = region.IsOurs();
  if (known && ResumeSessions()) return;
  // Nothing in it means anything to this version; a guest that still runs starts again from its module.
  if (!known) region.ClearGuestPart();
  const RegionIdentity identity = NewIdentity();
  region.Format(identity, known);
  guest_epoch_ = region.LoadGuestEpoch();
  seen_words_.fill(kNothingSeen);
  any_session_.fill(true);
  resetting_ = false;
  if (known) {
    EndEarlierSessions();
    StartServing();
  } else {
    starting_ = true;
    ZeroRegion();
  }
}

// Of a daemon of before. False: there are none, and the region begins anew.
bool VmServer::ResumeSessions() {
  std::vector<Vault::Record> records;
  std::map<uint32_t, uint32_t> words;
  Region& region = file_->region();
  for (Vault::Record* record : services_.vault.All(Vault::Kind::kSession)) {
    if (record->state.at("vm") != vm_.name) continue;
    const auto slot = record->state.at("slot").get<uint32_t>();
    if (slot >= region.slot_count() || words.contains(slot)) continue;
    words[slot] = SlotWord(record->state.at("session").get<uint32_t>(), uint32_t(SlotHostState::kServing));
    records.push_back(services_.vault.Adopt(*record));
  }
  if (records.empty()) return false;
  region.Resume(words);
  guest_epoch_ = region.LoadGuestEpoch();
  seen_words_.fill(kNothingSeen);
  any_session_.fill(true);
  resetting_ = false;
  for (Vault::Record& record : records) {
    const auto slot = record.state.at("slot").get<uint32_t>();
    const uint32_t number = SlotSession(words[slot]);
    seen_words_[slot] = SlotWord(number, uint32_t(SlotGuestState::kOpen));
    any_session_[slot] = false;
    MakeSession(slot, number).Resume(std::move(record), services_.scopes.ResumeSession(scope_));
  }
  EndEarlierSessions();
  StartServing();
  WatchVmProcess();
  return true;
}

void VmServer::StartServing() {
  Region& region = file_->region();
  starting_ = false;
  region.StoreResetAcknowledged(guest_epoch_);
  region.SetState(HostState::kRunning);
  const bool connected = ConnectedBells() != nullptr;
  region.SetDoorbell(connected);
  if (doorbell_ != nullptr && !connected && (region.LoadGuestFeatures() & kGuestRings) != 0 &&
      guest_epoch_ != 0 && !std::exchange(said_polling_, true)) {
    Log(LogLevel::kWarning,
        ": its QEMU was connected to an earlier causewayd and never connects again: its rings are polled "
        "until the VM is "
        "shut down and started");
  }
  if (doorbell_ != nullptr) WatchVmProcess();
  last_change_ = Clock::now();
  const std::string problem = file_->Offer([this] { LookSoon(false); }, [this] { LookSoon(true); });
  if (!problem.empty()) return Lose(problem);
  Log(LogLevel::kInfo, ": " + file_->Name() + " of " + std::to_string(vm_.region_mib) + " MiB with " +
                           std::to_string(region.slot_count()) + " slots is ready");
}

// Goes on in StartServing or FinishReset.
void VmServer::ZeroRegion() {
  if (zeroing_ != 0) return;
  zeroing_ = services_.zeroing.Begin(file_->shared_region(), file_->region().AllMemory(), [this](int error) {
    zeroing_ = 0;
    if (error != 0) Log(LogLevel::kError, ": memory of before cannot be zeroed: " + ErrnoText(error));
    if (!file_) return;
    if (starting_) {
      StartServing();
    } else if (error == 0 && resetting_) {
      FinishReset();
    }
  });
}

// Guest processes that a former daemon served: their workers are gone. One that opened its slot since then is
// served.
void VmServer::EndEarlierSessions() {
  Region& region = file_->region();
  for (uint32_t slot = 0; slot < region.slot_count(); ++slot) {
    const uint32_t word = region.LoadGuestWord(slot);
    const bool served =
        region.host_word(slot) == SlotWord(SlotSession(word), uint32_t(SlotHostState::kFatal));
    if (SlotState(word) != uint32_t(SlotGuestState::kOpen) || !served || sessions_[slot]) continue;
    seen_words_[slot] = word;
    MakeSession(slot, SlotSession(word))
        .Abandon("The host daemon was restarted; this process must be started again.");
  }
}

RegionSession& VmServer::MakeSession(uint32_t slot, uint32_t number) {
  const Region& region = file_->region();
  sessions_[slot] = std::make_unique<RegionSession>(
      services_, file_->shared_region(), slot, number,
      RegionSession::Origin{scope_, vm_.name, region.LoadGuestPid(slot), region.LoadGuestUid(slot), -1,
                            &vm_.share, IsRung() ? ConnectedBells() : nullptr},
      [this, slot] { OnClosed(slot); });
  return *sessions_[slot];
}

void VmServer::Stop() {
  services_.loop.Cancel(tick_timer_);
  services_.loop.Cancel(beat_timer_);
  for (auto& session : sessions_) {
    if (session)
      session->Abandon("The host daemon was stopped; this process must be started again when it runs.");
  }
  if (file_) file_->region().SetState(HostState::kStopped);
}

void VmServer::Remove(std::function<void()> removed) {
  services_.loop.Cancel(tick_timer_);
  services_.loop.Cancel(beat_timer_);
  services_.loop.Unwatch(finding_watch_);
  services_.loop.Unwatch(vm_process_watch_);
  services_.zeroing.Cancel(zeroing_);
  granting_.Stop();
  problem_ = "the VM is being removed";
  if (file_) file_->Leave();
  removed_ = std::move(removed);
  for (auto& session : sessions_) {
    if (session) session->Reset();
  }
  SayRemoved();
}

// Once.
void VmServer::SayRemoved() {
  if (removed_ && !AnySession())
    services_.loop.Later("the removal of a VM", std::exchange(removed_, nullptr));
}

void VmServer::SetLimits(const VmConfig& vm) {
  vm_.max_sessions = vm.max_sessions;
  vm_.guaranteed_sessions = vm.guaranteed_sessions;
  vm_.own_spares = vm.own_spares;
  vm_.share = vm.share;
  services_.scopes.OfVm(vm_);
  scope_->closed.clear();
  idle_ = nullptr;
}

void VmServer::WhenIdle(std::function<void()> idle) {
  idle_ = std::move(idle);
  SayIdle();
}

void VmServer::SayIdle() {
  if (idle_ && !AnySession())
    services_.loop.Later("the end of a VM's sessions", std::exchange(idle_, nullptr));
}

void VmServer::Beat() {
  if (++beats_ % kBeatsPerFileCheck == 0) CheckFile();
  if (file_) file_->region().Beat();
  if (IsQuiet()) return;
  beat_timer_ = services_.loop.After(kVmBeat, "the heartbeat of a VM", [this] { Beat(); });
}

void VmServer::CheckFile() {
  if (!file_) {
    TryReopen();
    return;
  }
  const RegionSource::Finding found = file_->Check();
  if (found.state == RegionSource::State::kLost) return Lose(found.text);
  if (found.state == RegionSource::State::kWarning && problem_ != found.text)
    Log(LogLevel::kWarning, ": " + found.text);
  problem_ = found.text;
}

void VmServer::Lose(const std::string& why) {
  Log(LogLevel::kError, ": " + why);
  problem_ = why;
  file_->region().SetState(HostState::kStopped);
  for (auto& session : sessions_) {
    if (session) session->Reset();
  }
  services_.zeroing.Cancel(zeroing_);
  starting_ = false;
  if (doorbell_ != nullptr) doorbell_->Offer(-1);
  file_.reset();  // sessions hold the region until their workers are gone
}

void VmServer::TryReopen() {
  if (AnySession()) return;
  if (!vm_.xen_domain.empty()) return BeginGranting();
  Take(OpenRegion(services_, vm_, false));
}

void VmServer::Take(Result<std::unique_ptr<RegionSource>> file) {
  if (file.ok()) return Adopt(std::move(file.value()));
  if (problem_ == file.error())
    return;  // else xenstored would be asked each second, and the loop wait for it
  problem_ = file.error();
  scope_->log->Write(GrantedRegion::IsAwaited(vm_) ? LogLevel::kInfo : LogLevel::kError, problem_);
}

void VmServer::Tick() {
  bool changed = false;
  if (file_ && !starting_) {
    changed = ScanEpoch();
    if (!resetting_) changed = ScanSlots() || changed;
    if (file_->region().broken()) Lose(file_->Name() + " was truncated; its sessions end");
  }
  const auto now = Clock::now();
  if (changed) last_change_ = now;
  const bool busy = now - last_change_ < kBusyTime && now - last_violation_ > kPenalty;
  const bool done =
      !changed && !resetting_ && !starting_ && changes_left_ >= 1 && now - last_violation_ > kPenalty;
  if (done && IsQuiet()) return services_.loop.Cancel(tick_timer_);  // the next ring brings the next look
  tick_timer_ =
      services_.loop.After(busy ? kBusyPoll : kIdlePoll, "a look at a VM's slots", [this] { Tick(); });
}

bool VmServer::ScanEpoch() {
  const uint64_t epoch = file_->region().LoadGuestEpoch();
  if (epoch != 0 && epoch != guest_epoch_) {
    BeginReset(epoch);
    return true;
  }
  // All workers of the old guest are gone: nothing writes into the region any more.
  if (resetting_ && !AnySession()) ZeroRegion();
  return resetting_;
}

void VmServer::WatchVmProcess() {
  if (doorbell_ != nullptr && doorbell_->connected()) return;  // its connection's end is the VM's
  if (!file_->HasVmProcess() || vm_process_ || finding_ || Clock::now() - found_none_ < kFindAgain) return;
  finding_ = services_.pool.launcher().FindVm(file_->region().fd());
  if (!finding_) {
    found_none_ = Clock::now();
    return;
  }
  finding_watch_ = services_.loop.Watch(finding_.get(), EPOLLIN, "the search for a VM's process",
                                        [this](uint32_t) { FoundVmProcess(); });
}

void VmServer::FoundVmProcess() {
  launcher::VmProcess found{};
  int process = -1;
  const ssize_t bytes = ReceivePacket(finding_.get(), &found, sizeof found, std::span(&process, 1));
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
  vm_process_.reset(process);
  services_.loop.Unwatch(finding_watch_);
  finding_.reset();
  if (!vm_process_) {
    found_none_ = Clock::now();
    return;
  }
  vm_process_watch_ = services_.loop.Watch(vm_process_.get(), EPOLLIN, "the end of a VM's process",
                                           [this](uint32_t) { OnVmExit(); });
  if (doorbell_ != nullptr) OnOpened();
}

// Powered off, or its process was killed: no word of the guest will say so.
void VmServer::OnVmExit() {
  services_.loop.Unwatch(vm_process_watch_);
  vm_process_.reset();
  Log(LogLevel::kInfo, ": its process has ended; its sessions end");
  if (!file_) return;
  BeginReset(guest_epoch_);
  vm_gone_ = true;
  by_path_ = false;
}

void VmServer::BeginReset(uint64_t epoch) {
  guest_epoch_ = epoch;
  vm_gone_ = false;
  resetting_ = true;
  if (AnySession()) Log(LogLevel::kInfo, ": its guest is gone or new; earlier sessions end");
  for (auto& session : sessions_) {
    if (session) session->Reset();
  }
}

void VmServer::FinishReset() {
  Region& region = file_->region();
  // Another guest may have begun while the memory was zeroed: it has written nothing but its page, and waits.
  if (const uint64_t epoch = region.LoadGuestEpoch(); vm_gone_ && epoch != 0 && epoch != guest_epoch_) {
    guest_epoch_ = epoch;
    vm_gone_ = false;
  }
  if (vm_gone_) region.ClearGuestPart();  // its only writer is gone
  for (uint32_t slot = 0; slot < kMaxSlots; ++slot) {
    // What a guest left behind when it was powered off is no request.
    seen_words_[slot] = vm_gone_ && slot < region.slot_count() ? region.LoadGuestWord(slot) : kNothingSeen;
  }
  resetting_ = false;
  // Nobody is left who could bring up a word of an earlier life: any number may follow.
  any_session_.fill(true);
  for (uint32_t slot = 0; slot < kMaxSlots; ++slot) {
    region.StoreHostWord(slot,
                         SlotWord(SlotSession(region.host_word(slot)), uint32_t(SlotHostState::kClosed)));
  }
  region.StoreResetAcknowledged(guest_epoch_);
}

bool VmServer::ScanSlots() {
  uint32_t changes = 0;
  Region& region = file_->region();
  const uint32_t count = region.slot_count();
  const auto now = Clock::now();
  const std::chrono::duration<double, std::milli> passed = now - changes_at_;
  changes_at_ = now;
  changes_left_ = std::min(kMaxChangesAtOnce, changes_left_ + kChangesPerMs * passed.count());
  const auto most = std::min(kMaxChangesPerTick, uint32_t(changes_left_));
  for (uint32_t looked = 0; looked < count && changes < most; ++looked) {
    const uint32_t slot = next_slot_++ % count;
    const uint32_t word = region.LoadGuestWord(slot);
    if (word == seen_words_[slot]) continue;
    // A slot that is being closed is looked at again when that is done.
    if (sessions_[slot] && sessions_[slot]->state() == RegionSession::State::kClosing) continue;
    seen_words_[slot] = word;
    ++changes;
    changes_left_ -= 1;
    OnGuestWord(slot, word);
  }
  return changes != 0;
}

void VmServer::Violation(uint32_t slot, const std::string& text) {
  ++services_.counters.violations;
  last_violation_ = Clock::now();
  Log(LogLevel::kWarning, " slot " + std::to_string(slot) + ": " + text);
}

void VmServer::OnGuestWord(uint32_t slot, uint32_t word) {
  RegionSession* session = sessions_[slot].get();
  const uint32_t number = SlotSession(word);
  const uint32_t host_word = file_->region().host_word(slot);
  switch (SlotState(word)) {
    case uint32_t(SlotGuestState::kFree):
      // Right after CLOSED, and when the module is loaded anew: its new epoch follows.
      if (session != nullptr) {
        session->End();
      } else if (SlotState(host_word) != uint32_t(SlotHostState::kClosed)) {
        MakeSession(slot, SlotSession(host_word)).End();
      }
      return;
    case uint32_t(SlotGuestState::kOpen):
      if (session != nullptr && number == session->session()) return;
      if (session != nullptr) {
        Violation(slot, "opened again while its session was open");
        seen_words_[slot] = kNothingSeen;
        session->End();
      } else if (any_session_[slot] || IsNewer(number, SlotSession(host_word))) {
        OpenSlot(slot, number);
      } else {
        Violation(slot, "opened with the number of an earlier session");
      }
      return;
    case uint32_t(SlotGuestState::kDying):
      if (session != nullptr && number != session->session()) {
        Violation(slot, "releases another session than it opened");
        seen_words_[slot] = kNothingSeen;
      }
      if (session != nullptr) {
        session->End();
      } else if (host_word != SlotWord(number, uint32_t(SlotHostState::kClosed))) {
        // Opened and released between two looks, or while no daemon ran: its memory is zeroed all the same.
        MakeSession(slot, number).End();
      }
      return;
    default:
      Violation(slot, "holds a word that means nothing");
      if (session != nullptr) session->End();
  }
}

void VmServer::OpenSlot(uint32_t slot, uint32_t number) {
  any_session_[slot] = false;
  WatchVmProcess();
  MakeSession(slot, number).Open();
}

void VmServer::OnClosed(uint32_t slot) {
  last_change_ = Clock::now();
  // The guest's word may have moved on meanwhile, and the caller is the session itself.
  auto session = std::make_shared<std::unique_ptr<RegionSession>>(std::move(sessions_[slot]));
  services_.loop.Later("the end of a VM's session", [session] { session->reset(); });
  if (tick_timer_ == 0 && !removed_)
    tick_timer_ = services_.loop.After({}, "a look at a VM's slots", [this] { Tick(); });
  SayRemoved();
  SayIdle();
}

void VmServer::AppendStatus(std::vector<SessionStatus>& sessions, std::vector<RegionStatus>& regions) const {
  RegionStatus status;
  status.vm = vm_.name;
  status.file = PlaceOf(vm_);
  status.problem = problem_;
  status.region_bytes = vm_.region_mib * kMib;
  status.guest_epoch = guest_epoch_;
  status.doorbell = doorbell_ != nullptr;
  status.polled = is_polled();
  for (const auto& session : sessions_) {
    if (!session) continue;
    ++status.slots_in_use;
    sessions.push_back(session->Status());
  }
  if (file_) {
    const Region& region = file_->region();
    status.slots = region.slot_count();
    const uint32_t first = 1 + status.slots;
    status.slices = region.granule_count() - first;
    const OwnerTable owners = region.CopyOwnerTable();
    status.slices_free = uint32_t(std::count(owners.begin() + first, owners.end(), kOwnerFree));
  }
  regions.push_back(status);
}

}  // namespace causeway::daemon
