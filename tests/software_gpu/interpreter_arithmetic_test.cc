// SPDX-License-Identifier: Apache-2.0
// Arithmetic of the PTX interpreter against the host's, on random and special values.
#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>
#include <random>

#include "tests/software_gpu/interpreter_test.h"
#include "tests/software_gpu/kernels/plain_expressions.h"

namespace causeway::software_gpu::test {
namespace {

constexpr int kCount = 4096;

// Small, large, and everything between.
template <class T>
void FillIntegers(Array<T>& array, uint64_t seed) {
  std::mt19937_64 random(seed);
  array.Fill([&](size_t i) {
    constexpr uint64_t kSpecial[] = {0, 1, ~0ull, 31, 32, 33, 0x80000000u, 0x7fffffffu, 1ull << 63};
    if (i % 16 == 0) return static_cast<T>(kSpecial[random() % std::size(kSpecial)]);
    return static_cast<T>(random() >> random() % (sizeof(T) * 8) >> (64 - sizeof(T) * 8));
  });
}

template <class T>
void FillFloats(Array<T>& array, uint64_t seed) {
  using Limits = std::numeric_limits<T>;
  const T special[] = {T{0},
                       -T{0},
                       T{1},
                       T{-1},
                       Limits::infinity(),
                       -Limits::infinity(),
                       Limits::quiet_NaN(),
                       Limits::denorm_min(),
                       Limits::min(),
                       Limits::max(),
                       Limits::lowest(),
                       T{0.5},
                       T{1.5},
                       T{2.5},
                       T{-0.5},
                       T{2147483648.0},
                       T{9.3e18},
                       T{-3e9}};
  std::mt19937_64 random(seed);
  array.Fill([&](size_t i) {
    if (i % 4 == 0) return special[random() % std::size(special)];
    if (i % 4 == 1)
      return static_cast<T>(
          std::ldexp(static_cast<double>(random()) / 1.8e19 - 0.5, static_cast<int>(random() % 40)));
    if constexpr (sizeof(T) == 4)
      return std::bit_cast<float>(static_cast<uint32_t>(random()));
    else
      return std::bit_cast<double>(random());
  });
}

template <class T>
bool Same(T x, T y) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && std::isnan(y);
    return x == y && (x != 0 || std::signbit(x) == std::signbit(y));
  } else {
    return x == y;
  }
}

template <class T>
void Compare(Array<T>& actual, const std::vector<T>& expected, size_t kinds, size_t i,
             const char* const* names) {
  for (size_t k = 0; k < kinds; ++k) {
    ASSERT_TRUE(Same(actual[k * kCount + i], expected[k]))
        << "element " << i << ": " << (names != nullptr ? names[k] : std::to_string(k).c_str()) << " gave "
        << actual[k * kCount + i] << ", not " << expected[k];
  }
}

template <class T, class Host>
void CheckIntegers(const char* kernel, const char* const* names, size_t kinds, Host host) {
  const auto module = Module::Load("arithmetic");
  Array<T> a(*module, kCount), b(*module, kCount), c(*module, kCount), out(*module, kinds * kCount);
  FillIntegers(a, 1);
  FillIntegers(b, 2);
  FillIntegers(c, 3);
  module->Launch1D(kernel, kCount / 128, 128, a.pointer(), b.pointer(), c.pointer(), out.pointer(), kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const std::vector<T> expected = host(a[i], b[i], c[i]);
    ASSERT_EQ(expected.size(), kinds);
    ASSERT_NO_FATAL_FAILURE(Compare(out, expected, kinds, i, names))
        << "a = " << a[i] << ", b = " << b[i] << ", c = " << c[i];
  }
}

#define X(...) #__VA_ARGS__,
constexpr const char* kU32Names[] = {U32_EXPRESSIONS};
constexpr const char* kS32Names[] = {S32_EXPRESSIONS};
constexpr const char* kS64Names[] = {S64_EXPRESSIONS};
constexpr const char* kF32Names[] = {F32_EXPRESSIONS};
constexpr const char* kF64Names[] = {F64_EXPRESSIONS};
#undef X
#define X(...) static_cast<Result>(__VA_ARGS__),
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wparentheses"
#pragma GCC diagnostic ignored "-Wsign-compare"

TEST(Arithmetic, Unsigned32) {
  using Result = uint32_t;
  CheckIntegers<Result>("PlainU32", kU32Names, std::size(kU32Names),
                        [](Result a, Result b, Result c) { return std::vector<Result>{U32_EXPRESSIONS}; });
}

