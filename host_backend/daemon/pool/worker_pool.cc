// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/pool/worker_pool.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace causeway::daemon {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kFirstBackOff{1'000};
constexpr milliseconds kLongestBackOff{60'000};
constexpr std::chrono::minutes kSayFailure{1};
// So long after a worker of a scope's own failed to start none is started for that scope: on a full GPU a
// scope could otherwise have drivers start without end, which costs all others processors.
constexpr milliseconds kOwnPause{1'000};
// A spare that was ready this long and then died is replaced at once.
constexpr std::chrono::seconds kStableSpare{10};

// Half of the daemon's descriptors at most; the rest is for connections and regions.
size_t RoomForShared() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 256;
  return std::min<size_t>(limit.rlim_cur / 2, 16384);
}

// What drivers give out: their device nodes, or files in memory that have no name.
bool IsOfDriver(int descriptor) {
  struct statx info {};
  if (!StatStranger(descriptor, &info)) return false;
  // Files in memory alone have seals.
  const bool in_memory = S_ISREG(info.stx_mode) && info.stx_nlink == 0 && fcntl(descriptor, F_GET_SEALS) >= 0;
  return S_ISCHR(info.stx_mode) || in_memory;
}

ImageHash HashOf(const ImageRequest& request) {
  ImageHash hash;
  std::copy(std::begin(request.hash), std::end(request.hash), hash.begin());
  return hash;
}

}  // namespace

WorkerPool::WorkerPool(EventLoop& loop, WorkerProgram program, SpareNumbers spares,
                       uint64_t image_cache_bytes, std::pair<uint32_t, uint32_t> worker_users)
    : loop_(loop),
      program_(std::move(program)),
      spares_(spares),
      shared_(RoomForShared()),
      images_(image_cache_bytes, RoomForShared() / 4),
      hashing_(loop, image_cache_bytes,
               [this](ImageToHash image, bool true_hash) { OnHashed(std::move(image), true_hash); }),
      users_(worker_users.first, worker_users.second),
      cache_looks_(loop, [this] { return UsersWithSessions(); }),
      checkpoints_({loop, [this](uint64_t target, uint32_t number) { Reach(target, number); },
                    [this](pid_t process, const std::string& scope) { cgroups_.Add(process, scope); },
                    [this](uint64_t asker, const CheckpointAnswer& answer) { OnCheckpointed(asker, answer); },
                    [this](std::function<void()> done) { cgroups_.WhenDone(std::move(done)); }}),
      memory_watch_(loop, program_, [this](const MemoryRound& round) { OnMemoryRound(round); }) {
  accounts_.Tell(&turns_);
  program_.forget = [this](std::function<void()> done) { cgroups_.WhenDone(std::move(done)); };
}

WorkerPool::~WorkerPool() {
  loop_.Cancel(retry_timer_);
  loop_.Cancel(surplus_timer_);
}

WorkerPool::Entry* WorkerPool::FindIf(auto is_it) {
  const auto found = std::find_if(workers_.begin(), workers_.end(), is_it);
  return found != workers_.end() ? &*found : nullptr;
}

WorkerPool::Entry* WorkerPool::Find(const WorkerProcess& worker) {
  return FindIf([&](const Entry& entry) { return entry.process.get() == &worker; });
}

WorkerPool::Entry* WorkerPool::Find(const WorkerClient& client) {
  return FindIf([&](const Entry& entry) { return entry.client == &client; });
}

WorkerPool::Entry* WorkerPool::Find(uint64_t number) {
  return FindIf([&](const Entry& entry) { return entry.number == number; });
}

WorkerPool::Entry* WorkerPool::ReadySpare(const std::string& kept_for) {
  return FindIf([&](const Entry& entry) { return entry.IsReadySpare() && entry.kept_for == kept_for; });
}

OwnSpares::Counts WorkerPool::KeptSpares() const {
  OwnSpares::Counts ready;
  for (const Entry& entry : workers_) {
    if (entry.IsReadySpare()) ++ready[entry.kept_for];
  }
  return ready;
}

