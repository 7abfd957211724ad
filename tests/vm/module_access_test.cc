// SPDX-License-Identifier: Apache-2.0
// What one process may map and allocate, and every way in which it may not.
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/vm/module_device.h"

namespace causeway::module_test {

void TestMappings() {
  Device device;
  Check(device.ok(), "open");
  const causeway_info& info = device.info();
  const auto* block = reinterpret_cast<const Superblock*>(device.Map(0, 4096, false));
  Check(block && block->magic == kRegionMagic && block->region_bytes == info.region_bytes &&
            block->slot_count == info.slot_count && block->granule_count == info.granule_count,
        "INFO agrees with the superblock");

  Check(device.MapErrno(0, kGranuleBytes, true) == EPERM, "granule 0 is not writable");
  Check(device.MapErrno(kOwnerTableOffset, 4096, true) == EPERM, "the owner table is not writable");
  uint8_t* readable = device.Map(kOwnerTableOffset, 4096, false);
  CheckFails(mprotect(readable, 4096, PROT_READ | PROT_WRITE), EACCES, "mprotect to writable");
  CheckFails(mprotect(readable, 4096, PROT_READ | PROT_EXEC), EACCES, "mprotect to executable");
  Check(SignalOfAccess(readable, true) == SIGSEGV, "a write to granule 0 faults");

  uint8_t* slot = device.MapSlot();
  Check(slot && SignalOfAccess(slot, true) == 0, "the own slot is writable");
  for (uint32_t granule = 1; granule < info.granule_count; ++granule) {
    if (granule == 1 + info.slot) continue;
    Check(device.MapErrno(granule * kGranuleBytes, 4096, false) == EPERM,
          "granule " + std::to_string(granule) + " is foreign");
  }
  Check(device.MapErrno(device.slot_offset(), 2 * kGranuleBytes, true) == EPERM, "the own slot and one more");
  Check(device.MapErrno(device.slot_offset() + kGranuleBytes - 4096, 8192, true) == EPERM,
        "across the slot's end");
  Check(device.MapErrno(0, info.region_bytes, false) == EPERM, "the whole region");
  Check(device.MapErrno(info.region_bytes, 4096, false) == EINVAL, "behind the region");
  Check(device.MapErrno(info.region_bytes - 4096, 8192, false) == EINVAL, "across the region's end");
  Check(device.MapErrno(~0ull << 12, 4096, false) != 0, "the last page of 64 bits");
  Check(device.MapErrno(device.slot_offset(), 1ull << 46, true) != 0, "a huge length");
  CheckFails(reinterpret_cast<long>(
                 mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, device.fd(), device.slot_offset())),
             EINVAL, "a private mapping");
  CheckFails(reinterpret_cast<long>(
                 mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, device.fd(), device.slot_offset())),
             EPERM, "an executable mapping");
  CheckFails(ioctl(device.fd(), _IO('K', 0x7f)), ENOTTY, "an unknown ioctl");
  CheckFails(ioctl(device.fd(), CAUSEWAY_IOC_INFO, 8), EFAULT, "INFO to a bad address");

  Check(device.GuestWord(info.slot) != SlotWord(info.session, 1), "not open before START");
  Check(device.Start() == 0, "START");
  Check(device.GuestWord(info.slot) == SlotWord(info.session, 1), "open after START");
  CheckFails(device.Start(), EALREADY, "START twice");
  const auto* page = reinterpret_cast<const GuestPage*>(device.Map(0x2000, 4096, false));
  Check(page->pid[info.slot] == static_cast<uint32_t>(getpid()) && page->uid[info.slot] == getuid(),
        "pid and uid");
}

