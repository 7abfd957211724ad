// SPDX-License-Identifier: Apache-2.0
// How the bytes of a link are divided, on a virtual link under a virtual clock: figures of arithmetic, the same on every
// machine. Each rule on a GPU that serves copies in order, and on one that serves those of all processes at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/unit/virtual_link.h"

namespace causeway::test {
namespace {

using daemon::LinkArbiter;
using daemon::LinkDemand;

constexpr uint64_t kMs = 1'000'000;

ShareTerms Weight(uint32_t weight) {
  ShareTerms terms;
  terms.weight = weight;
  return terms;
}

class LinkTest : public testing::TestWithParam<bool> {
 protected:
  VirtualLink link_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(InOrder, LinkTest, testing::Bool());

TEST_P(LinkTest, OneVmAloneIsNeverAsked) {
  const size_t vm = link_.AddVm({});
  link_.AddVm({});
  link_.Start({.vm = vm});
  link_.Run(kMs);
  for (int i = 0; i < 20; ++i) {
    EXPECT_NEAR(link_.Run(kMs)[vm], 1.0, 0.001);
    ASSERT_EQ(link_.arbiter.grant(vm), LinkGrant::kOpen);
    ASSERT_FALSE(link_.arbiter.contended());
  }
}

TEST_P(LinkTest, TwoVmsAreDividedByWeight) {
  const size_t light = link_.AddVm(Weight(100)), heavy = link_.AddVm(Weight(300));
  link_.Start({.vm = light});
  link_.Start({.vm = heavy});
  link_.Run(100 * kMs);  // the copies that were given before it was known
  const std::vector<double> shares = link_.Run(200 * kMs);
  EXPECT_NEAR(shares[heavy] / shares[light], 3.0, 0.15);
  EXPECT_GE(shares[light] + shares[heavy], 0.97);
}

// What makes the difference: without the arbiter each process has the same.
TEST_P(LinkTest, WithoutAnArbiterProcessesAreDividedEqually) {
  link_.arbiter_hangs = true;
  const size_t light = link_.AddVm(Weight(100)), heavy = link_.AddVm(Weight(300));
  link_.Start({.vm = light, .copy_bytes = 1 << 20});
  link_.Start({.vm = heavy, .copy_bytes = 1 << 20});
  link_.Run(100 * kMs);
  const std::vector<double> shares = link_.Run(200 * kMs);
  EXPECT_NEAR(shares[heavy] / shares[light], 1.0, 0.05);
}

TEST_P(LinkTest, ProcessesDoNotMultiplyAShare) {
  const size_t greedy = link_.AddVm({}), modest = link_.AddVm({});
  for (int i = 0; i < 8; ++i) link_.Start({.vm = greedy, .copy_bytes = 64 << 20});
  link_.Start({.vm = modest, .copy_bytes = 64 << 20});
  link_.Run(200 * kMs);
  const std::vector<double> shares = link_.Run(200 * kMs);
  EXPECT_NEAR(shares[greedy] / shares[modest], 1.0, 0.05);
  EXPECT_GE(shares[greedy] + shares[modest], 0.95);
}

// Four bytes beside copies of 1 GiB: they never wait for the gate, and little is before them in a link that serves in order.
TEST_P(LinkTest, SmallCopiesWaitForLittle) {
  const size_t large = link_.AddVm({}), small = link_.AddVm({});
  link_.Start({.vm = large});
  VirtualCopier& calm = link_.Start({.vm = small, .copy_bytes = 4, .gap_ns = 100'000, .waits = true});
  link_.Run(100 * kMs);
  calm.latencies_ns.clear();
  const std::vector<double> shares = link_.Run(200 * kMs);
  ASSERT_GT(calm.latencies_ns.size(), 500u);
  EXPECT_LE(*std::max_element(calm.latencies_ns.begin(), calm.latencies_ns.end()), 1048576 / 50 + 3'000);
  EXPECT_GE(shares[large], 0.97);
}

TEST_P(LinkTest, WhoCopiesLittleKeepsNobodyWaiting) {
  const size_t large = link_.AddVm({}), little = link_.AddVm(Weight(10'000));
  link_.Start({.vm = large});
  link_.Start({.vm = little, .copy_bytes = 32 << 10, .gap_ns = 50'000, .waits = true});
  link_.Run(100 * kMs);
  const std::vector<double> shares = link_.Run(200 * kMs);
  EXPECT_GE(shares[large] + shares[little], 0.97);
  EXPECT_GE(shares[large], 0.9);
}

TEST_P(LinkTest, ACapHoldsAloneAndBesideAnother) {
  for (const bool beside : {false, true}) {
    VirtualLink link(GetParam());
    ShareTerms capped = Weight(1000);
    capped.pcie_mib_per_s = 10'000;
    const size_t vm = link.AddVm(capped), other = link.AddVm({});
    link.Start({.vm = vm, .copy_bytes = 64 << 20});
    if (beside) link.Start({.vm = other, .copy_bytes = 64 << 20});
    link.Run(100 * kMs);
    const double share = link.Run(1000 * kMs)[vm];
    EXPECT_NEAR(share * 50e9, 10'000.0 * (1 << 20), 0.02 * 10'000 * (1 << 20)) << beside;
    EXPECT_GT(link.arbiter.figures(vm).throttled_ns, 100 * kMs);
  }
}

// Nobody waits for anybody: the daemon looks once in a millisecond, and not thirty times.
TEST_P(LinkTest, SmallCopiesLetTheDaemonRest) {
  for (int i = 0; i < 2; ++i)
    link_.Start({.vm = link_.AddVm({}), .copy_bytes = 4, .gap_ns = 1'000'000, .waits = true});
  for (int i = 0; i < 50; ++i) {
    link_.Run(2 * kMs);
    ASSERT_FALSE(link_.arbiter.contended());
  }
  EXPECT_TRUE(link_.arbiter.watched());
}

// A daemon that goes on with sessions finds what they have copied so far: that is no debt of now.
TEST(LinkArbiterTest, WhatWasCopiedBeforeIsNotOwed) {
  LinkArbiter arbiter;
  ShareTerms capped;
  capped.pcie_mib_per_s = 100;
  const size_t vm = arbiter.Add(capped);
  std::vector<LinkDemand> demands{{.copied = uint64_t{3} << 30, .waiting = 0}};
  arbiter.Look(kMs, demands);
  arbiter.Look(2 * kMs, demands);
  EXPECT_EQ(arbiter.grant(vm), LinkGrant::kWindow);
  demands[0].copied += 50 << 20;
  arbiter.Look(3 * kMs, demands);
  EXPECT_EQ(arbiter.grant(vm), LinkGrant::kClosed);
}

// A copy behind a kernel that does not end: nothing of it gets on, it holds nobody up, and all of it is given to the driver.
TEST_P(LinkTest, AStreamThatDoesNotMoveHoldsNobodyUp) {
  const size_t stuck = link_.AddVm({}), other = link_.AddVm({});
  link_.Start({.vm = other});
  VirtualCopier& copier = link_.Start({.vm = stuck, .copy_bytes = 256 << 20, .waits = true});
  link_.Run(100 * kMs);
  copier.stalls = true;
  link_.Run(150 * kMs);
  EXPECT_EQ(copier.left, 0u);
  EXPECT_GT(copier.under_way, 50u);
  EXPECT_GE(link_.Run(50 * kMs)[other], 0.95);
}

// A worker that says that it waits, and hardly copies: it pays for what it keeps others from.
TEST_P(LinkTest, AWorkerThatLiesPaysForIt) {
  const size_t liar = link_.AddVm({}), honest = link_.AddVm({});
  link_.Start({.vm = liar, .lies = true});
  link_.Start({.vm = honest});
  link_.Run(100 * kMs);
  EXPECT_GE(link_.Run(300 * kMs)[honest], 0.2);
}

TEST_P(LinkTest, WithoutADaemonEverythingPasses) {
  const size_t first = link_.AddVm({}), second = link_.AddVm({});
  link_.Start({.vm = first});
  link_.Start({.vm = second});
  link_.Run(100 * kMs);
  link_.arbiter_hangs = true;
  link_.Run(60 * kMs);
  const std::vector<double> shares = link_.Run(50 * kMs);
  EXPECT_GE(shares[first] + shares[second], 0.999);
}

TEST(LinkArbiterTest, GarbageIsOnlyADemand) {
  LinkArbiter arbiter;
  const size_t liar = arbiter.Add({}), honest = arbiter.Add({});
  std::vector<LinkDemand> demands(2);
  uint64_t now = 1000 * kMs;
  for (int i = 0; i < 1000; ++i) {
    demands[liar] = {.copied = uint64_t(i) * 0x9e3779b97f4a7c15u, .waiting = uint32_t(i) * 0x9e3779b9u};
    demands[honest] = {.copied = uint64_t(i) << 20, .waiting = 1};
    arbiter.Look(now += 40'000, demands);
    ASSERT_GE(arbiter.window_kib(liar), 1u);
  }
  EXPECT_EQ(arbiter.figures(honest).bytes, uint64_t{999} << 20);
  arbiter.Remove(liar);
  demands[liar] = {};
  arbiter.Look(now + 100 * kMs, demands);
  EXPECT_NE(arbiter.grant(honest), LinkGrant::kClosed);
}

}  // namespace
}  // namespace causeway::test
