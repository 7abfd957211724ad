// SPDX-License-Identifier: Apache-2.0
// What the kernel module's tests share: checks, an opened /dev/causeway, memory accesses that may fault.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "ivshmem_ring/transport/layout.h"
#include "kernel_module/causeway_uapi.h"

namespace causeway::module_test {

// Prints a line for each failed check; Failures() is what main() exits by.
void Check(bool holds, const std::string& what);
// As Check for a call that must fail with this errno; `result` is what it returned (-1 expected).
void CheckFails(long result, int expected_errno, const std::string& what);
int Failures();

// Where fake_host.py looks for the milliseconds that it waits between a slot's DYING and its CLOSED.
inline constexpr uint64_t kHoldOffset = 0x60000;

// One open(); every mapping made through it stays until the process ends unless unmapped by the caller.
class Device {
 public:
  // `flags` are added to O_RDWR | O_CLOEXEC. errno is kept in open_errno() when open fails.
  explicit Device(int flags = 0, const std::string& path = "/dev/causeway");
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  bool ok() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  int open_errno() const { return open_errno_; }
  const causeway_info& info() const { return info_; }
  uint64_t slot_offset() const { return SlotOffset(info_.slot); }

  int Start() const;
  // Return 0 or -1 with errno set. AllocSlices: `first` is filled on success.
  int AllocSlices(uint32_t count, uint32_t* first) const;
  int FreeSlices(uint32_t first, uint32_t count) const;
  // Shared mapping at a region offset, or null with errno set.
  uint8_t* Map(uint64_t offset, uint64_t bytes, bool writable) const;
  // As Map for what must be refused: 0 if it was mapped (and unmapped again), else the errno.
  int MapErrno(uint64_t offset, uint64_t bytes, bool writable) const;
  uint8_t* MapSlot() const { return Map(slot_offset(), kGranuleBytes, true); }
  uint8_t* MapSlice(uint32_t first, uint32_t count) const {
    return Map(first * kGranuleBytes, count * kGranuleBytes, true);
  }

  // Words of the region's first granule, read through this file.
  uint32_t GuestWord(uint32_t slot) const;
  uint32_t HostWord(uint32_t slot) const;
  uint16_t Owner(uint32_t granule) const;
  // The newest slot word, waited for up to `limit_ms`.
  bool WaitGuestWord(uint32_t slot, uint32_t word, int limit_ms) const;

  void Close();

 private:
  int fd_ = -1;
  int open_errno_ = 0;
  causeway_info info_ = {};
  volatile uint8_t* control_ = nullptr;
};

// The signal that reading (or writing) one byte raises, or 0.
int SignalOfAccess(volatile uint8_t* address, bool write);

// Forks; the child runs `body` and exits with its own count of failed checks. Returns the child's pid.
int InChild(const std::function<void()>& body);
// Waits and counts a child's failed checks (or its death by a signal other than `expected_signal`) as ours.
void Join(int pid, int expected_signal = 0);

void SleepMs(int ms);
double NowSeconds();
std::string ReadFile(const std::string& path);
bool WriteFile(const std::string& path, const std::string& text);

// Where a PCI address is written to `bind` and `unbind`.
inline constexpr char kDriver[] = "/sys/bus/pci/drivers/causeway/";
// The PCI address of the bound device; of the first one where there are two.
std::string BoundDevice();

void TestMappings();
void TestSlices();
void TestTwoProcesses();
void TestFork();
void TestKilledProcess();
void TestQuarantine();
void TestAllSlots();
void TestRemap();
void TestRemapInPlace();
void TestWipe();
void TestStress();
void TestCalls();
void TestSpeed();
void TestUnbindStorm();
void TestQuota();
void TestUserSlots();
void TestUnbind();
void TestRefusals();
void TestDoorbell();
void TestDoorbellBeside();
void TestNoDoorbell();
void TestRegisters();
void TestUnbindAsleep();
// Two processes of different users, beside each other: `victim` fills its session's memory, `attacker` tries to reach it.
void TestVictim();
void TestAttacker();

}  // namespace causeway::module_test