TEST(Arithmetic, Signed32) {
  using Result = int32_t;
  CheckIntegers<Result>("PlainS32", kS32Names, std::size(kS32Names),
                        [](Result a, Result b, Result c) { return std::vector<Result>{S32_EXPRESSIONS}; });
}

TEST(Arithmetic, Signed64) {
  using Result = int64_t;
  CheckIntegers<Result>("PlainS64", kS64Names, std::size(kS64Names),
                        [](Result a, Result b, Result c) { return std::vector<Result>{S64_EXPRESSIONS}; });
}

template <class T, class Host>
void CheckFloats(const char* kernel, const char* const* names, size_t kinds, Host host) {
  const auto module = Module::Load("arithmetic");
  Array<T> a(*module, kCount), b(*module, kCount), c(*module, kCount), out(*module, kinds * kCount);
  Array<int32_t> bits(*module, kCount);
  FillFloats(a, 4);
  FillFloats(b, 5);
  FillFloats(c, 6);
  FillIntegers(bits, 7);
  module->Launch1D(kernel, kCount / 128, 128, a.pointer(), b.pointer(), c.pointer(), bits.pointer(),
                   out.pointer(), kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const std::vector<T> expected = host(a[i], b[i], c[i], bits[i]);
    ASSERT_NO_FATAL_FAILURE(Compare(out, expected, kinds, i, names))
        << "a = " << a[i] << ", b = " << b[i] << ", c = " << c[i] << ", bits = " << bits[i];
  }
}

// PTX orders the two zeros and prefers numbers to every NaN; the host's functions need not.
template <class T>
T Smaller(T x, T y) {
  if (std::isnan(x)) return y;
  if (std::isnan(y)) return x;
  return x < y || (x == y && std::signbit(x)) ? x : y;
}
float fminf(float x, float y) {
  return Smaller(x, y);
}
float fmaxf(float x, float y) {
  return -Smaller(-x, -y);
}
double fmin(double x, double y) {
  return Smaller(x, y);
}
double fmax(double x, double y) {
  return -Smaller(-x, -y);
}
using std::isinf;

TEST(Arithmetic, Float) {
  using Result = float;
  CheckFloats<Result>(
      "PlainF32", kF32Names, std::size(kF32Names),
      [](Result a, Result b, Result c, int32_t bits) { return std::vector<Result>{F32_EXPRESSIONS}; });
}

TEST(Arithmetic, Double) {
  using Result = double;
  CheckFloats<Result>(
      "PlainF64", kF64Names, std::size(kF64Names),
      [](Result a, Result b, Result c, int32_t bits) { return std::vector<Result>{F64_EXPRESSIONS}; });
}
#pragma GCC diagnostic pop

uint32_t Reverse(uint32_t x) {
  uint32_t result = 0;
  for (int i = 0; i < 32; ++i) result |= (x >> i & 1) << (31 - i);
  return result;
}
uint32_t BytePermute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t nibble = selector >> (4 * i) & 15;
    uint32_t byte = static_cast<uint32_t>(both >> (nibble % 8 * 8)) & 0xff;
    if (nibble > 7) byte = byte > 127 ? 255 : 0;
    result += byte << (8 * i);
  }
  return result;
}
int32_t Low24(uint32_t x) {
  return static_cast<int32_t>(x << 8) >> 8;
}
uint32_t Dot(uint32_t a, uint32_t b, uint32_t c, bool is_signed) {
  for (int i = 0; i < 32; i += 8) {
    const int x = is_signed ? static_cast<int8_t>(a >> i) : static_cast<uint8_t>(a >> i);
    const int y = is_signed ? static_cast<int8_t>(b >> i) : static_cast<uint8_t>(b >> i);
    c += static_cast<uint32_t>(x * y);
  }
  return c;
}
uint32_t AddBytes(uint32_t a, uint32_t b) {
  uint32_t result = 0;
  for (int i = 0; i < 32; i += 8) result |= (((a >> i & 0xff) + (b >> i & 0xff)) & 0xff) << i;
  return result;
}
uint32_t MaximumHalves(uint32_t a, uint32_t b) {
  uint32_t result = 0;
  for (int i = 0; i < 32; i += 16) {
    const int16_t x = static_cast<int16_t>(a >> i), y = static_cast<int16_t>(b >> i);
    result |= static_cast<uint32_t>(static_cast<uint16_t>(x > y ? x : y)) << i;
  }
  return result;
}
// One bit at a time, straight from the definition.
uint32_t Extract(uint32_t a, uint32_t position, uint32_t length, bool is_signed) {
  uint32_t result = 0;
  const uint32_t top = position + length - 1 < 31 ? position + length - 1 : 31;
  const uint32_t sign = is_signed && length != 0 ? a >> top & 1 : 0;
  for (uint32_t i = 0; i < 32; ++i) {
    const bool inside = i < length && position + i < 32;
    result |= (inside ? a >> (position + i) & 1 : sign) << i;
  }
  return result;
}
uint32_t Insert(uint32_t a, uint32_t b, uint32_t position, uint32_t length) {
  for (uint32_t i = 0; i < length && position + i < 32; ++i) {
    b = (b & ~(1u << (position + i))) | (a >> i & 1) << (position + i);
  }
  return b;
}
int64_t Clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

