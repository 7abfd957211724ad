// SPDX-License-Identifier: Apache-2.0
// What each scope has for sure: sessions, turns, spares, lines of the log; and the measure of the loop's
// lateness.
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "host_backend/daemon/loop/aside.h"
#include "host_backend/daemon/loop/event_loop.h"
#include "host_backend/daemon/loop/hand_off.h"
#include "host_backend/daemon/loop/lateness.h"
#include "host_backend/daemon/loop/pace.h"
#include "host_backend/daemon/pool/own_spares.h"
#include "host_backend/daemon/pool/worker_queue.h"
#include "host_backend/daemon/process/log.h"
#include "host_backend/daemon/region/vain_wakes.h"
#include "host_backend/daemon/scopes/scopes.h"
#include "host_backend/daemon/servers/flight_store.h"

namespace causeway::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Config SmallHost() {
  Config config;
  config.max_sessions = 10;
  config.reserved_sessions = 2;
  config.local_max_sessions = config.tcp.max_sessions = 10;
  for (const char* name : {"a", "b"}) {
    VmConfig vm;
    vm.name = name;
    vm.guaranteed_sessions = 3;
    config.vms.push_back(vm);
  }
  return config;
}

// As many sessions as the scope gets.
std::vector<SessionSeat> TakeAll(Scopes& scopes, const ScopeRef& scope) {
  std::vector<SessionSeat> seats;
  for (auto seat = scopes.TakeSession(scope); seat.ok(); seat = scopes.TakeSession(scope))
    seats.push_back(std::move(seat.value()));
  return seats;
}

TEST(ScopesTest, NoScopeTakesWhatIsGuaranteedToOthers) {
  const Config config = SmallHost();
  Scopes scopes(config);
  const ScopeRef a = scopes.OfVm(config.vms[0]), b = scopes.OfVm(config.vms[1]);
  const ScopeRef user = scopes.OfUser("uid:1000", "uid:1000"), other = scopes.OfUser("uid:1001", "uid:1001");
  auto of_a = TakeAll(scopes, a);
  EXPECT_EQ(of_a.size(), 5u) << "10, less 3 of b and 2 of users that have none";
  const auto refused = scopes.TakeSession(a);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().find("serves 5 sessions and keeps 5 for others"), std::string::npos)
      << refused.error();
  const auto of_user = TakeAll(scopes, user);
  EXPECT_EQ(of_user.size(), 1u) << "one user's first comes out of the reserve, a second does not";
  EXPECT_EQ(TakeAll(scopes, other).size(), 1u) << "and the next user has the same";
  const auto of_b = TakeAll(scopes, b);
  EXPECT_EQ(of_b.size(), 3u) << "its own; what the other user gave back is kept for users";
  of_a.clear();
  EXPECT_TRUE(scopes.TakeSession(a).ok());
}

TEST(ScopesTest, AUserFillsTheHostOnlyUpToWhatIsKept) {
  const Config config = SmallHost();
  Scopes scopes(config);
  scopes.OfVm(config.vms[0]);
  scopes.OfVm(config.vms[1]);
  const auto of_user = TakeAll(scopes, scopes.OfUser("uid:1000", "uid:1000"));
  EXPECT_EQ(of_user.size(), 3u) << "10, less twice 3 and 1 for the next user";
  const auto of_peer = TakeAll(scopes, scopes.OfPeer("::1"));
  EXPECT_EQ(of_peer.size(), 1u);
  EXPECT_EQ(scopes.live_sessions(), 4u);
}

TEST(ScopesTest, ALimitOfItsOwn) {
  Config config = SmallHost();
  config.vms[0].max_sessions = 2;
  Scopes scopes(config);
  const ScopeRef a = scopes.OfVm(config.vms[0]);
  const auto seats = TakeAll(scopes, a);
  EXPECT_EQ(seats.size(), 2u);
  EXPECT_NE(scopes.TakeSession(a).error().find("VM a has 2 sessions, as many as its max_sessions"),
            std::string::npos);
}

