// SPDX-License-Identifier: Apache-2.0
// One guest process that is served through a slot of a region: the host's side of the slot's life (layout.h).
#pragma once
#include <functional>
#include <memory>
#include <string>

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
    int client_socket = -1;  // local: handed to the worker too; the owner keeps it open
    const GpuShare* share;   // of the configuration
  };

  // `on_closed` runs once, when the slot's memory has been zeroed and the host word says CLOSED. The owner
  // destroys the session afterwards, but not inside that call.
  RegionSession(Services& services, std::shared_ptr<Region> region, uint32_t slot, uint32_t session,
                Origin origin, std::function<void()> on_closed);
  ~RegionSession() override;

  // Checks the OpenBlock and asks for a worker. `seat`: where the owner has taken one already.
  void Open(SessionSeat seat = {});
  // The guest process is done or gone.
  void End() { Close(false); }
  // Its VM was reset or its file is gone: the worker is killed at once. Memory is zeroed by the owner.
  void Reset();
  // The daemon stops: the guest process learns `sentence`.
  void Abandon(const std::string& sentence);

  State state() const { return state_; }
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
  void FinishClosed();
  void Refuse(const std::string& sentence);
  void SetFatal(const std::string& sentence);
  void StoreWord(SlotHostState state);
  void Say(LogLevel level, const std::string& text) const;
  std::string Name() const;
  FlightCopy CopyFlight(bool with_images) const;

  Services& services_;
  const std::shared_ptr<Region> region_;
  const uint32_t slot_;
  const uint32_t session_;
  const Origin origin_;
  const std::function<void()> on_closed_;
  const Clock::time_point opened_ = Clock::now();
  State state_ = State::kOpening;
  Zeroing::JobId zeroing_ = 0;
  SessionSeat seat_;  // while it opens or is served
  bool reset_ = false;
  uint64_t window_address_ = 0;
  pid_t worker_pid_ = 0;
  pid_t last_worker_pid_ = 0;
  bool mapped_wrongly_ = false;  // has been logged
  std::string worker_end_;       // where it was not in order
  uint64_t number_ = 0;          // of the flight store's; 0: not served yet
  std::unique_ptr<FlightFile> flight_;
  WorkerUsage usage_{};
};

}  // namespace causeway::daemon
