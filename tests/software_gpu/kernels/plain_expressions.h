// SPDX-License-Identifier: Apache-2.0
// Expressions that host and device compute alike, as X(expression in a, b, c). The device's compiler must
// not contract them (-fmad=false), and integer ones must not overflow signed types.
// Lists of X(...) have no semicolons, so clang-format would indent them anew each time.
// clang-format off
#pragma once

#define U32_EXPRESSIONS                                                                                   \
  X(a + b)                                                                                                \
  X(a - b)                                                                                                \
  X(a* b)                                                                                                 \
  X(b != 0 ? a / b : 7)                                                                                   \
  X(b != 0 ? a % b : 9) X(a& b) X(a | b) X(a ^ ~c) X(a << (b & 31)) X(a >> (b & 31)) X(a < b ? c : a)     \
      X(a* b + c) X((a << 7) | (a >> 25)) X(a > b ? a : b) X(uint32_t((uint64_t(a) * b) >> 32)) X(a == c) \
          X(!a) X(-a) X((a >> 5) & 0x3ff) X(a / 7) X(a % 1000) X((a & 0xffff0000u) | (b & 0xffff))        \
              X(uint8_t(a) + uint16_t(b)) X(a > 100 && b < c || c == 5)                                   \
                  X(uint32_t(uint16_t(a)) * uint16_t(b)) X(uint32_t(uint8_t(a) >> 3))                     \
                      X(uint16_t(a - b) / uint16_t(c | 1))

#define S32_EXPRESSIONS                                                                             \
  X(a < b ? a : b)                                                                                  \
  X(a > b)                                                                                          \
  X(a >> (b & 31))                                                                                  \
  X((b | 1) == -1 ? 0 : a / (b | 1))                                                                \
  X((b | 1) == -1 ? 0 : a % (b | 1)) X(a / 10) X(a % 10) X(a < 0 ? ~a : a)                          \
      X(int32_t(int16_t(a)) * int16_t(b)) X(int32_t(int8_t(a)) + int8_t(b))                         \
          X(int32_t((int64_t(a) * b) >> 32)) X(int32_t(int8_t(a) / (int8_t(b) | 1)))                \
              X(int32_t(int16_t(b) >> 4)) X(a >= c && b <= c) X(int32_t(uint32_t(a) + uint32_t(c))) \
                  X(int64_t(a) * b < int64_t(c) ? 1 : -1)

#define S64_EXPRESSIONS                                                                   \
  X(int64_t(uint64_t(a) + uint64_t(b)))                                                   \
  X(int64_t(uint64_t(a) * uint64_t(b)))                                                   \
  X(a >> (b & 63))                                                                        \
  X(int64_t(uint64_t(a) << (c & 63)))                                                     \
  X(int64_t(uint64_t(a) >> (c & 63))) X(a < b ? c : b) X((b | 1) == -1 ? 0 : a / (b | 1)) \
      X((b | 1) == -1 ? 0 : a % (b | 1)) X(int64_t(uint64_t(a) / (uint64_t(b) | 1)))      \
          X(int64_t(uint64_t(a) % (uint64_t(c) | 1))) X(int64_t(int32_t(a)) * int32_t(b)) \
              X(int64_t(uint64_t(uint32_t(a)) * uint32_t(b))) X(a ^ b & c)                \
                  X(int64_t(int8_t(a)) - int16_t(b)) X(a == b)

#define F32_EXPRESSIONS                                                                                      \
  X(a + b)                                                                                                   \
  X(a - b)                                                                                                   \
  X(a* b)                                                                                                    \
  X(a / b)                                                                                                   \
  X(sqrtf(a)) X(fmaf(a, b, c)) X(fminf(a, b)) X(fmaxf(a, b)) X(fabsf(a)) X(-a) X(a < b ? 1.0f : 2.0f)        \
      X(a >= b ? a : c) X(a == a ? 3.0f : 4.0f) X(floorf(a)) X(ceilf(a)) X(truncf(a)) X(rintf(a))            \
          X(float(double(a) * double(b))) X(copysignf(a, b)) X(isinf(a) ? 1.0f : 0.0f) X(a != b ? a * c : b) \
              X(1.0f / a) X(float(int32_t(bits)) + 0.5f) X(float(uint32_t(bits)))                            \
                  X(float(int64_t(bits) * 1234567)) X(float(int8_t(bits))) X(float(uint64_t(bits) << 30))    \
                      X(fdimf(a, b)) X(a > b && b > c ? a : c) X(roundf(a))

#define F64_EXPRESSIONS                                                                        \
  X(a + b)                                                                                     \
  X(a - b)                                                                                     \
  X(a* b)                                                                                      \
  X(a / b)                                                                                     \
  X(sqrt(a)) X(fma(a, b, c)) X(fmin(a, b)) X(fmax(a, b)) X(fabs(a)) X(-a) X(a < b ? 1.0 : 2.0) \
      X(a == a ? 3.0 : 4.0) X(floor(a)) X(ceil(a)) X(trunc(a)) X(rint(a)) X(copysign(a, b))    \
          X(double(float(a))) X(double(int32_t(bits))) X(double(int64_t(bits) * 987654321))    \
              X(double(uint64_t(bits) << 13)) X(a > b || c != c ? a : c) X(1.0 / b) X(round(a))
