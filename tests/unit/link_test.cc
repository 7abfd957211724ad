// SPDX-License-Identifier: Apache-2.0
// How the bytes of a link are divided, on a virtual link under a virtual clock: figures of arithmetic, the same on every
// machine. Each rule on a GPU that serves copies in order, and on one that serves those of all processes at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "host_backend/daemon/shares/link_turns.h"
#include "host_backend/daemon/shares/looking.h"
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

// With many of them each has little of the link, which is no reason to take one for a worker that lies.
TEST_P(LinkTest, ManyVmsAreDividedByWeight) {
  for (const uint32_t count : {4u, 8u, 16u}) {
    VirtualLink link(GetParam());
    double weights = 0;
    for (uint32_t i = 0; i < count; ++i) {
      link.Start({.vm = link.AddVm(Weight(100 * (1 + i % 3))), .copy_bytes = 256 << 20, .waits = true});
      weights += 1 + i % 3;
    }
    link.Run(400 * kMs);
    const std::vector<double> shares = link.Run(400 * kMs);
    const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
    EXPECT_GE(all, 0.97);
    for (uint32_t i = 0; i < count; ++i)
      EXPECT_NEAR(shares[i] / all * weights / (1 + i % 3), 1, 0.05) << count;
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

// What is under way ends, nothing follows, and the other has the link for itself.
TEST_P(LinkTest, APausedVmCopiesNothing) {
  const size_t paused = link_.AddVm(Weight(10'000)), other = link_.AddVm({});
  link_.Start({.vm = paused, .copy_bytes = 64 << 20});
  link_.Start({.vm = other, .copy_bytes = 64 << 20});
  link_.Run(100 * kMs);
  ShareTerms terms = Weight(10'000);
  terms.paused = true;
  link_.arbiter.Set(paused, terms);
  link_.Run(10 * kMs);
  const std::vector<double> shares = link_.Run(200 * kMs);
  EXPECT_EQ(shares[paused], 0);
  EXPECT_GE(shares[other], 0.96);
  link_.arbiter.Set(paused, Weight(10'000));
  link_.Run(10 * kMs);
  EXPECT_GE(link_.Run(100 * kMs)[paused], 0.9);
}

// A VM that comes back after its daemon has stopped looking has saved up little, and not the whole copy.
TEST_P(LinkTest, ACapHoldsAfterAPause) {
  ShareTerms capped;
  capped.pcie_mib_per_s = 1'000;
  const size_t vm = link_.AddVm(capped);
  const VirtualCopier& copier =
      link_.Start({.vm = vm, .copy_bytes = 200 << 20, .gap_ns = 3'000 * kMs, .waits = true});
  link_.Run(2'000 * kMs);
  ASSERT_EQ(copier.finished, 1u);
  ASSERT_EQ(link_.arbiter.grant(vm), LinkGrant::kAsleep);
  ASSERT_FALSE(link_.arbiter.watched());
  link_.Run(5'000 * kMs);
  ASSERT_GE(copier.finished, 2u);
  // All but the first, of which nobody knew it: 200 MiB without 20 that are saved up, a piece, and what may be under way
  // when that is used up, and at the end.
  for (size_t i = 1; i < copier.latencies_ns.size(); ++i) EXPECT_GE(copier.latencies_ns[i], 150 * kMs);
}

// The gate alone, with a daemon that does not look.
class LinkGateTest : public testing::Test, public host::Surroundings {
 protected:
  uint64_t NowNs() override { return now_ns_ += 10'000; }
  bool Mark(std::atomic<uint32_t>&, uint32_t) override {
    if (on_mark_) on_mark_();
    return true;
  }
  void Wake() override { ++wakes_; }
  void Sleep(const std::atomic<uint32_t>&, uint32_t, uint64_t) override { ++sleeps_; }
  void Grant(LinkGrant grant, uint32_t window_kib) {
    grant_.grant[kToHost] = static_cast<uint32_t>(grant);
    grant_.window_kib[kToHost] = window_kib;
    grant_.seen_ns = now_ns_;
  }
  static constexpr uint64_t kCopy = 64 << 20;
  uint64_t now_ns_ = 1000 * kMs, wakes_ = 0, sleeps_ = 0;
  LinkGrantWords grant_{};
  LinkWords words_{};
  host::LinkGate gate_{grant_, words_, *this};
  const std::atomic<bool> go_on_{false};
  std::function<void()> on_mark_;
};

// All workers of a VM are told the same: the one that copies much knows that it is meant.
TEST_F(LinkGateTest, WhoCopiesMuchIsNotTheOther) {
  EXPECT_FALSE(gate_.OthersCopy());
  grant_.others_copy[kToDevice] = static_cast<uint32_t>(OtherCopies::kThisVm);
  EXPECT_FALSE(gate_.OthersCopy()) << "nobody has looked lately";
  grant_.seen_ns = now_ns_;
  EXPECT_TRUE(gate_.OthersCopy());
  const auto after_a_second_with = [&](uint64_t bytes) {
    words_.copied[kToHost] += bytes;
    grant_.seen_ns = now_ns_ += 1'000 * kMs;
    return gate_.OthersCopy();
  };
  EXPECT_FALSE(after_a_second_with(uint64_t{10} << 30));
  EXPECT_TRUE(after_a_second_with(4'000));
  EXPECT_FALSE(after_a_second_with(kCopy)) << "the first one after a pause";
  EXPECT_TRUE(after_a_second_with(4'000));
  grant_.others_copy[kToHost] = static_cast<uint32_t>(OtherCopies::kAnotherVm);
  EXPECT_TRUE(after_a_second_with(uint64_t{10} << 30));
}

// The driver may wait in it for what another thread's record makes room for, and that thread may forget all marks.
TEST_F(LinkGateTest, AMarkIsPlacedWithoutTheLock) {
  Grant(LinkGrant::kWindow, 1024);
  int marks = 0;
  on_mark_ = [&] {
    ++marks;
    gate_.ForgetMarks();
  };
  const uint64_t piece = gate_.Enter(kToHost, kCopy, go_on_);
  gate_.Leave(kToHost, piece, false);
  EXPECT_EQ(marks, 1);
  EXPECT_EQ(gate_.MayPass(kToHost, kCopy, now_ns_), piece) << "nothing is under way";
}

TEST_F(LinkGateTest, AVmWithACapThatSleepsHasOnePiece) {
  Grant(LinkGrant::kAsleep, 1024);
  EXPECT_EQ(gate_.MayPass(kToHost, kCopy, now_ns_), 512u << 10);
  EXPECT_EQ(gate_.MayPass(kToHost, kCopy, now_ns_ + kMs), 0u);
  EXPECT_EQ(gate_.MayPass(kToHost, 4, now_ns_ + kMs), 4u);
  now_ns_ += 2 * kMs;
  Grant(LinkGrant::kClosed, 1024);  // the daemon has looked, and it had saved up nothing
  EXPECT_EQ(gate_.MayPass(kToHost, kCopy, now_ns_), 0u);
  now_ns_ += 2000 * kMs;
  Grant(LinkGrant::kAsleep, 1024);
  EXPECT_EQ(gate_.MayPass(kToHost, kCopy, now_ns_ + kMs), 512u << 10);
  // There is no daemon any more.
  EXPECT_EQ(gate_.MayPass(kToHost, kCopy, now_ns_ + kGrantLifeNs), 0u);
  EXPECT_EQ(gate_.MayPass(kToHost, kCopy, now_ns_ + kGrantLifeNs + 10 * kMs), kCopy);
  Grant(LinkGrant::kAsleep, 0);
  EXPECT_EQ(gate_.MayPass(kToHost, kCopy, now_ns_), kCopy) << "without a cap";
}

// The daemon takes a count that fell for a lie, and what is missing for not copied.
TEST_F(LinkGateTest, CopiesOfSeveralThreadsAllCount) {
  Grant(LinkGrant::kOpen, 0);
  constexpr uint64_t kThreads = 4, kCopies = 5'000'000;
  std::latch all(kThreads);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      all.arrive_and_wait();
      for (uint64_t copy = 0; copy < kCopies; ++copy) gate_.Enter(kToHost, 3, go_on_);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(words_.copied[kToHost], 3 * kThreads * kCopies);
}

TEST_F(LinkGateTest, TheDaemonIsToldWhereNobodyLooks) {
  Grant(LinkGrant::kAsleep, 1024);
  EXPECT_EQ(gate_.Enter(kToHost, kCopy, go_on_), 512u << 10);
  EXPECT_EQ(wakes_, 1u);
  // It does not come: the worker tells it again, and goes on at last.
  EXPECT_EQ(gate_.Enter(kToHost, kCopy, go_on_), kCopy);
  EXPECT_GT(wakes_, 10u);
  EXPECT_GT(sleeps_, 10u);
  EXPECT_EQ(words_.waiting[kToHost], 0u);
  EXPECT_EQ(words_.copied[kToHost], kCopy + (512 << 10));
  Grant(LinkGrant::kWindow, 1024);
  wakes_ = 0;
  EXPECT_EQ(gate_.Enter(kToHost, kCopy, go_on_), 512u << 10);
  EXPECT_EQ(wakes_, 0u);
  now_ns_ += 60 * kMs;
  EXPECT_EQ(gate_.Enter(kToHost, kCopy, go_on_), kCopy) << "too long ago";
  EXPECT_EQ(wakes_, 1u);
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

// The shares of one GPU's link, on words that the test writes as workers do.
class LinkTurnsTest : public testing::Test {
 protected:
  struct Scope {
    LinkGrantWords grant{};
    LinkWords words[2]{};  // of its workers
    LinkGrant of(uint32_t direction) const { return static_cast<LinkGrant>(grant.grant[direction].load()); }
  };
  void Open(const std::string& name, Scope& scope, uint32_t worker, const ShareTerms& terms = {}) {
    const daemon::LinkTurns::Bytes before{scope.words[worker].copied[0], scope.words[worker].copied[1]};
    turns_.Open(name, name, worker, terms, scope.words[worker], before, scope.grant);
  }
  void Close(const std::string& name, uint32_t worker) { turns_.Close(name, name, worker, now_ns_); }
  daemon::NextLook Look() {
    return turns_.Look(now_ns_ += kMs, [this](const std::string& scope) { return scope == paused_; });
  }

  std::string paused_;  // scope
  uint64_t now_ns_ = 1'000 * kMs;
  Scope one_, two_;
  daemon::LinkTurns turns_;
};

TEST_F(LinkTurnsTest, AGrantIsOfAllWorkersOfItsScope) {
  Open("one", one_, 0);
  Open("one", one_, 1);
  Open("two", two_, 0);
  one_.words[0].copied[kToHost] = two_.words[0].copied[kToHost] = 1 << 30;
  Look();
  ASSERT_EQ(one_.of(kToHost), LinkGrant::kWindow);
  Close("one", 1);
  EXPECT_EQ(one_.of(kToHost), LinkGrant::kWindow) << "the other worker is still there";
  Close("one", 0);
  EXPECT_EQ(one_.of(kToHost), LinkGrant::kAsleep);
}

// A worker is told of another VM that copies much, and of a process of its own VM.
TEST_F(LinkTurnsTest, WorkersAreToldOfOthersCopies) {
  const auto told = [](Scope& scope) {
    return static_cast<OtherCopies>(scope.grant.others_copy[kToHost].load());
  };
  Open("one", one_, 0);
  one_.words[0].copied[kToHost] = 1 << 30;
  Look();
  EXPECT_EQ(told(one_), OtherCopies::kNone) << "it is alone";
  Open("one", one_, 1);
  EXPECT_GE(Look(), daemon::NextLook::kSlow) << "what is told is to end some time";
  EXPECT_EQ(told(one_), OtherCopies::kThisVm);
  Open("two", two_, 0);
  two_.words[0].copied[kToHost] = 4;
  Look();
  EXPECT_EQ(told(one_), OtherCopies::kThisVm);
  EXPECT_EQ(told(two_), OtherCopies::kAnotherVm);
  for (int i = 0; i < 2'000; ++i) Look();
  EXPECT_EQ(told(one_), OtherCopies::kNone);
  EXPECT_EQ(told(two_), OtherCopies::kNone);
}

// A daemon that goes on with sessions finds what they have copied so far, which is no debt of now; the first copy of a session
// that begins is.
TEST_F(LinkTurnsTest, WhatWasCopiedBeforeIsNotOwed) {
  ShareTerms capped;
  capped.pcie_mib_per_s = 100;
  one_.words[0].copied[kToHost] = uint64_t{3} << 30;
  Open("one", one_, 0, capped);
  Look();
  EXPECT_NE(one_.of(kToHost), LinkGrant::kClosed);
  one_.words[0].copied[kToHost] += 50 << 20;
  Look();
  EXPECT_EQ(one_.of(kToHost), LinkGrant::kClosed);
}

// Processes that end after each copy have the cap of their VM all the same.
TEST_F(LinkTurnsTest, WhatAShareOwesOutlivesItsLastWorker) {
  ShareTerms capped;
  capped.pcie_mib_per_s = 100;
  Open("one", one_, 0, capped);
  one_.words[0].copied[kToHost] = 52 << 20;
  Look();
  Close("one", 0);
  EXPECT_EQ(one_.of(kToHost), LinkGrant::kAsleep) << "nobody looks at a grant that nobody has";
  one_.words[0].copied[kToHost] = 0;
  EXPECT_EQ(Look(), daemon::NextLook::kWatch) << "the debt is paid meanwhile";
  Open("one", one_, 0, capped);
  Look();
  EXPECT_EQ(one_.of(kToHost), LinkGrant::kClosed);
  Close("one", 0);
  // 50 MiB, of which 2 were saved up, at 100 MiB a second, and what may be saved up.
  for (int i = 0; i < 490; ++i) Look();
  turns_.Forget(now_ns_);
  EXPECT_FALSE(turns_.empty());
  for (int i = 0; i < 40; ++i) Look();
  turns_.Forget(now_ns_);
  EXPECT_TRUE(turns_.empty());
}

// Nor does it help to end where others have had less; for a while, because nobody may come any more.
TEST_F(LinkTurnsTest, AShareThatWasAheadIsRemembered) {
  Open("one", one_, 0);
  Open("two", two_, 0);
  for (int i = 0; i < 50; ++i) {
    one_.words[0].copied[kToHost] += 40 << 20;
    two_.words[0].copied[kToHost] += 8 << 20;
    one_.words[0].waiting[kToHost] = two_.words[0].waiting[kToHost] = 1;
    Look();
  }
  ASSERT_EQ(one_.of(kToHost), LinkGrant::kClosed);
  one_.words[0].waiting[kToHost] = 0;
  Close("one", 0);
  Open("one", one_, 0);
  one_.words[0].waiting[kToHost] = 1;
  two_.words[0].copied[kToHost] += 8 << 20;
  Look();
  EXPECT_EQ(one_.of(kToHost), LinkGrant::kClosed);
  Close("one", 0);
  Close("two", 0);
  turns_.Forget(now_ns_ + daemon::kOwedNs - 1);
  EXPECT_FALSE(turns_.empty());
  turns_.Forget(now_ns_ + daemon::kOwedNs);
  EXPECT_TRUE(turns_.empty());
}

// One namespace of a user is paused by itself: it copies nothing, wants nothing, and is told so again and again.
TEST_F(LinkTurnsTest, AScopeThatIsPausedIsClosed) {
  turns_.Open("uid:7", "uid:7:1.1", 0, {}, one_.words[0], {}, one_.grant);
  turns_.Open("uid:7", "uid:7:2.2", 0, {}, two_.words[0], {}, two_.grant);
  one_.words[0].copied[kToDevice] = 1 << 20;
  EXPECT_EQ(Look(), daemon::NextLook::kSlow) << "of several workers one may begin to copy much";
  EXPECT_EQ(one_.of(kToDevice), LinkGrant::kOpen);
  paused_ = "uid:7:1.1";
  one_.words[0].waiting[kToDevice] = 1;
  for (int i = 0; i < 2'000; ++i) {
    ASSERT_EQ(Look(), daemon::NextLook::kSlow);
    ASSERT_EQ(one_.of(kToDevice), LinkGrant::kClosed);
    ASSERT_NE(two_.of(kToDevice), LinkGrant::kClosed);
    ASSERT_EQ(one_.grant.seen_ns, now_ns_);
  }
  paused_.clear();
  Look();
  EXPECT_EQ(one_.of(kToDevice), LinkGrant::kOpen);
}

// A copy above 4 GiB that was given while nobody looked counts, and is owed; a count that fell is worth nothing.
TEST(LinkArbiterTest, AVeryLargeCopyCounts) {
  LinkArbiter arbiter;
  ShareTerms capped;
  capped.pcie_mib_per_s = 1'000;
  capped.weight = 0;  // divides nothing by 0
  const size_t vm = arbiter.Add(capped);
  std::vector<LinkDemand> demands{{.copied = 1 << 20, .waiting = 0}};
  arbiter.Look(kMs, demands);
  EXPECT_EQ(arbiter.grant(vm), LinkGrant::kWindow);
  demands[0].copied += uint64_t{40} << 30;
  arbiter.Look(2 * kMs, demands);
  EXPECT_EQ(arbiter.figures(vm).bytes, (uint64_t{40} << 30) + (1 << 20));
  EXPECT_EQ(arbiter.grant(vm), LinkGrant::kClosed);
  demands[0].copied = 0;
  arbiter.Look(3 * kMs, demands);
  EXPECT_EQ(arbiter.figures(vm).bytes, (uint64_t{40} << 30) + (1 << 20));
  // Its debt is looked at until it is paid, and then nobody looks.
  uint64_t now = 3 * kMs;
  for (; arbiter.grant(vm) == LinkGrant::kClosed && now < 5'000 * kMs; arbiter.Look(now += kMs, demands))
    ASSERT_TRUE(arbiter.watched());
  EXPECT_NEAR(static_cast<double>(now), 1'000.0 * kMs, 20.0 * kMs);
  for (int i = 0; i < 1'100; ++i) arbiter.Look(now += kMs, demands);
  EXPECT_EQ(arbiter.grant(vm), LinkGrant::kAsleep);
  EXPECT_GT(arbiter.window_kib(vm), 0u);
  EXPECT_FALSE(arbiter.watched());
}

// A VM that copies little is told that another VM copies much, as long as that goes on. The VM that copies much is not told of its
// own copies.
TEST(LinkArbiterTest, OthersThatCopyMuchAreSaid) {
  LinkArbiter arbiter;
  const size_t much = arbiter.Add({}), little = arbiter.Add({});
  std::vector<LinkDemand> demands(2);
  uint64_t now = 1000 * kMs;
  const auto look = [&](uint64_t bytes_of_much) {
    demands[much].copied += bytes_of_much;
    demands[little].copied += 4;
    arbiter.Look(now += kMs, demands);
  };
  for (int i = 0; i < 10; ++i) look(1 << 10);
  EXPECT_FALSE(arbiter.others_copy(little));
  for (int i = 0; i < 10; ++i) look(50 << 20);
  EXPECT_TRUE(arbiter.others_copy(little));
  EXPECT_FALSE(arbiter.others_copy(much));
  for (int i = 0; i < 300; ++i) look(0);
  EXPECT_FALSE(arbiter.others_copy(little));
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
    ASSERT_TRUE(arbiter.window_kib(liar) >= 1 || arbiter.grant(liar) == LinkGrant::kAsleep);
  }
  EXPECT_EQ(arbiter.figures(honest).bytes, uint64_t{999} << 20);
  arbiter.Remove(liar);
  demands[liar] = {};
  arbiter.Look(now + 100 * kMs, demands);
  EXPECT_NE(arbiter.grant(honest), LinkGrant::kClosed);
}

}  // namespace
}  // namespace causeway::test
