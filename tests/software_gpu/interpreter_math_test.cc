// SPDX-License-Identifier: Apache-2.0
// math.h, half and bfloat16, and CUB's kernels in the PTX interpreter.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/software_gpu/interpreter_float.h"
#include "tests/software_gpu/interpreter_test.h"
#include "tests/software_gpu/kernels/math.cu"

namespace causeway::software_gpu::test {
namespace {

constexpr int kCount = 1024;

#define X(...) #__VA_ARGS__,
constexpr const char* kFloatNames[] = {FLOAT_FUNCTIONS};
constexpr const char* kDoubleNames[] = {DOUBLE_FUNCTIONS};
#undef X
#define X(...) static_cast<double>(__VA_ARGS__),

// `relative` is what CUDA's guide allows for the worst of the functions.
template <class T, class Host>
void CheckMath(const char* file, const char* kernel, const char* const* names, size_t kinds, double relative,
               Host host) {
  const auto module = Module::Load(file);
  Array<T> a(*module, kCount), b(*module, kCount), out(*module, kinds * kCount);
  std::mt19937 random(3);
  const auto uniform = [&](double low, double high) {
    return static_cast<T>(low + (high - low) * static_cast<double>(random()) / 4294967296.0);
  };
  a.Fill([&](size_t i) { return i % 8 == 0 ? uniform(-1e-3, 1e-3) : uniform(-20, 20); });
  b.Fill([&](size_t) { return uniform(0.1, 5); });
  module->Launch1D(kernel, kCount / 128, 128, a.pointer(), b.pointer(), out.pointer(), kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const std::vector<double> expected = host(a[i], b[i]);
    for (size_t k = 0; k < kinds; ++k) {
      const double actual = static_cast<double>(out[k * kCount + i]);
      ASSERT_LE(std::fabs(actual - expected[k]), relative * std::max(std::fabs(expected[k]), 1e-3))
          << (names != nullptr ? names[k] : std::to_string(k).c_str()) << " of " << a[i] << ", " << b[i];
    }
  }
}

TEST(Math, Float) {
  const auto host = [](float a, float b) { return std::vector<double>{FLOAT_FUNCTIONS}; };
  CheckMath<float>("math", "FloatMath", kFloatNames, std::size(kFloatNames), 2e-6, host);
}

TEST(Math, Double) {
  const auto host = [](double a, double b) { return std::vector<double>{DOUBLE_FUNCTIONS}; };
  CheckMath<double>("math", "DoubleMath", kDoubleNames, std::size(kDoubleNames), 2e-14, host);
}

TEST(Math, Fast) {
  const auto host = [](float a, float b) {
    return std::vector<double>{X(1 / std::sqrt(std::fabs(a))) X(sinf(a)) X(cosf(a)) X(expf(b))
                                   X(logf(fabsf(a))) X(a / b) X(powf(fabsf(a), b))};
  };
  CheckMath<float>("math", "FastMath", nullptr, 7, 1e-4, host);
  CheckMath<float>("math_fast", "FastMath", nullptr, 7, 1e-4, host);
}

// --- 16-bit floats. The host's reference goes through long double and rounds once.

template <class F>
uint16_t Narrow(long double exact) {
  // Rounds to odd in double first, so that EncodeFloat's rounding is the only one that counts.
  double value = static_cast<double>(exact);
  if (static_cast<long double>(value) != exact && !std::isnan(exact) && !std::isinf(value)) {
    const bool away = std::fabs(static_cast<long double>(value)) > std::fabs(exact);
    value = std::bit_cast<double>((std::bit_cast<uint64_t>(value) - (away ? 1 : 0)) | 1);
  }
  return static_cast<uint16_t>(EncodeFloat(value, F::kExponentBits, F::kMantissaBits, kNearestEven));
}
template <class F>
long double Wide(uint16_t bits) {
  return DecodeFloat(bits, F::kExponentBits, F::kMantissaBits);
}

// x * y + z, off its true value by less than a unit in the last place of long double and never on the wrong
// side of a tie: the error of the sum is known exactly.
long double Fused(long double x, long double y, long double z) {
  const long double product = x * y;  // exact: the factors have 11 bits
  const long double sum = product + z;
  if (!std::isfinite(sum)) return sum;
  const long double part = sum - product;
  const long double error = (product - (sum - part)) + (z - part);
  return error == 0 ? sum : std::nextafter(sum, error > 0 ? INFINITY : -INFINITY);
}

// The decoder against the definition of the formats, the encoder against the decoder.
TEST(Half, EncodingIsTheInverseOfDecoding) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const double sign = bits >> 15 != 0 ? -1 : 1;
    const double value = DecodeFloat(bits, 5, 10);
    if (exponent == 31) {
      ASSERT_TRUE((bits & 1023) != 0 ? std::isnan(value) : std::isinf(value));
      continue;
    }
    const double expected = sign * (exponent == 0 ? std::ldexp(bits & 1023, -24)
                                                  : std::ldexp(1024.0 + (bits & 1023), exponent - 25));
    ASSERT_EQ(value, expected);
    ASSERT_EQ(EncodeFloat(value, 5, 10, kNearestEven), bits);
    const double as_bfloat = std::bit_cast<float>(bits << 16);
    if (!std::isnan(as_bfloat)) {
      ASSERT_EQ(DecodeFloat(bits, 8, 7), as_bfloat);
      ASSERT_EQ(EncodeFloat(as_bfloat, 8, 7, kNearestEven), bits);
    }
  }
  std::mt19937_64 random(5);
  for (int i = 0; i < 100000; ++i) {
    const double value = std::bit_cast<double>((random() & ~(0x7ffull << 52)) | (800 + random() % 400) << 52);
    ASSERT_EQ(EncodeFloat(value, 8, 23, kNearestEven), std::bit_cast<uint32_t>(static_cast<float>(value)));
  }
}

