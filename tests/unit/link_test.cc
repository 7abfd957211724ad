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
  link_.Run(50 * kMs);  // the copies that were given while nobody looked
  for (int i = 0; i < 20; ++i) {
    EXPECT_NEAR(link_.Run(kMs)[vm], 1.0, 0.001);
    ASSERT_EQ(link_.arbiter.grant(vm), LinkGrant::kOpen);
    ASSERT_FALSE(link_.arbiter.contended());
  }
}

// Pieces cost the link something, threads that sleep and the daemon's looks take their time, and still nothing of the link
// is lost: a third of it was with pieces of 512 KiB, of which two were under way.
TEST_P(LinkTest, TwoVmsHaveTheWholeLink) {
  for (const uint64_t reaction_ns : {50'000, 100'000, 150'000}) {
    for (const bool waits : {false, true}) {
      VirtualLink link(GetParam());
      link.reaction_ns = reaction_ns;
      const size_t first = link.AddVm({}), second = link.AddVm({});
      link.Start({.vm = first, .waits = waits});
      link.Start({.vm = second, .waits = waits});
      link.Run(100 * kMs);
      const std::vector<double> shares = link.Run(400 * kMs);
      EXPECT_GE(shares[first] + shares[second], 0.98) << reaction_ns;
      EXPECT_NEAR(shares[first] / shares[second], 1.0, 0.02) << reaction_ns;
    }
  }
}

TEST_P(LinkTest, TwoVmsAreDividedByWeight) {
  for (const uint64_t reaction_ns : {50'000, 100'000, 150'000}) {
    for (const uint64_t copy_bytes : {uint64_t{64} << 20, uint64_t{1} << 30}) {
      VirtualLink link(GetParam());
      link.reaction_ns = reaction_ns;
      const size_t light = link.AddVm(Weight(100)), heavy = link.AddVm(Weight(300));
      link.Start({.vm = light, .copy_bytes = copy_bytes});
      link.Start({.vm = heavy, .copy_bytes = copy_bytes});
      link.Run(150 * kMs);  // the copies that were given before it was known
      const std::vector<double> shares = link.Run(400 * kMs);
      EXPECT_NEAR(shares[heavy] / shares[light], 3.0, 0.15) << reaction_ns;
      EXPECT_GE(shares[light] + shares[heavy], 0.98) << reaction_ns;
    }
  }
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

// Four bytes beside copies of 1 GiB: a VM that copies so little is no reason to cut another's copies. How long the four bytes
// take is then the GPU's own doing.
TEST_P(LinkTest, SmallCopiesCostALargeOneNothing) {
  const size_t large = link_.AddVm({}), small = link_.AddVm({});
  link_.Start({.vm = large});
  VirtualCopier& calm = link_.Start({.vm = small, .copy_bytes = 4, .gap_ns = 100'000, .waits = true});
  link_.Run(100 * kMs);
  calm.latencies_ns.clear();
  const std::vector<double> shares = link_.Run(200 * kMs);
  EXPECT_EQ(link_.arbiter.grant(large), LinkGrant::kOpen);
  EXPECT_GE(shares[large], 0.998);
  if (GetParam()) return;
  ASSERT_GT(calm.latencies_ns.size(), 500u);
  EXPECT_LE(*std::max_element(calm.latencies_ns.begin(), calm.latencies_ns.end()), 3'000u);
}

// Beside two VMs whose copies are cut, what a link that serves in order has before a small copy is bounded: two windows.
TEST_P(LinkTest, SmallCopiesWaitForLittle) {
  for (int i = 0; i < 2; ++i) link_.Start({.vm = link_.AddVm({})});
  VirtualCopier& calm =
      link_.Start({.vm = link_.AddVm({}), .copy_bytes = 4, .gap_ns = 100'000, .waits = true});
  link_.Run(200 * kMs);
  calm.latencies_ns.clear();
  link_.Run(200 * kMs);
  ASSERT_GT(calm.latencies_ns.size(), 100u);
  EXPECT_LE(*std::max_element(calm.latencies_ns.begin(), calm.latencies_ns.end()),
            GetParam() ? 2u * (32 << 20) / 55 + 3'000 : 3'000u);
}

// The GPU pauses behind each mark, which takes longer than a small copy.
TEST_P(LinkTest, ManySmallCopiesHaveFewMarks) {
  const size_t first = link_.AddVm({}), second = link_.AddVm({});
  VirtualCopier& one = link_.Start({.vm = first, .copy_bytes = 64 << 10});
  VirtualCopier& other = link_.Start({.vm = second, .copy_bytes = 64 << 10});
  link_.Run(100 * kMs);
  link_.marks = one.finished = other.finished = 0;
  link_.Run(100 * kMs);
  EXPECT_EQ(link_.arbiter.grant(first), LinkGrant::kWindow);
  EXPECT_GT(one.finished, 10'000u);
  EXPECT_LT(link_.marks, (one.finished + other.finished) / 8);
}

TEST_P(LinkTest, WhoCopiesLittleKeepsNobodyWaiting) {
  const size_t large = link_.AddVm({}), little = link_.AddVm(Weight(10'000));
  link_.Start({.vm = large});
  link_.Start({.vm = little, .copy_bytes = 32 << 10, .gap_ns = 50'000, .waits = true});
  link_.Run(100 * kMs);
  const std::vector<double> shares = link_.Run(200 * kMs);
  EXPECT_GE(shares[large] + shares[little], 0.96);  // what the pieces of one VM alone leave
  EXPECT_GE(shares[large], 0.94);
}

TEST_P(LinkTest, ACapHoldsAloneAndBesideAnother) {
  for (const uint32_t mib_per_s : {100u, 1'000u, 10'000u}) {
    for (const bool beside : {false, true}) {
      VirtualLink link(GetParam());
      ShareTerms capped = Weight(1000);
      capped.pcie_mib_per_s = mib_per_s;
      const size_t vm = link.AddVm(capped), other = link.AddVm({});
      link.Start({.vm = vm, .copy_bytes = 64 << 20});
      if (beside) link.Start({.vm = other, .copy_bytes = 64 << 20});
      link.Run(2000 * kMs);  // what was given before anybody looked is owed for a second at most
      const double share = link.Run(1000 * kMs)[vm], rate = mib_per_s * 1048576.0;
      EXPECT_NEAR(share * VirtualLink::kBytesPerS, rate, 0.02 * rate) << beside;
      EXPECT_GT(link.arbiter.figures(vm).throttled_ns, 100 * kMs);
    }
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
  VirtualCopier& copier = link_.Start({.vm = stuck, .waits = true});
  link_.Run(100 * kMs);
  copier.stalls = true;
  link_.Run(150 * kMs);
  EXPECT_EQ(copier.left, 0u);
  EXPECT_GT(copier.under_way, 10u);
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
