// SPDX-License-Identifier: Apache-2.0
// What needs root in the guest: the driver taken away from open files, regions that it must refuse.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>
#include <new>
#include <vector>

#include "tests/vm/module_device.h"
#include "tests/yield_until.h"

namespace causeway::module_test {
namespace {

constexpr uint64_t kControlOffset = 0x3000;  // fake_host.py: 1 = do not acknowledge resets

// Changes one byte of an unbound device's memory, as root reaches it without any driver. Returns the byte
// before. Mapped anew each time: the kernel revokes such mappings when a driver claims the memory.
void FlipUnbound(const std::string& address, uint64_t offset, uint8_t bits) {
  const std::string folder = "/sys/bus/pci/devices/" + address;
  Check(WriteFile(folder + "/enable", "1"), "enable the device");
  const int fd = open((folder + "/resource2").c_str(), O_RDWR);
  Check(fd >= 0, "open resource2");
  void* memory = mmap(nullptr, 0x4000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  Check(memory != MAP_FAILED, "map resource2");
  if (memory == MAP_FAILED) return;
  volatile uint8_t& byte = static_cast<uint8_t*>(memory)[offset];
  byte = static_cast<uint8_t>(byte ^ bits);
  munmap(memory, 0x4000);
}

}  // namespace

void TestUnbind() {
  const std::string address = BoundDevice();
  Check(!address.empty(), "the driver is bound");
  Device device;
  uint32_t first = 0;
  Check(device.Start() == 0 && device.AllocSlices(1, &first) == 0, "session");
  const uint32_t old_session = device.info().session, slot = device.info().slot;
  uint8_t* slice = device.MapSlice(first, 1);
  slice[0] = 1;
  const std::string epoch = ReadFile("/sys/class/causeway/causeway/guest_epoch");

  Check(WriteFile(std::string(kDriver) + "unbind", address), "unbind with an open file");
  Check(SignalOfAccess(slice, false) == SIGBUS, "a mapping is gone");
  uint32_t other = 0;
  CheckFails(device.AllocSlices(1, &other), ENODEV, "ALLOC when unbound");
  CheckFails(device.FreeSlices(first, 1), ENODEV, "FREE when unbound");
  CheckFails(device.Start(), ENODEV, "START when unbound");
  Check(device.MapErrno(first * kGranuleBytes, 4096, true) == ENODEV, "mmap when unbound");

  Check(WriteFile(std::string(kDriver) + "bind", address), "bind again");
  Check(ReadFile("/sys/class/causeway/causeway/guest_epoch").size() == 16 &&
            ReadFile("/sys/class/causeway/causeway/guest_epoch") != epoch,
        "a new epoch under the same name");
  Check(SignalOfAccess(slice, false) == SIGBUS, "the old mapping stays dead");
  CheckFails(device.AllocSlices(1, &other), ENODEV, "the old file stays dead");
  Device next;
  Check(next.ok() && next.info().slot == slot && next.info().session > old_session,
        "a new life, higher sessions");
}

// Opens, allocates, maps and touches as fast as it can until told to stop; counts the sessions that got that
// far.
void UseUntil(const std::atomic<bool>& stop, bool start, std::atomic<int>* sessions) {
  while (!stop) {
    const int fd = open("/dev/causeway", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    causeway_slices slices = {0, 2};
    if (fd >= 0 && ioctl(fd, CAUSEWAY_IOC_ALLOC_SLICES, &slices) == 0) {
      if (start) ioctl(fd, CAUSEWAY_IOC_START);
      void* memory = mmap(nullptr, 2 * kGranuleBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                          static_cast<off_t>(slices.first) * kGranuleBytes);
      if (memory != MAP_FAILED) {
        for (int touch = 0; touch < 4; ++touch)
          SignalOfAccess(static_cast<uint8_t*>(memory) + touch * kGranuleBytes / 2, true);
        munmap(memory, 2 * kGranuleBytes);
        ++*sessions;
      }
    }
    if (fd >= 0) close(fd);
  }
}

// Processes use the device while the driver comes and goes, until everybody has had enough of it.
void TestUnbindStorm() {
  constexpr int kUsers = 4, kEnough = 11;
  constexpr double kLimitSeconds = 60;
  struct Shared {
    std::atomic<bool> stop{false};
    std::atomic<int> sessions[kUsers] = {};
  };
  auto* shared =
      new (mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared;
  const std::string address = BoundDevice();
  std::vector<int> users;
  for (int i = 0; i < kUsers; ++i)
    users.push_back(InChild([i, shared] { UseUntil(shared->stop, i % 2 != 0, &shared->sessions[i]); }));
  const auto enough = [&] {
    return std::all_of(shared->sessions, shared->sessions + kUsers,
                       [](const auto& count) { return count >= kEnough; });
  };
  int rounds = 0;
  for (const double end = NowSeconds() + kLimitSeconds; NowSeconds() < end && (rounds < kEnough || !enough());
       ++rounds) {
    Check(WriteFile(std::string(kDriver) + "unbind", address), "unbind in the storm");
    Check(WriteFile(std::string(kDriver) + "bind", address), "bind in the storm");
    SleepMs(60);
  }
  Check(rounds >= kEnough && enough(), "sessions went on through the storm");
  shared->stop = true;
  for (const int user : users) Join(user);
}

void TestQuota() {
  constexpr char kQuota[] = "/sys/module/causeway/parameters/slot_quota_percent";
  Check(WriteFile(kQuota, "50"), "set the quota");
  {
    Device device;
    const uint32_t half = (device.info().granule_count - 1 - device.info().slot_count) / 2;
    uint32_t first = 0, taken = 0, other = 0;
    CheckFails(device.AllocSlices(half + 1, &first), ENOMEM, "more than the quota at once");
    while (device.AllocSlices(1, &first) == 0) ++taken;
    Check(taken == half, "half of the slices");
    Check(device.FreeSlices(first, 1) == 0 && device.AllocSlices(1, &other) == 0 && other == first,
          "what is freed may be had again at the limit");
    Device second;
    Check(second.AllocSlices(half, &first) == 0, "another process has a quota of its own");
  }
  Check(WriteFile(kQuota, "100"), "reset the quota");
}

// A process of user `uid` that holds as many slots as it gets until `end` is written to; it tells how many.
int HoldSlots(uint32_t uid, volatile int* got, volatile bool* end) {
  return InChild([=] {
    Check(setuid(uid) == 0, "become another user");
    std::vector<std::unique_ptr<Device>> devices;
    do {
      devices.push_back(std::make_unique<Device>(O_NONBLOCK));
    } while (devices.back()->ok());
    Check(devices.back()->open_errno() == EBUSY, "no further slot is EBUSY");
    *got = static_cast<int>(devices.size()) - 1;
    test::SleepUntil([end] { return *end; });
  });
}

// One user cannot keep the others out, and root can use what is left.
void TestUserSlots() {
  constexpr char kPercent[] = "/sys/module/causeway/parameters/user_slot_percent";
  constexpr uint32_t kGpu1 = 1001, kGpu2 = 1002;
  struct Shared {
    volatile int first = -1, second = -1;
    volatile bool end = false;
  };
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Check(page != MAP_FAILED, "a shared page");
  auto* shared = new (page) Shared;
  uint32_t slots = 0;
  SleepMs(1000);  // what earlier tests left is closed by then
  {
    Device device;
    slots = device.info().slot_count;
  }
  Check(slots >= 4, "a region of some slots");
  Check(chmod("/dev/causeway", 0666) == 0, "open the device to both users");
  Check(WriteFile(kPercent, "50"), "set the user's part");
  const int first = HoldSlots(kGpu1, &shared->first, &shared->end);
  while (shared->first < 0 && kill(first, 0) == 0) SleepMs(10);
  const int second = HoldSlots(kGpu2, &shared->second, &shared->end);
  while (shared->second < 0 && kill(second, 0) == 0) SleepMs(10);
  Check(shared->first == static_cast<int>(slots / 2), "half of the slots: " + std::to_string(shared->first));
  Check(shared->second == static_cast<int>(slots / 2), "the other half: " + std::to_string(shared->second));
  shared->end = true;
  Join(first);
  Join(second);
  Check(WriteFile(kPercent, "90"), "reset the user's part");
  {
    std::vector<std::unique_ptr<Device>> all;
    for (uint32_t i = 0; i < slots; ++i) all.push_back(std::make_unique<Device>());
    Check(all.back()->ok(), "root may have all slots");
  }
  Check(chmod("/dev/causeway", 0660) == 0, "close the device again");
  munmap(page, 4096);
}

void TestRefusals() {
  const std::string address = BoundDevice(), driver = kDriver;
  Check(WriteFile(driver + "unbind", address), "unbind");
  // magic, abi_major, header_bytes, region_bytes, slot_count, uuid (checksum)
  for (const uint64_t offset : {0x0, 0x8, 0xc, 0x13, 0x30, 0x48}) {
    FlipUnbound(address, offset, 0x41);
    Check(!WriteFile(driver + "bind", address), "a superblock with a changed byte " + std::to_string(offset));
    FlipUnbound(address, offset, 0x41);
  }
  FlipUnbound(address, kControlOffset, 1);
  Check(WriteFile(driver + "bind", address), "bind the good one");
  double before = NowSeconds();
  Device silent_host;
  Check(!silent_host.ok() && silent_host.open_errno() == ETIMEDOUT, "a silent host is ETIMEDOUT");
  Check(NowSeconds() - before > 4 && NowSeconds() - before < 8, "after five seconds");
  const int waiting = InChild([] { Device killed; });
  SleepMs(300);
  before = NowSeconds();
  kill(waiting, SIGKILL);
  Join(waiting, SIGKILL);
  Check(NowSeconds() - before < 1, "a waiting open can be killed");
  Check(WriteFile(driver + "unbind", address), "unbind");
  FlipUnbound(address, kControlOffset, 1);
  Check(WriteFile(driver + "bind", address), "bind");
  Device device;
  Check(device.ok() && device.GuestWord(device.info().slot) != 0, "the host answers again");
}

}  // namespace causeway::module_test