std::vector<WorkerPool::OwnSpareStatus> WorkerPool::OwnSparesStatus() const {
  OwnSpares::Counts ready = KeptSpares();
  std::vector<OwnSpareStatus> all;
  for (const auto& [scope, count] : own_spares_->wanted()) all.push_back({scope, count, ready[scope]});
  return all;
}

size_t WorkerPool::CountIf(auto counts) const {
  return size_t(std::count_if(workers_.begin(), workers_.end(), counts));
}

size_t WorkerPool::ready_spares() const {
  return CountIf([](const Entry& entry) { return entry.IsReadySpare(); });
}

size_t WorkerPool::starting() const {
  return CountIf([](const Entry& entry) { return entry.IsStarting(); });
}

size_t WorkerPool::Spares() const {
  return CountIf([](const Entry& entry) {
    return !entry.own && (entry.IsReadySpare() || (entry.client == nullptr && entry.IsStarting()));
  });
}

size_t WorkerPool::StartingFor(const std::string& scope) const {
  return CountIf([&](const Entry& entry) {
    return entry.own && entry.IsStarting() && (scope.empty() || entry.scope == scope);
  });
}

void WorkerPool::Request(WorkerClient& client, WorkerWish wish) {
  if (stopping_) {
    client.OnNoWorker("The host daemon is being stopped.");
    return;
  }
  // Frameworks ask for what has been the default since CUDA 12.2: where spares do it anyway, one will do.
  if (spares_load_lazily_) std::erase(wish.environment, "CUDA_MODULE_LOADING=LAZY");
  const std::string scope = client.Peer().scope;
  const bool any = wish.any();
  waiting_.Add({&client, std::move(wish), scope});
  ServeFromSpares();
  LookAtHost();
  if (any) demand_.Asked(scope, uint32_t(waiting_.any_wishes(scope)), Clock::now());
  Pump();
}

void WorkerPool::Withdraw(WorkerClient& client) {
  waiting_.Remove(client);
  if (Entry* entry = Find(client)) {
    entry->client = nullptr;
    // Asking for one and leaving again must not cost a process each time, as often as somebody likes.
    if (entry->own && entry->IsStarting() && !client.Peer().pace->given_up.Take(Clock::now()))
      OwnFailed(entry->scope);
    entry->process->Kill();
  }
}

bool WorkerPool::End(WorkerClient& client, bool kill_now) {
  Entry* entry = Find(client);
  if (entry == nullptr) return false;
  if (kill_now) {
    entry->process->Kill();
  } else {
    entry->process->End();
  }
  return true;
}

void WorkerPool::Stop() {
  stopping_ = true;
  loop_.Cancel(retry_timer_);
  loop_.Cancel(surplus_timer_);
  while (const auto refused = waiting_.Next([](const auto&) { return true; }))
    refused->client->OnNoWorker("The host daemon is being stopped.");
  for (Entry& entry : workers_) entry.process->End();
  WantMemoryWatch();
}

bool WorkerPool::StartWorker(WorkerClient* client, const WorkerWish& wish) {
  const LoopPart part("starting a worker");
  const size_t beside = starting() + 1;
  auto worker = WorkerProcess::Start(loop_, program_, wish, *this);
  if (!worker.ok()) {
    if (client != nullptr) {
      client->OnNoWorker(worker.error());
    } else {
      SpareFailed(worker.error());
    }
    return false;
  }
  workers_.push_back({std::move(worker.value()),
                      client,
                      !wish.any(),
                      wish.kind,
                      next_number_++,
                      client != nullptr ? client->Peer().scope : "",
                      {}});
  workers_.back().starting_beside = beside;
  workers_.back().process->SetNumber(workers_.back().number);
  return true;
}

void WorkerPool::ServeFrom(const std::string& kept_for, const WorkerQueue::Waiting& request) {
  spare_use_.Note(request.scope, Clock::now());
  Entry* spare = ReadySpare(kept_for);
  spare->client = request.client;
  spare->scope = request.scope;
  spare->kept_for.clear();
  HandOver(*spare);
}

