// SPDX-License-Identifier: Apache-2.0
// Several processes: nobody reaches another's memory, whatever way a process ends.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/vm/module_device.h"

namespace causeway::module_test {
namespace {

// A pair of one-byte messages between two processes.
class Signal {
 public:
  Signal() { Check(pipe(ends_) == 0, "pipe"); }
  ~Signal() {
    close(ends_[0]);
    close(ends_[1]);
  }
  void Send() { Check(write(ends_[1], "x", 1) == 1, "send"); }
  void Wait() {
    char byte;
    Check(read(ends_[0], &byte, 1) == 1, "wait");
  }

 private:
  int ends_[2];
};

void SetHold(const Device& device, uint32_t hold_ms) {
  uint8_t* slot = device.MapSlot();
  Check(slot != nullptr, "map the slot");
  *reinterpret_cast<volatile uint32_t*>(slot + kHoldOffset) = hold_ms;
}

std::vector<uint32_t> TakeAllSlices(const Device& device) {
  std::vector<uint32_t> taken;
  uint32_t first = 0;
  while (device.AllocSlices(1, &first) == 0) taken.push_back(first);
  return taken;
}

bool Contains(const std::vector<uint32_t>& list, uint32_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

void TestTwoProcesses() {
  Device parent;
  uint32_t first = 0;
  Check(parent.Start() == 0 && parent.AllocSlices(4, &first) == 0, "parent's session");
  Check(parent.FreeSlices(first + 2, 2) == 0, "parent frees two");
  Join(InChild([&] {
    Device child;
    Check(child.ok() && child.info().slot != parent.info().slot, "a slot of its own");
    Check(child.MapErrno(parent.slot_offset(), kGranuleBytes, false) == EPERM, "parent's slot, reading");
    Check(child.MapErrno(parent.slot_offset(), kGranuleBytes, true) == EPERM, "parent's slot");
    for (uint32_t i = first; i < first + 4; ++i)
      Check(child.MapErrno(i * kGranuleBytes, kGranuleBytes, true) == EPERM, "parent's slice");
    CheckFails(child.FreeSlices(first, 1), EPERM, "free parent's slice");
    const auto all = TakeAllSlices(child);
    Check(all.size() == child.info().granule_count - 1 - child.info().slot_count - 4,
          "all slices but the parent's");
    for (uint32_t i = first; i < first + 4; ++i) Check(!Contains(all, i), "parent's slice, also a freed one");
    Check(child.MapErrno(all[0] * kGranuleBytes, kGranuleBytes, true) == 0, "its own slice");
  }));
}

void TestFork() {
  Device observer;
  Signal parent_may_exit, child_may_test, child_done;
  Signal started;
  uint32_t words[2] = {};
  int numbers[2];
  Check(pipe(numbers) == 0, "pipe");
  const int opener = InChild([&] {
    Device device;
    uint8_t* slot = device.MapSlot();
    slot[0] = 1;
    Check(device.Start() == 0, "START");
    const uint32_t own[2] = {device.info().slot, device.info().session};
    Check(write(numbers[1], own, sizeof own) == sizeof own, "tell");
    const int heir = fork();
    if (heir == 0) {
      Check(SignalOfAccess(slot, false) == SIGSEGV, "a forked child has no mapping");
      started.Send();
      child_may_test.Wait();
      CheckFails(ioctl(device.fd(), CAUSEWAY_IOC_INFO, &words), ENODEV, "INFO after the opener's end");
      uint32_t first = 0;
      CheckFails(device.AllocSlices(1, &first), ENODEV, "ALLOC after the opener's end");
      Check(device.MapErrno(device.slot_offset(), 4096, true) == EPERM, "map after the opener's end");
      Check(Failures() == 0, "the heir's checks");
      std::fflush(stdout);
      if (Failures() == 0) child_done.Send();
      _exit(0);
    }
    parent_may_exit.Wait();
    std::fflush(stdout);
    _exit(Failures());
  });
  Check(read(numbers[0], words, sizeof words) == sizeof words, "hear");
  started.Wait();
  Check(observer.GuestWord(words[0]) == SlotWord(words[1], 1), "open while the opener lives");
  parent_may_exit.Send();
  Join(opener);
  Check(observer.WaitGuestWord(words[0], SlotWord(words[1], 0), 3000),
        "the slot is free though a child holds the file");
  child_may_test.Send();
  child_done.Wait();
  close(numbers[0]);
  close(numbers[1]);
}

void TestKilledProcess() {
  Device observer;
  int numbers[2];
  Check(pipe(numbers) == 0, "pipe");
  const int pid = InChild([&] {
    Device device;
    uint32_t first = 0;
    SetHold(device, 300);
    Check(device.AllocSlices(2, &first) == 0 && device.Start() == 0, "session");
    std::memset(device.MapSlice(first, 2), 0x77, 2 * kGranuleBytes);
    const uint32_t own[3] = {device.info().slot, device.info().session, first};
    Check(write(numbers[1], own, sizeof own) == sizeof own, "tell");
    pause();
  });
  uint32_t own[3] = {};
  Check(read(numbers[0], own, sizeof own) == sizeof own, "hear");
  Check(observer.GuestWord(own[0]) == SlotWord(own[1], 1), "open");
  kill(pid, SIGKILL);
  Join(pid, SIGKILL);
  Check(observer.GuestWord(own[0]) == SlotWord(own[1], 2), "dying after SIGKILL");
  Check(observer.Owner(own[2]) == own[0] + 1, "its slices are still its own");
  Check(observer.WaitGuestWord(own[0], SlotWord(own[1], 0), 3000), "free once the host has closed it");
  Check(observer.Owner(own[2]) == 0 && observer.Owner(own[2] + 1) == 0, "its slices are free");
  Device next;
  Check(next.info().slot == own[0] && next.info().session > own[1],
        "the slot's next session has a higher number");
  close(numbers[0]);
  close(numbers[1]);
}

void TestQuarantine() {
  Device observer;
  uint32_t slot = 0, session = 0, first = 0;
  {
    Device device;
    SetHold(device, 1500);
    slot = device.info().slot;
    session = device.info().session;
    Check(device.AllocSlices(3, &first) == 0 && device.Start() == 0, "session");
    std::memset(device.MapSlice(first, 3), 0x66, 3 * kGranuleBytes);
    SleepMs(50);
  }
  // The destructor closed the file although mappings of it are left: they must be dead.
  Check(observer.GuestWord(slot) == SlotWord(session, 2), "dying after close");
  Device next;
  Check(next.info().slot != slot, "another slot while this one dies");
  uint32_t other = 0;
  std::vector<uint32_t> taken;
  const uint32_t free_now = observer.info().granule_count - 1 - observer.info().slot_count - 3;
  while (taken.size() < free_now && next.AllocSlices(1, &other) == 0) taken.push_back(other);
  for (uint32_t i = first; i < first + 3; ++i) Check(!Contains(taken, i), "no slice of a dying slot");
  Check(observer.GuestWord(slot) == SlotWord(session, 2), "still dying (else this test proved nothing)");
  const double before = NowSeconds();
  Check(next.AllocSlices(3, &other) == 0 && other == first, "an allocation waits for dying slots");
  Check(NowSeconds() - before > 0.2, "it did wait");
  uint8_t* slices = next.MapSlice(first, 3);
  bool zero = slices != nullptr;
  for (uint64_t at = 0; zero && at < 3 * kGranuleBytes; at += 64) zero = slices[at] == 0;
  Check(zero, "the host has zeroed them");
}

// As gpu1, with user_slot_percent at its default of 90.
void TestAllSlots() {
  std::vector<Device*> devices;
  for (;;) {
    auto* device = new Device;
    if (!device->ok()) {
      Check(device->open_errno() == EBUSY, "no slot left for this user is EBUSY");
      delete device;
      break;
    }
    devices.push_back(device);
  }
  const uint32_t slots = devices.empty() ? 0 : devices[0]->info().slot_count;
  const uint32_t most = std::min(std::max(slots * 90 / 100, 1u), slots - 1);
  Check(!devices.empty() && devices.size() == most,
        "as many files as one user may have: " + std::to_string(devices.size()));
  for (auto* device : devices) Check(device->Start() == 0, "START");
  SetHold(*devices.back(), 700);
  delete devices.back();
  devices.pop_back();
  Device no_wait(O_NONBLOCK);
  Check(!no_wait.ok() && no_wait.open_errno() == EAGAIN, "O_NONBLOCK does not wait for a dying slot");
  const double before = NowSeconds();
  Device waits;
  Check(waits.ok() && NowSeconds() - before > 0.2, "open waits for a dying slot");
  for (auto* device : devices) delete device;
  waits.Close();
  // Many short lives in a row: slots and slices must come back every time.
  for (int i = 0; i < 40; ++i)
    Join(InChild([i] {
      Device device;
      uint32_t first = 0;
      Check(device.ok() && device.AllocSlices(20, &first) == 0, "life " + std::to_string(i));
      if (i % 4) Check(device.Start() == 0, "START");
    }));
}

void TestWipe() {
  uint32_t slot = 0, first = 0;
  {
    Device device;
    slot = device.info().slot;
    Check(device.AllocSlices(2, &first) == 0, "slices");
    std::memset(device.MapSlice(first, 2), 0x55, 2 * kGranuleBytes);
    std::memset(device.MapSlot(), 0x55, kGranuleBytes);
  }
  Device next;
  uint32_t again = 0;
  Check(next.info().slot == slot && next.AllocSlices(2, &again) == 0 && again == first,
        "the same slot and slices");
  const uint8_t* memory[2] = {next.MapSlot(), next.MapSlice(first, 1)};
  for (const uint8_t* granule : memory) {
    bool zero = granule != nullptr;
    for (uint64_t at = 0; zero && at < kGranuleBytes; ++at) zero = granule[at] == 0;
    Check(zero, "nothing is left of a session that never started");
  }
}

}  // namespace causeway::module_test
