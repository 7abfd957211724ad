// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/managed/compared_bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "guest_lib/addresses/mappings.h"
#include "ivshmem_ring/messages/registration.h"

namespace causeway::guest {
namespace {

constexpr uint64_t kStep = sizeof(uint64_t);

// Calls found(at, count) for each stretch of [begin, end) in which the two differ.
template <class Found>
void ForEachDifference(const std::byte* a, const std::byte* b, uint64_t begin, uint64_t end,
                       const Found& found) {
  for (uint64_t i = begin; i < end;) {
    if (i + kStep <= end && std::memcmp(a + i, b + i, kStep) == 0) {
      i += kStep;
    } else if (a[i] == b[i]) {
      ++i;
    } else {
      const uint64_t first = i;
      while (i < end && a[i] != b[i]) ++i;
      found(first, i - first);
    }
  }
}

uint64_t CountDifferences(const std::byte* a, const std::byte* b, uint64_t begin, uint64_t end) {
  uint64_t count = 0;
  ForEachDifference(a, b, begin, end, [&](uint64_t, uint64_t bytes) { count += bytes; });
  return count;
}

// Writes into one word of the program those bytes that the host has changed, that is those in which `read` and `shadow` differ. The word's other
// bytes stay as they are, also where a thread of the program writes them meanwhile. A thread that polls the word sees its old value or its
// new one, as from a device.
template <class Word>
void Merge(uint64_t address, const std::byte* read, const std::byte* shadow) {
  auto* word = reinterpret_cast<Word*>(address);
  Word seen = __atomic_load_n(word, __ATOMIC_RELAXED), wanted;
  do {
    wanted = seen;
    for (size_t i = 0; i < sizeof wanted; ++i) {
      if (read[i] != shadow[i]) std::memcpy(reinterpret_cast<std::byte*>(&wanted) + i, read + i, 1);
    }
  } while (!__atomic_compare_exchange_n(word, &seen, wanted, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

// Where the kernel does not say, as without descriptors, it is: the caller has looked at the memory.
bool IsWritable(uint64_t address, uint64_t bytes) {
  std::vector<Mapping> mappings;
  const bool whole = ReadMappings(PageFloor(address), PageCeiling(address + bytes), &mappings);
  return mappings.empty() || (whole && AllWritable(mappings));
}

}  // namespace

ComparedBytes& TheComparedBytes() {
  static ComparedBytes& all = *new ComparedBytes;  // never destroyed
  return all;
}

// The caller holds the mutex.
bool ComparedBytes::Open() {
  now_.resize(kMost);
  return pipe_[0] >= 0 || pipe2(pipe_, O_CLOEXEC | O_NONBLOCK) == 0;
}

// The caller holds the mutex, and the pipe is empty.
bool ComparedBytes::Look(uint64_t address, uint64_t bytes) {
  constexpr uint64_t kPiece = 4096;  // what a pipe holds at least
  for (uint64_t at = 0; at < bytes;) {
    const void* from = reinterpret_cast<const void*>(address + at);
    const ssize_t written = write(pipe_[1], from, std::min(bytes - at, kPiece));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const bool mapped = written == 0 || errno != EFAULT;
      // Linux before 6.15 leaves an empty buffer in the pipe where it cannot copy.
      char none;
      while (read(pipe_[0], &none, 1) > 0) continue;
      if (mapped) std::memcpy(now_.data() + at, from, bytes - at);  // the kernel has no memory for it
      return mapped;
    }
    if (read(pipe_[0], now_.data() + at, static_cast<size_t>(written)) != written) return false;
    at += static_cast<uint64_t>(written);
  }
  return true;
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
  if (sending_.load()) return true;  // work that starts now must not come before these
  const std::lock_guard lock(mutex_);
  for (const auto& [address, range] : ranges_) {
    if (!Look(address, range.bytes)) continue;
    if (!range.sent || std::memcmp(now_.data(), range.shadow, range.bytes) != 0) return true;
  }
  return sending_.load();
}

// Divides what has changed in the range, that is where read() and the shadow differ, into its first word, its last word, and the part between
// them. Of these two words the one comes last in which fewer bytes have changed, and the first word where both are alike, because a flag goes
// from zero to a small number, and stands before its data more often than behind them.
void ComparedBytes::AddParts(uint64_t address, const Range& range, Parts* parts) {
  uint64_t first = range.bytes, end = 0;
  ForEachDifference(range.read(), range.shadow, 0, range.bytes, [&](uint64_t at, uint64_t bytes) {
    first = std::min(first, at);
    end = at + bytes;
  });
  if (end == 0) return;
  const auto word_end = [&](uint64_t at) { return ((address + at) | (kStep - 1)) + 1 - address; };
  const uint64_t first_end = std::min(word_end(first), end);
  const uint64_t last_begin = std::max(first_end, end - std::min(end, (address + end - 1) % kStep + 1));
  const Part head{address, &range, first, first_end}, tail{address, &range, last_begin, end};
  if (first_end < last_begin) parts->data.push_back({address, &range, first_end, last_begin});
  if (last_begin == end) return parts->ends.push_back(head);
  const auto count = [&](const Part& part) {
    return CountDifferences(range.read(), range.shadow, part.begin, part.end);
  };
  const bool head_last = count(head) <= count(tail);
  parts->ends.push_back(head_last ? tail : head);
  parts->ends.push_back(head_last ? head : tail);
}

// A flag may lie in a range of its own: those of large ranges go first.
void ComparedBytes::SortEnds(Parts* parts) {
  std::stable_sort(parts->ends.begin(), parts->ends.end(),
                   [](const Part& a, const Part& b) { return a.range->bytes > b.range->bytes; });
}

// Copies the program's bytes to each range's read(), again until two looks agree: then everything is there that was written before anything
// that the first of them saw. Returns the ranges that are there and not as both sides last had them. The caller holds the mutex.
std::vector<std::pair<uint64_t, ComparedBytes::Range*>> ComparedBytes::LookAtAll() {
  constexpr int kMostLooks = 4;
  std::vector<std::pair<uint64_t, Range*>> changed;
  for (int look = 0; look < kMostLooks; ++look) {
    bool agree = look > 0;
    changed.clear();
    for (auto& [address, range] : ranges_) {
      if (!Look(address, range.bytes)) continue;
      if (look == 0 || std::memcmp(range.read(), now_.data(), range.bytes) != 0) {
        agree = false;
        std::memcpy(range.read(), now_.data(), range.bytes);
      }
      if (!range.sent || std::memcmp(range.read(), range.shadow, range.bytes) != 0)
        changed.emplace_back(address, &range);
    }
    if (agree || changed.empty()) break;
  }
  return changed;
}

void ComparedBytes::AddChanges(std::vector<ManagedSpan>* data, std::vector<ManagedSpan>* flags) {
  if (empty()) return;
  const std::lock_guard lock(mutex_);
  const auto changed = LookAtAll();
  if (changed.empty()) return;
  Parts parts;
  const auto add = [](const Part& part, std::vector<ManagedSpan>* spans) {
    const Range& range = *part.range;
    ForEachDifference(range.read(), range.shadow, part.begin, part.end, [&](uint64_t at, uint64_t bytes) {
      spans->push_back({part.address + at, range.read() + at, bytes, 0, 0});
    });
  };
  for (const auto& [address, range] : changed) {
    if (range->sent) {
      AddParts(address, *range, &parts);
    } else {
      // The host may have other bytes on a page that another registration has kept there.
      range->sent = true;
      data->push_back({address, range->read(), range->bytes, 0, 0});
    }
  }
  SortEnds(&parts);
  for (const Part& part : parts.data) add(part, data);
  for (const Part& part : parts.ends) add(part, flags);
  for (const auto& [address, range] : changed) std::memcpy(range->shadow, range->read(), range->bytes);
  sending_.store(true);
}

void ComparedBytes::AddAll(std::vector<ManagedSpan>* spans) {
  if (empty()) return;
  const std::lock_guard lock(mutex_);
  for (const auto& [address, range] : ranges_) {
    std::memcpy(range.read(), range.shadow, range.bytes);  // what cannot be read has not changed
    if (range.sent) spans->push_back({address, range.read(), range.bytes, 0, 0});
  }
}

// Words that lie in the range whole are stored whole.
void ComparedBytes::Store(const Part& part) {
  const Range& range = *part.range;
  const uint64_t begin = part.address, end = part.address + range.bytes;
  for (uint64_t at = begin + part.begin; at < begin + part.end;) {
    const auto merge = [&](uint64_t word, auto zero) {
      const uint64_t offset = word - begin;
      if (word < begin || word + sizeof zero > end) return false;
      if (std::memcmp(range.read() + offset, range.shadow + offset, sizeof zero) != 0)
        Merge<decltype(zero)>(word, range.read() + offset, range.shadow + offset);
      at = word + sizeof zero;
      return true;
    };
    if (!merge(at & ~uint64_t{7}, uint64_t{}) && !merge(at & ~uint64_t{3}, uint32_t{})) merge(at, uint8_t{});
  }
}

bool ComparedBytes::Take() {
  const std::lock_guard lock(mutex_);
  Parts parts;
  std::vector<const Range*> taken;
  for (const auto& [address, range] : ranges_) {
    if (!range.sent || std::memcmp(range.read(), range.shadow, range.bytes) == 0) continue;
    if (!Look(address, range.bytes) || !IsWritable(address, range.bytes)) continue;
    AddParts(address, range, &parts);
    taken.push_back(&range);
  }
  SortEnds(&parts);
  for (const Part& part : parts.data) Store(part);
  for (const Part& part : parts.ends) Store(part);
  for (const Range* range : taken) std::memcpy(range->shadow, range->read(), range->bytes);
  return !taken.empty();
}

}  // namespace causeway::guest
