// SPDX-License-Identifier: Apache-2.0
// A causewayd of the test's own with a fake worker, and a stand-in for the guest's side of a region.
#pragma once
#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host_backend/common/unique_fd.h"
#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::test {

// Asks `done` until it says true or 60 s have passed.
bool WaitFor(const std::function<bool()>& done);

// A folder of its own, removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class DaemonFixture : public ::testing::Test {
 protected:
  ~DaemonFixture() override;

  // Writes a configuration with socket, fake worker and `more`, and starts the daemon. It serves when this
  // returns.
  void StartDaemon(const std::string& worker_mode, const std::string& more = "");
  // Starts a daemon that must fail; returns what it printed. Its exit status must be 1.
  std::string FailingDaemon(const std::string& config);
  // Starts a daemon and stops it when it serves; returns what it printed.
  std::string WhatItSays(const std::string& config);
  std::string Config(const std::string& worker_mode, const std::string& more) const;
  // SIGTERM; the exit status.
  int StopDaemon();
  // SIGKILL: as if it had crashed.
  void KillDaemon();
  std::string VmConfig(uint64_t region_mib = 64, const std::string& more = "") const;

  std::string Status() const;
  // Waits until a session in state `state` is reported; returns its text.
  std::string WaitForSession(const std::string& state) const;
  bool WaitForNoSession() const;
  uint64_t Counter(const std::string& name) const;
  std::string LogText() const;

  std::string folder() const { return folder_.path(); }
  std::string socket() const { return folder_.path() + "/socket"; }
  std::string region_file() const { return folder_.path() + "/region"; }
  pid_t daemon_pid() const { return pid_; }

 private:
  // Starts a second daemon with that configuration, beside the one that StartDaemon starts. The second daemon logs to OtherLog().
  pid_t SpawnOther(const std::string& config);
  std::string OtherLog() const { return folder() + "/other.log"; }
  TemporaryFolder folder_;
  pid_t pid_ = -1;
};

// What a guest that shares no memory sends first.
OpenBlock StreamOpenBlock();

// The guest's side of a mapped region, as the kernel module and the library write it.
class GuestRegion {
 public:
  explicit GuestRegion(const std::string& file);
  GuestRegion(UniqueFd fd, uint64_t bytes);
  ~GuestRegion();

  Superblock superblock() const;
  HostPage& host_page() { return *reinterpret_cast<HostPage*>(base_ + kHostPageOffset); }
  GuestPage& guest_page() { return *reinterpret_cast<GuestPage*>(base_ + kGuestPageOffset); }
  uint16_t* owners() { return reinterpret_cast<uint16_t*>(base_ + kOwnerTableOffset); }
  GuestControl& guest_control(uint32_t slot);
  HostControl& host_control(uint32_t slot);
  char* granule(uint32_t index) { return base_ + uint64_t{index} * kGranuleBytes; }
  char* base() { return base_; }
  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

  // An OpenBlock that the daemon accepts.
  OpenBlock GoodOpenBlock() const;
  void Open(uint32_t slot, uint32_t session) { Open(slot, session, GoodOpenBlock()); }
  void Open(uint32_t slot, uint32_t session, const OpenBlock& block);
  void SetWord(uint32_t slot, uint32_t session, SlotGuestState state);
  bool WaitForHostWord(uint32_t slot, uint32_t session, SlotHostState state);
  std::string refusal(uint32_t slot);

 private:
  UniqueFd fd_;
  uint64_t bytes_ = 0;
  char* base_ = nullptr;
};

// A connection as the guest library makes it.
class LocalClient {
 public:
  explicit LocalClient(const std::string& socket);
  bool connected() const { return bool(socket_); }
  bool Send(const void* data, size_t bytes);
  // kOpenSession; the reply, and the region where it was accepted.
  LocalReply RequestSession(uint16_t abi_major = kAbiMajor);
  bool SendReady();
  void Close() { socket_.reset(); }
  // True when the daemon closed the connection.
  bool WaitForEnd();
  GuestRegion& region() { return *region_; }
  int fd() const { return socket_.get(); }

 private:
  UniqueFd socket_;
  std::unique_ptr<GuestRegion> region_;
};

}  // namespace causeway::test