void TestSlices() {
  Device device;
  uint32_t first = 0, again = 0, rest = 0;
  CheckFails(device.AllocSlices(0, &first), EINVAL, "no slices");
  CheckFails(device.AllocSlices(0xffffffff, &first), ENOMEM, "2^32 - 1 slices");
  CheckFails(device.AllocSlices(0x80000000, &first), ENOMEM, "2^31 slices");
  CheckFails(ioctl(device.fd(), CAUSEWAY_IOC_ALLOC_SLICES, 8), EFAULT, "ALLOC from a bad address");

  Check(device.AllocSlices(3, &first) == 0 && first > device.info().slot_count, "three slices");
  for (uint32_t i = first; i < first + 3; ++i)
    Check(device.Owner(i) == device.info().slot + 1, "the owner table names the slot");
  uint8_t* slices = device.MapSlice(first, 3);
  Check(slices != nullptr, "map slices");
  std::memset(slices, 0x5a, 3 * kGranuleBytes);
  Check(slices[0] == 0x5a && slices[3 * kGranuleBytes - 1] == 0x5a, "slices hold data");
  Check(device.MapErrno((first + 2) * kGranuleBytes, 2 * kGranuleBytes, true) == EPERM,
        "one granule too many");

  CheckFails(device.FreeSlices(first, 4), EPERM, "free one too many");
  CheckFails(device.FreeSlices(0, 1), EPERM, "free granule 0");
  CheckFails(device.FreeSlices(1 + device.info().slot, 1), EPERM, "free the own slot");
  CheckFails(device.FreeSlices(0xffffffff, 0xffffffff), EPERM, "free with wrap-around");
  CheckFails(device.FreeSlices(first, 0xffffffff), EPERM, "free 2^32 - 1");
  CheckFails(device.FreeSlices(first, 0), EINVAL, "free none");

  Check(device.FreeSlices(first + 1, 1) == 0, "free the middle one");
  Check(SignalOfAccess(slices, false) == 0 && SignalOfAccess(slices + kGranuleBytes, false) == SIGBUS &&
            SignalOfAccess(slices + 2 * kGranuleBytes, true) == 0,
        "only the freed slice is gone");
  CheckFails(device.FreeSlices(first + 1, 1), EPERM, "free twice");
  CheckFails(device.FreeSlices(first, 3), EPERM, "free a run with a hole");
  Check(device.Owner(first + 1) == device.info().slot + 1, "a freed slice stays with its slot");
  Check(device.AllocSlices(1, &again) == 0 && again == first + 1, "the freed slice comes first again");
  Check(SignalOfAccess(slices + kGranuleBytes, true) == 0, "the old mapping works again");

  uint32_t total = 0;
  while (device.AllocSlices(1, &rest) == 0) ++total;
  CheckFails(device.AllocSlices(1, &rest), ENOMEM, "nothing is left");
  Check(total + 3 == device.info().granule_count - 1 - device.info().slot_count, "all slices were to be had");
}

