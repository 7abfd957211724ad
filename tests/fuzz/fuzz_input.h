// SPDX-License-Identifier: Apache-2.0
// A fuzzer's input as a script: bytes are taken from the front, zeros follow its end.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

namespace causeway::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : left_(data, size) {}

  bool empty() const { return left_.empty(); }
  uint8_t Byte() {
    uint8_t value = 0;
    Take(&value, 1);
    return value;
  }
  uint64_t Word() {
    uint64_t value = 0;
    Take(&value, sizeof value);
    return value;
  }
  // Up to `most` bytes of the input itself.
  std::span<const uint8_t> Bytes(size_t most) {
    const auto taken = left_.first(std::min(most, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }

 private:
  void Take(void* out, size_t size) {
    const auto taken = Bytes(size);
    if (!taken.empty()) std::memcpy(out, taken.data(), taken.size());
  }
  std::span<const uint8_t> left_;
};

// What a fuzzer checks: stops it, says where, and leaves the input that did it.
inline void Require(bool holds, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (holds) return;
  fprintf(stderr, "%s:%d: this does not hold\n", file, line);
  abort();
}

}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
