// SPDX-License-Identifier: Apache-2.0
// The workers: spares that are started ahead of time, the queue of sessions that wait for one, and what is
// kept for a session while a worker serves it. The daemon's only thread calls all functions.
#pragma once
#include <algorithm>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "host_backend/common/named_devices.h"
#include "host_backend/daemon/pool/checkpoints.h"
#include "host_backend/daemon/pool/own_spares.h"
#include "host_backend/daemon/pool/spare_demand.h"
#include "host_backend/daemon/pool/worker_queue.h"
#include "host_backend/daemon/process/config.h"
#include "host_backend/daemon/scopes/accounts.h"
#include "host_backend/daemon/scopes/cgroups.h"
#include "host_backend/daemon/scopes/scope_users.h"
#include "host_backend/daemon/sharing/image_cache.h"
#include "host_backend/daemon/sharing/image_hashing.h"
#include "host_backend/daemon/sharing/shared_objects.h"
#include "host_backend/daemon/workers/cache_looks.h"
#include "host_backend/daemon/workers/memory_watch.h"
#include "host_backend/daemon/workers/worker_process.h"
#include "ivshmem_ring/hosts/pool_messages.h"
#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway::daemon {

// The guest process of a session, as far as sharing, limits and logs depend on it.
struct SessionPeer {
  // "vm:NAME", "uid:NUMBER", "container:uid:NUMBER", "tcp:ADDRESS": its processes may share objects.
  std::string scope;
  uint32_t guest_pid = 0;  // 0: not known for sure
  uint32_t uid = 0;
  uint32_t stated_pid = 0;                         // as the guest itself says, only to be shown
  uint64_t device_memory_mib = 0;                  // the scope's limit on each GPU; 0: none
  std::string share{};                             // Scope::share
  std::shared_ptr<LimitedLog> log;                 // the scope's
  std::shared_ptr<WorkerPace> pace;                // the scope's
  ClosingAccountRef closing;                       // of all scopes that it shares with, ScopeFamily::closing
  const HostShare* host = nullptr;                 // the configuration's, as `gpus` is
  const std::vector<std::string>* gpus = nullptr;  // UUIDs of those that it may open; empty: all
};

// A session, as the pool sees it. After Request(): OnWorker or OnNoWorker, once; after OnWorker:
// OnWorkerExit, once.
class WorkerClient {
 public:
  virtual ~WorkerClient() = default;
  virtual void OnWorker(WorkerProcess& worker) = 0;
  virtual void OnNoWorker(const std::string& sentence) = 0;
  virtual void OnWorkerUsage(const WorkerUsage& usage) = 0;
  // The worker said what no worker says. OnWorkerExit follows.
  virtual void OnWorkerViolation() = 0;
  virtual void OnWorkerExit(const std::string& how, bool orderly) = 0;
  // The worker of a session that waits for its guest has lost the connection, or goes on over another one.
  virtual void OnWorkerLink(bool /*waits*/) {}
  virtual SessionPeer Peer() const = 0;
  // Whether that part of the region was lent to the session. A session without a region has none.
  virtual bool MayMap(const RegionMapping&) { return false; }
  // Whether that descriptor, which its worker wants others to have, is its region's or may be: then they do
  // not get it.
  virtual bool IsOwnRegion(int) const { return false; }
};

class WorkerPool final : public WorkerProcess::Listener {
 public:
  // The spares that the configuration asks for. `guaranteed`, beyond the others, are for scopes that take few;
  // `most`: up to so many follow the demand, `least` are always kept.
  struct SpareNumbers {
    uint32_t least = 1, most = 1, guaranteed = 0;
  };
  // `image_cache_bytes`: of each scope.
  WorkerPool(EventLoop& loop, WorkerProgram program, SpareNumbers spares, uint64_t image_cache_bytes,
             std::pair<uint32_t, uint32_t> worker_users = {kFirstWorkerUser, kWorkerUsers});
  ~WorkerPool() override;