uint16_t Random16(std::mt19937& random) {
  constexpr uint16_t kSpecial[] = {0,      0x8000, 1,      0x3ff,  0x400,  0x7bff,
                                   0x7c00, 0xfc00, 0x7e00, 0x3c00, 0x7f80, 0x7f7f};
  return random() % 8 == 0 ? kSpecial[random() % std::size(kSpecial)] : static_cast<uint16_t>(random());
}

template <class F>
bool Same16(uint16_t x, uint16_t y) {
  return x == y || (std::isnan(Wide<F>(x)) && std::isnan(Wide<F>(y)));
}

class HalfCode : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Architectures, HalfCode, ::testing::Values("half", "half_90"));

struct Sixteen {
  explicit Sixteen(Module& module, size_t kinds)
      : a(module, kCount),
        b(module, kCount),
        c(module, kCount),
        out(module, kinds * kCount),
        f(module, kCount) {
    std::mt19937 random(9);
    for (auto* array : {&a, &b, &c}) array->Fill([&](size_t) { return Random16(random); });
    f.Fill([&](size_t i) {
      if (i % 3 == 0) return std::bit_cast<float>(static_cast<uint32_t>(random()));
      return static_cast<float>(
          std::ldexp(static_cast<double>(random()) - 2147483648.0, -16 - static_cast<int>(random() % 40)));
    });
  }
  Array<uint16_t> a, b, c, out;
  Array<float> f;
};

template <class F>
uint16_t Least(uint16_t x, uint16_t y, bool greatest) {
  const long double wx = Wide<F>(x), wy = Wide<F>(y);
  if (std::isnan(wx)) return std::isnan(wy) ? 0x7fff : y;
  if (std::isnan(wy)) return x;
  const bool x_less = wx < wy || (wx == wy && std::signbit(wx));
  return x_less != greatest ? x : y;
}

