// SPDX-License-Identifier: Apache-2.0
// Shared memory for tests of the ring and the transports: a slot that both sides map, and small rings.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/record.h"
#include "ivshmem_ring/transport/ring.h"

namespace causeway::test {

// `bytes` of a fresh memfd, mapped shared: a forked child has the same memory at the same address.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes) : bytes_(bytes), fd_(memfd_create("causeway-test", MFD_CLOEXEC)) {
    if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) abort();
    data_ = Map();
  }
  ~SharedMemory() {
    munmap(data_, bytes_);
    close(fd_);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }
  // A second mapping of the same memory, as another process has it.
  std::byte* Map() const {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (memory == MAP_FAILED) abort();
    return static_cast<std::byte*>(memory);
  }

 private:
  size_t bytes_;
  int fd_;
  std::byte* data_;
};

// A ring of kBytes in memory that both ends see.
template <uint64_t kBytes>
struct RingBlock {
  HotWord tail, head, producer_waiting, consumer_waiting;
  alignas(kHotBytes) std::byte data[kBytes];

  RingProducer Producer() { return {data, kBytes, &tail, &head}; }
  RingConsumer Consumer(std::span<std::byte> buffer) { return {data, kBytes, &tail, &head, buffer}; }
};

// A small generator that both sides can run in step (splitmix64).
struct Random {
  uint64_t state;
  uint64_t Next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t limit) { return Next() % limit; }
};

// The body that belongs to `seed`: every 8-byte word differs, so that a shifted or torn copy shows.
inline void FillBody(std::span<std::byte> body, uint64_t seed) {
  Random random{seed};
  for (size_t at = 0; at < body.size(); at += 8) {
    const uint64_t word = random.Next();
    std::memcpy(&body[at], &word, body.size() - at < 8 ? body.size() - at : 8);
  }
}
inline bool BodyMatches(std::span<const std::byte> body, uint64_t seed) {
  Random random{seed};
  for (size_t at = 0; at < body.size(); at += 8) {
    const uint64_t word = random.Next();
    if (std::memcmp(&body[at], &word, body.size() - at < 8 ? body.size() - at : 8) != 0) return false;
  }
  return true;
}

inline RecordHeader HeaderOf(std::span<const std::byte> record) {
  return ReadHeader<RecordHeader>(record);
}

// Sanitizers slow a loop down by one to two orders; the counts of long tests follow.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr uint64_t kLongRunDivisor = 20;
#else
inline constexpr uint64_t kLongRunDivisor = 1;
#endif

}  // namespace causeway::test