std::vector<uint32_t> HostIntrinsics(uint32_t a, uint32_t b, uint32_t c) {
  const auto sa = static_cast<int32_t>(a), sb = static_cast<int32_t>(b), sc = static_cast<int32_t>(c);
  const uint64_t product = uint64_t{a} * b, sum = uint64_t{a} + b, wide = product + c;
  const uint64_t both = uint64_t{b} << 32 | a;
  const uint64_t clz64 = uint64_t{a & 0xff} << 20 | (b & 1);
  const uint32_t magnitude = static_cast<uint32_t>(sa < 0 ? ~sa : sa);
  const auto word = [](int64_t value) { return static_cast<uint32_t>(value); };
  const int right = static_cast<int>((c & 63) > 32 ? 32 : c & 63);
  const uint64_t f4e = both >> (8 * (c & 3));
  return {
      word(std::popcount(a)),
      word(std::countl_zero(a)),
      Reverse(a),
      a == 0 ? 0 : word(std::countr_zero(a)) + 1,
      BytePermute(a, b, c & 0x7777),
      word(static_cast<int64_t>(both << (c & 31) >> 32)),
      static_cast<uint32_t>(both >> right),
      static_cast<uint32_t>(product >> 32),
      word(int64_t{sa} * sb >> 32),
      (a & 0xffffff) * (b & 0xffffff),
      word(int64_t{Low24(a)} * Low24(b)),
      c + (a > b ? a - b : b - a),
      c + static_cast<uint32_t>(sa > sb ? int64_t{sa} - sb : int64_t{sb} - sa),
      Dot(a, b, c, true),
      Dot(a, b, c, false),
      word(std::popcount(a) + std::popcount(b)),
      word(std::countl_zero(clz64)),
      AddBytes(a, b),
      MaximumHalves(a, b),
      Extract(a, b & 0xff, c & 0xff, false),
      Extract(a, b & 31, c & 31, true),
      Insert(a, b, c & 0xff, c >> 8 & 0xff),
      a == 0 ? ~0u : word(31 - std::countl_zero(a)),
      magnitude == 0 ? ~0u : word(std::countl_zero(magnitude)),
      (a & b) | (~a & c),
      static_cast<uint32_t>(sum),
      c + static_cast<uint32_t>(sum >> 32),
      a - b,
      c - (a < b),
      static_cast<uint32_t>(wide),
      static_cast<uint32_t>(product >> 32) + (static_cast<uint32_t>(product) > ~c),
      word(Clamp(int64_t{sa} + sb, INT32_MIN, INT32_MAX)),
      word(Clamp(int64_t{sa} - sb, INT32_MIN, INT32_MAX)),
      static_cast<uint32_t>(f4e),
      a < b ? 0u : 1u,
      sa >= sb ? ~0u : 0u,
      sc >= 0 ? a : b,
      a << 16 | a >> 16,
      word(Clamp(a >> 23, -128, 127)),
      word(Clamp(sa, 0, 65535)),
      (b & 63) > 31 ? 0 : a << (b & 31),
      word((b & 63) > 31 ? (sa < 0 ? -1 : 0) : sa >> (b & 31)),
      BytePermute(a, b, c),
  };
}

TEST(Arithmetic, Intrinsics) {
  CheckIntegers<uint32_t>("Intrinsics", nullptr, HostIntrinsics(1, 2, 3).size(), HostIntrinsics);
}

template <class F>
float Rounded(int direction, F compute) {
  const int before = std::fegetround();
  std::fesetround(direction);
  volatile float result = compute();
  std::fesetround(before);
  return result;
}

