// SPDX-License-Identifier: Apache-2.0
// Threads that work together in the PTX interpreter: warps, blocks, grids.
#include <algorithm>
#include <numeric>
#include <thread>

#include "tests/software_gpu/interpreter_test.h"

namespace causeway::software_gpu::test {
namespace {

// Each test runs the code for an old and for a new architecture.
class Warp : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { module_ = Module::Load(GetParam()); }
  std::unique_ptr<Module> module_;
};
INSTANTIATE_TEST_SUITE_P(Architectures, Warp, ::testing::Values("warp", "warp_90"));

TEST_P(Warp, Shuffles) {
  Array<int> in(*module_, 32), out(*module_, 9 * 32);
  in.Fill([](size_t i) { return static_cast<int>(i * i + 3); });
  module_->Launch1D("Shuffles", 1, 32, in.pointer(), out.pointer());
  for (size_t lane = 0; lane < 32; ++lane) {
    const auto at = [&](size_t from) { return in[from]; };
    const int expected[] = {at(lane * 7 & 31),
                            at(lane >= 3 ? lane - 3 : lane),
                            at(lane + 5 < 32 ? lane + 5 : lane),
                            at(lane ^ 9),
                            at(lane % 8 >= 1 ? lane - 1 : lane),
                            at(lane % 4 + 2 < 4 ? lane + 2 : lane),
                            at(lane / 16 * 16 + 2),
                            at(lane ^ 16),
                            at(lane % 2 == 0 ? 30 : 1)};
    for (size_t k = 0; k < 9; ++k) ASSERT_EQ(out[k * 32 + lane], expected[k]) << lane << " " << k;
  }
}

TEST_P(Warp, Votes) {
  Array<int> in(*module_, 32);
  Array<uint32_t> out(*module_, 9 * 32);
  in.Fill([](size_t i) { return static_cast<int>(i * 5 % 13); });
  module_->Launch1D("Votes", 1, 32, in.pointer(), out.pointer());
  uint32_t odd = 0, second = 0, same[4] = {};
  for (size_t lane = 0; lane < 32; ++lane) {
    odd |= static_cast<uint32_t>(in[lane] & 1) << lane;
    second |= static_cast<uint32_t>(in[lane] >> 1 & 1) << lane;
    same[in[lane] % 4] |= 1u << lane;
  }
  for (size_t lane = 0; lane < 32; ++lane) {
    const uint32_t expected[] = {odd,
                                 1,
                                 1,
                                 same[in[lane] % 4],
                                 0,
                                 lane < 11 ? 0x7ffu : second & ~0x7ffu,
                                 static_cast<uint32_t>(__builtin_popcount(odd)),
                                 1,
                                 0};
    for (size_t k = 0; k < 9; ++k) {
      if (k == 7 || k == 8 || k == 1 || k == 2) {
        ASSERT_EQ(out[k * 32 + lane] != 0, expected[k] != 0) << lane << " " << k;
      } else {
        ASSERT_EQ(out[k * 32 + lane], expected[k]) << lane << " " << k;
      }
    }
  }
}

TEST_P(Warp, Reduction) {
  Array<int> in(*module_, 1000), out(*module_, 1);
  in.Fill([](size_t i) { return static_cast<int>(i * 17 % 31) - 10; });
  module_->Launch1D("WarpReduction", 4, 256, in.pointer(), out.pointer(), 1000);
  int sum = 0;
  for (size_t i = 0; i < 1000; ++i) sum += in[i];
  EXPECT_EQ(out[0], sum);
}

TEST_P(Warp, PartialWarpWithExitedLane) {
  Array<int> out(*module_, 20, -1);
  module_->Launch1D("PartialWarp", 1, 20, out.pointer());
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(out[i], i == 3 ? -1 : 190 - 3);
}

TEST_P(Warp, Atomics) {
  constexpr uint32_t kThreads = 4 * 96;
  Array<uint32_t> u(*module_, 16 + kThreads);
  Array<int> s(*module_, 16);
  Array<uint64_t> l(*module_, 3);
  Array<float> f(*module_, 1);
  Array<double> d(*module_, 1);
  u[2] = ~0u;
  u[4] = ~0u;
  u[9] = 5000;
  module_->Launch1D("Atomics", 4, 96, u.pointer(), s.pointer(), l.pointer(), f.pointer(), d.pointer());
  uint32_t least = ~0u, greatest = 0, combined = 0;
  for (uint32_t i = 0; i < kThreads; ++i) {
    least = std::min(least, i * 7919 % 1000);
    greatest = std::max(greatest, i * 7919 % 1000);
    combined ^= i;
  }
  const uint32_t sum = kThreads * (kThreads - 1) / 2;
  EXPECT_EQ(u[0], sum);
  EXPECT_EQ(u[1], 0u - 2 * kThreads);
  EXPECT_EQ(u[2], least);
  EXPECT_EQ(u[3], greatest);
  EXPECT_EQ(u[4], 0u);
  EXPECT_EQ(u[5], ~0u);
  EXPECT_EQ(u[6], combined);
  EXPECT_EQ(u[7], kThreads % 10);
  EXPECT_EQ(u[8], (10 - kThreads % 10) % 10);
  // Every exchanged value comes out once: those returned and the one left.
  std::vector<uint32_t> seen(u.pointer() + 16, u.pointer() + 16 + kThreads);
  seen.push_back(u[9]);
  std::sort(seen.begin(), seen.end());
  for (uint32_t i = 0; i < kThreads; ++i) ASSERT_EQ(seen[i], i);
  EXPECT_EQ(seen.back(), 5000u);
  EXPECT_EQ(s[0], -100);
  EXPECT_EQ(s[1], 50);
  EXPECT_EQ(l[0], 0x100000001ull * sum);
  EXPECT_EQ(l[1], 0x100000001ull * (kThreads - 1));
  EXPECT_NE(l[2], 0u);
  EXPECT_EQ(f[0], kThreads * 0.5f);
  EXPECT_EQ(d[0], kThreads * 0.25);
  for (size_t k = 8; k < 16; ++k) EXPECT_EQ(s[k], static_cast<int>(kThreads / 8));
}

TEST_P(Warp, SpinLock) {
  Array<int> lock(*module_, 1), counter(*module_, 1);
  module_->Launch1D("SpinLock", 3, 128, lock.pointer(), counter.pointer());
  EXPECT_EQ(counter[0], 384);
}

TEST_P(Warp, NamedBarriers) {
  Array<int> out(*module_, 160);
  module_->Launch1D("NamedBarriers", 1, 64, out.pointer());
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 32; ++i) ASSERT_EQ(out[static_cast<size_t>(round * 32 + i)], round * 100 + 31 - i);
  }
}