void WorkerPool::ServeFromSpares() {
  OwnSpares::Counts ready = KeptSpares();
  size_t left = ready[""];
  ready.erase("");
  while (!ready.empty()) {
    const auto request = waiting_.Next([&](const WorkerQueue::Waiting& waiting) {
      return waiting.wish.any() && ready.contains(waiting.scope);
    });
    if (!request) break;
    if (--ready[request->scope] == 0) ready.erase(request->scope);
    ServeFrom(request->scope, *request);
  }
  for (; left != 0; --left) {
    const auto now = Clock::now();
    const auto request = waiting_.Next([&](const WorkerQueue::Waiting& waiting) {
      return waiting.wish.any() &&
             (left > spares_.guaranteed || spare_use_.MayTakeGuaranteed(waiting.scope, now));
    });
    if (!request) break;
    ServeFrom("", *request);
  }
  // Nobody waits for those that are left beyond the guaranteed ones.
  for (; left > spares_.guaranteed; --left) {
    const std::string scope = own_spares_->Lacking(KeptSpares(), spare_use_, Clock::now());
    Entry* spare = scope.empty() ? nullptr : ReadySpare("");
    if (spare == nullptr) break;
    Keep(*spare, scope);
  }
}

MemoryBytes WorkerPool::MemoryOf(const WorkerClient& client) const {
  for (const Entry& entry : workers_) {
    if (entry.client == &client) return accounts_.Held(entry.seat);
  }
  return {};
}

void WorkerPool::StartOwn() {
  while (starting() <= PlacesForOwn() && StartingFor("") < PlacesForOwn()) {
    const auto request = waiting_.Next([this](const WorkerQueue::Waiting& waiting) {
      return !waiting.wish.any() && StartingFor(waiting.scope) < PlacesOfScope() &&
             !own_failed_.contains(waiting.scope);
    });
    if (!request) return;
    StartWorker(request->client, request->wish);
  }
}

void WorkerPool::OwnFailed(const std::string& scope) {
  if (stopping_ || !own_failed_.insert(scope).second) return;
  loop_.After(kOwnPause, "a pause of starts", [this, scope] {
    own_failed_.erase(scope);
    Pump();
  });
}

void WorkerPool::Pump() {
  if (stopping_) return;
  EndSurplus();
  ServeFromSpares();
  StartOwn();
  StartSpares();
  if (failure_.empty() || starting() != 0) return;
  // Nobody waits for a worker that will not come.
  const std::string sentence = failure_;
  while (const auto refused = waiting_.Next([](const auto& waiting) { return waiting.wish.any(); }))
    refused->client->OnNoWorker(sentence);
}

void WorkerPool::SpareFailed(const std::string& sentence) {
  // Once a minute at most, while it goes on.
  if (Clock::now() - failure_said_ >= kSayFailure) {
    LogError("no worker can serve: " + sentence);
    failure_said_ = Clock::now();
  }
  failure_ = sentence;
  demand_.Forget();
  last_failure_ = Clock::now();
  back_off_ = std::clamp(back_off_ * 2, kFirstBackOff, kLongestBackOff);
  loop_.Cancel(retry_timer_);
  retry_timer_ = loop_.After(back_off_, "a pause of starts", [this] { Pump(); });
}

void WorkerPool::OnStarted(WorkerProcess& worker) {
  log_.Write(LogLevel::kDebug, "worker " + std::to_string(worker.pid()) + " started");
  cgroups_.AddSpare(worker.pid());
}

