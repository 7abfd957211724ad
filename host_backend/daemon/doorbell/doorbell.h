// SPDX-License-Identifier: Apache-2.0
// One VM's ivshmem server (QEMU's ivshmem-doorbell, protocol version 0): it gives QEMU the region's memory and the
// eventfds by which guest and host ring each other. QEMU connects when the device is made, keeps the connection until
// the device is gone, and never connects again, so that the end of the connection is the end of the VM or the device.
// The connection therefore outlives the daemon: its socket and eventfds are kept for the next one (../takeover/vault.h).
//
// The guest sees two peers. Number kHostPeer is this host: its vector 0 (work) says that a ring holds something for a
// thread that sleeps, its vector 1 (control) that the guest's kernel changed a word of its page or waits for a beat of
// the host. Number kGuestPeer is the guest: its vector 0 says that a ring holds something for a guest thread that sleeps.
//
// The client is a stranger, and so is whatever it sends: nothing of it is read but one byte, which ends the connection.
// All of this runs in the event loop's thread, and nothing here waits.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "host_backend/common/result.h"
#include "host_backend/common/unique_fd.h"
#include "host_backend/daemon/loop/event_loop.h"
#include "host_backend/daemon/loop/pace.h"
#include "host_backend/daemon/loop/worker_fd.h"
#include "host_backend/daemon/process/config.h"
#include "host_backend/daemon/process/launcher_link.h"
#include "host_backend/daemon/region/bells.h"
#include "host_backend/daemon/takeover/vault.h"

namespace causeway::daemon {

// Empties an eventfd that the VM's process has as well: whether it was rung. Never waits, though that process may have taken
// O_NONBLOCK away, which both sides share, and may empty it first. Where the kernel cannot read so (before 5.8): true.
bool TakeRings(int event);

class Doorbell final : public Bells {
 public:
  static constexpr int64_t kVersion = 0, kMemory = -1, kHostPeer = 0, kGuestPeer = 1;

  // What the owner learns, from the event loop. It must not destroy the doorbell inside of such a call.
  struct Owner {
    std::function<void()> connected;  // a VM has the memory now
    std::function<void()> gone;       // it has ended, or gave the device back
    std::function<void()> rung;       // by the control vector; several rings may be one call
    std::function<void(LogLevel, const std::string&)> log;
  };

  // Binds `vm.doorbell_socket`, which belongs to the user or the group as whom QEMU runs, as the region does. `launcher`
  // may be null where the configuration names neither. Errors are sentences. Where a daemon of before has left the socket or
  // a connection in the vault, this goes on with it: connected() then without a call of the owner's.
  static Result<std::unique_ptr<Doorbell>> Bind(EventLoop& loop, Vault& vault, LauncherLink* launcher,
                                                const VmConfig& vm, Owner owner);
  ~Doorbell() override;

  // The region's file, which the next client gets; the caller keeps it open. -1: clients are refused. A client that has another
  // file can share nothing any more: its connection ends here, and `gone` is not called.
  void Offer(int memory);
  bool connected() const override { return bool(client_); }
  int work() const override { return work_.get(); }
  int guest() const override { return guest_.get(); }
  uint32_t guest_port() const override { return 1; }

 private:
  // A file's number, which another one that takes its name does not have.
  struct FileId {
    uint64_t device = 0, inode = 0;
    bool operator==(const FileId&) const = default;
  };

  Doorbell(EventLoop& loop, Vault& vault, const VmConfig& vm, Owner owner);
  static FileId IdOf(int file);
  void Resume();
  void KeepRecord();
  std::string Give(LauncherLink* launcher, const VmConfig& vm) const;
  void Listen();
  void PauseListening(std::chrono::milliseconds pause);
  void OnAccept();
  void Welcome(WorkerFd client);
  std::string SendAll(int client) const;
  void WatchClient();
  void OnClient();
  void WatchRings();
  void OnRing();
  void Disconnect();

  EventLoop& loop_;
  Vault& vault_;
  const std::string path_;
  const Json place_;  // the record's fields that say which VM's socket this is
  const Owner owner_;
  uint64_t key_ = 0;  // of the record
  int memory_ = -1;
  FileId given_;  // the memory that the client has
  WorkerFd listener_;
  const ClosingAccountRef closing_ = std::make_shared<ClosingAccount>();
  WorkerFd client_;
  UniqueFd work_, control_, guest_;
  Pace accepts_{8, 0.02}, rings_{256, 1};
  EventLoop::WatchId listener_watch_ = 0, client_watch_ = 0, ring_watch_ = 0;
  EventLoop::TimerId listener_timer_ = 0, ring_timer_ = 0;
};

}  // namespace causeway::daemon