  // Sets what starts workers and where they write. To be called before Start; both outlive the pool.
  void Use(LauncherLink* launcher, WorkerFolders* folders) {
    program_.launcher = launcher;
    cache_looks_.Use(launcher);
    checkpoints_.Use(launcher);
    program_.folders = folders;
  }
  // Where what must outlive this daemon is kept; it outlives the pool. With the launcher of a daemon of before: its workers, as
  // far as they are ready; those that serve follow by Resume, and FinishTakingOver ends the taking over.
  void UseVault(Vault* vault);
  void TakeOver();
  // The worker of that number serves the client as before: OnWorkerExit follows, and no OnWorker. False: it is gone.
  bool Resume(WorkerClient& client, uint64_t number);
  pid_t PidOf(const WorkerClient& client);        // 0: it has no worker
  uint64_t NumberOf(const WorkerClient& client);  // likewise
  // When all sessions were taken over, what their processes share, and the module images.
  void ResumeShared();
  void FinishTakingOver();
  // Whether nothing is half done that the next daemon could not go on with. Sessions that wait for a worker wait again there.
  bool settled() const;
  void AssumeUsers(const std::string& problem) { users_.Assume(problem); }
  const std::string& users_problem() const { return users_.problem(); }
  LauncherLink& launcher() const { return *program_.launcher; }
  // Limits the folder of compiled kernels of each scope.
  void HoldCaches(uint64_t bytes) {
    cache_bytes_ = bytes;
    cache_looks_.Limit(bytes);
  }
  // Says how many spares are kept for single scopes, beyond all others. Before Start, or by Reconfigure.
  void KeepSpares(OwnSpares::Counts wanted) { own_spares_.emplace(std::move(wanted)); }
  // Other numbers while it runs: what is too many ends, unless a session has it, and what is missing starts.
  void Reconfigure(SpareNumbers spares, OwnSpares::Counts own);
  struct OwnSpareStatus {
    std::string scope;
    uint32_t wanted = 0;
    uint32_t ready = 0;
  };
  std::vector<OwnSpareStatus> OwnSparesStatus() const;
  bool workers_change_users() const { return users_.possible(); }

  // Starts the first spares.
  void Start() { Pump(); }
  // Asks for a worker; the answer (WorkerClient) may come before this returns. If no spare fits, one starts.
  void Request(WorkerClient& client, WorkerWish wish);
  // Withdraws the client's request, or ends its worker; the client is called no more.
  void Withdraw(WorkerClient& client);
  // Asks the client's worker to end; OnWorkerExit follows. False: it has none.
  bool End(WorkerClient& client, bool kill_now);
  // The client's guest has made another connection (WorkerProcess::Resume). False: the worker cannot be told.
  bool GuestReturned(const WorkerClient& client, uint64_t received, int descriptor);
  // Ends all workers; none is started any more.
  void Stop();

  bool empty() const { return workers_.empty(); }
  size_t ready_spares() const;
  size_t starting() const;
  // How many spares are always kept, and how many are wanted now because of the demand.
  uint32_t least_spares() const { return spares_.least + spares_.guaranteed + own_spares_->total(); }
  uint32_t wanted_spares() const {
    return least_spares() + demand_.Extra(SpareRoomNow().Count(), Clock::now());
  }
  // How long a worker took to become ready lately; 0: none has. And how many may start at once.
  Clock::duration ready_time() const { return demand_.ready_time(); }
  uint32_t starting_limit() const { return starting_limit_.limit(); }
  const ImageCacheStatus& images() const { return images_.status(); }
  // From then on workers run in cgroups of their scopes. Empty, or one sentence that says why they cannot.
  std::string UseCgroups() { return cgroups_.Start(program_.launcher->pid()); }
  size_t worker_count() const { return workers_.size(); }
  // How much memory the client's session holds.
  MemoryBytes MemoryOf(const WorkerClient& client) const;
  std::vector<AccountStatus> AccountsStatus() const { return accounts_.Status(); }
  // Who may use a GPU when.
  Turns& turns() { return turns_; }
  const Turns& turns() const { return turns_; }
  // What a session of that scope could use of the GPUs, of those that `share` allows. Nothing: it is being asked for, or cannot be
  // told; to be called again a little later.
  std::optional<std::vector<PoolGpu>> DevicesFor(const std::string& scope, const GpuShare& share);
  // Why no spare can be had, or empty.
  const std::string& failure() const { return failure_; }
  const std::string& driver() const { return driver_; }
  uint32_t driver_version() const { return driver_version_; }
  uint32_t device_count() const { return device_count_; }
  // What the driver shows to a spare; none: no spare has said it, or it cannot be told (kNamesDevices).
  const std::vector<NamedDevice>& devices() const { return devices_; }

