// SPDX-License-Identifier: Apache-2.0
// What the guest's libraries, the C++ runtime and libcrypto use of glibc that is newer than 2.17. The libraries are linked
// with stand-ins of that release (link_stubs.py), which lack these functions, so that the definitions below are taken.
// They stay inside of the library (its export map hides them). Each does what glibc's does, by a system call, by the
// function of this system's glibc where it has one, or in a slower way.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>

#include "guest_lib/old_glibc/look_up.h"

namespace {

using causeway::guest::LookUpInLibc;

// A function of this system's glibc, looked up at its first use.
class Newer {
 public:
  explicit constexpr Newer(const char* name) : name_(name) {}
  // Null where this system's glibc is older than the function.
  void* Address() {
    uintptr_t known = known_.load(std::memory_order_acquire);
    if (known == kUnknown) {
      known = reinterpret_cast<uintptr_t>(LookUpInLibc(name_));
      known_.store(known, std::memory_order_release);
    }
    return reinterpret_cast<void*>(known);
  }

 private:
  static constexpr uintptr_t kUnknown = 1;
  const char* const name_;
  std::atomic<uintptr_t> known_{kUnknown};
};

constexpr int64_t kSecond = 1'000'000'000;  // in nanoseconds

int64_t Nanoseconds(const timespec& time) {
  return time.tv_sec * kSecond + time.tv_nsec;
}

int64_t Now(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return Nanoseconds(now);
}

// A file without a name, for kernels before 3.17. It lies in memory where /dev/shm does.
int FileWithoutName(bool close_on_exec) {
  for (const char* folder : {"/dev/shm", "/tmp"}) {
    char path[64];
    snprintf(path, sizeof path, "%s/causeway-XXXXXX", folder);
    const int file = mkostemp(path, close_on_exec ? O_CLOEXEC : 0);
    if (file < 0) continue;
    unlink(path);
    return file;
  }
  return -1;
}

// As getrandom(), for kernels before 3.17.
int ReadRandomDevice(std::byte* buffer, size_t bytes) {
  const int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  if (file < 0) return -1;
  while (bytes > 0) {
    const ssize_t got = read(file, buffer, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    buffer += got;
    bytes -= static_cast<size_t>(got);
  }
  close(file);
  if (bytes > 0) errno = EIO;
  return bytes > 0 ? -1 : 0;
}

}  // namespace

extern "C" {

// glibc's says "true" while the process has one thread; shared pointers then count without atomic instructions. Constant, because
// a copy of glibc's could be stale when a thread starts.
char __libc_single_threaded = 0;

// 2.33: these were macros before.
int fstat(int file, struct stat* status) noexcept {
  return static_cast<int>(syscall(SYS_fstat, file, status));
}
int fstat64(int file, struct stat64* status) noexcept {
  return static_cast<int>(syscall(SYS_fstat, file, status));
}
int stat(const char* path, struct stat* status) noexcept {
  return static_cast<int>(syscall(SYS_stat, path, status));
}
int lstat(const char* path, struct stat* status) noexcept {
  return static_cast<int>(syscall(SYS_lstat, path, status));
}
int fstatat(int folder, const char* path, struct stat* status, int flags) noexcept {
  return static_cast<int>(syscall(SYS_newfstatat, folder, path, status, flags));
}

// 2.29.
int getcpu(unsigned* cpu, unsigned* node) noexcept {
  return static_cast<int>(syscall(SYS_getcpu, cpu, node, nullptr));
}

// 2.27. Only MFD_CLOEXEC is kept up where the kernel has no such call.
int memfd_create(const char* name, unsigned flags) noexcept {
  const int file = static_cast<int>(syscall(SYS_memfd_create, name, flags));
  return file >= 0 || errno != ENOSYS ? file : FileWithoutName((flags & MFD_CLOEXEC) != 0);
}

// 2.25.
int getentropy(void* buffer, size_t bytes) {
  constexpr size_t kMost = 256;
  if (bytes > kMost) {
    errno = EIO;
    return -1;
  }
  auto* at = static_cast<std::byte*>(buffer);
  for (size_t have = 0; have < bytes;) {
    const long got = syscall(SYS_getrandom, at + have, bytes - have, 0);
    if (got > 0) {
      have += static_cast<size_t>(got);
    } else if (errno == ENOSYS) {
      return ReadRandomDevice(at + have, bytes - have);
    } else if (errno != EINTR) {
      return -1;
    }
  }
  return 0;
}

// 2.36. It has no way to fail.
uint32_t arc4random(void) noexcept {
  uint32_t value = 0;
  if (getentropy(&value, sizeof value) != 0) abort();
  return value;
}

// 2.30. Before, a condition variable could wait by its own clock alone, which is the one that can be set: the wait is cut
// into pieces, so that a clock that was set back delays it by one piece at most. A piece's end is a spurious wake-up.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  static Newer newer("pthread_cond_clockwait");
  if (auto* real = reinterpret_cast<decltype(&pthread_cond_clockwait)>(newer.Address()))
    return real(condition, mutex, clock, until);
  if (clock == CLOCK_REALTIME) return pthread_cond_timedwait(condition, mutex, until);
  if (clock != CLOCK_MONOTONIC) return EINVAL;
  const int64_t left = Nanoseconds(*until) - Now(CLOCK_MONOTONIC);
  const int64_t end = Now(CLOCK_REALTIME) + (left < kSecond ? left : kSecond);
  const timespec piece{end / kSecond, end % kSecond};
  const int result = pthread_cond_timedwait(condition, mutex, &piece);
  return result == ETIMEDOUT && Now(CLOCK_MONOTONIC) < Nanoseconds(*until) ? 0 : result;
}

#ifdef DLFO_STRUCT_HAS_EH_DBASE
// 2.35. Exceptions find by it the tables of the library that an address belongs to. `dlfo_link_map` is left null by the slower way.
int _dl_find_object(void* address, dl_find_object* found) noexcept {
  static Newer newer("_dl_find_object");
  if (auto* real = reinterpret_cast<decltype(&_dl_find_object)>(newer.Address())) return real(address, found);
  struct Search {
    ElfW(Addr) address;
    dl_find_object* found;
  } search{reinterpret_cast<ElfW(Addr)>(address), found};
  const auto look = [](dl_phdr_info* library, size_t, void* data) {
    const auto& wanted = *static_cast<Search*>(data);
    const ElfW(Phdr)* tables = nullptr;
    const ElfW(Phdr)* segment = nullptr;
    for (const ElfW(Phdr)* part = library->dlpi_phdr; part < library->dlpi_phdr + library->dlpi_phnum;
         ++part) {
      const ElfW(Addr) begin = library->dlpi_addr + part->p_vaddr;
      if (part->p_type == PT_LOAD && wanted.address - begin < part->p_memsz) segment = part;
      if (part->p_type == PT_GNU_EH_FRAME) tables = part;
    }
    if (segment == nullptr) return 0;
    if (tables == nullptr) return -1;
    const ElfW(Addr) begin = library->dlpi_addr + segment->p_vaddr;
    *wanted.found = {};
    wanted.found->dlfo_map_start = reinterpret_cast<void*>(begin);
    wanted.found->dlfo_map_end = reinterpret_cast<void*>(begin + segment->p_memsz);
    wanted.found->dlfo_eh_frame = reinterpret_cast<void*>(library->dlpi_addr + tables->p_vaddr);
    return 1;
  };
  return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}
#endif

#if __GLIBC_PREREQ(2, 38)
// 2.38: the headers of such a glibc give these names to functions that have long been there, which then know binary
// numbers too. The older names do without.
long causeway_strtol(const char*, char**, int) __asm__("strtol");
unsigned long causeway_strtoul(const char*, char**, int) __asm__("strtoul");
int causeway_vsscanf(const char*, const char*, va_list) __asm__("__isoc99_vsscanf");
int causeway_vfscanf(FILE*, const char*, va_list) __asm__("__isoc99_vfscanf");

long __isoc23_strtol(const char* text, char** end, int base) noexcept {
  return causeway_strtol(text, end, base);
}
long long __isoc23_strtoll(const char* text, char** end, int base) noexcept {
  return causeway_strtol(text, end, base);
}
unsigned long __isoc23_strtoul(const char* text, char** end, int base) noexcept {
  return causeway_strtoul(text, end, base);
}
unsigned long long __isoc23_strtoull(const char* text, char** end, int base) noexcept {
  return causeway_strtoul(text, end, base);
}
int __isoc23_sscanf(const char* text, const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  const int read = causeway_vsscanf(text, format, arguments);
  va_end(arguments);
  return read;
}
int __isoc23_fscanf(FILE* file, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int read = causeway_vfscanf(file, format, arguments);
  va_end(arguments);
  return read;
}
#endif

}  // extern "C"
