// SPDX-License-Identifier: Apache-2.0
// How the arbiter divides a GPU's time, on a virtual GPU under a virtual clock: figures of arithmetic, the same on every
// machine.
#include "host_backend/daemon/shares/arbiter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/virtual_gpu.h"

namespace causeway::test {
namespace {

using daemon::Arbiter;
using daemon::Demand;

constexpr uint64_t kMs = 1'000'000, kSecond = 1000 * kMs;

double JainOf(const std::vector<double>& shares, const std::vector<double>& weights) {
  double sum = 0, squares = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    const double one = shares[i] / weights[i];
    sum += one;
    squares += one * one;
  }
  return sum * sum / (static_cast<double>(shares.size()) * squares);
}

// Of what the VMs had together.
std::vector<double> Parts(std::vector<double> shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

ShareTerms Weight(uint32_t weight) {
  ShareTerms terms;
  terms.weight = weight;
  return terms;
}

void ExpectFair(VirtualGpu& gpu, const std::vector<double>& weights) {
  gpu.Run(500 * kMs);
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (int second = 0; second < 2; ++second) {
    const std::vector<double> parts = Parts(gpu.Run(kSecond));
    EXPECT_GE(JainOf(parts, weights), 0.99);
    for (size_t i = 0; i < parts.size(); ++i) EXPECT_NEAR(parts[i], weights[i] / all, 0.02) << "VM " << i;
  }
}

TEST(Arbiter, OneVmAloneIsNeverAsked) {
  VirtualGpu gpu;
  const size_t vm = gpu.AddVm({});
  gpu.AddVm({});
  gpu.Start({.vm = vm});
  for (int i = 0; i < 100; ++i) {
    gpu.Run(kMs);
    ASSERT_EQ(gpu.arbiter.grant(vm), Grant::kOpen);
    ASSERT_FALSE(gpu.arbiter.contended());
  }
}

TEST(Arbiter, EqualSharesOfUnequalKernels) {
  VirtualGpu gpu;
  for (uint64_t us : {20, 200, 2000, 20000}) gpu.Start({.vm = gpu.AddVm({}), .kernel_ns = us * 1000});
  ExpectFair(gpu, {1, 1, 1, 1});
}

TEST(Arbiter, WithoutTurnsUnequalKernelsGetUnequalShares) {
  // What the test above would find if the arbiter did nothing: the same GPU, with a VM of four processes.
  VirtualGpu gpu;
  gpu.arbiter_hangs = true;  // no grants but those of the beginning
  const std::vector<size_t> vms{gpu.AddVm({}), gpu.AddVm({}), gpu.AddVm({}), gpu.AddVm({})};
  for (size_t i : {0, 0, 0, 0, 1, 2, 3}) gpu.Start({.vm = vms[i]});
  gpu.Run(500 * kMs);
  EXPECT_LT(JainOf(Parts(gpu.Run(kSecond)), {1, 1, 1, 1}), 0.7);
}

TEST(Arbiter, SharesByWeight) {
  VirtualGpu gpu;
  for (uint32_t weight : {100, 200, 400}) gpu.Start({.vm = gpu.AddVm(Weight(weight))});
  ExpectFair(gpu, {1, 2, 4});
}

TEST(Arbiter, SharesByWeightOfLongAndShortKernels) {
  VirtualGpu gpu;
  const std::vector<uint64_t> kernels_us{20000, 20, 2000};
  const std::vector<uint32_t> weights{100, 200, 400};
  for (size_t i = 0; i < 3; ++i)
    gpu.Start({.vm = gpu.AddVm(Weight(weights[i])), .kernel_ns = kernels_us[i] * 1000});
  ExpectFair(gpu, {1, 2, 4});
}

TEST(Arbiter, ProcessesDoNotMultiplyAShare) {
  VirtualGpu gpu;
  for (size_t i = 0; i < 4; ++i) {
    const size_t vm = gpu.AddVm({});
    for (size_t process = 0; process < (i == 0 ? 4 : 1); ++process) gpu.Start({.vm = vm});
  }
  ExpectFair(gpu, {1, 1, 1, 1});
}

TEST(Arbiter, SixtyFourProcessesGainNothing) {
  VirtualGpu gpu;
  const size_t greedy = gpu.AddVm({}), modest = gpu.AddVm({});
  for (int i = 0; i < 64; ++i) gpu.Start({.vm = greedy});
  gpu.Start({.vm = modest});
  gpu.Run(500 * kMs);
  // Less than half: the GPU switches among its processes within its own turns, which it pays for.
  EXPECT_LE(Parts(gpu.Run(kSecond))[greedy], 0.51);
}

TEST(Arbiter, CapsHoldAlone) {
  for (uint32_t cap : {25, 50, 75}) {
    VirtualGpu gpu;
    ShareTerms terms;
    terms.cap_percent = cap;
    gpu.Start({.vm = gpu.AddVm(terms)});
    gpu.Run(500 * kMs);
    for (int second = 0; second < 2; ++second) EXPECT_NEAR(gpu.Run(kSecond)[0], cap / 100.0, 0.02);
  }
}

TEST(Arbiter, CapsHoldBesideAnother) {
  for (uint32_t cap : {25, 50}) {
    VirtualGpu gpu;
    ShareTerms terms = Weight(1000);
    terms.cap_percent = cap;
    gpu.Start({.vm = gpu.AddVm(terms)});
    gpu.Start({.vm = gpu.AddVm({})});
    gpu.Run(500 * kMs);
    // What a switch takes is part of the turn that it begins, and so of what is charged.
    const uint64_t before = gpu.arbiter.figures(0).had_ns;
    const double share = gpu.Run(2 * kSecond)[0];
    EXPECT_NEAR(static_cast<double>(gpu.arbiter.figures(0).had_ns - before) / 2e9, cap / 100.0, 0.01);
    EXPECT_LE(share, cap / 100.0 + 0.01);
    EXPECT_GE(share, cap / 100.0 - 0.03);
  }
}

TEST(Arbiter, CapHoldsForLongKernels) {
  VirtualGpu gpu;
  ShareTerms terms;
  terms.cap_percent = 25;
  gpu.Start({.vm = gpu.AddVm(terms), .kernel_ns = 20 * kMs});
  gpu.Run(500 * kMs);
  EXPECT_NEAR(gpu.Run(4 * kSecond)[0], 0.25, 0.02);
}

TEST(Arbiter, ReservationIsHadAgainstAnyWeights) {
  VirtualGpu gpu;
  ShareTerms reserved = Weight(1);
  reserved.reserve_percent = 25;
  gpu.Start({.vm = gpu.AddVm(reserved)});
  for (int i = 0; i < 3; ++i) gpu.Start({.vm = gpu.AddVm(Weight(10'000))});
  gpu.Run(500 * kMs);
  EXPECT_GE(Parts(gpu.Run(2 * kSecond))[0], 0.23);
}

TEST(Arbiter, BackgroundHasWhatIsLeftAndAFloor) {
  VirtualGpu gpu;
  ShareTerms background = Weight(10'000);
  background.share_class = ShareClass::kBackground;
  const size_t vm = gpu.AddVm(background);
  gpu.Start({.vm = vm});
  VirtualProcess& normal = gpu.Start({.vm = gpu.AddVm({})});
  gpu.Run(500 * kMs);
  const double beside = Parts(gpu.Run(2 * kSecond))[vm];
  EXPECT_GE(beside, 0.015);
  EXPECT_LE(beside, 0.05);
  // One that waits leaves gaps of 10 ms after each of its kernels of 200 us.
  normal.waits = true;
  normal.gap_ns = 10 * kMs;
  gpu.Run(500 * kMs);
  EXPECT_GE(gpu.Run(kSecond)[vm], 0.85);
}

uint64_t Percentile99(std::vector<uint64_t> latencies) {
  std::sort(latencies.begin(), latencies.end());
  return latencies[latencies.size() * 99 / 100];
}

TEST(Arbiter, OneKernelAMillisecondBesideThreeThatNeverStop) {
  for (const ShareClass share_class : {ShareClass::kNormal, ShareClass::kLatency}) {
    VirtualGpu gpu;
    ShareTerms terms;
    terms.share_class = share_class;
    VirtualProcess& calm =
        gpu.Start({.vm = gpu.AddVm(terms), .kernel_ns = 10'000, .waits = true, .gap_ns = kMs});
    for (int i = 0; i < 3; ++i) gpu.Start({.vm = gpu.AddVm({})});
    gpu.Run(500 * kMs);
    calm.latencies_ns.clear();
    gpu.Run(4 * kSecond);
    EXPECT_GT(calm.latencies_ns.size(), 1000u);
    // What is outstanding when it comes, two switches of the GPU, and for a normal VM the rest of a turn.
    const uint64_t turn = share_class == ShareClass::kNormal ? 2 * kMs : 0;
    EXPECT_LE(Percentile99(calm.latencies_ns), turn + 700'000 + 2 * VirtualGpu::kSwitchNs);
  }
}

// The same where launches are due at times of their own, and follow each other at once after one that was late: it comes back soon
// after it has left the turn, and does not pay for more time without work than it gains by it.
TEST(Arbiter, KernelsThatAreDueAtTimesOfTheirOwnWaitForOneTurn) {
  for (const uint64_t period_ns : {700'000u, 1'000'000u, 1'500'000u}) {
    for (const uint64_t react_ns : {0u, 20'000u, 60'000u}) {
      VirtualGpu gpu;
      VirtualProcess& calm = gpu.Start({.vm = gpu.AddVm({}),
                                        .kernel_ns = 10'000,
                                        .waits = true,
                                        .period_ns = period_ns,
                                        .react_ns = react_ns});
      for (int i = 0; i < 3; ++i) gpu.Start({.vm = gpu.AddVm({}), .react_ns = react_ns});
      gpu.Run(500 * kMs);
      calm.latencies_ns.clear();
      gpu.Run(4 * kSecond);
      EXPECT_GT(calm.latencies_ns.size(), 2'500u);
      EXPECT_LE(Percentile99(calm.latencies_ns), 2 * kMs + VirtualGpu::kSwitchNs + VirtualGpu::kLookNs)
          << period_ns << " " << react_ns;
    }
  }
}

// A request of eight tokens, of 130 short kernels each, now and then beside kernels that never stop. It waits for what those have
// outstanding once, has the GPU to its end, and the others have what it leaves.
TEST(Arbiter, RequestsOfALatencyVmBesideOneThatNeverStops) {
  const auto p99_of = [](bool alone, double* others) {
    VirtualGpu gpu;
    ShareTerms terms;
    terms.share_class = ShareClass::kLatency;
    VirtualProcess& tokens = gpu.Start({.vm = gpu.AddVm(terms),
                                        .kernel_ns = 5'000,
                                        .react_ns = 30'000,
                                        .burst = 130,
                                        .bursts = 8,
                                        .burst_gap_ns = 50'000,
                                        .pause_ns = 20 * kMs});
    if (!alone) gpu.Start({.vm = gpu.AddVm({}), .kernel_ns = 300'000, .react_ns = 30'000});
    gpu.Run(500 * kMs);
    tokens.latencies_ns.clear();
    const std::vector<double> shares = gpu.Run(4 * kSecond);
    *others = alone ? 0 : shares[1];
    EXPECT_GT(tokens.latencies_ns.size(), 100u);
    return static_cast<double>(Percentile99(tokens.latencies_ns));
  };
  double none = 0, others = 0;
  const double alone = p99_of(true, &none), beside = p99_of(false, &others);
  EXPECT_LE(beside, 1.3 * alone);
  EXPECT_GE(others, 0.9 * (1 - 6.0 / 26));
  RecordProperty("percent_of_alone", static_cast<int>(100 * beside / alone));
}

// Steps of 4 ms on the GPU and as long off it: who has so much to do at once does it in one turn, and nearly nothing is lost.
TEST(Arbiter, StepsAreDoneInOneTurn) {
  for (const int trainings : {2, 4, 8}) {
    VirtualGpu gpu;
    for (int i = 0; i < trainings; ++i)
      gpu.Start(
          {.vm = gpu.AddVm({}), .kernel_ns = 100'000, .react_ns = 30'000, .burst = 40, .pause_ns = 4 * kMs});
    gpu.Run(kSecond);
    const std::vector<double> shares = gpu.Run(kSecond);
    EXPECT_GE(std::accumulate(shares.begin(), shares.end(), 0.0), 0.92) << trainings;
    EXPECT_GE(JainOf(shares, std::vector<double>(shares.size(), 1)), 0.99) << trainings;
  }
}

TEST(Arbiter, LaunchingAndWaitingInTurnsSwitchesRarely) {
  const auto calls_of = [](bool turns) {
    VirtualGpu gpu;
    gpu.arbiter_hangs = !turns;
    for (int i = 0; i < 4; ++i)
      gpu.Start({.vm = gpu.AddVm({}), .kernel_ns = 5'000, .waits = true, .gap_ns = 5'000});
    gpu.Run(500 * kMs);
    for (VirtualProcess& process : gpu.processes) process.finished = 0;
    gpu.Run(kSecond);
    uint64_t calls = 0;
    for (const VirtualProcess& process : gpu.processes) calls += process.finished;
    return calls;
  };
  const uint64_t in_turns = calls_of(true), by_slices = calls_of(false);
  EXPECT_LT(by_slices, 8'000u);
  EXPECT_GT(in_turns, 80'000u);  // one alone: 100,000
}

TEST(Arbiter, ANewWeightIsInForceWithinATenthOfASecond) {
  VirtualGpu gpu;
  const size_t first = gpu.AddVm({}), second = gpu.AddVm({});
  gpu.Start({.vm = first});
  gpu.Start({.vm = second});
  ExpectFair(gpu, {1, 1});
  gpu.arbiter.Set(second, Weight(400));
  gpu.Run(100 * kMs);
  EXPECT_NEAR(Parts(gpu.Run(100 * kMs))[second], 0.8, 0.08);  // a turn of 8 ms more or less
  ShareTerms capped = Weight(400);
  capped.cap_percent = 10;
  gpu.arbiter.Set(second, capped);
  gpu.Run(100 * kMs);
  EXPECT_NEAR(gpu.Run(kSecond)[second], 0.1, 0.02);
}

TEST(Arbiter, PauseAndResume) {
  VirtualGpu gpu;
  const size_t vm = gpu.AddVm({});
  gpu.Start({.vm = vm});
  gpu.Run(100 * kMs);
  ShareTerms paused;
  paused.paused = true;
  gpu.arbiter.Set(vm, paused);
  gpu.Run(10 * kMs);  // what it had submitted ends
  EXPECT_EQ(gpu.Run(kSecond)[vm], 0);
  EXPECT_GT(gpu.arbiter.figures(vm).throttled_ns, 900 * kMs);
  gpu.arbiter.Set(vm, {});
  gpu.Run(kMs);
  EXPECT_GT(gpu.Run(100 * kMs)[vm], 0.95);
}

TEST(Arbiter, WhoSleptDoesNotShutOutOthers) {
  VirtualGpu gpu;
  const size_t busy = gpu.AddVm({}), sleeper = gpu.AddVm({});
  gpu.Start({.vm = busy});
  VirtualProcess& calm = gpu.Start({.vm = sleeper, .kernel_ns = 10'000, .waits = true, .gap_ns = 5 * kMs});
  gpu.Run(3 * kSecond);
  calm.waits = false;
  calm.kernel_ns = 200'000;
  EXPECT_NEAR(Parts(gpu.Run(100 * kMs))[busy], 0.5, 0.09);  // it had saved up a long turn
}

// What a VM alone has queued, by four processes of which none submits anything more for most of a second, is known when
// another VM comes, and is charged: both have the same in the end.
TEST(Arbiter, WhatWasQueuedAloneIsCharged) {
  VirtualGpu gpu;
  gpu.sets_slices = false;
  const size_t greedy = gpu.AddVm({}), late = gpu.AddVm({});
  for (int i = 0; i < 4; ++i) gpu.Start({.vm = greedy, .burst = 1022});
  gpu.Run(10 * kMs);
  gpu.Start({.vm = late});
  EXPECT_NEAR(Parts(gpu.Run(200 * kMs))[late], 0.2, 0.05);  // nobody can take it back: the GPU's own round
  const uint64_t charged = gpu.arbiter.figures(greedy).had_ns;
  EXPECT_NEAR(static_cast<double>(charged), 0.8 * 200e6, 15e6);
  gpu.Run(800 * kMs);  // the rest of it
  EXPECT_NEAR(static_cast<double>(gpu.arbiter.figures(greedy).had_ns), static_cast<double>(gpu.vm_ns[greedy]),
              100e6);
  EXPECT_GT(Parts(gpu.Run(kSecond))[late], 0.55);  // it pays, but for what had no mark behind it
  EXPECT_NEAR(Parts(gpu.Run(kSecond))[late], 0.5, 0.03);
}

// A VM with a long queue gets no turn of which the others wait for the end.
TEST(Arbiter, AQueueOfLongKernelsKeepsNobodyWaiting) {
  VirtualGpu gpu;
  const size_t greedy = gpu.AddVm({}), late = gpu.AddVm({});
  VirtualProcess& queue = gpu.Start({.vm = greedy, .kernel_ns = 10 * kMs, .burst = 1022});
  gpu.Run(10 * kMs);
  queue.burst = 0;  // and it goes on submitting
  queue.burst_left = 0;
  VirtualProcess& calm = gpu.Start({.vm = late, .kernel_ns = 10'000, .waits = true, .gap_ns = kMs});
  gpu.Run(2 * kSecond);
  EXPECT_GT(calm.latencies_ns.size(), 300u);
  EXPECT_LE(*std::max_element(calm.latencies_ns.begin(), calm.latencies_ns.end()), 60 * kMs);
}

TEST(Arbiter, AKernelThatWaitsForALaterLaunchGetsIt) {
  VirtualGpu gpu;
  ShareTerms capped;
  capped.cap_percent = 10;  // a cap must not hold back for ever what ends the kernel
  VirtualProcess& spinner = gpu.Start({.vm = gpu.AddVm(capped), .spins = true});
  gpu.Start({.vm = gpu.AddVm({})});
  gpu.Run(400 * kMs);
  EXPECT_GE(spinner.finished, 1u);
}

TEST(Arbiter, AnEndlessKernelKeepsNoTurn) {
  VirtualGpu gpu;
  gpu.sets_slices = false;
  gpu.Start({.vm = gpu.AddVm({}), .kernel_ns = 1000 * kSecond, .waits = true});
  const size_t first = gpu.AddVm({}), second = gpu.AddVm({});
  gpu.Start({.vm = first});
  gpu.Start({.vm = second});
  gpu.Run(500 * kMs);
  const std::vector<double> shares = gpu.Run(2 * kSecond);
  // The GPU's own slices give the endless kernel half beside whoever has the turn; the others share the rest.
  EXPECT_GT(shares[first] + shares[second], 0.33);
  EXPECT_NEAR(shares[first], shares[second], 0.02);
}

// Where workers can set time slices, it has its part by weight.
// Also where a worker sees late that kernels are done: it has more of them queued then, so that it uses its slice up.
TEST(Arbiter, ASliceBoundsAnEndlessKernel) {
  for (const uint64_t react_ns : {0, 30'000, 100'000}) {
    for (const uint32_t weight : {50, 100, 400}) {
      VirtualGpu gpu;
      const size_t endless = gpu.AddVm(Weight(weight)), first = gpu.AddVm({}), second = gpu.AddVm({});
      gpu.Start({.vm = endless, .kernel_ns = 1000 * kSecond, .waits = true});
      gpu.Start({.vm = first, .react_ns = react_ns});
      gpu.Start({.vm = second, .react_ns = react_ns});
      gpu.Run(500 * kMs);
      const std::vector<double> parts = Parts(gpu.Run(2 * kSecond));
      EXPECT_NEAR(parts[endless], weight / (weight + 200.0), 0.04) << weight << ", " << react_ns;
      EXPECT_NEAR(parts[first], parts[second], 0.03) << weight << ", " << react_ns;
      RecordProperty("percent_at_" + std::to_string(weight), static_cast<int>(100 * parts[endless]));
    }
  }
}

TEST(Arbiter, EndlessKernelsOfManyProcessesHaveOneShare) {
  VirtualGpu gpu;
  const size_t endless = gpu.AddVm({}), other = gpu.AddVm({});
  for (int i = 0; i < 4; ++i) gpu.Start({.vm = endless, .kernel_ns = 1000 * kSecond, .waits = true});
  gpu.Start({.vm = other});
  gpu.Run(500 * kMs);
  EXPECT_NEAR(Parts(gpu.Run(2 * kSecond))[endless], 0.5, 0.05);
  gpu.sets_slices = false;
  gpu.Run(100 * kMs);
  EXPECT_GT(Parts(gpu.Run(2 * kSecond))[endless], 0.7);
}

// Slices are for work that does not end; the driver's own come back after it.
TEST(Arbiter, SlicesAreTheDriversOtherwise) {
  VirtualGpu gpu;
  const size_t first = gpu.AddVm({}), second = gpu.AddVm({});
  VirtualProcess& process = gpu.Start({.vm = first, .kernel_ns = 300 * kMs, .waits = true});
  gpu.Start({.vm = second});
  gpu.Run(200 * kMs);
  EXPECT_NE(gpu.arbiter.slice_us(first), 0u);
  EXPECT_EQ(gpu.arbiter.slice_us(second), 0u);
  process.next_ns = ~uint64_t{0};
  process.queue.clear();
  gpu.workers[0]->words.done[0] = gpu.workers[0]->words.sent[0].load();
  gpu.Run(1200 * kMs);
  EXPECT_EQ(gpu.arbiter.slice_us(first), 0u);
}

// Setting a slice takes the driver's lock for a quarter of a millisecond.
TEST(Arbiter, SlicesChangeRarely) {
  VirtualGpu gpu;
  const size_t first = gpu.AddVm({}), second = gpu.AddVm({});
  const size_t third = gpu.AddVm({});
  gpu.Start({.vm = first, .kernel_ns = 60 * kMs});
  gpu.Start({.vm = second});
  gpu.Start({.vm = third, .waits = true, .gap_ns = 30 * kMs});  // wants it now and then
  int changes = 0;
  for (uint32_t before = 0, i = 0; i < 2000; ++i) {
    gpu.Run(kMs);
    changes += gpu.arbiter.slice_us(first) != before ? 1 : 0;
    before = gpu.arbiter.slice_us(first);
  }
  EXPECT_LE(changes, 20);  // of two seconds
}

// Three processes of one VM that launch short kernels in many streams, beside another VM: within the VM's turns the GPU goes
// from one process to the next. It pays for that alone; and it gets on, because much is outstanding when its turn comes.
TEST(Arbiter, AFloodOfShortLaunchesSuffersAloneAndGetsOn) {
  VirtualGpu gpu;
  const size_t flood = gpu.AddVm({}), modest = gpu.AddVm({});
  for (int i = 0; i < 3; ++i)
    gpu.Start({.vm = flood, .kernel_ns = 5'000, .react_ns = 15'000, .alternates = true});
  gpu.Start({.vm = modest});
  gpu.Run(500 * kMs);
  uint64_t before = 0, after = 0;
  for (size_t i = 0; i < 3; ++i) before += gpu.processes[i].finished;
  const double share = gpu.Run(kSecond)[modest];
  for (size_t i = 0; i < 3; ++i) after += gpu.processes[i].finished;
  EXPECT_GE(share, 0.45);
  EXPECT_GT(after - before, 15'000u);
  RecordProperty("launches", static_cast<int>(after - before));
}

// A worker that was taken over says that it has work, and wants more, for ever: it pays for what it keeps others from.
TEST(Arbiter, LiesHelpNobody) {
  VirtualGpu gpu;
  const size_t honest = gpu.AddVm({}), liar = gpu.AddVm({});
  gpu.Start({.vm = honest});
  gpu.Start({.vm = liar, .kernel_ns = 10'000, .waits = true, .lies = true});
  gpu.Run(500 * kMs);
  EXPECT_GE(gpu.Run(4 * kSecond)[honest], 0.45);
}

// Beside a third VM that has a cap: what the liar says of its work and of its slice lifts neither that nor anybody's charge.
TEST(Arbiter, LiesLiftNoCap) {
  VirtualGpu gpu;
  ShareTerms quarter;
  quarter.cap_percent = 25;
  const size_t capped = gpu.AddVm(quarter), honest = gpu.AddVm({}), liar = gpu.AddVm({});
  gpu.Start({.vm = capped});
  gpu.Start({.vm = honest});
  for (int i = 0; i < 8; ++i) gpu.Start({.vm = liar, .kernel_ns = 10'000, .waits = true, .lies = true});
  gpu.sets_slices = false;
  for (size_t i = 2; i < gpu.workers.size(); ++i) gpu.workers[i]->words.slice_us = 16'000;
  gpu.Run(500 * kMs);
  const std::vector<double> shares = gpu.Run(4 * kSecond);
  EXPECT_LE(shares[capped], 0.27);
  EXPECT_GE(shares[honest], 0.3);
}

// Two who lie together: one says for ever that it waits and submits nothing, beside another's work that never ends.
TEST(Arbiter, WhoOnlySaysThatItWaitsKeepsNoTurn) {
  for (const uint32_t weight : {100, 800}) {
    Arbiter arbiter;
    const size_t idler = arbiter.Add({}), endless = arbiter.Add(Weight(weight)), honest = arbiter.Add({});
    std::vector<Demand> demands(3, {.waiting = true, .busy = false, .stuck = false, .submitted = 1});
    demands[endless] = {.waiting = false, .busy = true, .stuck = true, .submitted = 1};
    constexpr uint64_t kStep = kMs, kSteps = 3000;
    uint64_t turns[3] = {};
    for (uint64_t step = 1; step <= kSteps; ++step) {
      demands[honest].busy = arbiter.grant(honest) == Grant::kTurn;  // what it may submit, it does
      arbiter.Look(kSecond + step * kStep, demands);
      for (const size_t vm : {idler, honest}) turns[vm] += arbiter.grant(vm) == Grant::kTurn;
    }
    EXPECT_GE(static_cast<double>(turns[honest]), kSteps * 0.4) << weight;
  }
}

TEST(Arbiter, WorkGoesOnWhenTheArbiterHangs) {
  VirtualGpu gpu;
  for (int i = 0; i < 4; ++i) gpu.Start({.vm = gpu.AddVm({})});
  gpu.Run(333 * kMs);
  gpu.arbiter_hangs = true;  // in the middle of somebody's turn
  gpu.Run(60 * kMs);
  const std::vector<double> without = gpu.Run(kSecond);
  EXPECT_GE(std::accumulate(without.begin(), without.end(), 0.0), 0.9);
  for (const double share : without) EXPECT_GE(share, 0.2);
  gpu.arbiter_hangs = false;
  ExpectFair(gpu, {1, 1, 1, 1});
}

// However long it is away, and wherever in somebody's turn it ends: no wait is longer than 50 ms and a slice.
TEST(Arbiter, ADaemonThatIsKilledOverAndOver) {
  constexpr int kDeaths = 500;
  constexpr uint64_t kMostNs = 52 * kMs;
  const char* given = getenv("CAUSEWAY_SEED");
  const uint64_t seed = given != nullptr ? strtoull(given, nullptr, 0) : std::random_device()();
  std::mt19937_64 random(seed);
  const auto between = [&](uint64_t least_us, uint64_t most_us) {
    return std::uniform_int_distribution<uint64_t>(least_us / 5, most_us / 5)(random) * VirtualGpu::kTickNs;
  };
  VirtualGpu gpu;
  for (int i = 0; i < 3; ++i)
    gpu.Start({.vm = gpu.AddVm({}), .waits = true, .gap_ns = 12'000, .react_ns = 5'000});
  for (int death = 0; death < kDeaths; ++death) {
    for (VirtualProcess& process : gpu.processes) process.latencies_ns.clear();
    gpu.Run(between(5'000, 30'000));
    gpu.arbiter_hangs = true;
    gpu.Run(between(5'000, 60'000));
    gpu.RestartDaemon(between(0, 3'000));
    gpu.Run(60 * kMs);
    for (const VirtualProcess& process : gpu.processes) {
      ASSERT_FALSE(process.latencies_ns.empty()) << "seed " << seed;
      ASSERT_LE(std::ranges::max(process.latencies_ns), kMostNs) << "seed " << seed << ", death " << death;
      if (process.asked_ns != 0) {
        ASSERT_LE(gpu.now_ns - process.asked_ns, kMostNs) << "seed " << seed << ", death " << death;
      }
    }
  }
}

TEST(Arbiter, ClockThatJumpsChargesNothing) {
  Arbiter arbiter;
  const size_t first = arbiter.Add({}), second = arbiter.Add({});
  std::vector<Demand> demands(2, {.waiting = true, .busy = true, .stuck = false, .submitted = 1});
  arbiter.Look(kSecond, demands);
  arbiter.Look(kSecond + 50'000, demands);
  const uint64_t had = arbiter.figures(first).had_ns + arbiter.figures(second).had_ns;
  arbiter.Look(3600 * kSecond, demands);  // the host was suspended
  arbiter.Look(kSecond, demands);         // and this is no clock at all
  EXPECT_EQ(arbiter.figures(first).had_ns + arbiter.figures(second).had_ns, had);
}

TEST(Arbiter, HolderThatGoesLeavesTheTurn) {
  VirtualGpu gpu;
  const size_t first = gpu.AddVm({}), second = gpu.AddVm({});
  gpu.Start({.vm = second});
  std::vector<Demand> demands(2, {.waiting = true, .busy = false, .stuck = false, .submitted = 1});
  gpu.arbiter.Look(kSecond, demands);
  gpu.arbiter.Remove(gpu.arbiter.grant(first) == Grant::kTurn ? first : second);
  const size_t left = gpu.arbiter.grant(first) == Grant::kTurn ? first : second;
  demands[left == first ? second : first] = {};
  gpu.arbiter.Look(kSecond + 50'000, demands);
  EXPECT_NE(gpu.arbiter.grant(0) == Grant::kClosed && gpu.arbiter.grant(1) == Grant::kClosed, true);
}

}  // namespace
}  // namespace causeway::test
