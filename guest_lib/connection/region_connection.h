// SPDX-License-Identifier: Apache-2.0
// What the local socket and the kernel module have in common: a slot in a mapped region, and the host's
// words.
#pragma once
#include <atomic>
#include <string>

#include "guest_lib/connection/connection.h"
#include "ivshmem_ring/transport/layout.h"

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
  bool RegionFile(uint64_t* device, uint64_t* inode) override;
  void Abandon() override;

 protected:
  RegionConnection(int fd, SessionKind kind) : fd_(fd), kind_(kind) {}

  // Maps granule 0 and the slot, checks the superblock, reserves the window. False: *error says why.
  bool Map(uint32_t slot, bool granule0_writable, std::string* error);
  void FillOpenBlock();
  // Waits until the host serves the slot. False: refused, or nobody answered in time.
  bool AwaitHost(std::string* error);
  void MakeTransport(bool futex);
  // Why the host no longer serves us; empty while it does. Called while waiting.
  std::string Loss();
  // What only the way in can tell, such as a closed socket. Empty: nothing is wrong.
  virtual std::string LinkLoss() { return {}; }
  // Slices that are no longer used: nothing may be readable there.
  void UnmapSlices(uint64_t offset, uint64_t bytes);

  const Superblock& superblock() const { return *reinterpret_cast<const Superblock*>(granule0_); }
  const HostPage& host_page() const {
    return *reinterpret_cast<const HostPage*>(granule0_ + kHostPageOffset);
  }

  int fd_;
  const SessionKind kind_;
  std::byte* granule0_ = nullptr;
  std::byte* slot_base_ = nullptr;
  uint32_t slot_ = 0;
  uint32_t session_ = 0;

 private:
  uint64_t epoch_ = 0;
  std::atomic<uint64_t> last_beat_{0};  // every waiting thread looks at these two
  std::atomic<uint64_t> last_beat_change_ms_{0};
};

std::unique_ptr<Connection> ConnectLocal(const std::string& path, SessionKind kind, std::string* error);
std::unique_ptr<Connection> ConnectModule(const std::string& path, SessionKind kind, std::string* error);
std::unique_ptr<Connection> ConnectTcp(const std::string& address, SessionKind kind, std::string* error);
void FillOpenBlockFields(OpenBlock* block, SessionKind kind, uint64_t window_address);

}  // namespace causeway::guest
