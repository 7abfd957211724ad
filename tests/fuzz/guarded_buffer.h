// SPDX-License-Identifier: Apache-2.0
// Memory for many messages, one after the other, with poison right behind each of them: as good as an
// allocation of the exact size to ASan, and far cheaper.
#pragma once
#include <cstddef>
#include <memory>
#include <span>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) (static_cast<void>(address), static_cast<void>(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) (static_cast<void>(address), static_cast<void>(bytes))
#endif

namespace causeway::fuzz {

class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t most)
      : most_(most), bytes_(new (std::align_val_t{64}) std::byte[most + kGuard]) {
    ASAN_POISON_MEMORY_REGION(bytes_, most_ + kGuard);
  }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  // The first `bytes` of it, until the next call. All behind them is poisoned, so only what lies between this size and
  // the last one changes.
  std::span<std::byte> Hold(size_t bytes) {
    const size_t held = bytes < most_ ? bytes : most_;
    if (held > held_) ASAN_UNPOISON_MEMORY_REGION(bytes_, held);
    if (held < held_) ASAN_POISON_MEMORY_REGION(bytes_ + held, held_ - held);
    held_ = held;
    return {bytes_, held_};
  }

 private:
  static constexpr size_t kGuard = 16u << 10;
  const size_t most_;
  std::byte* const bytes_;  // to the end of the process
  size_t held_ = 0;
};

}  // namespace causeway::fuzz
