// SPDX-License-Identifier: Apache-2.0
// Keeps the daemon alive when a region's file shrinks under its mapping (a guest's QEMU may truncate it).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace causeway::daemon {

// One entry of the table of guarded ranges. One thread sets and clears it; a signal handler of any thread reads it without
// a lock, and must never take the begin of one range for that of another: it would replace memory that
// nobody has guarded. So each change counts, and what changed meanwhile is no range for the reader. The range that
// a thread is just using does not change, so its own is always found.
class GuardedRange {
 public:
  struct Span {
    uintptr_t begin;
    size_t bytes;
  };

  bool is_free() const { return changes_.load(std::memory_order_relaxed) % 2 == 0; }
  void Set(uintptr_t begin, size_t bytes);
  void Clear();
  // The range, if it holds the address. `between` is called between the reads of its two words: for tests.
  template <class Between>
  std::optional<Span> Find(uintptr_t address, Between between) const {
    const uint64_t changes = changes_.load(std::memory_order_acquire);  // partner: Set's last store
    if (changes % 2 == 0) return std::nullopt;
    // Both loads pair with the stores of Set: a handler that reads a word of a later range also reads a count that has changed since.
    const uintptr_t begin = begin_.load(std::memory_order_acquire);
    between();
    const size_t bytes = bytes_.load(std::memory_order_acquire);
    if (changes_.load(std::memory_order_relaxed) != changes) return std::nullopt;
    if (address < begin || address - begin >= bytes) return std::nullopt;
    return Span{begin, bytes};
  }

 private:
  std::atomic<uint64_t> changes_{0};  // odd: there is a range
  std::atomic<uintptr_t> begin_{0};
  std::atomic<size_t> bytes_{0};
};

// While it lives, a SIGBUS inside [address, address + bytes), in any thread, replaces the whole range by
// zeroed private memory and sets tripped(); everywhere else a SIGBUS ends the process as usual. The daemon's
// event loop makes and destroys guards; more than 8192 at once end the process.
class SigbusGuard {
 public:
  SigbusGuard(void* address, size_t bytes);
  ~SigbusGuard();
  SigbusGuard(const SigbusGuard&) = delete;
  SigbusGuard& operator=(const SigbusGuard&) = delete;
  bool tripped() const;

 private:
  size_t index_;
};

}  // namespace causeway::daemon