TEST_P(HalfCode, Half) {
  const auto module = Module::Load(GetParam());
  constexpr size_t kKinds = 25;
  Sixteen data(*module, kKinds);
  module->Launch1D("HalfMath", kCount / 128, 128, data.a.pointer(), data.b.pointer(), data.c.pointer(),
                   data.f.pointer(), data.out.pointer(), kCount);
  using F = Half;
  for (size_t i = 0; i < kCount; ++i) {
    const uint16_t a = data.a[i], b = data.b[i], c = data.c[i];
    const long double wa = Wide<F>(a), wb = Wide<F>(b), wc = Wide<F>(c);
    const float f = data.f[i];
    const auto encode = [&](Rounding rounding) {
      return static_cast<uint16_t>(EncodeFloat(f, 5, 10, rounding));
    };
    const uint16_t sum = Narrow<F>(Fused(wa, 1, wb));
    const long double clamped =
        std::isnan(wa + wb) ? 0 : std::min<long double>(std::max<long double>(wa + wb, 0), 1);
    const uint16_t sign = 0x8000;
    const uint16_t expected[kKinds] = {sum,
                                       Narrow<F>(Fused(wa, 1, -wb)),
                                       Narrow<F>(wa * wb),
                                       Narrow<F>(Fused(wa, wb, wc)),
                                       Narrow<F>(wa / wb),
                                       Narrow<F>(std::sqrt(wa)),
                                       static_cast<uint16_t>(a ^ sign),
                                       static_cast<uint16_t>(a & ~sign),
                                       Least<F>(a, b, false),
                                       Least<F>(a, b, true),
                                       wa < wb,
                                       !(wa < wb),
                                       encode(kNearestEven),
                                       encode(kTowardZero),
                                       encode(kUp),
                                       encode(kDown),
                                       Narrow<F>(a * 5.0L),
                                       Narrow<F>(clamped),
                                       encode(kNearestEven),
                                       Narrow<F>(Fused(wa, wb, wc)),
                                       Narrow<F>(Fused(wb, wc, wa)),
                                       sum,
                                       Narrow<F>(wb * wc),
                                       static_cast<uint16_t>(wa == wb ? 0x3c00 : 0),
                                       static_cast<uint16_t>(wb > wc ? 0x3c00 : 0)};
    for (size_t k = 0; k < kKinds; ++k) {
      if (k == 4 || k == 5) {  // nvcc's division and root are approximate in the last place
        const long double actual = Wide<F>(data.out[k * kCount + i]), exact = Wide<F>(expected[k]);
        if (std::isfinite(exact)) {
          ASSERT_LE(std::fabs(actual - exact), std::fabs(exact) * 0.002L + 1e-7L) << i << " " << k;
        }
        continue;
      }
      ASSERT_TRUE(Same16<F>(data.out[k * kCount + i], expected[k]))
          << k << ": " << std::hex << a << " " << b << " " << c << " gave " << data.out[k * kCount + i]
          << ", not " << expected[k];
    }
  }
}

TEST_P(HalfCode, BFloat) {
  const auto module = Module::Load(GetParam());
  constexpr size_t kKinds = 14;
  Sixteen data(*module, kKinds);
  module->Launch1D("BFloatMath", kCount / 128, 128, data.a.pointer(), data.b.pointer(), data.c.pointer(),
                   data.f.pointer(), data.out.pointer(), kCount);
  using F = BFloat;
  for (size_t i = 0; i < kCount; ++i) {
    const uint16_t a = data.a[i], b = data.b[i], c = data.c[i];
    const long double wa = Wide<F>(a), wb = Wide<F>(b), wc = Wide<F>(c);
    const uint16_t sign = 0x8000;
    const uint16_t expected[kKinds] = {Narrow<F>(Fused(wa, 1, wb)),
                                       Narrow<F>(Fused(wa, 1, -wb)),
                                       Narrow<F>(wa * wb),
                                       Narrow<F>(Fused(wa, wb, wc)),
                                       static_cast<uint16_t>(a ^ sign),
                                       static_cast<uint16_t>(a & ~sign),
                                       Least<F>(a, b, false),
                                       Least<F>(a, b, true),
                                       wa < wb,
                                       static_cast<uint16_t>(EncodeFloat(data.f[i], 8, 7, kNearestEven)),
                                       static_cast<uint16_t>(EncodeFloat(data.f[i], 8, 7, kTowardZero)),
                                       Narrow<F>(Fused(wa, wb, wc)),
                                       Narrow<F>(Fused(wb, wc, wa)),
                                       Narrow<F>(Fused(wa, 1, wb))};
    for (size_t k = 0; k < kKinds; ++k) {
      ASSERT_TRUE(Same16<F>(data.out[k * kCount + i], expected[k]))
          << k << ": " << std::hex << a << " " << b << " " << c << " gave " << data.out[k * kCount + i]
          << ", not " << expected[k];
    }
  }
}

