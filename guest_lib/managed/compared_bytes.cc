// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/managed/compared_bytes.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <mutex>

namespace causeway::guest {
namespace {

constexpr size_t kStep = sizeof(uint64_t);  // how many bytes are compared at once

// Calls found(at, bytes) for each stretch in which the two differ.
template <class Found>
void ForEachDifference(const std::byte* a, const std::byte* b, uint64_t bytes, const Found& found) {
  for (uint64_t i = 0; i < bytes;) {
    if (i + kStep <= bytes && std::memcmp(a + i, b + i, kStep) == 0) {
      i += kStep;
    } else if (a[i] == b[i]) {
      ++i;
    } else {
      const uint64_t first = i;
      while (i < bytes && a[i] != b[i]) ++i;
      found(first, i - first);
    }
  }
}

template <class Word>
void StoreWord(uint64_t address, const std::byte* from) {
  Word value;
  std::memcpy(&value, from, sizeof value);
  __atomic_store_n(reinterpret_cast<Word*>(address), value, __ATOMIC_RELAXED);
}

// Gives the program bytes [first, first + count) of the range at `address`, which `from` holds all of. A number in aligned words of four or
// eight bytes comes whole, as from a device: whoever polls it sees the old one or the new one. So a word is stored whole where the program
// has changed no other byte of it.
void Store(uint64_t address, uint64_t bytes, const std::byte* from, const std::byte* now,
           const std::byte* shadow, uint64_t first, uint64_t count) {
  const auto fits = [&](uint64_t at, size_t size) {
    const uint64_t offset = at - address;
    return at % size == 0 && at >= address && offset + size <= bytes &&
           std::memcmp(now + offset, shadow + offset, size) == 0;
  };
  for (uint64_t at = address + first; at < address + first + count;) {
    const uint64_t eight = at & ~uint64_t{7}, four = at & ~uint64_t{3};
    if (fits(eight, 8)) {
      StoreWord<uint64_t>(eight, from + (eight - address));
      at = eight + 8;
    } else if (fits(four, 4)) {
      StoreWord<uint32_t>(four, from + (four - address));
      at = four + 4;
    } else {
      StoreWord<uint8_t>(at, from + (at - address));
      ++at;
    }
  }
}

}  // namespace

ComparedBytes& TheComparedBytes() {
  static ComparedBytes& all = *new ComparedBytes;  // never destroyed
  return all;
}

// The caller holds the mutex.
bool ComparedBytes::Open() {
  if (now_ != nullptr) return true;
  rlimit most{};
  if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < kMost)
    return false;  // the kernel would send SIGXFSZ
  if (file_ < 0) file_ = memfd_create("causeway-compared", MFD_CLOEXEC);
  if (file_ < 0 || ftruncate(file_, kMost) != 0) return false;
  void* mapped = mmap(nullptr, kMost, PROT_READ, MAP_SHARED, file_, 0);
  now_ = mapped != MAP_FAILED ? static_cast<std::byte*>(mapped) : nullptr;
  return now_ != nullptr;
}

// The caller holds the mutex.
bool ComparedBytes::Look(uint64_t address, uint64_t bytes) {
  return pwrite(file_, reinterpret_cast<const void*>(address), bytes, 0) == static_cast<ssize_t>(bytes);
}

bool ComparedBytes::Add(uint64_t address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > kMost || !Open()) return false;
  void* shadow = mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (shadow == MAP_FAILED) return false;
  ranges_[address] = {bytes, static_cast<std::byte*>(shadow)};
  count_.store(ranges_.size(), std::memory_order_release);
  return true;
}

void ComparedBytes::Remove(uint64_t begin, uint64_t end) {
  const std::lock_guard lock(mutex_);
  for (auto at = ranges_.lower_bound(begin); at != ranges_.end() && at->first < end;) {
    munmap(at->second.shadow, 2 * at->second.bytes);
    at = ranges_.erase(at);
  }
  count_.store(ranges_.size(), std::memory_order_release);
}

bool ComparedBytes::Changed() {
  if (empty()) return false;
  const std::lock_guard lock(mutex_);
  for (const auto& [address, range] : ranges_) {
    if (Look(address, range.bytes) && std::memcmp(now_, range.shadow, range.bytes) != 0) return true;
  }
  return false;
}

void ComparedBytes::AddChanges(std::vector<ManagedSpan>* spans) {
  if (empty()) return;
  const std::lock_guard lock(mutex_);
  for (const auto& [address, range] : ranges_) {
    if (!Look(address, range.bytes)) continue;
    ForEachDifference(now_, range.shadow, range.bytes, [&](uint64_t at, uint64_t bytes) {
      std::memcpy(range.shadow + at, now_ + at, bytes);
      spans->push_back({address + at, range.shadow + at, bytes, 0, 0});
    });
  }
}

void ComparedBytes::AddAll(std::vector<ManagedSpan>* spans) {
  if (empty()) return;
  const std::lock_guard lock(mutex_);
  for (const auto& [address, range] : ranges_) {
    std::memcpy(range.read(), range.shadow, range.bytes);  // what cannot be read has not changed
    spans->push_back({address, range.read(), range.bytes, 0, 0});
  }
}

bool ComparedBytes::Take() {
  const std::lock_guard lock(mutex_);
  bool changed = false;
  for (const auto& [address, range] : ranges_) {
    const std::byte* read = range.read();
    if (std::memcmp(read, range.shadow, range.bytes) == 0 || !Look(address, range.bytes)) continue;
    changed = true;
    ForEachDifference(read, range.shadow, range.bytes, [&](uint64_t at, uint64_t bytes) {
      Store(address, range.bytes, read, now_, range.shadow, at, bytes);
    });
    std::memcpy(range.shadow, read, range.bytes);
  }
  return changed;
}

}  // namespace causeway::guest
