// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same everywhere: what a seed makes must not depend on the standard library.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace causeway::differential {

constexpr uint64_t Mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(Mixed(seed)) {}
  uint64_t Next() { return Mixed(state_ += 0x9e3779b97f4a7c15); }
  uint32_t Below(uint32_t end) { return end == 0 ? 0 : static_cast<uint32_t>((Next() >> 32) * end >> 32); }
  bool Chance(uint32_t of_thousand) { return Below(1000) < of_thousand; }
  template <class T>
  T Of(std::initializer_list<T> list) {
    return list.begin()[Below(static_cast<uint32_t>(list.size()))];
  }

 private:
  uint64_t state_;
};

// A hash of words and bytes: what answers are compared by.
class Hash {
 public:
  void Add(uint64_t word) { value_ = Mixed(value_ ^ word) + 1; }
  void AddBytes(const void* from, size_t bytes) {
    const auto* at = static_cast<const unsigned char*>(from);
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
      uint64_t word;
      __builtin_memcpy(&word, at + i, 8);
      Add(word);
    }
    uint64_t rest = bytes;
    for (size_t i = bytes / 8 * 8; i < bytes; ++i) rest = rest << 8 | at[i];
    Add(rest);
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace causeway::differential
