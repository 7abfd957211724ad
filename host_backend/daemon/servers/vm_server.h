// SPDX-License-Identifier: Apache-2.0
// Serves one VM's region: watches the words that the guest's kernel module writes.
#pragma once
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "host_backend/common/unique_fd.h"
#include "host_backend/daemon/doorbell/doorbell.h"
#include "host_backend/daemon/region/open_watch.h"
#include "host_backend/daemon/region/region_source.h"
#include "host_backend/daemon/servers/region_session.h"
#include "host_backend/daemon/xen/granting.h"

namespace causeway::daemon {

class VmServer {
 public:
  // While the daemon starts: the region's old content is zeroed before this returns.
  static Result<std::unique_ptr<VmServer>> Start(Services& services, const VmConfig& vm);
  // While it serves others: the content is zeroed later, and nothing is served until then.
  // Memory of a Xen domain is granted later, too (WhenGranted).
  static Result<std::unique_ptr<VmServer>> Add(Services& services, const VmConfig& vm);
  // Without a region, because of `problem`. It is tried again every second, until there is one.
  static std::unique_ptr<VmServer> StartWithout(Services& services, const VmConfig& vm,
                                                const std::string& problem);
  ~VmServer();

  // Tells every guest process and the module that the daemon stops.
  void Stop();
  // Ends the sessions and serves nothing any more. `removed` comes from the event loop, when no worker uses the
  // region any more and the caller may destroy this object. No other call but AppendStatus may follow.
  void Remove(std::function<void()> removed);
  // Limits and GPUs of that configuration from now on, for sessions that begin; everything else of it is as before.
  void SetLimits(const VmConfig& vm);
  // What it was stored with is what it has of the GPUs' time from now on.
  void SetTerms(const ShareTerms& terms) { vm_.share.terms = terms; }
  // No session begins any more, and each that asks is told `why`; empty: they may again.
  void Close(const std::string& why) { scope_->closed = why; }
  // `idle` comes once from the event loop, when the VM has no session.
  void WhenIdle(std::function<void()> idle);
  // `granted` comes once, with problem(), when memory that is being granted to a Xen domain has been or cannot be: from
  // the event loop, or at once if nothing is under way. Not after Remove.
  void WhenGranted(std::function<void(const std::string&)> granted) {
    granting_.WhenIdle([this, granted = std::move(granted)] { granted(problem_); });
  }
  // Deletes the region's file, unless another one has its name. False: it is there still.
  bool DeleteFile() const { return !file_ || file_->Delete(); }
  const VmConfig& config() const { return vm_; }
  uint32_t session_count() const {
    return uint32_t(sessions_.size()) - uint32_t(std::count(sessions_.begin(), sessions_.end(), nullptr));
  }
  const std::string& problem() const { return problem_; }
  // It is looked at now and then, because nothing rings for it.
  bool is_polled() const { return !IsQuiet(); }
  bool has_region() const { return file_ != nullptr; }
  void AppendStatus(std::vector<SessionStatus>& sessions, std::vector<RegionStatus>& regions) const;

 private:
  VmServer(Services& services, const VmConfig& vm)
      : services_(services),
        vm_(vm),
        scope_(services.scopes.OfVm(vm)),
        granting_(services.loop, services.vault) {}
  static Result<std::unique_ptr<VmServer>> With(Services& services, const VmConfig& vm,
                                                std::unique_ptr<RegionSource> file);
  void Log(LogLevel level, const std::string& text) const {
    scope_->log->Write(level, "VM " + vm_.name + text);
  }
  void Adopt(std::unique_ptr<RegionSource> file);
  void BeginLooking();
  void SayRemoved();
  void SayIdle();
  bool ResumeSessions();
  void EndEarlierSessions();
  std::string OpenDoorbell();
  void OnConnected();
  void OnRung();
  void LookSoon(bool at_file);
  void OnDisconnected();
  void OnOpened();
  // Null: the VM cannot ring now.
  const Bells* ConnectedBells() const;
  // Whether the guest rings for all that the daemon would look for.
  bool IsRung() const;
  // Whether there is nothing to look for until somebody rings or connects.
  bool IsQuiet() const;
  void Tick();
  void Beat();
  // *was_there: an error is of what is there, and not of the configuration.
  static Result<std::unique_ptr<RegionSource>> OpenRegion(Services& services, const VmConfig& vm, bool starts,
                                                          bool* was_there = nullptr);
  void CheckFile();
  void Lose(const std::string& why);
  void TryReopen();
  void BeginGranting() {
    granting_.Begin(vm_, [this](Granting::Source file) { Take(std::move(file)); });
  }
  void Take(Result<std::unique_ptr<RegionSource>> file);
  bool ScanEpoch();
  bool ScanSlots();
  void OnGuestWord(uint32_t slot, uint32_t word);
  void OpenSlot(uint32_t slot, uint32_t number);
  RegionSession& MakeSession(uint32_t slot, uint32_t number);
  void OnClosed(uint32_t slot);
  void WatchVmProcess();
  void OnVmExit();
  void BeginReset(uint64_t epoch);
  void ZeroRegion();
  void FinishReset();
  void StartServing();
  void FoundVmProcess();
  void Violation(uint32_t slot, const std::string& text);
  bool AnySession() const { return session_count() != 0; }

  Services& services_;
  VmConfig vm_;
  const ScopeRef scope_;
  std::unique_ptr<RegionSource> file_;  // null while the region is lost
  std::unique_ptr<Doorbell> doorbell_;  // null in plain mode
  std::unique_ptr<OpenWatch> opened_;   // while there is a doorbell
  bool by_path_ = false;                // a process has the region that is not connected to the doorbell
  bool said_polling_ = false;
  std::string problem_;
  std::array<std::unique_ptr<RegionSession>, kMaxSlots> sessions_;
  std::array<uint32_t, kMaxSlots> seen_words_{};  // guest words already acted upon
  std::array<bool, kMaxSlots> any_session_{};     // the slot's next session may have any number
  UniqueFd vm_process_;                           // of the VM's process, from its first session to its exit
  EventLoop::WatchId vm_process_watch_ = 0;
  std::function<void()> removed_;  // set by Remove
  std::function<void()> idle_;     // set by WhenIdle
  Granting granting_;              // of a Xen domain
  bool vm_gone_ = false;           // powered off: its words mean nothing until a new guest starts
  uint64_t guest_epoch_ = 0;
  bool resetting_ = false;
  bool starting_ = false;  // the region's old content is being zeroed; nothing is served yet
  Zeroing::JobId zeroing_ = 0;
  UniqueFd finding_;  // the launcher looks for the VM's process, and answers here
  EventLoop::WatchId finding_watch_ = 0;
  Clock::time_point found_none_{};
  double changes_left_ = 0;  // that may be handled now, of guest words
  Clock::time_point changes_at_{};
  Clock::time_point last_change_{};
  Clock::time_point last_violation_{};
  uint32_t next_slot_ = 0;
  EventLoop::TimerId tick_timer_ = 0;
  EventLoop::TimerId beat_timer_ = 0;
  uint32_t beats_ = 0;
};

}  // namespace causeway::daemon