TEST(Arithmetic, RoundingModes) {
  const auto module = Module::Load("arithmetic");
  constexpr size_t kKinds = 17;
  Array<float> pa(*module, kCount), pb(*module, kCount), pc(*module, kCount), out(*module, kKinds * kCount);
  FillFloats(pa, 14);
  FillFloats(pb, 15);
  FillFloats(pc, 16);
  module->Launch1D("FloatIntrinsics", kCount / 128, 128, pa.pointer(), pb.pointer(), pc.pointer(),
                   out.pointer(), kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const volatile float a = pa[i], b = pb[i], c = pc[i], one = 1;
    const volatile double scaled = double{a} * 1.0000000001;
    const volatile int32_t as_int = std::bit_cast<int32_t>(pa[i]);
    const volatile uint64_t as_long = uint64_t{std::bit_cast<uint32_t>(pa[i])} << 24;
    const auto integer = [](double value, double low, double high) {
      return std::isnan(value) ? 0.0 : value < low ? low : value > high ? high : value;
    };
    std::vector<float> expected = {
        Rounded(FE_TOWARDZERO, [&] { return a + b; }),
        Rounded(FE_UPWARD, [&] { return a + b; }),
        Rounded(FE_DOWNWARD, [&] { return a + b; }),
        Rounded(FE_TOWARDZERO, [&] { return a * b; }),
        Rounded(FE_UPWARD, [&] { return a * b; }),
        Rounded(FE_DOWNWARD, [&] { return std::fma(float{a}, float{b}, float{c}); }),
        Rounded(FE_UPWARD, [&] { return a / b; }),
        Rounded(FE_TOWARDZERO, [&] { return std::sqrt(float{a}); }),
        Rounded(FE_DOWNWARD, [&] { return one / a; }),
        std::isnan(a) ? 0.0f
        : a > 1       ? 1.0f
        : a > 0       ? a
                      : 0.0f,
        static_cast<float>(static_cast<int64_t>(integer(std::nearbyint(a), INT32_MIN, INT32_MAX))),
        static_cast<float>(static_cast<int64_t>(integer(std::trunc(a), 0, UINT32_MAX))),
        0,
        Rounded(FE_TOWARDZERO, [&] { return static_cast<float>(as_int); }),
        Rounded(FE_UPWARD, [&] { return static_cast<float>(as_long); }),
        Rounded(FE_DOWNWARD, [&] { return static_cast<float>(scaled); }),
        static_cast<float>(static_cast<int64_t>(integer(std::ceil(double{a} / 3), INT32_MIN, INT32_MAX)))};
    const double floored = std::floor(double{a});
    expected[12] = std::isnan(floored) || floored <= -0x1p63 ? -0x1p63f
                   : floored >= 0x1p63                       ? 0x1p63f
                                       : static_cast<float>(static_cast<int64_t>(floored));
    if (std::isnan(a)) expected[16] = static_cast<float>(INT32_MIN);
    ASSERT_NO_FATAL_FAILURE(Compare(out, expected, kKinds, i, nullptr))
        << "a = " << a << ", b = " << b << ", c = " << c;
  }
}

// NaN gives 0, or only the top bit when a 64-bit type takes part; the rest is clamped.
template <class T>
int64_t Clamped(double value, bool wide) {
  if (std::isnan(value)) return wide ? INT64_MIN : 0;
  if (value <= static_cast<double>(std::numeric_limits<T>::min()))
    return static_cast<int64_t>(std::numeric_limits<T>::min());
  if (value >= static_cast<double>(std::numeric_limits<T>::max()))
    return static_cast<int64_t>(std::numeric_limits<T>::max());
  return static_cast<int64_t>(static_cast<T>(value));
}

TEST(Arithmetic, FloatToInteger) {
  const auto module = Module::Load("arithmetic");
  constexpr size_t kKinds = 8;
  Array<float> pa(*module, kCount);
  Array<int64_t> out(*module, kKinds * kCount);
  FillFloats(pa, 24);
  module->Launch1D("FloatToInteger", kCount / 128, 128, pa.pointer(), out.pointer(), kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const double a = pa[i];
    const bool nan = std::isnan(a);
    const std::vector<int64_t> expected = {Clamped<int32_t>(std::trunc(a), false),
                                           Clamped<uint32_t>(std::trunc(a), false),
                                           Clamped<int64_t>(std::trunc(a), true),
                                           Clamped<uint64_t>(std::trunc(a), true),
                                           nan ? INT32_MIN : Clamped<int32_t>(std::trunc(a), true),
                                           Clamped<int64_t>(std::trunc(a), true),
                                           Clamped<int16_t>(std::nearbyint(a), false),
                                           nan ? 0x8000 : Clamped<uint16_t>(std::ceil(a), true)};
    ASSERT_NO_FATAL_FAILURE(Compare(out, expected, kKinds, i, nullptr)) << "a = " << a;
  }
}

}  // namespace
}  // namespace causeway::software_gpu::test