  void OnStarted(WorkerProcess& worker) override;
  void OnReady(WorkerProcess& worker, const WorkerReady& ready) override;
  void OnConfined(WorkerProcess& worker) override;
  void OnEnding(WorkerProcess& worker) override;
  void OnUsage(WorkerProcess& worker, const WorkerUsage& usage) override;
  void OnSharing(WorkerProcess& worker, const SharingRequest& request, WorkerFd descriptor) override;
  void OnCheckpoint(WorkerProcess& worker, const CheckpointOrder& order) override;
  void OnReachable(WorkerProcess& worker, uint32_t number) override;
  void OnViolation(WorkerProcess& worker) override;
  void OnQuery(WorkerProcess& worker) override;
  void OnLink(WorkerProcess& worker, bool waits) override;
  bool MayMap(WorkerProcess& worker, const RegionMapping& mapping) override;
  void OnExit(WorkerProcess& worker, const std::string& how, bool orderly) override;

 private:
  struct Entry {
    std::unique_ptr<WorkerProcess> process;
    WorkerClient* client = nullptr;
    bool own = false;  // started for its client, never a spare
    SessionKind kind = SessionKind::kCuda;
    uint64_t number = 0;       // never reused, as its session's in shared_
    std::string scope;         // the scope that it serves, or is started for
    Accounts::Seat seat;       // held from its assignment on
    std::string kept_for{};    // of a ready spare: the scope that alone may have it; empty: any
    std::string user_scope{};  // the scope whose user id it has; empty: none
    uint32_t user = 0;
    bool exited = false;
    bool in_cgroup = false;                        // it is in its scope's cgroup
    uint64_t oom_kills = 0;                        // of its scope's cgroup, before it joined
    std::map<DeviceUuid, uint64_t> start_bytes{};  // GPU memory that it held before it had a session
    std::string end_reason{};                      // why the daemon ends it; empty: it does not
    uint64_t key = 0;                              // of its record (takeover/vault.h)
    size_t starting_beside = 0;                    // how many were starting when it did, itself included

    bool IsReadySpare() const {
      return client == nullptr && process->state() == WorkerProcess::State::kReady;
    }
    bool IsStarting() const { return process->state() == WorkerProcess::State::kStarting; }
  };

