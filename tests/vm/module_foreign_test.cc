// SPDX-License-Identifier: Apache-2.0
// Another user's process tries to read and write a session's memory: by mappings at every page of the region, by the calls
// that read and write files and processes, and by growing or moving what it has.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/vm/module_device.h"

namespace causeway::module_test {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint32_t kSlices = 3;
// How the two find each other.
constexpr char kVictim[] = "/tmp/victim", kAttacked[] = "/tmp/attacked";

uint64_t PatternOf(uint64_t offset) {
  return offset * 0x9e3779b97f4a7c15 + 0x5a;
}

bool AwaitFile(const std::string& path) {
  for (int i = 0; i < 120'000 && ReadFile(path).empty(); ++i) SleepMs(1);
  return !ReadFile(path).empty();
}

void Publish(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".new";
  const int fd = open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0644);
  Check(fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()), "write " + path);
  close(fd);
  Check(rename(fresh.c_str(), path.c_str()) == 0, "publish " + path);
}

struct Target {
  int pid = 0;
  uint32_t slot = 0, first = 0;
  unsigned long long address = 0;
};

bool Owns(const Target& target, uint64_t offset) {
  const uint64_t granule = offset / kGranuleBytes;
  return granule == 1 + target.slot || (granule >= target.first && granule < target.first + kSlices);
}

// Every page of the region, by itself, readable and writable, and with the page before it.
void TryEveryPage(const Device& device) {
  const uint64_t own = 1 + device.info().slot;
  for (uint64_t offset = 0; offset < device.info().region_bytes; offset += kPage) {
    const bool mine = offset / kGranuleBytes == own;
    Check(device.MapErrno(offset, kPage, true) == (mine ? 0 : EPERM),
          "to write at " + std::to_string(offset));
    const bool readable = mine || offset < kGranuleBytes;
    Check(device.MapErrno(offset, kPage, false) == (readable ? 0 : EPERM),
          "to read at " + std::to_string(offset));
    if (offset % kGranuleBytes != 0 || offset == 0) continue;
    Check(device.MapErrno(offset - kPage, 2 * kPage, false) == EPERM, "across " + std::to_string(offset));
    Check(device.MapErrno(offset, device.info().region_bytes - offset, false) ==
              (mine && offset + kGranuleBytes == device.info().region_bytes ? 0 : EPERM),
          "the rest from " + std::to_string(offset));
  }
}

// Calls that take an offset or move what is mapped.
void TryCalls(const Device& device, const Target& target) {
  char bytes[64] = {};
  Check(fcntl(device.fd(), F_SETFL, O_NONBLOCK) == 0, "O_NONBLOCK");  // read() would wait for an interrupt
  for (uint64_t offset = 0; offset < device.info().region_bytes; offset += kGranuleBytes / 2) {
    const auto at = static_cast<off_t>(offset);
    Check(pread(device.fd(), bytes, sizeof bytes, at) <= 0 || bytes[0] != char(PatternOf(offset)), "pread");
    Check(pwrite(device.fd(), bytes, sizeof bytes, at) < 0, "pwrite");
  }
  uint8_t* own = device.MapSlot();
  const long grown = reinterpret_cast<long>(mremap(own, kGranuleBytes, 2 * kGranuleBytes, MREMAP_MAYMOVE));
  Check(grown == -1, "a mapping does not grow");
  CheckFails(remap_file_pages(own, kPage, 0, (1 + target.slot) * (kGranuleBytes / kPage), 0), EPERM,
             "nor changes its offset");
  for (const uint32_t granule : {0u, 1u, device.info().slot_count, ~0u})
    CheckFails(device.FreeSlices(granule, 1), EPERM, "slices of others are not freed");
}

void TryProcess(const Target& target) {
  const std::string process = "/proc/" + std::to_string(target.pid);
  for (const char* name : {"/mem", "/maps", "/pagemap", "/map_files"}) {
    const int fd = open((process + name).c_str(), O_RDONLY);
    Check(fd < 0, process + name + " is closed to others");
    if (fd >= 0) close(fd);
  }
  uint64_t value = 0;
  const iovec here{&value, sizeof value}, there{reinterpret_cast<void*>(target.address), sizeof value};
  CheckFails(process_vm_readv(target.pid, &here, 1, &there, 1, 0), EPERM, "process_vm_readv");
  CheckFails(process_vm_writev(target.pid, &here, 1, &there, 1, 0), EPERM, "process_vm_writev");
  for (const char* path : {"/sys/class/causeway/causeway/device/resource2",
                           "/sys/class/causeway/causeway/device/resource2_wc", "/dev/mem"}) {
    const int fd = open(path, O_RDWR);
    Check(fd < 0, std::string(path) + " is closed to users");
    if (fd >= 0) close(fd);
  }
}

}  // namespace

void TestVictim() {
  umask(022);
  Device device;
  Target target;
  Check(device.Start() == 0 && device.AllocSlices(kSlices, &target.first) == 0, "a session with slices");
  uint8_t* slot = device.MapSlot();
  uint8_t* slices = device.MapSlice(target.first, kSlices);
  const uint64_t slot_offset = device.slot_offset(), first_offset = target.first * kGranuleBytes;
  const auto each_word = [&](const auto& with) {
    for (uint64_t at = 0x20000; at < kGranuleBytes; at += 512)
      with(slot + at, slot_offset + at);  // behind the host's
    for (uint64_t at = 0; at < kSlices * kGranuleBytes; at += 512) with(slices + at, first_offset + at);
  };
  each_word([](uint8_t* at, uint64_t offset) { *reinterpret_cast<uint64_t*>(at) = PatternOf(offset); });
  memset(slot + kHoldOffset, 0, 8);  // fake_host.py reads it
  char text[128];
  std::snprintf(text, sizeof text, "%d %u %u %llu", getpid(), device.info().slot, target.first,
                static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(slices)));
  Publish(kVictim, text);
  Check(AwaitFile(kAttacked), "the attacker ends");
  bool same = true;
  each_word([&](uint8_t* at, uint64_t offset) {
    same &= at == slot + kHoldOffset || *reinterpret_cast<uint64_t*>(at) == PatternOf(offset);
  });
  Check(same, "no byte was changed");
}

void TestAttacker() {
  umask(022);
  Check(AwaitFile(kVictim), "there is a victim");
  Target target;
  Check(std::sscanf(ReadFile(kVictim).c_str(), "%d %u %u %llu", &target.pid, &target.slot, &target.first,
                    &target.address) == 4,
        "what the victim says");
  Device device;
  Check(device.ok() && device.info().slot != target.slot, "a slot of its own");
  TryEveryPage(device);
  TryCalls(device, target);
  TryProcess(target);
  // A session that ends, and begins again beside the victim, gets nothing of it either.
  device.Close();
  Device again;
  Check(again.ok() && again.info().slot != target.slot, "again a slot of its own");
  uint32_t first = 0;
  while (again.AllocSlices(1, &first) == 0) {
    Check(!Owns(target, first * kGranuleBytes), "slices that are lent are not lent again");
    const auto* slice = again.MapSlice(first, 1);
    Check(slice != nullptr && *reinterpret_cast<const uint64_t*>(slice) != PatternOf(first * kGranuleBytes),
          "nothing of another session's is in them");
  }
  Publish(kAttacked, "done");
}

}  // namespace causeway::module_test