// Two of them in one scope would have one user id, and could reach each other.
TEST(ScopesTest, MoreScopesThanAreRememberedAreRefused) {
  const Config config = SmallHost();
  Scopes scopes(config);
  std::vector<ScopeRef> held;
  std::set<ScopeRef> different;
  for (int i = 0; i < 5000; ++i) {
    held.push_back(scopes.OfPeer("10.0.0." + std::to_string(i)));
    if (held.back() == nullptr) continue;
    EXPECT_TRUE(different.insert(held.back()).second) << i;
  }
  EXPECT_EQ(different.size(), 4096u);
  EXPECT_EQ(held[4999], nullptr);
  EXPECT_EQ(scopes.OfUser("uid:1000", "uid:1000"), nullptr);
  EXPECT_EQ(scopes.OfPeer("10.0.0.1"), held[1]);
  EXPECT_NE(scopes.OfVm(config.vms[0]), nullptr);
  held.clear();
  different.clear();
  EXPECT_NE(scopes.OfPeer("a"), scopes.OfPeer("b")) << "what nobody uses is forgotten";
}

TEST(ScopesTest, AUsersNamespacesHaveTogetherWhatOneUserHas) {
  Config config = SmallHost();
  config.local_max_sessions = 3;
  Scopes scopes(config);
  const auto in_namespace = [&](int i) {
    return scopes.OfUser("uid:1000:" + std::to_string(i) + ".1", "uid:1000");
  };
  const ScopeRef own = scopes.OfUser("uid:1000", "uid:1000"), first = in_namespace(1),
                 second = in_namespace(2);
  EXPECT_NE(own, first);
  EXPECT_NE(first, second);
  // One share of the GPUs' time, whatever user of its own a namespace has.
  for (const ScopeRef& each : {own, first, second, scopes.OfUser("uid:100000:3.1", "uid:1000")})
    EXPECT_EQ(each->share(), "uid:1000");
  EXPECT_EQ(scopes.OfPeer("10.0.0.5")->share(), "tcp:10.0.0.5");
  auto seats = TakeAll(scopes, own);
  EXPECT_EQ(seats.size(), 3u);
  const auto refused = scopes.TakeSession(first);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().find("and its other namespaces have 3 sessions, as many as local_max_sessions"),
            std::string::npos)
      << refused.error();
  seats.pop_back();
  EXPECT_EQ(TakeAll(scopes, second).size(), 1u);
  EXPECT_EQ(TakeAll(scopes, scopes.OfUser("uid:1001", "uid:1001")).size(), 3u) << "another user's";

  for (int i = 0; i < 32; ++i) own->CountConnection(true), first->CountConnection(true);
  EXPECT_FALSE(scopes.MayConnect(*second));
  first->CountConnection(false);
  EXPECT_TRUE(scopes.MayConnect(*second));

  std::vector<ScopeRef> held;
  for (int i = 3; in_namespace(i) != nullptr && i < 5000; ++i) held.push_back(in_namespace(i));
  EXPECT_EQ(held.size(), 61u) << "with three before";
  held.clear();
  EXPECT_NE(in_namespace(5000), nullptr) << "what nobody uses is forgotten";
}

// The part that is kept for users without a session goes to users, not to one user's namespaces.
TEST(ScopesTest, AUsersNamespacesTakeTheReserveOnce) {
  Config config = SmallHost();
  config.vms.clear();
  config.max_sessions = 4;
  Scopes scopes(config);
  std::vector<SessionSeat> seats;
  for (int i = 0; i < 8; ++i) {
    auto seat = scopes.TakeSession(scopes.OfUser("uid:1000:" + std::to_string(i) + ".1", "uid:1000"));
    if (seat.ok()) seats.push_back(std::move(seat.value()));
  }
  EXPECT_EQ(seats.size(), 3u);
  EXPECT_TRUE(scopes.TakeSession(scopes.OfUser("uid:1001", "uid:1001")).ok());
}

WorkerClient* Client(uintptr_t number) {
  return reinterpret_cast<WorkerClient*>(number);
}