TEST_P(HalfCode, ConversionsAtomicsAndReductions) {
  const auto module = Module::Load(GetParam());
  Array<uint16_t> in(*module, 65536);
  Array<float> half(*module, 65536), bfloat(*module, 65536);
  Array<int> integers(*module, 65536);
  in.Fill([](size_t i) { return static_cast<uint16_t>(i); });
  module->Launch1D("HalfToFloat", 256, 256, in.pointer(), half.pointer(), bfloat.pointer(),
                   integers.pointer());
  for (size_t i = 0; i < 65536; ++i) {
    const auto value = static_cast<double>(Wide<Half>(static_cast<uint16_t>(i)));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(half[i]));
      ASSERT_EQ(integers[i], 0);
    } else {
      ASSERT_EQ(half[i], value);
      ASSERT_EQ(integers[i], std::isinf(value) ? (value < 0 ? INT32_MIN : INT32_MAX) : std::nearbyint(value));
    }
    const float expected = std::bit_cast<float>(static_cast<uint32_t>(i) << 16);
    ASSERT_TRUE(bfloat[i] == expected || (std::isnan(expected) && std::isnan(bfloat[i]))) << i;
  }
  Array<uint32_t> words(*module, 3);
  module->Launch1D("HalfAtomics", 1, 64, words.pointer(), words.pointer() + 1, words.pointer() + 2);
  EXPECT_EQ(words[0], (EncodeFloat(128, 5, 10, kNearestEven) << 16 | EncodeFloat(32, 5, 10, kNearestEven)));
  EXPECT_EQ(words[1], EncodeFloat(64, 5, 10, kNearestEven));
  EXPECT_EQ(words[2], (EncodeFloat(16, 8, 7, kNearestEven) << 16 | EncodeFloat(64, 8, 7, kNearestEven)));

  Array<int> numbers(*module, 32), results(*module, 128);
  numbers.Fill([](size_t i) { return static_cast<int>(i * 13 % 29) - 7; });
  module->Launch1D("Reductions", 1, 32, numbers.pointer(), results.pointer());
  const int* first = numbers.pointer();
  EXPECT_EQ(results[5], std::accumulate(first, first + 32, 0));
  EXPECT_EQ(results[37], *std::min_element(first, first + 32));
  EXPECT_EQ(results[69], *std::max_element(first, first + 32));
  EXPECT_EQ(results[101], std::accumulate(first, first + 32, 0, [](int x, int y) { return x ^ y; }));
}

TEST_P(HalfCode, AsyncCopy) {
  const auto module = Module::Load(GetParam());
  struct Quad {
    alignas(16) int values[4];
  };
  Array<Quad> in(*module, 64), out(*module, 64);
  in.Fill([](size_t i) { return Quad{{static_cast<int>(i), 1, 2, 3}}; });
  module->Launch1D("AsyncCopy", 1, 64, in.pointer(), out.pointer());
  for (size_t i = 0; i < 64; ++i) ASSERT_EQ(out[i].values[0], static_cast<int>(63 - i));
}

TEST(Cub, BlockPrimitives) {
  const auto module = Module::Load("cub");
  constexpr size_t kBlocks = 5;
  Array<int> in(*module, kBlocks * 128), sums(*module, kBlocks), scans(*module, kBlocks * 128);
  Array<unsigned> keys(*module, kBlocks * 512);
  std::mt19937 random(21);
  in.Fill([&](size_t) { return static_cast<int>(random() % 1000); });
  keys.Fill([&](size_t) { return static_cast<unsigned>(random()); });
  std::vector<unsigned> sorted(keys.pointer(), keys.pointer() + keys.size());
  module->Launch1D("BlockPrimitives", kBlocks, 128, in.pointer(), sums.pointer(), scans.pointer(),
                   keys.pointer());
  for (size_t block = 0; block < kBlocks; ++block) {
    int sum = 0;
    for (size_t i = block * 128; i < block * 128 + 128; ++i) {
      ASSERT_EQ(scans[i], sum) << i;
      sum += in[i];
    }
    ASSERT_EQ(sums[block], sum);
    std::sort(sorted.begin() + static_cast<long>(block * 512),
              sorted.begin() + static_cast<long>(block * 512 + 512));
  }
  for (size_t i = 0; i < keys.size(); ++i) ASSERT_EQ(keys[i], sorted[i]) << i;
}

}  // namespace
}  // namespace causeway::software_gpu::test
