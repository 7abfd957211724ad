// SPDX-License-Identifier: Apache-2.0
// What the kernel module's tests share (see module_device.h).
#include "tests/vm/module_device.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

namespace causeway::module_test {
namespace {

int failures = 0;
int checks = 0;
sigjmp_buf fault_return;
volatile sig_atomic_t fault_signal = 0;

void OnFault(int signal) {
  fault_signal = signal;
  siglongjmp(fault_return, 1);
}

}  // namespace

void Check(bool holds, const std::string& what) {
  ++checks;
  if (holds) return;
  ++failures;
  std::printf("FAILED %s (errno %d)\n", what.c_str(), errno);
  std::fflush(stdout);
}

void CheckFails(long result, int expected_errno, const std::string& what) {
  const int found = errno;
  Check(result == -1 && found == expected_errno, what + ": wanted " + strerrorname_np(expected_errno) +
                                                     ", got " +
                                                     (result == -1 ? strerrorname_np(found) : "success"));
}

int Failures() {
  return failures;
}

Device::Device(int flags, const std::string& path) {
  fd_ = open(path.c_str(), O_RDWR | O_CLOEXEC | flags);
  open_errno_ = fd_ < 0 ? errno : 0;
  if (fd_ < 0) return;
  Check(ioctl(fd_, CAUSEWAY_IOC_INFO, &info_) == 0, "INFO");
  control_ = Map(0, kGranuleBytes, false);
  Check(control_ != nullptr, "mapping granule 0");
}

Device::~Device() {
  Close();
}

void Device::Close() {
  if (control_) munmap(const_cast<uint8_t*>(control_), kGranuleBytes);
  control_ = nullptr;
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

int Device::Start() const {
  return ioctl(fd_, CAUSEWAY_IOC_START);
}

int Device::AllocSlices(uint32_t count, uint32_t* first) const {
  causeway_slices slices = {0, count};
  const int result = ioctl(fd_, CAUSEWAY_IOC_ALLOC_SLICES, &slices);
  if (result == 0) *first = slices.first;
  return result;
}

int Device::FreeSlices(uint32_t first, uint32_t count) const {
  const causeway_slices slices = {first, count};
  return ioctl(fd_, CAUSEWAY_IOC_FREE_SLICES, &slices);
}

uint8_t* Device::Map(uint64_t offset, uint64_t bytes, bool writable) const {
  void* address = mmap(nullptr, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd_, offset);
  return address == MAP_FAILED ? nullptr : static_cast<uint8_t*>(address);
}

int Device::MapErrno(uint64_t offset, uint64_t bytes, bool writable) const {
  uint8_t* address = Map(offset, bytes, writable);
  if (!address) return errno;
  munmap(address, bytes);
  return 0;
}

uint32_t Device::GuestWord(uint32_t slot) const {
  const auto* page = reinterpret_cast<const volatile GuestPage*>(control_ + kGuestPageOffset);
  return page->slot[slot];
}

uint32_t Device::HostWord(uint32_t slot) const {
  const auto* page = reinterpret_cast<const volatile HostPage*>(control_ + kHostPageOffset);
  return page->slot[slot];
}

uint16_t Device::Owner(uint32_t granule) const {
  return reinterpret_cast<const volatile uint16_t*>(control_ + kOwnerTableOffset)[granule];
}

bool Device::WaitGuestWord(uint32_t slot, uint32_t word, int limit_ms) const {
  const double deadline = NowSeconds() + limit_ms / 1000.0;
  while (GuestWord(slot) != word) {
    if (NowSeconds() > deadline) return false;
    SleepMs(1);
  }
  return true;
}

int SignalOfAccess(volatile uint8_t* address, bool write) {
  struct sigaction action = {}, old_segv, old_bus;
  action.sa_handler = OnFault;
  sigaction(SIGSEGV, &action, &old_segv);
  sigaction(SIGBUS, &action, &old_bus);
  fault_signal = 0;
  if (sigsetjmp(fault_return, 1) == 0) {
    if (write) {
      *address = 1;
    } else {
      (void)*address;
    }
  }
  sigaction(SIGSEGV, &old_segv, nullptr);
  sigaction(SIGBUS, &old_bus, nullptr);
  return fault_signal;
}

int InChild(const std::function<void()>& body) {
  std::fflush(stdout);
  const int pid = fork();
  if (pid != 0) return pid;
  failures = 0;
  body();
  std::fflush(stdout);
  _exit(failures > 100 ? 100 : failures);
}

void Join(int pid, int expected_signal) {
  int status = 0;
  Check(waitpid(pid, &status, 0) == pid, "waitpid");
  if (expected_signal) {
    Check(WIFSIGNALED(status) && WTERMSIG(status) == expected_signal, "a child ends by its signal");
    return;
  }
  Check(WIFEXITED(status), "a child exits");
  if (WIFEXITED(status)) failures += WEXITSTATUS(status);
}

void SleepMs(int ms) {
  const timespec time = {ms / 1000, ms % 1000 * 1000000L};
  nanosleep(&time, nullptr);
}

double NowSeconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  std::string result = text.str();
  while (!result.empty() && result.back() == '\n') result.pop_back();
  return result;
}

std::string BoundDevice() {
  std::string found;
  DIR* folder = opendir(kDriver);
  while (dirent* entry = folder ? readdir(folder) : nullptr) {
    const std::string name = entry->d_name;
    if (name.find(':') != std::string::npos && (found.empty() || name < found)) found = name;
  }
  if (folder) closedir(folder);
  return found;
}

bool WriteFile(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY);
  if (fd < 0) return false;
  const bool done = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(fd);
  return done;
}

}  // namespace causeway::module_test