void WorkerPool::OnReady(WorkerProcess& worker, const WorkerReady& ready) {
  Entry* entry = Find(worker);
  if (entry == nullptr) return;
  if (ready.failed != 0) {
    WorkerClient* client = entry->client;
    entry->client = nullptr;
    const bool own = entry->own;
    if (own) OwnFailed(entry->scope);
    if (client != nullptr) client->OnNoWorker(ready.text);
    if (!own) SpareFailed(ready.text);
    Pump();
    return;
  }
  log_.Write(LogLevel::kDebug, "worker " + std::to_string(worker.pid()) + " is ready");
  if (entry->kind == SessionKind::kCuda && sandbox_ != ready.sandbox) {
    sandbox_ = ready.sandbox;
    log_.Write(LogLevel::kInfo, "workers are confined: " + sandbox_ +
                                    (users_.possible() ? "" : "; all have one user: " + users_.problem()));
  }
  if (entry->kind == SessionKind::kCuda) NoteReady(*entry, ready);
  if (!entry->own) {
    if (!failure_.empty()) log_.Write(LogLevel::kInfo, "workers can serve again");
    failure_.clear();
    back_off_ = milliseconds{0};
    driver_ = ready.text;
    driver_version_ = ready.driver_version;
    device_count_ = ready.device_count;
    devices_ = NamedDevices(ready);
    spares_load_lazily_ = ready.loads_lazily != 0;
  }
  if (!entry->own && entry->client == nullptr)
    Keep(*entry, own_spares_->ForReady(KeptSpares(), waiting_.any_wishes() != 0, spare_use_, Clock::now()));
  if (entry->client != nullptr) {
    HandOver(*entry);
  } else if (entry->own) {
    worker.End();  // its session was withdrawn meanwhile
  } else {
    KeepRecord(*entry);
  }
  Pump();
}

WorkerClient* WorkerPool::ClientOf(const WorkerProcess& worker) {
  const Entry* entry = Find(worker);
  return entry != nullptr ? entry->client : nullptr;
}

void WorkerPool::OnUsage(WorkerProcess& worker, const WorkerUsage& usage) {
  turns_.Wake();  // it may be the first that submits for long
  if (WorkerClient* client = ClientOf(worker)) client->OnWorkerUsage(usage);
}

void WorkerPool::OnLink(WorkerProcess& worker, bool waits) {
  if (WorkerClient* client = ClientOf(worker)) client->OnWorkerLink(waits);
}

bool WorkerPool::GuestReturned(const WorkerClient& client, uint64_t received, int descriptor) {
  Entry* entry = Find(client);
  return entry != nullptr && entry->process->Resume(received, descriptor);
}

void WorkerPool::OnViolation(WorkerProcess& worker) {
  if (WorkerClient* client = ClientOf(worker)) client->OnWorkerViolation();
}

void WorkerPool::OnSharing(WorkerProcess& worker, const SharingRequest& request, WorkerFd descriptor) {
  Entry* entry = Find(worker);
  if (entry == nullptr || entry->client == nullptr) return;
  SharingReply reply{};
  UniqueFd found;
  Token token;
  SharedBytes bytes;
  std::copy(std::begin(request.token), std::end(request.token), token.begin());
  std::copy(std::begin(request.bytes), std::end(request.bytes), bytes.begin());
  switch (request.action) {
    case SharingAction::kPut:
      if (descriptor && (!IsOfDriver(descriptor.get()) || entry->client->IsOwnRegion(descriptor.get()))) {
        reply.result = SharingResult::kForbidden;
        break;
      }
      reply.result =
          shared_.Put(entry->scope, entry->number, request.kind, bytes, std::move(descriptor), &token);
      break;
    case SharingAction::kGet:
      reply.result = shared_.Get(entry->scope, request.kind, token, &bytes, &found);
      break;
    case SharingAction::kDrop:
      reply.result = shared_.Drop(entry->scope, entry->number, token);
      break;
    case SharingAction::kPutImage:
      reply = PutImage(*entry, request, std::move(descriptor));
      break;
    case SharingAction::kGetImage: {
      ImageRequest image;
      std::memcpy(&image, request.bytes, sizeof image);
      reply.result = images_.Get(entry->scope, HashOf(image), image.bytes, &found);
      break;
    }
    default:
      reply.result = SharingResult::kUnknown;
  }
  reply.number = request.number;
  std::copy(token.begin(), token.end(), reply.token);
  std::copy(bytes.begin(), bytes.end(), reply.bytes);
  worker.AnswerSharing(reply, found.get());
  CloseAside(std::move(found));
}

