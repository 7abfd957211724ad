// SPDX-License-Identifier: Apache-2.0
// Encoding, decoding and rounding of floating-point formats.
#include "tests/software_gpu/interpreter_float.h"

#include <algorithm>

namespace causeway::software_gpu {
namespace {

bool RoundsUp(bool negative, bool odd, uint64_t rest, uint64_t half, Rounding rounding) {
  switch (rounding) {
    case kTowardZero:
      return false;
    case kDown:
      return negative && rest != 0;
    case kUp:
      return !negative && rest != 0;
    case kNearestAway:
      return rest >= half;
    default:
      return rest > half || (rest == half && odd);
  }
}

}  // namespace

uint32_t EncodeFloat(double value, int exponent_bits, int mantissa_bits, Rounding rounding) {
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const bool negative = bits >> 63 != 0;
  const uint32_t sign = negative ? 1u << (exponent_bits + mantissa_bits) : 0;
  const uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
  if (std::isnan(value)) return infinity | ((1u << mantissa_bits) - 1);
  if (std::isinf(value)) return sign | infinity;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  uint64_t significand = bits & ((1ull << 52) - 1);
  if (exponent == -1023) {
    exponent = -1022;
  } else {
    significand |= 1ull << 52;
  }
  const bool subnormal = exponent < 1 - bias;
  const int shift = std::min(52 - mantissa_bits + (subnormal ? 1 - bias - exponent : 0), 62);
  uint64_t kept = significand >> shift;
  const uint64_t rest = significand & ((1ull << shift) - 1);
  if (RoundsUp(negative, (kept & 1) != 0, rest, 1ull << (shift - 1), rounding)) ++kept;
  // The leading bit of `kept` adds one to the exponent field, also when rounding carried into it.
  const uint64_t field = subnormal ? 0 : static_cast<uint64_t>(exponent + bias - 1);
  const uint64_t magnitude = (field << mantissa_bits) + kept;
  if (magnitude >= infinity) {
    const bool to_finite =
        rounding == kTowardZero || (rounding == kDown && !negative) || (rounding == kUp && negative);
    return sign | (to_finite ? infinity - 1 : infinity);
  }
  return sign | static_cast<uint32_t>(magnitude);
}

double DecodeFloat(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int field = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  const bool negative = (bits >> (exponent_bits + mantissa_bits) & 1) != 0;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  double magnitude;
  if (field == (1 << exponent_bits) - 1) {
    magnitude =
        mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else if (field == 0) {
    magnitude = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    const uint64_t exponent = static_cast<uint64_t>(field - bias + 1023);
    magnitude =
        std::bit_cast<double>(exponent << 52 | static_cast<uint64_t>(mantissa) << (52 - mantissa_bits));
  }
  return negative ? -magnitude : magnitude;
}

double ApplyClamps(double value, uint8_t mode) {
  if ((mode & kSaturate) != 0) return std::isnan(value) ? 0.0 : value > 0 ? std::min(value, 1.0) : 0.0;
  if ((mode & kRelu) != 0 && !std::isnan(value)) return value > 0 ? value : 0.0;
  return value;
}

double AddToOdd(double x, double y) {
  const double sum = x + y;
  if (!std::isfinite(sum)) return sum;
  const double part = sum - x;
  const double error = (x - (sum - part)) + (y - part);
  const uint64_t bits = std::bit_cast<uint64_t>(sum);
  if (error == 0 || (bits & 1) != 0) return sum;
  return std::bit_cast<double>((error > 0) == (sum > 0) ? bits | 1 : bits - 1);
}

uint8_t TakeFloatMode(Lowering& lowering) {
  uint8_t mode = 0;
  if (lowering.Take("rz")) mode = kTowardZero;
  if (lowering.Take("rm")) mode = kDown;
  if (lowering.Take("rp")) mode = kUp;
  if (lowering.Take("rna")) mode = kNearestAway;
  lowering.Take("rn");
  if (lowering.Take("ftz")) mode |= kFlushSubnormals;
  lowering.Take("noftz");
  if (lowering.Take("sat")) mode |= kSaturate;
  if (lowering.Take("relu")) mode |= kRelu;
  return mode;
}

}  // namespace causeway::software_gpu