TEST(WorkerQueueTest, ScopesAreServedInTurn) {
  WorkerQueue queue;
  for (uintptr_t i = 1; i <= 5; ++i) queue.Add({Client(i), {}, "hog"});
  queue.Add({Client(100), {}, "quiet"});
  queue.Add({Client(6), {}, "hog"});
  EXPECT_EQ(queue.any_wishes(), 7u);
  queue.Remove(*Client(3));
  std::vector<uintptr_t> order;
  while (const auto next = queue.Next([](const auto&) { return true; }))
    order.push_back(reinterpret_cast<uintptr_t>(next->client));
  EXPECT_EQ(order, (std::vector<uintptr_t>{1, 100, 2, 4, 5, 6}));
  EXPECT_TRUE(queue.empty());
}

TEST(WorkerQueueTest, WhatMayNotBeServedDoesNotHoldOthersUp) {
  WorkerQueue queue;
  queue.Add({Client(1), {}, "hog"});
  queue.Add({Client(2), {{"CUDA_LAUNCH_BLOCKING=1"}}, "hog"});
  queue.Add({Client(3), {}, "quiet"});
  const auto next = queue.Next([](const auto& waiting) { return waiting.scope != "hog"; });
  ASSERT_TRUE(next);
  EXPECT_EQ(next->client, Client(3));
  const auto own = queue.Next([](const auto& waiting) { return !waiting.wish.any(); });
  ASSERT_TRUE(own);
  EXPECT_EQ(own->client, Client(2));
}

TEST(SpareUseTest, GuaranteedSparesAreNotForThoseThatTakeMost) {
  SpareUse use;
  const SpareUse::Time begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(use.MayTakeGuaranteed("hog", begin));
  for (int i = 0; i < 100; ++i) use.Note("hog", begin + milliseconds(100 * i));
  const auto now = begin + seconds(10);
  EXPECT_FALSE(use.MayTakeGuaranteed("hog", now));
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(use.MayTakeGuaranteed("quiet", now)) << i;
    use.Note("quiet", now);
  }
  EXPECT_TRUE(use.MayTakeGuaranteed("hog", now + seconds(60))) << "after a minute of rest";
}

// Who gets each of the spares that become ready, while sessions of "flood" wait for every one that they can
// get.
TEST(OwnSparesTest, TheQuietComeFirstAndAFloodGetsEverySecond) {
  OwnSpares own({{"flood", 1}, {"quiet", 1}, {"idle", 2}});
  EXPECT_EQ(own.total(), 4u);
  SpareUse use;
  OwnSpares::Counts ready;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 50; ++i) use.Note("flood", begin);
  use.Note("quiet", begin);
  std::vector<std::string> order;
  for (int i = 0; i < 10; ++i) {
    const std::string scope = own.ForReady(ready, true, use, begin);
    order.push_back(scope);
    // Its own spare serves the flood at once; the others keep theirs.
    if (!scope.empty() && scope != "flood") ++ready[scope];
  }
  EXPECT_EQ(order, (std::vector<std::string>{"idle", "", "idle", "", "quiet", "", "flood", "", "flood", ""}));
  --ready["quiet"];
  EXPECT_EQ(own.ForReady(ready, true, use, begin), "quiet") << "before the flood's own";
}

TEST(OwnSparesTest, WhenNobodyWaitsTheyAreMadeFirst) {
  OwnSpares own({{"a", 1}, {"b", 1}});
  SpareUse use;
  OwnSpares::Counts ready;
  const auto now = std::chrono::steady_clock::now();
  for (int i = 0; i < 2; ++i) ++ready[own.ForReady(ready, false, use, now)];
  EXPECT_EQ(ready, (OwnSpares::Counts{{"a", 1}, {"b", 1}}));
  EXPECT_EQ(own.ForReady(ready, false, use, now), "");
  EXPECT_EQ(OwnSpares().ForReady({}, true, use, now), "") << "nobody has any";
}