// Answered before its hash is known: others find it once the daemon has checked it.
SharingReply WorkerPool::PutImage(const Entry& entry, const SharingRequest& request, WorkerFd file) {
  ImageRequest image;
  std::memcpy(&image, request.bytes, sizeof image);
  SharingReply reply{};
  reply.result = images_.MayPut(image.bytes);
  if (reply.result != SharingResult::kOk || images_.Has(entry.scope, HashOf(image))) return reply;
  if (!IsSealedImage(file.get(), image.bytes)) {
    reply.result = SharingResult::kForbidden;
  } else if (!hashing_.Add({entry.scope, entry.number, HashOf(image), image.bytes, std::move(file)})) {
    reply.result = SharingResult::kFull;
  }
  return reply;
}

void WorkerPool::OnHashed(ImageToHash image, bool true_hash) {
  if (true_hash) {
    images_.Put(image.scope, image.stated, image.bytes, std::move(image.file));
    return;
  }
  if (Entry* entry = Find(image.session)) entry->process->Violate("an image of another hash than it says");
}

void WorkerPool::EndSharing(const Entry& ended) {
  if (ended.scope.empty()) return;
  const bool last = std::none_of(workers_.begin(), workers_.end(), [&](const Entry& entry) {
    return &entry != &ended && entry.client != nullptr && entry.client->Peer().scope == ended.scope;
  });
  shared_.EndSession(ended.scope, ended.number, last);
}

void WorkerPool::OnQuery(WorkerProcess& worker) {
  const WorkerClient* asker = ClientOf(worker);
  if (asker == nullptr) return;
  const std::string scope = asker->Peer().scope;
  std::vector<WorkerPeer> peers;
  for (const Entry& entry : workers_) {
    if (entry.client == nullptr || !entry.process->assigned() || entry.kind != SessionKind::kCuda) continue;
    const SessionPeer peer = entry.client->Peer();
    if (peer.scope == scope) peers.push_back({peer.stated_pid, uint32_t(entry.process->pid())});
  }
  worker.SendPeers(peers);
}

bool WorkerPool::MayMap(WorkerProcess& worker, const RegionMapping& mapping) {
  WorkerClient* client = ClientOf(worker);
  return client != nullptr && client->MayMap(mapping);
}

void WorkerPool::OnExit(WorkerProcess& worker, const std::string& how, bool orderly) {
  Entry* entry = Find(worker);
  if (entry == nullptr) return;
  log_.Write(LogLevel::kDebug, "worker " + how);
  entry->exited = true;
  if (vault_ != nullptr) vault_->Drop(entry->key);
  EndSharing(*entry);
  checkpoints_.WorkerEnded(entry->number);
  accounts_.Leave(std::exchange(entry->seat, {}));
  if (!entry->user_scope.empty()) users_.Leave(std::exchange(entry->user_scope, {}));
  std::string end =
      entry->end_reason.empty() ? how : "(pid " + std::to_string(worker.pid()) + ") " + entry->end_reason;
  if (entry->in_cgroup) {
    if (!orderly && cgroups_.OutOfMemory(entry->scope) > entry->oom_kills)
      end +=
          ", because the processes of its scope had used up the host's memory that host_memory_mib gives "
          "them";
    cgroups_.Leave(entry->scope);
  }
  WorkerClient* client = entry->client;
  entry->client = nullptr;
  WantMemoryWatch();
  const bool own = entry->own;
  const bool was_assigned = client != nullptr && worker.assigned();
  const bool asked_to_end = worker.asked_to_end();
  // Destroyed once this worker's own handler has returned.
  loop_.Later("a worker's end", [this, &worker] {
    workers_.remove_if([&](const Entry& e) { return e.process.get() == &worker; });
    cache_looks_.SessionsEnded();
    Pump();
  });
  if (was_assigned) {
    client->OnWorkerExit(end, orderly);
  } else if (client != nullptr) {
    if (own) OwnFailed(entry->scope);
    client->OnNoWorker("The worker " + how +
                       " before it could serve this session; see the log of causewayd.");
  } else if (!own && !asked_to_end && !stopping_ && Clock::now() - worker.started() < kStableSpare) {
    SpareFailed("A worker " + how + " before it served a session; see the log of causewayd.");
  }
}

}  // namespace causeway::daemon
