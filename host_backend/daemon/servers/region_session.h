// SPDX-License-Identifier: Apache-2.0
// One guest process that is served through a slot of a region: the host's side of the slot's life
// (ivshmem_ring/transport/layout.h). It runs in the daemon's only thread.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "host_backend/daemon/region/bells.h"
#include "host_backend/daemon/region/region.h"
#include "host_backend/daemon/servers/flight_store.h"
#include "host_backend/daemon/servers/services.h"

namespace causeway::daemon {

class RegionSession final : public WorkerClient {
 public:
  enum class State { kOpening, kServing, kRefused, kFatal, kClosing, kClosed };

  struct Origin {
    ScopeRef scope;
    std::string vm;  // empty: local
    uint32_t pid = 0;
    uint32_t uid = 0;
    int client_socket = -1;  // local: to the guest process, and for the worker too; the owner keeps it open
    const GpuShare* share;   // lives as long as the configuration
    const Bells* bells = nullptr;  // of a VM that is connected to them, and stays so while the session opens
    uint64_t connection = 0;       // local: the key of its connection's record (takeover/vault.h)
  };

  // `on_closed` runs once, when the slot's memory has been zeroed and the host word says CLOSED. The owner
  // destroys the session afterwards, but not inside that call.
  RegionSession(Services& services, std::shared_ptr<Region> region, uint32_t slot, uint32_t session,
                Origin origin, std::function<void()> on_closed);
  ~RegionSession() override;

  // Checks the OpenBlock and asks for a worker; a refusal is written into the slot. `seat`: the place among
  // the scope's sessions (scopes.h), if the owner has taken it already.
  void Open(SessionSeat seat = {});
  // Instead of Open: goes on as a daemon of before has left it. A session whose worker is gone is ended by that.
  void Resume(Vault::Record record, SessionSeat seat);
  // To be called when the guest process has closed the slot or is gone.
  void End() { Close(false); }
  // To be called when its VM was reset or the region's file is gone. The worker is killed at once, and the
  // owner zeroes the memory.
  void Reset();
  // To be called when the daemon stops. The guest process reads `sentence` as the reason.
  void Abandon(const std::string& sentence);

  State state() const { return state_; }
  // It was refused or ended by a failure, and its process has not closed it yet.
  bool has_failed() const { return state_ == State::kRefused || state_ == State::kFatal; }
  uint32_t session() const { return session_; }
  SessionStatus Status() const;

  void OnWorker(WorkerProcess& worker) override;
  void OnNoWorker(const std::string& sentence) override;
  void OnWorkerUsage(const WorkerUsage& usage) override;
  void OnWorkerViolation() override;
  void OnWorkerExit(const std::string& how, bool orderly) override;
  SessionPeer Peer() const override;
  bool MayMap(const RegionMapping& mapping) override;
  bool IsOwnRegion(int descriptor) const override;

 private:
  void Close(bool kill_now);
  void Finish();
  void StartWatching();
  void StopWatching();
  void FinishClosed();
  void Refuse(const std::string& sentence);
  void SetFatal(const std::string& sentence);
  void StoreWord(SlotHostState state);
  void Say(LogLevel level, const std::string& text) const;
  std::string Name() const;
  FlightCopy CopyFlight(bool with_images) const;
  void KeepRecord(uint64_t worker, int sleep_fd);
  int MakeSleepWord();
  void DropRecord() { services_.vault.Drop(key_); }

  Services& services_;
  const std::shared_ptr<Region> region_;
  const uint32_t slot_;
  const uint32_t session_;
  const Origin origin_;
  const std::function<void()> on_closed_;
  Clock::time_point opened_ = Clock::now();
  State state_ = State::kOpening;
  Zeroing::JobId zeroing_ = 0;
  SessionSeat seat_;  // held while the session opens or is served
  bool reset_ = false;
  uint64_t window_address_ = 0;
  std::string release_;          // of the guest's library, as it says
  pid_t worker_pid_ = 0;         // 0: no worker runs
  pid_t last_worker_pid_ = 0;    // stays when the worker has exited, for traces
  bool mapped_wrongly_ = false;  // the worker wanted to map what is not lent to it, and that was logged
  std::string worker_end_;       // how the worker ended; empty if it has not, or ended in order
  uint64_t number_ = 0;          // the session's in the flight store; 0: not served yet
  std::unique_ptr<FlightFile> flight_;
  WorkerUsage usage_{};
  uint64_t key_ = 0;  // of its record, while a worker serves it
};

}  // namespace causeway::daemon
