// SPDX-License-Identifier: Apache-2.0
// The way in through the kernel module's device, in a VM: slot and slices are the module's to give.
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "guest_lib/connection/missing_device.h"
#include "guest_lib/connection/region_connection.h"
#include "kernel_module/causeway_uapi.h"

namespace causeway::guest {
namespace {

// By the module's calls, where the device has doorbells.
class ModuleBell : public Bell {
 public:
  // `host_control`: where the slot's HostControl is mapped, in which the words lie.
  ModuleBell(int fd, const std::byte* host_control) : fd_(fd), host_control_(host_control) {}

  void Sleep(const HotWord& word, uint32_t seen, uint64_t us) const override {
    const auto offset = static_cast<uint32_t>(reinterpret_cast<const std::byte*>(&word) - host_control_);
    causeway_wait wait{offset, seen, us * 1000};
    if (ioctl(fd_, CAUSEWAY_IOC_WAIT, &wait) == 0 || errno == ETIMEDOUT || errno == EINTR) return;
    // Too many threads sleep so, or the device has gone.
    constexpr uint64_t kMostUs = 1000;
    usleep(static_cast<useconds_t>(std::min(us, kMostUs)));
  }
  void Ring() const override { ioctl(fd_, CAUSEWAY_IOC_RING, CAUSEWAY_RING_WORK); }

 private:
  const int fd_;
  const std::byte* const host_control_;
};

class ModuleConnection : public RegionConnection {
 public:
  ModuleConnection(int fd, SessionKind kind) : RegionConnection(fd, kind) {}

  bool Enter(std::string* error) {
    causeway_info info{};
    if (ioctl(fd_, CAUSEWAY_IOC_INFO, &info) != 0) {
      *error = std::string("the device answers no query: ") + strerror(errno);
      return false;
    }
    session_ = info.session;
    if (!Map(info.slot, false, error)) return false;
    FillOpenBlock();
    if (ioctl(fd_, CAUSEWAY_IOC_START) != 0) {
      *error = std::string("the kernel module could not open the slot: ") + strerror(errno);
      return false;
    }
    if (!AwaitHost(error)) return false;
    // A daemon that was restarted has no connection to this VM, and looks at the rings itself.
    if (host_page().doorbell == 1 && AskForBeat()) bell_.emplace(fd_, slot_base_ + kHostControlOffset);
    MakeTransport(false, bell_ ? &*bell_ : nullptr);
    return true;
  }

  // When the descriptor is closed, the module unmaps the slot, and a thread that is inside a call would get SIGBUS.
  void End(Ending ending) override {
    if (ending == Ending::kUnloaded) Abandon();
  }
  bool HasOrdinaryPages() const override { return false; }  // the module's mappings are VM_PFNMAP
  bool AllocateSlices(uint64_t bytes, uint64_t* offset, bool* zeroed) override {
    *zeroed = false;  // they may have been ours before
    causeway_slices slices{0, static_cast<uint32_t>((bytes + kGranuleBytes - 1) / kGranuleBytes)};
    if (ioctl(fd_, CAUSEWAY_IOC_ALLOC_SLICES, &slices) != 0) return false;
    *offset = uint64_t{slices.first} * kGranuleBytes;
    return true;
  }

  void FreeSlices(uint64_t offset, uint64_t bytes) override {
    UnmapSlices(offset, bytes);
    causeway_slices slices{static_cast<uint32_t>(offset / kGranuleBytes),
                           static_cast<uint32_t>(bytes / kGranuleBytes)};
    ioctl(fd_, CAUSEWAY_IOC_FREE_SLICES, &slices);
  }

 private:
  // An older module knows no such call.
  bool AskForBeat() override { return ioctl(fd_, CAUSEWAY_IOC_RING, CAUSEWAY_RING_CONTROL) == 0; }

  std::optional<ModuleBell> bell_;
};

}  // namespace

std::unique_ptr<Connection> ConnectModule(const std::string& path, SessionKind kind, std::string* error) {
  // The module waits for the daemon for a bounded time, unless a signal's handler runs meanwhile.
  constexpr uint64_t kMostUs = 30'000'000;
  const uint64_t began_us = NowUs();
  int fd = -1;
  do {
    fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  } while (fd < 0 && errno == EINTR && NowUs() - began_us < kMostUs);
  if (fd < 0) {
    *error = "cannot open " + path + ": " + strerror(errno);
    const int code = errno;
    if (code == ENOENT) *error += " (" + WhyNoDevice() + ")";
    if (code == EACCES)
      *error += " (is this user in group render? `usermod -aG render USER` as root, and a new login)";
    if (code == ETIMEDOUT)
      *error += " (the host is silent: is causewayd running? There `systemctl start causewayd` starts it)";
    if (code == EBUSY) *error += " (every slot of the region is in use)";
    return nullptr;
  }
  auto connection = std::make_unique<ModuleConnection>(fd, kind);
  std::string reason;
  if (!connection->Enter(&reason)) {
    *error = path + ": " + reason;
    return nullptr;
  }
  return connection;
}

}  // namespace causeway::guest