  Entry* FindIf(auto is_it);
  size_t CountIf(auto counts) const;
  WorkerClient* ClientOf(const WorkerProcess& worker);  // null: it serves nobody
  Entry* Find(const WorkerProcess& worker);
  Entry* Find(const WorkerClient& client);
  Entry* Find(uint64_t number);
  // A ready spare that is kept for that scope; "": for any. Null: there is none.
  Entry* ReadySpare(const std::string& kept_for);
  OwnSpares::Counts KeptSpares() const;  // how many are ready for each scope; "": for any
  size_t Spares() const;                 // how many are ready or starting, for any scope
  // host_backend/daemon/pool/worker_spares.cc
  size_t SparesWanted() const;
  SpareRoom SpareRoomNow() const;
  void LookAtHost();
  void NoteReady(const Entry& entry, const WorkerReady& ready);
  void StartSpares();
  void EndSurplus();
  // host_backend/daemon/pool/worker_takeover.cc
  void KeepRecord(Entry& entry);
  bool ResumeEntry(Vault::Record& record, WorkerClient* client);
  // host_backend/daemon/pool/worker_checkpoints.cc
  CUresult FindProcess(const SessionPeer& caller, uint32_t guest_pid, const Entry** found) const;
  void Reach(uint64_t target, uint32_t number);
  void OnCheckpointed(uint64_t asker, const CheckpointAnswer& answer);
  SharingReply PutImage(const Entry& entry, const SharingRequest& request, WorkerFd file);
  void OnHashed(ImageToHash image, bool true_hash);
  void EndSharing(const Entry& ended);
  std::string JoinUser(Entry& entry, const std::string& scope);
  void Keep(Entry& entry, const std::string& scope);
  void HandOver(Entry& entry);
  void OnJoined(uint64_t number, const std::string& scope, const Cgroups::Joined& joined);
  void HandOverNow(Entry& entry, const std::string& problem);
  AccountHolder HolderOf(const SessionPeer& peer) const;
  uint64_t CacheBytesToHold(const std::string& scope);
  CacheLooks::Users UsersWithSessions() const;
  bool StartWorker(WorkerClient* client, const WorkerWish& wish);
  void Pump();
  void ServeFromSpares();
  void ServeFrom(const std::string& kept_for, const WorkerQueue::Waiting& request);
  void StartOwn();
  // How many workers that are no spares may start at once (one fewer than may start in all, so that a spare always finds a
  // place), and how many of them for one scope (so that a second scope finds one, too).
  static constexpr size_t kLeastForOwn = 3, kMostOfScope = 2;
  size_t PlacesForOwn() const { return std::max<size_t>(starting_limit(), kLeastForOwn) - 1; }
  size_t PlacesOfScope() const { return std::min(kMostOfScope, PlacesForOwn() - 1); }
  // host_backend/daemon/pool/worker_memory.cc
  bool WatchesMemory(const Entry& entry) const;
  void WantMemoryWatch();
  void OnMemoryRound(const MemoryRound& round);
  void EndForMemory(Entry& entry, uint64_t held, uint64_t unasked, uint64_t limit);
  size_t StartingFor(const std::string& scope) const;
  void OwnFailed(const std::string& scope);
  void SpareFailed(const std::string& sentence);

  EventLoop& loop_;
  WorkerProgram program_;
  Vault* vault_ = nullptr;
  SpareNumbers spares_;
  SpareDemand demand_;
  StartingLimit starting_limit_;
  // What the last look found of the host; SpareRoom has the meanings.
  uint32_t processors_ = 1;
  uint64_t host_free_bytes_ = 0;
  Clock::time_point looked_{};
  uint64_t spare_host_bytes_ = 0;   // that the last spare held when it was ready; 0: not known
  uint64_t device_free_bytes_ = 0;  // on GPU 0 when the last worker was ready; 0: not known
  std::list<Entry> workers_;
  WorkerQueue waiting_;
  SpareUse spare_use_;
  std::optional<OwnSpares> own_spares_{OwnSpares()};
  LimitedLog log_;  // of what concerns no scope, or not yet
  std::string failure_;
  std::string driver_;
  std::string sandbox_;  // of the last worker that said what confines it
  uint32_t driver_version_ = 0;
  uint32_t device_count_ = 0;
  std::vector<NamedDevice> devices_;
  bool spares_load_lazily_ = false;
  std::set<std::string> own_failed_;  // scopes for which a worker that is no spare has just failed to start
  std::chrono::milliseconds back_off_{0};
  Clock::time_point last_failure_{};
  Clock::time_point failure_said_ = Clock::now() - std::chrono::hours(1);
  EventLoop::TimerId retry_timer_ = 0;
  EventLoop::TimerId surplus_timer_ = 0;
  bool stopping_ = false;
  uint64_t next_number_ = 1;
  SharedObjects shared_;
  ImageCache images_;
  ImageHashing hashing_;
  Accounts accounts_;
  Turns turns_;  // after the accounts, whose pages it looks at
  ScopeUsers users_;
  uint64_t cache_bytes_ = 0;
  std::map<std::string, Clock::time_point> cache_held_;  // when a worker of the scope last checked its folder
  CacheLooks cache_looks_;
  Cgroups cgroups_{loop_};
  Checkpoints checkpoints_;
  MemoryWatch memory_watch_;
  EventLoop::TimerId devices_timer_ = 0;        // while guests ask for DevicesFor
  std::map<DeviceUuid, uint64_t> start_bytes_;  // how much GPU memory a spare holds
  uint32_t unlisted_rounds_ = 0;
  bool said_unlisted_ = false;
};

}  // namespace causeway::daemon
