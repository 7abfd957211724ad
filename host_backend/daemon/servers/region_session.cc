// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/servers/region_session.h"

#include <sys/stat.h>

#include <cstdio>
#include <utility>

#include "host_backend/daemon/doorbell/doorbell_watch.h"
#include "host_backend/daemon/region/idle_watch.h"
#include "host_backend/daemon/servers/open_block.h"

namespace causeway::daemon {
namespace {

// By State.
constexpr const char* kStateNames[] = {"opening", "serving", "refused", "ended by a failure",
                                       "closing", "closed"};
static_assert(std::size(kStateNames) == size_t(RegionSession::State::kClosed) + 1);

}  // namespace

RegionSession::RegionSession(Services& services, std::shared_ptr<Region> region, uint32_t slot,
                             uint32_t session, Origin origin, std::function<void()> on_closed)
    : services_(services),
      region_(std::move(region)),
      slot_(slot),
      session_(session),
      origin_(std::move(origin)),
      on_closed_(std::move(on_closed)) {}

void RegionSession::StartWatching() {
  if (origin_.bells != nullptr && origin_.bells->connected()) {
    services_.doorbell_watch.Add(region_, slot_, origin_.bells->work());
  } else if (!origin_.vm.empty()) {
    services_.idle_watch.Add(region_, slot_);
  }
}

void RegionSession::StopWatching() {
  services_.idle_watch.Remove(*region_, slot_);
  services_.doorbell_watch.Remove(*region_, slot_);
}

RegionSession::~RegionSession() {
  DropRecord();
  services_.zeroing.Cancel(zeroing_);
  StopWatching();
  services_.flights.End(number_);
  services_.pool.Withdraw(*this);
}

std::string RegionSession::Name() const {
  const std::string process = "pid " + std::to_string(origin_.pid) + " uid " + std::to_string(origin_.uid);
  if (origin_.vm.empty()) return "local session (" + process + ")";
  return "VM " + origin_.vm + " slot " + std::to_string(slot_) + " session " + std::to_string(session_) +
         " (" + process + ")";
}

void RegionSession::StoreWord(SlotHostState state) {
  region_->StoreHostWord(slot_, SlotWord(session_, uint32_t(state)));
}

void RegionSession::Say(LogLevel level, const std::string& text) const {
  origin_.scope->log->Write(level, Name() + text);
}

void RegionSession::Open(SessionSeat seat) {
  region_->ClearHostControl(slot_);
  seat_ = std::move(seat);
  if (seat_ == nullptr) {
    auto taken = services_.scopes.TakeSession(origin_.scope);
    if (!taken.ok()) return Refuse(taken.error());
    seat_ = std::move(taken.value());
  }
  const OpenBlock block = region_->CopyOpenBlock(slot_);
  auto request = CheckOpenBlock(block, services_.workers, region_->bytes(), origin_.share->gpus,
                                services_.config.nvml_shows_all);
  if (!request.ok()) {
    if (block.magic != kRegionMagic) ++services_.counters.violations;
    return Refuse(request.error());
  }
  window_address_ = request.value().window_address;
  release_ = request.value().release;
  services_.pool.Request(*this, {std::move(request.value().environment), origin_.share->gpus,
                                 request.value().kind, request.value().api_hash});
}

void RegionSession::Refuse(const std::string& sentence) {
  ++services_.counters.refused;
  seat_.reset();
  Say(LogLevel::kWarning, " is refused: " + sentence);
  region_->WriteRefusal(slot_, sentence);
  state_ = State::kRefused;
  StoreWord(SlotHostState::kRefused);
}

void RegionSession::SetFatal(const std::string& sentence) {
  DropRecord();
  seat_.reset();
  Say(LogLevel::kWarning, " ends: " + sentence);
  region_->WriteRefusalIfEmpty(slot_, sentence);
  state_ = State::kFatal;
  StoreWord(SlotHostState::kFatal);
}

void RegionSession::OnWorker(WorkerProcess& worker) {
  worker_pid_ = last_worker_pid_ = worker.pid();
  WorkerAssignment assignment{};
  assignment.kind = AssignmentKind::kRegion;
  assignment.slot = slot_;
  assignment.session = session_;
  assignment.has_client_socket = origin_.client_socket >= 0 ? 1 : 0;
  assignment.region_bytes = region_->bytes();
  assignment.window_address = window_address_;
  std::vector<int> descriptors = {region_->fd(),
                                  region_->granted() ? MakeSleepWord() : region_->reading_fd()};
  const int sleep_fd = region_->granted() ? descriptors[1] : -1;
  if (origin_.client_socket >= 0) descriptors.push_back(origin_.client_socket);
  const bool rings = origin_.bells != nullptr && origin_.bells->connected();
  assignment.has_bell = rings ? origin_.bells->guest_port() : 0;
  if (rings) descriptors.push_back(origin_.bells->guest());
  flight_ = FlightFile::Make();
  assignment.has_flight = flight_ != nullptr ? 1 : 0;
  if (flight_ != nullptr) descriptors.push_back(flight_->fd());
  number_ = services_.flights.Begin([this](bool with_images) { return CopyFlight(with_images); });
  KeepRecord(worker.number(), sleep_fd);
  if (!worker.Assign(assignment, descriptors)) {
    DropRecord();
    services_.flights.End(std::exchange(number_, 0));
    worker.Kill();  // its exit is reported as OnNoWorker
    return;
  }
  ++services_.counters.sessions;
  char waited[32];
  std::snprintf(waited, sizeof waited, "%.1f",
                std::chrono::duration<double, std::milli>(Clock::now() - opened_).count());
  Say(LogLevel::kInfo, " is served by worker " + std::to_string(worker_pid_) + " after " + waited + " ms");
  state_ = State::kServing;
  StartWatching();
  StoreWord(SlotHostState::kServing);
}

// A descriptor of it; where the system gives none, the region's, which the worker finds to be none.
int RegionSession::MakeSleepWord() {
  std::shared_ptr<const SleepWord> word = SleepWord::Make();
  region_->SetSleepWord(slot_, word);
  return word != nullptr ? word->fd() : region_->fd();
}

// Made before the worker is told, so that none serves of which the next daemon does not know.
void RegionSession::KeepRecord(uint64_t worker, int sleep_fd) {
  if (key_ == 0) key_ = services_.vault.NewKey(Vault::Kind::kSession);
  services_.vault.Put(key_,
                      {{"vm", origin_.vm},
                       {"slot", slot_},
                       {"session", session_},
                       {"connection", origin_.connection},
                       {"worker", worker},
                       {"window", window_address_},
                       {"pid", origin_.pid},
                       {"uid", origin_.uid},
                       {"number", number_},
                       {"release", release_},
                       {"opened_ns", opened_.time_since_epoch().count()}},
                      {{"flight", flight_ != nullptr ? flight_->fd() : -1}, {"sleep", sleep_fd}});
}

void RegionSession::Resume(Vault::Record record, SessionSeat seat) {
  const Json& state = record.state;
  key_ = record.key;
  seat_ = std::move(seat);
  window_address_ = state.at("window").get<uint64_t>();
  opened_ = OpenedOf(state);
  flight_ = FlightFile::Of(record.Take("flight"));
  number_ = state.at("number").get<uint64_t>();
  release_ = state.at("release").get<std::string>();
  services_.flights.Resume(number_, [this](bool with_images) { return CopyFlight(with_images); });
  state_ = State::kServing;
  if (!services_.pool.Resume(*this, state.at("worker").get<uint64_t>()))
    return SetFatal(
        "The host's worker of this process ended while the host daemon was replaced; its GPU work is lost "
        "and it must be started again.");
  worker_pid_ = last_worker_pid_ = services_.pool.PidOf(*this);
  ++services_.counters.sessions;
  if (region_->granted()) region_->SetSleepWord(slot_, SleepWord::Of(record.Take("sleep")));
  StartWatching();
  StoreWord(SlotHostState::kServing);
  Say(LogLevel::kInfo, " goes on with worker " + std::to_string(worker_pid_));
}

void RegionSession::OnNoWorker(const std::string& sentence) {
  if (state_ == State::kOpening) {
    Refuse(sentence);
  } else if (state_ == State::kClosing) {
    Finish();
  }
}

void RegionSession::OnWorkerUsage(const WorkerUsage& usage) {
  if (usage.violations > usage_.violations)
    services_.counters.violations += usage.violations - usage_.violations;
  usage_ = usage;
}

void RegionSession::OnWorkerViolation() {
  ++services_.counters.violations;
}

void RegionSession::OnWorkerExit(const std::string& how, bool orderly) {
  worker_pid_ = 0;
  DropRecord();
  StopWatching();
  if (!orderly) worker_end_ = how;
  if (state_ == State::kClosing) return Finish();
  if (state_ != State::kServing) return;
  if (!orderly) CountWorkerDeath(services_, *origin_.scope);
  SetFatal("The host's worker of this process " + how +
           "; its GPU work is lost and it must be started again.");
}

void RegionSession::Close(bool kill_now) {
  if (state_ == State::kClosed) return;
  if (state_ == State::kClosing) {
    // Without a worker its memory is being zeroed, or could not be, which a reset does for the whole region.
    if (kill_now && !services_.pool.End(*this, true)) Finish();
    return;
  }
  const State before = std::exchange(state_, State::kClosing);
  if (before == State::kServing && services_.pool.End(*this, kill_now)) return;  // OnWorkerExit goes on
  services_.pool.Withdraw(*this);
  Finish();
}

void RegionSession::Reset() {
  reset_ = true;
  Close(true);
}

void RegionSession::Abandon(const std::string& sentence) {
  if (state_ != State::kOpening && state_ != State::kServing) return;
  if (state_ == State::kOpening) services_.pool.Withdraw(*this);
  SetFatal(sentence);
}

void RegionSession::Finish() {
  seat_.reset();
  DropRecord();
  services_.flights.End(number_);
  services_.zeroing.Cancel(zeroing_);
  if (reset_ || region_->broken()) return FinishClosed();
  // A local session's region is nobody else's and ends with it.
  if (origin_.vm.empty()) {
    region_->DiscardAtEnd();
    return FinishClosed();
  }
  zeroing_ = services_.zeroing.Begin(
      region_, region_->SlotMemory(slot_, region_->CopyOwnerTable()), [this](int error) {
        zeroing_ = 0;
        if (error == 0 || region_->broken()) return FinishClosed();
        Say(LogLevel::kError,
            ": its memory cannot be zeroed, so its slot stays closed to others: " + ErrnoText(error));
      });
}

void RegionSession::FinishClosed() {
  Say(LogLevel::kInfo, " is closed");
  state_ = State::kClosed;
  StoreWord(SlotHostState::kClosed);
  on_closed_();
}

SessionPeer RegionSession::Peer() const {
  return PeerOf(*origin_.scope, *origin_.share, origin_.pid, origin_.uid, origin_.pid);
}

bool RegionSession::MayMap(const RegionMapping& mapping) {
  if (region_->IsLent(slot_, mapping.offset, mapping.bytes)) return true;
  if (std::exchange(mapped_wrongly_, true)) return false;
  Say(LogLevel::kWarning, ": its worker may not map " + std::to_string(mapping.bytes) + " bytes at " +
                              std::to_string(mapping.offset) + " of the region, which are not lent to it");
  return false;
}

bool RegionSession::IsOwnRegion(int descriptor) const {
  struct statx own {};
  struct statx given {};
  return !StatStranger(region_->fd(), &own) || !StatStranger(descriptor, &given) ||
         (own.stx_dev_major == given.stx_dev_major && own.stx_dev_minor == given.stx_dev_minor &&
          own.stx_ino == given.stx_ino);
}

FlightCopy RegionSession::CopyFlight(bool with_images) const {
  FlightCopy copy{Status(), worker_end_, "", ""};
  copy.status.worker_pid = last_worker_pid_;
  if (!with_images) return copy;
  copy.guest = region_->CopyFlight(slot_);
  if (flight_ != nullptr) copy.host = flight_->Copy();
  return copy;
}

SessionStatus RegionSession::Status() const {
  SessionStatus status;
  status.number = number_;
  status.kind = origin_.vm.empty() ? "local" : "vm";
  status.scope = origin_.scope->name;
  status.vm = origin_.vm;
  status.slot = slot_;
  status.session = session_;
  status.pid = origin_.pid;
  status.uid = origin_.uid;
  status.release = release_;
  status.state = kStateNames[size_t(state_)];
  status.opened = opened_;
  status.worker_pid = worker_pid_;
  status.usage = usage_;
  status.memory = services_.pool.MemoryOf(*this);
  status.queued_bytes = int64_t(region_->QueuedBytes(slot_));
  return status;
}

}  // namespace causeway::daemon
