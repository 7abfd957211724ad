// SPDX-License-Identifier: Apache-2.0
// Large blocks that are kept from one input to the next: a session, the table of its handles, rings and staging buffers.
// A sanitizer's allocator sends them through its quarantine, so that each input gets others, which no cache holds, and
// maps and unmaps the largest. Here the block that was given back last is the next one's. What stands for their ends is
// as with that allocator: only the bytes that were asked for can be used, and none of them once they are given back.
// What a report does not say is who took the block: leave this out (CMakeLists.txt) and run the input again.
//
// The linker's --wrap puts this in the place of calloc, new[], the new of over-aligned types, and of what gives their
// blocks back, wherever the product or a fuzzer calls them. The plain new is left alone: strings that it makes are
// given back by the standard library, which is not linked here.
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>

#include "tests/fuzz/fuzz_input.h"

namespace causeway::fuzz {
namespace {

constexpr size_t kSmallest = 16u << 10, kLargest = 1u << 20;
constexpr size_t kGuard = 4096;                 // behind each block, at least
constexpr size_t kZeroedByKernel = 256u << 10;  // such pages are given back instead of being cleared
constexpr uint32_t kBlocks = 32;                // of each size
constexpr uint32_t kSizes = std::countr_zero(kLargest) - std::countr_zero(kSmallest) + 1;

class KeptBlocks {
 public:
  // Null: of that size there is none, or no more.
  void* Take(size_t bytes, bool zeroed) {
    if (bytes < kSmallest || bytes > kLargest) return nullptr;
    const auto size = static_cast<uint32_t>(std::bit_width(bytes - 1) - std::bit_width(kSmallest - 1));
    const std::lock_guard lock(mutex_);
    if (base_ == nullptr) Map();
    Size& of = sizes_[size];
    if (of.free_count == 0) return nullptr;
    const uint32_t index = of.free[--of.free_count];
    of.held[index] = bytes;
    std::byte* block = of.first + index * of.stride;
    ASAN_UNPOISON_MEMORY_REGION(block, bytes);
    if (zeroed && bytes < kZeroedByKernel) {
      std::memset(block, 0, bytes);
    } else if (zeroed) {
      Require(madvise(block, bytes, MADV_DONTNEED) == 0);
    }
    return block;
  }
  // False: it is not one of these.
  bool Return(void* address) {
    const auto* at = static_cast<std::byte*>(address);
    if (base_ == nullptr || at < base_ || at >= end_) return false;
    const std::lock_guard lock(mutex_);
    Size& of =
        *std::find_if(sizes_.rbegin(), sizes_.rend(), [at](const Size& size) { return at >= size.first; });
    const auto offset = static_cast<size_t>(at - of.first);
    const auto index = static_cast<uint32_t>(offset / of.stride);
    Require(offset % of.stride == 0 && index < kBlocks && of.held[index] != 0);  // given back twice otherwise
    ASAN_POISON_MEMORY_REGION(address, of.held[index]);
    of.held[index] = 0;
    of.free[of.free_count++] = index;
    return true;
  }

 private:
  struct Size {
    std::byte* first = nullptr;
    size_t stride = 0;
    uint32_t free_count = 0;
    std::array<uint32_t, kBlocks> free{};
    std::array<size_t, kBlocks> held{};  // bytes; 0: free
  };

  void Map() {
    size_t all = 0;
    for (uint32_t i = 0; i < kSizes; ++i) {
      sizes_[i].stride = (kSmallest << i) + kGuard;
      all += sizes_[i].stride * kBlocks;
    }
    void* mapped = mmap(nullptr, all + kGuard, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    Require(mapped != MAP_FAILED);
    ASAN_POISON_MEMORY_REGION(mapped, all + kGuard);
    std::byte* next = static_cast<std::byte*>(mapped) + kGuard;
    end_ = next + all;
    for (Size& size : sizes_) {
      size.first = next;
      next += size.stride * kBlocks;
      for (uint32_t i = kBlocks; i > 0; --i) size.free[size.free_count++] = i - 1;
    }
    base_ = static_cast<std::byte*>(mapped);
  }

  std::mutex mutex_;
  std::byte* base_ = nullptr;  // set once, before any block is given out
  std::byte* end_ = nullptr;
  std::array<Size, kSizes> sizes_;
};
constinit KeptBlocks kept;

}  // namespace
}  // namespace causeway::fuzz

using causeway::fuzz::kept;
extern "C" {
void* __real_calloc(size_t count, size_t bytes);
void __real_free(void* address);
void* RealNewArray(size_t bytes) __asm__("__real__Znam");
void RealDeleteArray(void* address) __asm__("__real__ZdaPv");
void* RealNewAligned(size_t bytes, std::align_val_t alignment) __asm__("__real__ZnwmSt11align_val_t");
void RealDeleteAligned(void* address, std::align_val_t alignment) __asm__("__real__ZdlPvSt11align_val_t");

void* __wrap_calloc(size_t count, size_t bytes);
void* __wrap_calloc(size_t count, size_t bytes) {
  constexpr size_t kMost = size_t{1} << 30;  // their product is none that is too large for a word
  void* block = count <= kMost && bytes <= kMost ? kept.Take(count * bytes, true) : nullptr;
  return block != nullptr ? block : __real_calloc(count, bytes);
}
void __wrap_free(void* address);
void __wrap_free(void* address) {
  if (!kept.Return(address)) __real_free(address);
}
void* WrapNewArray(size_t bytes) __asm__("__wrap__Znam");
void* WrapNewArray(size_t bytes) {
  void* block = kept.Take(bytes, false);
  return block != nullptr ? block : RealNewArray(bytes);
}
void WrapDeleteArray(void* address) __asm__("__wrap__ZdaPv");
void WrapDeleteArray(void* address) {
  if (!kept.Return(address)) RealDeleteArray(address);
}
void* WrapNewAligned(size_t bytes, std::align_val_t alignment) __asm__("__wrap__ZnwmSt11align_val_t");
void* WrapNewAligned(size_t bytes, std::align_val_t alignment) {
  constexpr auto kPage = static_cast<std::align_val_t>(4096);
  void* block = alignment <= kPage ? kept.Take(bytes, false) : nullptr;
  return block != nullptr ? block : RealNewAligned(bytes, alignment);
}
void WrapDeleteAligned(void* address, std::align_val_t alignment) __asm__("__wrap__ZdlPvSt11align_val_t");
void WrapDeleteAligned(void* address, std::align_val_t alignment) {
  if (!kept.Return(address)) RealDeleteAligned(address, alignment);
}
}
