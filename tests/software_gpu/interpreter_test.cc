// SPDX-License-Identifier: Apache-2.0
// The PTX interpreter runs nvcc's code for ordinary kernels; results are compared with the host's.
#include "tests/software_gpu/interpreter_test.h"

#include <algorithm>
#include <random>

namespace causeway::software_gpu::test {
namespace {

TEST(Basics, VectorAdd) {
  const auto module = Module::Load("basics");
  Array<float> a(*module, 1000), b(*module, 1000), c(*module, 1000);
  a.Fill([](size_t i) { return static_cast<float>(i) * 0.25f; });
  b.Fill([](size_t i) { return 3.0f - static_cast<float>(i); });
  module->Launch1D("VectorAdd", 8, 128, a.pointer(), b.pointer(), c.pointer(), 1000);
  for (size_t i = 0; i < c.size(); ++i) ASSERT_EQ(c[i], a[i] + b[i]) << i;
}

TEST(Basics, TiledMatmul) {
  const auto module = Module::Load("basics");
  constexpr int kSide = 256;
  Array<float> a(*module, kSide * kSide), b(*module, kSide * kSide), c(*module, kSide * kSide);
  std::mt19937 random(1);
  a.Fill([&](size_t) { return static_cast<float>(random() % 16); });
  b.Fill([&](size_t) { return static_cast<float>(random() % 16); });
  const Fault fault = module->Run("TiledMatmul", {kSide / 16, kSide / 16, 1}, {16, 16, 1}, 0, false,
                                  a.pointer(), b.pointer(), c.pointer(), kSide);
  ASSERT_EQ(fault.cuda_error, 0) << fault.message;
  for (int row = 0; row < kSide; ++row) {
    for (int column = 0; column < kSide; ++column) {
      float sum = 0;  // small integers: exact in any order
      for (int k = 0; k < kSide; ++k) {
        sum += a[static_cast<size_t>(row * kSide + k)] * b[static_cast<size_t>(k * kSide + column)];
      }
      ASSERT_EQ(c[static_cast<size_t>(row * kSide + column)], sum);
    }
  }
}

TEST(Basics, IndicesOf3DLaunches) {
  const auto module = Module::Load("basics");
  const Dim3 grid{3, 2, 2}, block{5, 3, 4};
  const uint32_t threads = block.x * block.y * block.z;
  Array<uint32_t> out(*module, size_t{12} * threads * 8);
  const Fault fault = module->Run("WhoAmI", grid, block, 0, false, out.pointer());
  ASSERT_EQ(fault.cuda_error, 0) << fault.message;
  for (uint32_t i = 0; i < 12 * threads; ++i) {
    const uint32_t b = i / threads, t = i % threads;
    const uint32_t lane = t % 32;
    const uint32_t expected[] = {t % 5, t / 5 % 3, t / 15, b % 3, b / 3 % 2, b / 6, lane, (1u << lane) - 1};
    for (size_t k = 0; k < 8; ++k) ASSERT_EQ(out[i * 8 + k], expected[k]) << i << " " << k;
  }
}

TEST(Basics, SharedMemory) {
  const auto module = Module::Load("basics");
  Array<int> in(*module, 5000), out(*module, 256);
  in.Fill([](size_t i) { return static_cast<int>(i * i % 1009); });
  const Fault fault = module->Run("SharedReduction", {4, 1, 1}, {256, 1, 1}, 256 * 4, false, in.pointer(),
                                  out.pointer(), 5000);
  ASSERT_EQ(fault.cuda_error, 0) << fault.message;
  int expected = 0;
  for (size_t i = 0; i < 5000; ++i) expected += in[i];
  EXPECT_EQ(out[0] + out[1] + out[2] + out[3], expected);

  EXPECT_EQ(module->Find("StaticAndDynamicShared")->static_shared_bytes, 43u);
  const Fault second =
      module->Run("StaticAndDynamicShared", {1, 1, 1}, {100, 1, 1}, 400, false, out.pointer());
  ASSERT_EQ(second.cuda_error, 0) << second.message;
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(out[static_cast<size_t>(i)], (99 - i) * 3 + i % 5 * 2 + 1 + i % 3 + 40);
  }
}

int Collatz(int x, int i) {
  int steps = 0;
  while (x != 1 && steps < 1000) {
    x = x % 2 == 0 ? x / 2 : 3 * x + 1;
    ++steps;
  }
  switch (steps % 8) {
    case 0:
      return steps + 1000;
    case 1:
      return steps ^ 77;
    case 2:
      return steps * 3;
    case 3:
      return steps - 5;
    case 4:
      return -steps;
    case 5:
      return steps << 2;
    case 6:
      return steps + i;
    default:
      return 42;
  }
}

TEST(Basics, Divergence) {
  const auto module = Module::Load("basics");
  Array<int> in(*module, 300), out(*module, 300);
  in.Fill([](size_t i) { return static_cast<int>(i) + 1; });
  module->Launch1D("Divergence", 3, 128, in.pointer(), out.pointer(), 300);
  for (int i = 0; i < 300; ++i) ASSERT_EQ(out[static_cast<size_t>(i)], Collatz(i + 1, i)) << i;
}

TEST(Basics, LocalArrays) {
  const auto module = Module::Load("basics");
  Array<int> in(*module, 64), out(*module, 64);
  in.Fill([](size_t i) { return static_cast<int>(i * 7919 % 97); });
  EXPECT_GE(module->Find("LocalArray")->local_bytes, 64u);
  module->Launch1D("LocalArray", 1, 64, in.pointer(), out.pointer(), 64);
  for (size_t i = 0; i < 64; ++i) {
    std::vector<int> values;
    for (size_t k = 0; k < 16; ++k) values.push_back(in[(i + k) % 64]);
    std::sort(values.begin(), values.end());
    ASSERT_EQ(out[i], values[static_cast<size_t>(in[i] & 15)]);
  }
}

struct Float4 {
  alignas(16) float x;
  float y, z, w;
};
struct Parameters {
  char tag;
  double scale;
  int values[5];
  short tail;
};

TEST(Basics, VectorsAndStructs) {
  const auto module = Module::Load("basics");
  Array<Float4> in(*module, 40), out(*module, 40), doubles(*module, 40);
  Array<uint8_t> bytes(*module, 160);
  Array<int16_t> shorts(*module, 80);
  in.Fill([](size_t i) {
    const float f = static_cast<float>(i);
    return Float4{f, f + 0.5f, -f, f * f};
  });
  bytes.Fill([](size_t i) { return static_cast<uint8_t>(i * 37); });
  module->Launch1D("Vectors", 1, 40, in.pointer(), out.pointer(), bytes.pointer(), shorts.pointer(),
                   doubles.pointer());
  for (size_t i = 0; i < 40; ++i) {
    ASSERT_EQ(out[i].x, in[i].w);
    ASSERT_EQ(out[i].w, in[i].x);
    ASSERT_EQ(shorts[2 * i], bytes[4 * i] - bytes[4 * i + 1]);
    ASSERT_EQ(shorts[2 * i + 1], static_cast<int16_t>(bytes[4 * i + 2] * -bytes[4 * i + 3]));
    double pair[2];
    std::memcpy(pair, &doubles[i], sizeof pair);
    ASSERT_EQ(pair[0], static_cast<double>(in[i].x) * 2.0);
    ASSERT_EQ(pair[1], bytes[4 * i] / 3.0);
  }
  Array<double> sums(*module, 10);
  const Parameters p{'a', 1.5, {1, -2, 3, -4, 5}, -7};
  module->Launch1D("StructParameter", 1, 10, int8_t{-3}, p, int64_t{1} << 40, sums.pointer());
  for (size_t i = 0; i < 10; ++i) {
    ASSERT_EQ(sums[i], 1.5 * p.values[i % 5] - 7 - 3 + 1099511627776.0 + 'a');
  }
}

TEST(Basics, Integers64) {
  const auto module = Module::Load("basics");
  Array<uint64_t> out(*module, 8);
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    const uint64_t a = random() >> random() % 64;
    const uint64_t b = (random() >> random() % 64) | 1;
    module->Launch1D("Memory64", 1, 1, out.pointer(), a, b);
    const auto sa = static_cast<int64_t>(a), sb = static_cast<int64_t>(b);
    ASSERT_EQ(out[0], a + b);
    ASSERT_EQ(out[1], a * b);
    ASSERT_EQ(out[2], a / b);
    ASSERT_EQ(out[3], a % b);
    ASSERT_EQ(out[4], static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64));
    if (sb == -1 && sa == INT64_MIN) continue;
    ASSERT_EQ(out[5], static_cast<uint64_t>(sa / sb));
    ASSERT_EQ(out[6], static_cast<uint64_t>(sa % sb));
    ASSERT_EQ(out[7], static_cast<uint64_t>((static_cast<__int128>(sa) * sb) >> 64));
  }
}

}  // namespace
}  // namespace causeway::software_gpu::test
