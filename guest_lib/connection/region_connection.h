// SPDX-License-Identifier: Apache-2.0
// What the local socket and the kernel module have in common as ways to the host: a slot in a mapped region,
// and the words by which the host says that it serves the slot (ivshmem_ring/transport/layout.h). Map,
// FillOpenBlock, AwaitHost and MakeTransport are called once, in this order, by the thread that connects.
#pragma once
#include <string>

#include "guest_lib/connection/beat_watch.h"
#include "guest_lib/connection/connection.h"
#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway::guest {

class RegionConnection : public Connection {
 public:
  ~RegionConnection() override;
  bool MoveWindow() override;
  std::byte* MapSlices(uint64_t offset, uint64_t bytes) override;
  bool MapPages(std::byte* at, uint64_t offset, uint64_t bytes) override;
  CallbackWords* callback_words() override {
    return reinterpret_cast<CallbackWords*>(slot_base_ + kCallbackWordsOffset);
  }
  bool FileIdentity(uint64_t* device, uint64_t* inode) override;
  void Abandon() override;

 protected:
  RegionConnection(int fd, SessionKind kind) : fd_(fd), kind_(kind) {}

  // Maps granule 0, which is the region's control part, and the slot, checks the superblock in it, and
  // reserves the window's addresses. False: *error says why.
  bool Map(uint32_t slot, bool granule0_writable, std::string* error);
  // Writes into the slot what the host has to know to open the session.
  void FillOpenBlock();
  // Waits until the host serves the slot: at most 90 s while the daemon lives, and as long as HostSilence allows while none
  // does. False: it refused or did not answer; *error says which.
  bool AwaitHost(std::string* error);
  // `futex`: guest and host share a kernel, so they wake each other by futex. `bell`: they do not, and wake each other by
  // this, which lives as long as the connection; null: neither can.
  void MakeTransport(bool futex, const Bell* bell = nullptr);
  // Why the host no longer serves this session; empty while it does. Waiting threads call it side by side.
  std::string Loss();
  // A loss that only the way in can see, such as a closed socket. Empty: nothing is wrong.
  virtual std::string LinkLoss() { return {}; }
  // Whether LinkLoss tells of every end of the session on the host. A session may then go on without a daemon, and without its
  // beat, for as long as the host lets it (docs/upgrade.md).
  virtual bool LinkTellsAll() { return false; }
  // Asks the daemon for a beat, where it beats only when it is asked. False: it beats by itself.
  virtual bool AskForBeat() { return false; }
  // Ends the mapping of slices that are no longer used: their addresses stay reserved, without access.
  void UnmapSlices(uint64_t offset, uint64_t bytes);

  const Superblock& superblock() const { return *reinterpret_cast<const Superblock*>(granule0_); }
  const HostPage& host_page() const {
    return *reinterpret_cast<const HostPage*>(granule0_ + kHostPageOffset);
  }

  int fd_;  // the region's file, owned; -1 after Abandon
  const SessionKind kind_;
  std::byte* granule0_ = nullptr;
  std::byte* slot_base_ = nullptr;
  uint32_t slot_ = 0;
  uint32_t session_ = 0;

 private:
  bool HostIsAway(HostSilence& silence);

  uint64_t epoch_ = 0;  // Superblock::host_epoch at the beginning; another value: the daemon was restarted
  BeatWatch beats_;
};

// The ways in that connect.h describes: a socket's path, a device's path, HOST:PORT. Null: *error says why.
std::unique_ptr<Connection> ConnectLocal(const std::string& path, SessionKind kind, std::string* error);
std::unique_ptr<Connection> ConnectModule(const std::string& path, SessionKind kind, std::string* error);
// Fills an OpenBlock, for ways in with a region and without.
void FillOpenBlockFields(OpenBlock* block, SessionKind kind, uint64_t window_address);

}  // namespace causeway::guest