// In a paravirtual guest of Xen a mapping cannot be moved (docs/xen.md).
static void Reshape(bool moves) {
  Device device;
  uint32_t first = 0;
  Check(device.AllocSlices(2, &first) == 0, "slices");
  uint8_t* slices = device.MapSlice(first, 2);
  slices[0] = 7;
  slices[kGranuleBytes] = 8;
  CheckFails(reinterpret_cast<long>(mremap(slices, 2 * kGranuleBytes, 3 * kGranuleBytes, MREMAP_MAYMOVE)),
             EFAULT, "grow a mapping");
  CheckFails(reinterpret_cast<long>(mremap(slices, 0, kGranuleBytes, MREMAP_MAYMOVE)), EFAULT,
             "double a mapping");
  CheckFails(madvise(slices, kGranuleBytes, MADV_DOFORK), EINVAL, "inherit a mapping");
  CheckFails(madvise(slices, kGranuleBytes, MADV_DODUMP), EINVAL, "dump a mapping");
  CheckFails(madvise(slices, kGranuleBytes, MADV_REMOVE), ENODEV, "punch a hole");
  // Shrinking, moving and cutting are ordinary; what is left must show the same granules.
  Check(munmap(slices + 4096, 3 * 4096) == 0, "cut a hole");
  Check(SignalOfAccess(slices + 8192, false) == SIGSEGV && slices[0] == 7, "the hole is a hole");
  auto* second = slices + kGranuleBytes;
  auto* moved = static_cast<uint8_t*>(mremap(second, kGranuleBytes, kGranuleBytes, MREMAP_MAYMOVE));
  void* target = mmap(nullptr, kGranuleBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* result = mremap(moved, kGranuleBytes, kGranuleBytes, MREMAP_MAYMOVE | MREMAP_FIXED, target);
  if (moves) {
    moved = static_cast<uint8_t*>(result);
    Check(moved == target && moved[0] == 8, "a moved mapping shows the same slice");
  } else {
    CheckFails(reinterpret_cast<long>(result), EINVAL, "move a mapping");
    Check(SignalOfAccess(moved, false) == 0 && moved[0] == 8, "it still shows the slice where it was");
  }
  Check(device.FreeSlices(first + 1, 1) == 0 && SignalOfAccess(moved, false) == SIGBUS, "zapped where it is");

  char byte = 0;
  const iovec local = {&byte, 1}, remote = {slices, 1};
  CheckFails(process_vm_readv(getpid(), &local, 1, &remote, 1, 0), EFAULT, "pinning region memory");
  Check(mprotect(slices, 4096, PROT_NONE) == 0 && mprotect(slices, 4096, PROT_READ | PROT_WRITE) == 0 &&
            slices[0] == 7,
        "protection may change and change back");
}

void TestRemap() {
  Reshape(true);
}

void TestRemapInPlace() {
  Reshape(false);
}

void TestStress() {
  Device device;
  Check(device.Start() == 0, "START");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&device, t] {
      for (int i = 0; i < 100; ++i) {
        uint32_t first = 0;
        const uint32_t count = 1 + (t + i) % 3;
        if (device.AllocSlices(count, &first) != 0) continue;
        uint8_t* slices = device.MapSlice(first, count);
        if (!slices) {
          Check(false, "map in stress");
          continue;
        }
        for (uint64_t at = 0; at < count * kGranuleBytes; at += kGranuleBytes / 2)
          slices[at] = static_cast<uint8_t>(t);
        for (uint64_t at = 0; at < count * kGranuleBytes; at += kGranuleBytes / 2)
          if (slices[at] != t) Check(false, "a slice is shared by two threads");
        Check(device.FreeSlices(first, count) == 0, "free in stress");
        munmap(slices, count * kGranuleBytes);
      }
    });
  }
  for (auto& thread : threads) thread.join();

  // One file, one page fault storm: all threads touch the same fresh slices at once.
  uint32_t first = 0;
  Check(device.AllocSlices(4, &first) == 0, "slices for the fault storm");
  uint8_t* slices = device.MapSlice(first, 4);
  threads.clear();
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([slices, t] {
      for (uint64_t at = 0; at < 4 * kGranuleBytes; at += 4096) slices[at + t] = static_cast<uint8_t>(t + 1);
    });
  for (auto& thread : threads) thread.join();
  for (uint64_t at = 0; at < 4 * kGranuleBytes; at += 4096)
    if (slices[at] != 1 || slices[at + 3] != 4) return Check(false, "a write was lost in the fault storm");
}

void TestSpeed() {
  constexpr uint64_t kBytes = 16u << 20;
  Device device;
  uint32_t first = 0;
  Check(device.AllocSlices(kBytes / kGranuleBytes, &first) == 0, "slices");
  void* anonymous = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uint8_t* mapped = device.MapSlice(first, kBytes / kGranuleBytes);
  double seconds[2] = {};
  void* memory[2] = {anonymous, mapped};
  for (int i = 0; i < 2; ++i) {
    std::memset(memory[i], 1, kBytes);
    const double start = NowSeconds();
    uint64_t sum = 0;
    for (int pass = 0; pass < 4; ++pass)
      for (uint64_t at = 0; at < kBytes / 8; ++at) sum += static_cast<volatile uint64_t*>(memory[i])[at];
    seconds[i] = NowSeconds() - start;
    Check(sum != 0, "sum");
  }
  std::printf("read: ordinary memory %.2f GB/s, region %.2f GB/s\n", 4 * kBytes / seconds[0] / 1e9,
              4 * kBytes / seconds[1] / 1e9);
  // Not checked: an emulated processor shares its time with others, and does not slow down for uncached
  // memory.
  const std::string mode = ReadFile("/sys/class/causeway/causeway/user_cache_mode");
  Check(mode == "WB", "user mappings are write-back, not " + mode);
  Check(ReadFile("/sys/class/causeway/causeway/cache_mode") == "WB", "the kernel's mapping is write-back");
}

}  // namespace causeway::module_test