// What is written to standard error meanwhile, which is a file that is, or is not, the one that the service manager named.
std::string WrittenToStderr(bool journal, const std::function<void()>& write) {
  FILE* const file = std::tmpfile();
  struct stat found {};
  EXPECT_EQ(fstat(fileno(file), &found), 0);
  const std::string name =
      std::to_string(found.st_dev) + ":" + std::to_string(found.st_ino + (journal ? 0 : 1));
  const int kept = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  setenv("JOURNAL_STREAM", name.c_str(), 1);
  EXPECT_EQ(StartLog("", LogLevel::kDebug, false), "");
  write();
  dup2(kept, STDERR_FILENO);
  close(kept);
  unsetenv("JOURNAL_STREAM");
  EXPECT_EQ(StartLog("", LogLevel::kInfo, false), "");
  std::string text(1000, '\0');
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

TEST(LogTest, TheJournalGetsPrioritiesAndOthersGetTimes) {
  const auto write = [] {
    LogError("an error");
    LogWarning("a warning");
    LogInfo("told\n<3>forged");
    Log(LogLevel::kDebug, "detail");
  };
  EXPECT_EQ(WrittenToStderr(true, write), "<3>an error\n<4>a warning\n<6>told?<3>forged\n<7>detail\n");
  const std::string other = WrittenToStderr(false, write);
  EXPECT_EQ(other.find('<'), other.find("<3>forged"));
  EXPECT_NE(other.find(" warning: a warning\n"), std::string::npos) << other;
}

TEST(LimitedLogTest, AtMostTwentyLinesInAnySecond) {
  LimitedLog log;
  const LimitedLog::Time begin{seconds(1000)};
  for (int i = 0; i < 3000; ++i) {
    log.WriteAt(begin + milliseconds(i), LogLevel::kDebug, "told");
    log.WriteAt(begin + milliseconds(i), LogLevel::kDebug, "told");
  }
  EXPECT_EQ(log.dropped(), 6000u - 3 * LimitedLog::kTold);
  // What went wrong has lines of its own.
  const uint64_t before = log.dropped();
  for (size_t i = 0; i < LimitedLog::kWrong; ++i)
    log.WriteAt(begin + milliseconds(3000), LogLevel::kWarning, "wrong");
  EXPECT_EQ(log.dropped(), before);
  log.WriteAt(begin + milliseconds(3000), LogLevel::kError, "wrong");
  EXPECT_EQ(log.dropped(), before + 1);
  log.FlushAt(begin + seconds(4), "VM a");
  EXPECT_EQ(log.dropped(), 0u);
  log.WriteAt(begin + seconds(4), LogLevel::kError, "wrong");
  for (int i = 0; i < 20; ++i) log.WriteAt(begin + seconds(4), LogLevel::kError, "wrong");
  log.FlushAt(begin + seconds(30), "VM a");
  EXPECT_NE(log.dropped(), 0u) << "it is said once a minute";
}

TEST(LatenessTest, LargestAndPercentileOfTheLastMinutes) {
  Lateness late;
  const Lateness::Time begin{std::chrono::hours(1)};
  EXPECT_EQ(late.Of(begin).count, 0u);
  for (int i = 0; i < 1000; ++i) late.Note(milliseconds(1), begin + milliseconds(i));
  late.Note(milliseconds(50), begin + seconds(2));
  const auto summary = late.Of(begin + seconds(2));
  EXPECT_EQ(summary.count, 1001u);
  EXPECT_EQ(summary.max, milliseconds(50));
  EXPECT_GE(summary.p99, milliseconds(1));
  EXPECT_LE(summary.p99, std::chrono::microseconds(1300));
  for (int i = 0; i < 50; ++i) late.Note(milliseconds(50), begin + seconds(3));
  EXPECT_EQ(late.Of(begin + seconds(3)).p99, milliseconds(50));
  late.Note(milliseconds(1), begin + std::chrono::minutes(5));
  EXPECT_EQ(late.Of(begin + std::chrono::minutes(5)).max, milliseconds(1)) << "what is long ago is forgotten";
}

TEST(LoopWorkTest, TimeThatTheThreadWasNotScheduledIsNotItsOwn) {
  using Reading = LoopWork::Reading;
  const Reading begin{LoopWork::Reading{}.now + seconds(1), milliseconds(5), milliseconds(100), 7};
  Reading end{begin.now + milliseconds(30), milliseconds(8), milliseconds(120), 8};
  const auto told = LoopWork::Between(begin, end);
  EXPECT_EQ(told.busy, milliseconds(10)) << "3 ms on a processor and 7 ms of waiting for something";
  EXPECT_EQ(told.processor, milliseconds(3));
  end.sleeps = begin.sleeps;
  EXPECT_EQ(LoopWork::Between(begin, end).busy, milliseconds(3))
      << "it did not wait: its processor was another's";
}

TEST(LoopWorkTest, TheLongestOfEachKindInTheLastMinutes) {
  LoopWork work;
  const Lateness::Time begin{std::chrono::hours(1)};
  work.Note("short", {milliseconds(1), milliseconds(1)}, begin);
  work.Note("long", {milliseconds(9), milliseconds(2)}, begin);
  work.Note("long", {milliseconds(4), milliseconds(4)}, begin + seconds(61));
  const auto longest = work.Longest(10, begin + seconds(62));
  ASSERT_EQ(longest.size(), 2u);
  EXPECT_EQ(longest[0].what, "long");
  EXPECT_EQ(longest[0].times, 2u);
  EXPECT_EQ(longest[0].longest.busy, milliseconds(9));
  EXPECT_EQ(longest[0].longest.processor, milliseconds(2));
  EXPECT_EQ(longest[0].sum, milliseconds(13));
  EXPECT_EQ(longest[1].what, "short");
  EXPECT_EQ(work.Longest(1, begin + seconds(62)).size(), 1u);
  EXPECT_TRUE(work.Longest(10, begin + std::chrono::minutes(9)).empty()) << "what is long ago is forgotten";
}

// What a handler waits for keeps all others waiting, whether or not it takes a processor.
TEST(LoopWorkTest, AHandlerThatWaitsKeepsTheLoopBusy) {
  EventLoop loop;
  bool over = false;
  loop.After(milliseconds(1), "a pause", [&] {
    const LoopPart part("its part");
    std::this_thread::sleep_for(milliseconds(30));
    over = true;
  });
  loop.Run([&] { return over; });
  // Up to a millisecond of the pause may be told as waiting for a processor.
  const auto least = milliseconds(20);
  EXPECT_GE(loop.busy().Of(Clock::now()).max, least);
  EXPECT_GE(loop.late().Of(Clock::now()).max, least);
  const auto longest = loop.work().Longest(2, Clock::now());
  ASSERT_EQ(longest.size(), 2u);
  EXPECT_EQ(longest[0].what, "a pause");
  EXPECT_EQ(longest[1].what, "its part");
  EXPECT_GE(longest[1].longest.busy, least);
  EXPECT_LT(longest[1].longest.processor, longest[1].longest.busy);
}

// A descriptor that was never had, because none was left, must not end the daemon and with it every VM's sessions.
TEST(EventLoopTest, WhatCannotBeWatchedIsTakenForItsEnd) {
  EventLoop loop;
  constexpr int kNone = -1;
  std::vector<uint32_t> told;
  EventLoop::WatchId watch = 0, ended = 0;
  loop.After(std::chrono::milliseconds(1), "test", [&] {
    watch = loop.Watch(kNone, EPOLLIN, "a test's descriptor", [&](uint32_t events) {
      told.push_back(events);
      loop.Unwatch(watch);
    });
    ended = loop.Watch(kNone, EPOLLIN, "a test's descriptor", [&](uint32_t) { ADD_FAILURE(); });
    EXPECT_NE(watch, 0u);
    loop.Unwatch(ended);
  });
  bool over = false;
  loop.After(std::chrono::milliseconds(10), "test", [&] { over = true; });
  loop.Run([&] { return over; });
  EXPECT_EQ(told, std::vector<uint32_t>{EPOLLERR | EPOLLHUP});
  EXPECT_EQ(watch, 0u);
}

TEST(AsideTest, WorkIsDoneInItsOrderAndToldByTheLoop) {
  EventLoop loop;
  std::vector<int> worked, told;
  std::set<std::thread::id> workers;
  {
    Aside aside(loop);
    for (int i = 0; i < 100; ++i) {
      aside.Do(
          [&, i] {
            worked.push_back(i);
            workers.insert(std::this_thread::get_id());
          },
          [&, i] {
            EXPECT_EQ(workers.count(std::this_thread::get_id()), 0u);
            told.push_back(i);
          });
    }
    EXPECT_TRUE(told.empty()) << "never inside Do";
    loop.Run([&] { return told.size() == 100; });
    // What was asked for last is done, but nobody is told any more.
    aside.Do([&] { worked.push_back(100); }, [&] { told.push_back(100); });
  }
  std::vector<int> all(101);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(worked, all);
  EXPECT_EQ(told, std::vector<int>(all.begin(), all.end() - 1));
  EXPECT_EQ(workers.size(), 1u);
}

TEST(HandOffTest, NothingIsLostOrDisordered) {
  constexpr int kThreads = 4, kEach = 5000;
  HandOff<std::pair<int, int>> hand_off;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kEach; ++i) hand_off.Put({thread, i});
    });
  }
  std::vector<int> next(kThreads);
  for (int got = 0; got < kThreads * kEach;) {
    for (const auto& [thread, i] : hand_off.AwaitAll()) {
      ASSERT_EQ(i, next[size_t(thread)]++);
      ++got;
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(hand_off.TakeAll().empty());
}

TEST(FlightStoreTest, AScopeForgetsItsOwnEndedSessions) {
  FlightStore store;
  const auto end = [&](const std::string& scope) {
    auto number = std::make_shared<uint64_t>(0);
    *number = store.Begin([scope, number](bool) {
      FlightCopy copy;
      copy.status.scope = scope;
      copy.status.number = *number;
      return copy;
    });
    store.End(*number);
    return *number;
  };
  const uint64_t quiet = end("vm:quiet");
  for (size_t i = 0; i < 5 * FlightStore::kEnded; ++i) end("vm:loud");
  EXPECT_TRUE(store.Answer(quiet, "vm:quiet").ok());
  EXPECT_FALSE(store.Answer(quiet + 1, "vm:loud").ok()) << "its own oldest";
  EXPECT_FALSE(store.Answer(quiet, "vm:loud").ok()) << "another scope's";
}

TEST(PaceTest, WhatIsChargedIsMadeUpFor) {
  using std::chrono::milliseconds;
  const auto begin = Pace::Time::clock::now();
  Pace pace(8, 2);
  EXPECT_TRUE(pace.Take(begin));
  EXPECT_TRUE(pace.Has(begin));
  pace.Charge(27);  // of 7 that are left
  EXPECT_FALSE(pace.Has(begin + milliseconds(10)));
  EXPECT_TRUE(pace.Has(begin + milliseconds(11)));
  EXPECT_TRUE(pace.Take(begin + milliseconds(11)));
}

// Every word of every slot of one region claims a sleeper, in every look; beside it is a region whose words are true.
TEST(VainWakesTest, ARegionThatLiesCostsOneCallALook) {
  alignas(64) const char places[128]{};  // nothing of a region is used but where it lies
  const auto* lies = reinterpret_cast<const Region*>(&places[0]);
  const auto* is_true = reinterpret_cast<const Region*>(&places[64]);
  constexpr uint64_t kLooks = 10'000;
  constexpr uint32_t kSlots = 16;
  VainWakes vain_wakes;
  uint64_t calls = 0;
  for (uint64_t look = 0; look < kLooks; ++look) {
    vain_wakes.Begin();
    for (uint32_t slot = 0; slot < kSlots && vain_wakes.MayLook(lies); ++slot) {
      vain_wakes.Add(lies, VainWakes::kMostOfSlot);
      calls += VainWakes::kMostOfSlot;
    }
    EXPECT_TRUE(vain_wakes.MayLook(is_true));
    vain_wakes.Add(is_true, 0);
  }
  EXPECT_LE(calls, kLooks + VainWakes::kMostDebt + VainWakes::kMostOfSlot);
  EXPECT_GE(calls, kLooks - VainWakes::kMostOfSlot) << "it is looked at again";
  // Once it has stopped, nothing is left of its debt.
  for (uint32_t look = 0; look <= VainWakes::kMostOfSlot; ++look) vain_wakes.Begin();
  EXPECT_TRUE(vain_wakes.MayLook(lies));
}

}  // namespace
}  // namespace causeway::daemon
