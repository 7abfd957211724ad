// SPDX-License-Identifier: Apache-2.0
// The daemon's thread that grants turns, on pages of memory that the test writes as workers do. Times are bounds of hangs.
#include "host_backend/daemon/shares/turns.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/yield_until.h"

namespace causeway::test {
namespace {

using daemon::ShareStatus;
using daemon::Turns;

class TurnsTest : public testing::Test {
 protected:
  static constexpr char kGpu[16] = "the only GPU";

  // A VM with one worker, whose words the test writes.
  struct Vm {
    explicit Vm(const std::string& scope) : name(scope) {
      page = static_cast<AccountPage*>(mmap(nullptr, sizeof(AccountPage), PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
      page->Open(0);
      place = page->PlaceOf(0, kGpu);
    }
    ~Vm() { munmap(page, sizeof(AccountPage)); }
    Vm(const Vm&) = delete;
    TurnWords& words() { return page->turn_cell(0).turns[place]; }
    // Grant::kAsleep also where the daemon has granted nothing yet.
    Grant grant() const {
      const GrantWords* words = page->GrantOn(page->cell(0).device[place]);
      return words == nullptr ? Grant::kAsleep : static_cast<Grant>(words->grant.load());
    }
    LinkGrant link() const {
      const GrantWords* words = page->GrantOn(page->cell(0).device[place]);
      if (words == nullptr) return LinkGrant::kAsleep;
      return static_cast<LinkGrant>(page->LinkOf(*words).grant[kToDevice].load());
    }
    void Submit() { words().submitted.fetch_add(1); }

    std::string name;
    AccountPage* page = nullptr;
    int place = 0;
  };

  void Begin(Vm& vm) { Begin(vm, vm.name); }
  void Begin(Vm& vm, const std::string& share, const TurnGpus& gpus = {}) {
    turns_.Open(vm.name, share, vm.page, 0, gpus);
  }
  ShareStatus Of(const Vm& vm) {
    for (const ShareStatus& status : turns_.Status()) {
      if (std::count(status.scopes.begin(), status.scopes.end(), vm.name) != 0) return status;
    }
    return {};
  }

  Vm one_{"vm:one"}, two_{"vm:two"};
  Turns turns_;
};

TEST_F(TurnsTest, OneAloneIsOpenAndTheOtherAsleep) {
  Begin(one_);
  Begin(two_);
  one_.Submit();
  turns_.Wake();
  YieldUntil([&] { return one_.grant() == Grant::kOpen; });
  EXPECT_EQ(two_.grant(), Grant::kAsleep);
  EXPECT_FALSE(Of(one_).in_turns);
}

TEST_F(TurnsTest, TwoThatWantTheGpuTakeTurns) {
  Begin(one_);
  Begin(two_);
  one_.words().waiting = two_.words().waiting = 1;
  turns_.Wake();
  for (int i = 0; i < 5; ++i) {
    YieldUntil([&] { return one_.grant() == Grant::kTurn && two_.grant() != Grant::kTurn; });
    YieldUntil([&] { return two_.grant() == Grant::kTurn && one_.grant() != Grant::kTurn; });
  }
  EXPECT_TRUE(Of(one_).in_turns);
  EXPECT_GT(Of(two_).figures.turns, 0u);
  one_.words().waiting = 0;
  YieldUntil([&] { return two_.grant() == Grant::kOpen; });
}

// What was submitted alone may still be there: its worker is asked for a mark when another VM comes, and once.
TEST_F(TurnsTest, WhoSubmittedAloneIsAskedWhenAnotherComes) {
  Begin(one_);
  Begin(two_);
  one_.Submit();
  turns_.Wake();
  YieldUntil([&] { return one_.grant() == Grant::kOpen; });
  const GrantWords* words = one_.page->GrantOn(one_.page->cell(0).device[one_.place]);
  EXPECT_EQ(words->news, 0u);
  two_.words().waiting = 1;
  turns_.Wake();
  YieldUntil([&] { return words->news == 1; });
  // It puts a mark there, and is known to be busy.
  one_.words().sent[0] = 1;
  YieldUntil([&] { return two_.grant() == Grant::kTurn; });
  EXPECT_EQ(words->news, 1u);
}

TEST_F(TurnsTest, APausedVmIsClosedAndGoesOnWhenItIsResumed) {
  Begin(one_);
  one_.words().waiting = 1;
  ShareTerms paused;
  paused.paused = true;
  turns_.Set(one_.name, paused);
  YieldUntil([&] { return one_.grant() == Grant::kClosed; });
  const GrantWords* words = one_.page->GrantOn(one_.page->cell(0).device[one_.place]);
  // It is told again and again that the daemon is there: else it would pass.
  for (int i = 0; i < 3; ++i) {
    const uint64_t seen = words->seen_ns;
    YieldUntil([&] { return words->seen_ns != seen; });
    EXPECT_EQ(one_.grant(), Grant::kClosed);
  }
  turns_.Set(one_.name, {});
  YieldUntil([&] { return one_.grant() == Grant::kOpen; });
}

// As after a restart of the daemon: its worker is at work and has no reason to say so.
TEST_F(TurnsTest, APausedVmWhoseSessionIsTakenOverIsClosedAtOnce) {
  turns_.AskForTerms([](const std::string&) {
    ShareTerms terms;
    terms.paused = true;
    return terms;
  });
  Begin(one_);
  YieldUntil([&] { return one_.grant() == Grant::kClosed && one_.link() == LinkGrant::kClosed; });
}

TEST_F(TurnsTest, WhatAScopeIsToHaveIsAskedForAtItsFirstSession) {
  turns_.AskForTerms([](const std::string& scope) {
    ShareTerms terms;
    terms.weight = scope == "vm:one" ? 300 : kUsualWeight;
    return terms;
  });
  Begin(one_);
  one_.Submit();
  turns_.Wake();
  YieldUntil([&] { return Of(one_).terms.weight == 300; });
}

// A user with many namespaces has one share, as a VM with many processes: all of them have the turn at once.
TEST_F(TurnsTest, ScopesOfOneShareTakePartAsOne) {
  Vm first("uid:7:1.1"), second("uid:7:2.2");
  Begin(first, "uid:7");
  Begin(second, "uid:7");
  Begin(one_);
  first.words().waiting = second.words().waiting = one_.words().waiting = 1;
  turns_.Wake();
  for (int i = 0; i < 3; ++i) {
    YieldUntil([&] { return first.grant() == Grant::kTurn && second.grant() == Grant::kTurn; });
    YieldUntil([&] { return one_.grant() == Grant::kTurn; });
  }
  EXPECT_EQ(turns_.Status().size(), 2u);
  EXPECT_EQ(Of(second).scope, "uid:7");
  // One of them ends, and the other goes on; with the last of them the share is gone.
  turns_.Close(first.name, 0);
  YieldUntil([&] { return second.grant() == Grant::kTurn; });
  EXPECT_EQ(turns_.Status().size(), 2u);
  turns_.Close(second.name, 0);
  EXPECT_EQ(turns_.Status().size(), 1u);
}

TEST_F(TurnsTest, WhatAShareIsToHaveHoldsForItsScopesTogether) {
  turns_.AskForTerms([](const std::string& name) {
    ShareTerms terms;
    terms.weight = name == "uid:7" ? 300 : kUsualWeight;
    return terms;
  });
  Vm first("uid:7:1.1"), second("uid:7:2.2");
  Begin(first, "uid:7");
  Begin(second, "uid:7");
  first.Submit();
  turns_.Wake();
  YieldUntil([&] { return Of(first).terms.weight == 300; });
  ShareTerms more;
  more.weight = 500;
  turns_.Set("uid:7", more);
  EXPECT_EQ(Of(second).terms.weight, 500u);
  // One namespace is paused by itself, and wants nothing on behalf of the other.
  ShareTerms paused;
  paused.paused = true;
  Begin(one_);
  first.words().waiting = 1;
  one_.words().waiting = 1;
  turns_.Set(first.name, paused);
  YieldUntil([&] { return first.grant() == Grant::kClosed && one_.grant() == Grant::kOpen; });
  second.words().waiting = 1;
  turns_.Wake();
  YieldUntil([&] { return second.grant() == Grant::kTurn; });
  EXPECT_EQ(first.grant(), Grant::kClosed);
  turns_.Close(first.name, 0);  // their pages end before the thread that looks at them
  turns_.Close(second.name, 0);
}

// Dead in its turn, or having lied: its cell is closed, and the other goes on.
TEST_F(TurnsTest, AWorkerThatEndsGivesTheTurnBack) {
  Begin(one_);
  Begin(two_);
  one_.words().waiting = two_.words().waiting = 1;
  one_.words().unmarked = 1;
  turns_.Wake();
  YieldUntil([&] { return one_.grant() == Grant::kTurn || two_.grant() == Grant::kTurn; });
  turns_.Close(one_.name, 0);
  YieldUntil([&] { return two_.grant() == Grant::kOpen; });
  EXPECT_EQ(turns_.Status().size(), 1u);
  turns_.Close(two_.name, 0);
  turns_.Close(two_.name, 0);
  EXPECT_TRUE(turns_.Status().empty());
}

uint64_t now_of_test = 0;

// When a process of a VM dies, nobody learns when its work ends. So no other VM waits for that work, and its own VM pays for it for 50 ms.
TEST_F(TurnsTest, AWorkerThatIsAboutToEndKeepsNoTurn) {
  constexpr uint64_t kStepNs = 100'000;
  now_of_test = 1'000'000'000;
  Turns turns([] { return now_of_test; });
  const auto steps_until = [&](auto holds) {
    uint64_t steps = 0;
    for (; !holds() && steps < 10'000; ++steps) {
      now_of_test += kStepNs;
      turns.Look();
    }
    return steps * kStepNs;
  };
  const auto pass = [&](uint64_t ns) {
    const uint64_t end = now_of_test + ns;
    steps_until([&] { return now_of_test >= end; });
  };
  const auto had_ns = [&] {
    const std::vector<ShareStatus> all = turns.Status();
    const auto found = std::find_if(
        all.begin(), all.end(), [&](const ShareStatus& each) { return each.scopes.front() == one_.name; });
    return found != all.end() ? found->figures.had_ns : 0;
  };
  for (Vm* vm : {&one_, &two_}) turns.Open(vm->name, vm->name, vm->page, 0, {});
  for (const bool ends : {false, true}) {
    one_.words().waiting = two_.words().waiting = 1;
    turns.Wake();
    steps_until([&] { return one_.grant() == Grant::kTurn; });
    ASSERT_EQ(one_.grant(), Grant::kTurn);
    one_.words().waiting = 0;
    one_.Submit();
    one_.words().sent[0] = one_.words().done[0] + 1;
    if (ends) turns.Ends(one_.name, 0);
    const uint64_t took = steps_until([&] { return two_.grant() == Grant::kTurn; });
    const uint64_t before = had_ns();
    EXPECT_EQ(took < kNothingFinishedNs / 4, ends) << took;
    if (ends) {
      pass(20 * kStepNs);
      EXPECT_GT(had_ns(), before) << "what is left is not paid for";
      pass(kNothingFinishedNs);
      const uint64_t at_last = had_ns();
      pass(kNothingFinishedNs);
      EXPECT_EQ(had_ns(), at_last) << "the GPU writes no mark for a process that has died";
    }
    one_.words().done[0] = one_.words().sent[0].load();
  }
}

// Processes that end after each launch have the cap of their VM all the same.
TEST_F(TurnsTest, WhatAShareOwesOutlivesItsLastSession) {
  turns_.AskForTerms([](const std::string&) {
    ShareTerms terms;
    terms.cap_percent = 1;
    return terms;
  });
  Begin(one_);
  one_.Submit();
  one_.words().sent[0] = 1;
  turns_.Wake();
  constexpr uint64_t kUsedNs = 100'000'000;  // of which 1 % are paid in ten seconds
  YieldUntil([&] { return Of(one_).figures.had_ns > kUsedNs; });
  turns_.Close(one_.name, 0);
  EXPECT_TRUE(turns_.Status().empty());
  one_.words().sent[0] = 0;
  Begin(one_);
  one_.words().waiting = 1;
  turns_.Wake();
  YieldUntil([&] { return one_.grant() == Grant::kClosed; });
  EXPECT_GT(Of(one_).figures.had_ns, kUsedNs);
}

// A worker that was taken over names device after device: no more of them than its page has places.
TEST_F(TurnsTest, AHostileCellNamesFewDevices) {
  Begin(one_);
  auto& cell = const_cast<AccountCell&>(one_.page->cell(0));
  for (uint64_t device = 1; device < 1000; ++device) {
    for (auto& place : cell.device) place = device * 2 + 1;
    turns_.Wake();
    turns_.Status();  // which waits for the thread
  }
  Begin(two_);
  two_.Submit();
  turns_.Wake();
  YieldUntil([&] { return two_.grant() == Grant::kOpen; });
  EXPECT_LE(turns_.Status().size(), size_t{kAccountDevices} + 1);
}

// Nor one that its VM cannot open: there it would take turns, and make others wait, without working. And what it invents does not
// fill the page, so that its VM's own GPU would have no grant, and be used without turns.
TEST_F(TurnsTest, AHostileCellNamesNoGpuOfOthers) {
  const uint64_t own = one_.page->cell(0).device[one_.place];
  auto& cell = const_cast<AccountCell&>(one_.page->cell(0));
  const int last = kAccountDevices - 1;
  for (int place = 0; place < last; ++place) cell.device[place] = own + 2 * static_cast<uint64_t>(place + 1);
  cell.device[last] = 0;
  Begin(one_, one_.name, {.any = false, .hashes = {own}});
  for (int i = 0; i < 10; ++i) {
    turns_.Wake();
    turns_.Status();
  }
  EXPECT_TRUE(turns_.Status().empty());
  cell.device[last] = own;
  one_.page->turn_cell(0).turns[last].waiting = 1;
  turns_.Wake();
  YieldUntil([&] { return one_.page->GrantOn(own) != nullptr; });
  EXPECT_EQ(turns_.Status().size(), 1u);
  EXPECT_EQ(Of(one_).device, own);
}

NamedDevice Named(uint8_t first) {
  NamedDevice device{};
  device[0] = first;
  device[15] = 7;
  return device;
}

TEST(TurnGpusTest, OnesThatAScopeCanOpen) {
  const auto hash = [](uint8_t first) { return DeviceHash(Named(first).data()); };
  const std::vector<NamedDevice> shown{Named(0xab), Named(0xcd), Named(0xac)};
  const std::string whole = "GPU-cd000000-0000-0000-0000-000000000007";
  EXPECT_EQ(TurnGpusOf({}, shown, false).hashes, (std::vector{hash(0xab), hash(0xcd), hash(0xac)}));
  EXPECT_FALSE(TurnGpusOf({}, shown, false).any);
  const TurnGpus one = TurnGpusOf({whole}, {}, false);
  EXPECT_TRUE(one.Allows(hash(0xcd)));
  EXPECT_FALSE(one.Allows(hash(0xab)));
  // The driver takes a beginning, too.
  EXPECT_EQ(TurnGpusOf({"GPU-A"}, shown, false).hashes, (std::vector{hash(0xab), hash(0xac)}));
  EXPECT_FALSE(TurnGpusOf({"GPU-A"}, shown, false).Allows(hash(0xcd)));
  // What cannot be told: nobody has said what there is, or GPUs have parts.
  EXPECT_TRUE(TurnGpusOf({}, {}, false).Allows(1));
  EXPECT_TRUE(TurnGpusOf({"GPU-a"}, {}, false).Allows(1));
  EXPECT_TRUE(TurnGpusOf({}, shown, true).Allows(1));
  EXPECT_TRUE(TurnGpusOf({whole}, shown, true).Allows(1));
  EXPECT_FALSE(TurnGpusOf({"MIG-cd000000-0000-0000-0000-000000000007"}, shown, true).Allows(1));
  // Its sessions of before the change of its configuration go on.
  TurnGpus both = one;
  both.Add(TurnGpusOf({"GPU-ab000000-0000-0000-0000-000000000007"}, shown, false));
  EXPECT_TRUE(both.Allows(hash(0xcd)) && both.Allows(hash(0xab)) && !both.Allows(hash(0xac)));
}

TEST(TurnGpusTest, PartsAreFoundWhereTheDriverShowsThem) {
  namespace fs = std::filesystem;
  std::string folder = testing::TempDir() + "turns_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  EXPECT_FALSE(HostHasParts(folder + "/none"));
  fs::create_directories(folder + "/gpu0/mig");
  EXPECT_FALSE(HostHasParts(folder));
  fs::create_directories(folder + "/gpu0/mig/gi7/ci0");
  EXPECT_TRUE(HostHasParts(folder));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace causeway::test