TEST_P(Warp, CooperativeGroups) {
  Array<int> in(*module_, 64), out(*module_, 768, -1);
  in.Fill([](size_t i) { return static_cast<int>(i * 7 % 10); });
  module_->Launch1D("Groups", 1, 64, in.pointer(), out.pointer());
  for (size_t warp = 0; warp < 2; ++warp) {
    int size = 0;
    for (size_t i = warp * 32; i < warp * 32 + 32; ++i) size += in[i] % 3 == 0;
    int rank = 0;
    for (size_t i = warp * 32; i < warp * 32 + 32; ++i) {
      const size_t tile = i / 8 * 8;
      ASSERT_EQ(out[i], std::accumulate(in.pointer() + tile, in.pointer() + tile + 8, 0));
      ASSERT_EQ(out[256 + i], in[i] % 3 == 0 ? size * 100 + rank++ : -1);
      ASSERT_EQ(out[512 + i], in[tile + 3] + static_cast<int>(i / 8));
    }
  }
}

TEST_P(Warp, GridSync) {
  Array<int> values(*module_, 8 * 64);
  values.Fill([](size_t i) { return static_cast<int>(i * 3); });
  const Fault fault = module_->Run("GridSync", {4, 2, 1}, {64, 1, 1}, 0, true, values.pointer(), 10);
  ASSERT_EQ(fault.cuda_error, 0) << fault.message;
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], static_cast<int>((i + 10) % 512 * 3 + 10));
  // Without a cooperative launch there is no grid to wait for: natively a trap too.
  const Fault plain = module_->Run("GridSync", {4, 2, 1}, {64, 1, 1}, 0, false, values.pointer(), 10);
  EXPECT_EQ(plain.cuda_error, 719) << plain.message;
}

TEST_P(Warp, DeadlockIsReported) {
  Array<int> out(*module_, 64);
  const Fault fault = module_->Run("OneWaits", {1, 1, 1}, {64, 1, 1}, 0, false, out.pointer());
  EXPECT_EQ(fault.cuda_error, 702);
  EXPECT_NE(fault.message.find("deadlocked"), std::string::npos) << fault.message;
}

}  // namespace
}  // namespace causeway::software_gpu::test
