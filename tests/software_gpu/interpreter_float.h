// SPDX-License-Identifier: Apache-2.0
// Floating-point formats and rounding as PTX defines them.
#pragma once
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/software_gpu/interpreter_lower.h"

namespace causeway::software_gpu {

enum Rounding : uint8_t { kNearestEven = 0, kTowardZero = 1, kDown = 2, kUp = 3, kNearestAway = 4 };

// Op::mode of float operations: Rounding in the low bits and these.
inline constexpr uint8_t kFlushSubnormals = 8;
inline constexpr uint8_t kSaturate = 16;  // clamp to [0, 1], NaN to 0
inline constexpr uint8_t kRelu = 32;      // clamp to at least 0
inline constexpr uint8_t kNanWins = 64;   // of min and max

// A format narrower than float: value = bits, arithmetic happens in double.
struct Half {
  static constexpr int kExponentBits = 5, kMantissaBits = 10;
  uint16_t bits = 0;
};
struct BFloat {
  static constexpr int kExponentBits = 8, kMantissaBits = 7;
  uint16_t bits = 0;
};

// `value` rounded to a format of so many bits; overflow gives infinity or the largest finite value as the
// rounding demands, NaN gives all exponent and mantissa bits set.
uint32_t EncodeFloat(double value, int exponent_bits, int mantissa_bits, Rounding rounding);
double DecodeFloat(uint32_t bits, int exponent_bits, int mantissa_bits);

template <class T>
inline constexpr bool kIsNarrow = std::is_same_v<T, Half> || std::is_same_v<T, BFloat>;

template <class T>
double ToDouble(T value) {
  if constexpr (kIsNarrow<T>) {
    return DecodeFloat(value.bits, T::kExponentBits, T::kMantissaBits);
  } else {
    return static_cast<double>(value);
  }
}

template <class T>
T FromDouble(double value, Rounding rounding) {
  if constexpr (kIsNarrow<T>) {
    return T{static_cast<uint16_t>(EncodeFloat(value, T::kExponentBits, T::kMantissaBits, rounding))};
  } else if constexpr (sizeof(T) == 4) {
    return std::bit_cast<float>(EncodeFloat(value, 8, 23, rounding));
  } else {
    return value;
  }
}

template <class T>
T FlushSubnormal(T value) {
  if constexpr (kIsNarrow<T>) {
    const uint32_t exponent = value.bits >> T::kMantissaBits & ((1u << T::kExponentBits) - 1);
    return exponent == 0 ? T{static_cast<uint16_t>(value.bits & 0x8000)} : value;
  } else {
    return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(T{0}, value) : value;
  }
}

// float results that are NaN are this one; doubles keep what the host made.
template <class T>
T Canonical(T value) {
  if constexpr (sizeof(T) == 4) return value == value ? value : std::bit_cast<float>(0x7fffffffu);
  return value;
}

// Clamps that modes ask for, on a value of any format seen as double.
double ApplyClamps(double value, uint8_t mode);

// The sum with the last bit set if it is inexact ("round to odd"): rounding it again to a format with at
// least two bits less gives the correctly rounded sum.
double AddToOdd(double x, double y);

// PTX's min and max: a number wins over NaN unless kNanWins, -0 is below +0.
template <class T>
T MinimumOf(T x, T y, uint8_t mode) {
  if (std::isnan(x) || std::isnan(y)) {
    if ((mode & kNanWins) != 0 || (std::isnan(x) && std::isnan(y)))
      return std::numeric_limits<T>::quiet_NaN();
    return std::isnan(x) ? y : x;
  }
  if (x == y) return std::signbit(x) ? x : y;
  return x < y ? x : y;
}
template <class T>
T MaximumOf(T x, T y, uint8_t mode) {
  return -MinimumOf<T>(-x, -y, mode);
}

// Sets the host's rounding direction for its lifetime. Operations under it must not be folded or moved
// by the compiler, so their operands pass through volatile variables.
class RoundingScope {
 public:
  explicit RoundingScope(uint8_t mode) : before_(std::fegetround()) {
    constexpr int kDirections[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    std::fesetround(kDirections[mode & 3]);
  }
  ~RoundingScope() { std::fesetround(before_); }
  RoundingScope(const RoundingScope&) = delete;
  RoundingScope& operator=(const RoundingScope&) = delete;

 private:
  int before_;
};

// Consumes rounding, .ftz and .sat/.relu modifiers; returns Op::mode.
uint8_t TakeFloatMode(Lowering& lowering);

}  // namespace causeway::software_gpu
