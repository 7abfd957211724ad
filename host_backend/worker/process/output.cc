// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/process/output.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "ivshmem_ring/transport/flight_recorder.h"

namespace causeway::host {
namespace {

// A stream's text: a memory file that grows by appending; read with its own cursor, cut when drained.
struct Caught {
  int fd = -1;
  std::atomic<off_t> read{0};  // changed under the mutex; Pending looks without it
};

std::mutex mutex;
Caught caught[2];  // stdout, stderr
int log_fd = 2;

off_t Size(const Caught& stream) {
  struct stat info;
  return stream.fd >= 0 && fstat(stream.fd, &info) == 0 ? info.st_size : 0;
}

}  // namespace

bool Output::Redirect() {
  fflush(nullptr);
  log_fd = fcntl(2, F_DUPFD_CLOEXEC, 3);
  for (int i = 0; i < 2; ++i) {
    const int file = memfd_create(i == 0 ? "causeway-stdout" : "causeway-stderr", MFD_CLOEXEC);
    if (file < 0) return false;
    if (fcntl(file, F_SETFL, O_APPEND) != 0 || dup2(file, i + 1) < 0) return false;
    caught[i].fd = file;
  }
  setvbuf(stdout, nullptr, _IOFBF, 1 << 16);
  return true;
}

int Output::LogFd() {
  return log_fd;
}

size_t Output::LastError(char* text, size_t bytes) {
  const off_t size = Size(caught[1]), begin = std::max<off_t>(0, size - static_cast<off_t>(bytes));
  const ssize_t got = size > begin ? pread(caught[1].fd, text, static_cast<size_t>(size - begin), begin) : 0;
  return got > 0 ? static_cast<size_t>(got) : 0;
}

bool Output::IsLookDue() {
  constexpr uint64_t kTicks = 50'000'000;  // of a time stamp counter of some GHz
  static std::atomic<uint64_t> next{0};
  const uint64_t now = FlightTicks();
  if (now < next.load(std::memory_order_relaxed)) return false;
  next.store(now + kTicks, std::memory_order_relaxed);
  return true;
}

bool Output::Pending() {
  if (caught[0].fd < 0) return false;
  fflush(stdout);
  return Size(caught[0]) > caught[0].read || Size(caught[1]) > caught[1].read;
}

size_t Output::Take(std::span<std::byte> space) {
  const std::lock_guard lock(mutex);
  size_t used = 0;
  for (uint32_t i = 0; i < 2; ++i) {
    Caught& stream = caught[i];
    const off_t size = Size(stream);
    if (size <= stream.read || space.size() - used <= 2 * sizeof(uint32_t)) continue;
    const uint32_t name = i + 1;
    const size_t room = space.size() - used - 2 * sizeof(uint32_t);
    const auto bytes =
        static_cast<uint32_t>(std::min<uint64_t>(room, static_cast<uint64_t>(size - stream.read)));
    const ssize_t got = pread(stream.fd, space.data() + used + 2 * sizeof(uint32_t), bytes, stream.read);
    if (got <= 0) continue;
    const auto count = static_cast<uint32_t>(got);
    std::memcpy(space.data() + used, &name, sizeof name);
    std::memcpy(space.data() + used + sizeof name, &count, sizeof count);
    used += 2 * sizeof(uint32_t) + count;
    stream.read += got;
    // Text written between the two calls would be lost, so the file is cut only while it is all read.
    if (stream.read > (16 << 20) && Size(stream) == stream.read && ftruncate(stream.fd, 0) == 0)
      stream.read = 0;
  }
  return used;
}

}  // namespace causeway::host
