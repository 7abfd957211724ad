// SPDX-License-Identifier: Apache-2.0
// The worker's handle table: what is not alive is not found, what ends with its owner goes with it, and
// nothing ends under a request that uses it.
#include "host_backend/worker/objects/handles.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <thread>

namespace causeway::host {
namespace {

void* Pointer(uintptr_t value) {
  return reinterpret_cast<void*>(value);
}

constexpr WireHandle kModule = MakeWireHandle(HandleKind::kModule, 1, 7);
constexpr WireHandle kFunction = MakeWireHandle(HandleKind::kFunction, 1, 8);
constexpr WireHandle kContext = MakeWireHandle(HandleKind::kContext, 1, 9);

CUresult End(HandleTable& table, HandleKind kind, WireHandle wire, HandleTable::Call call) {
  return table.EndObject(kind, wire, table.UseToEnd(kind, wire), false, std::move(call));
}

TEST(HandlesTest, FindsOnlyTheExactNumberAndKind) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10)));
  EXPECT_EQ(table.Find(HandleKind::kModule, kModule), Pointer(0x10));
  EXPECT_EQ(table.Find(HandleKind::kFunction, kModule), nullptr);
  EXPECT_EQ(table.Find(HandleKind::kModule, MakeWireHandle(HandleKind::kModule, 2, 7)), nullptr);
  EXPECT_EQ(table.Find(HandleKind::kModule, MakeWireHandle(HandleKind::kModule, 1, 6)), nullptr);
  EXPECT_EQ(table.Find(HandleKind::kModule, ~WireHandle{0}), nullptr);
}

TEST(HandlesTest, RefusesNumbersOutOfRangeAndOfAnotherKind) {
  HandleTable table;
  EXPECT_FALSE(table.Bind(HandleKind::kModule, kFunction, Pointer(0x10)));
  EXPECT_FALSE(
      table.Bind(HandleKind::kModule, MakeWireHandle(HandleKind::kModule, 1, kMaxHandles), Pointer(0x10)));
  EXPECT_FALSE(table.Bind(HandleKind::kCount, MakeWireHandle(HandleKind::kCount, 1, 3), Pointer(0x10)));
  EXPECT_EQ(table.live(), 0u);
}

TEST(HandlesTest, ChildrenEndWithTheirOwner) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kContext, kContext, Pointer(0x1)));
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10), {kContext, Pointer(0x1)}));
  ASSERT_TRUE(table.Bind(HandleKind::kFunction, kFunction, Pointer(0x20), {kModule, Pointer(0x10)}));
  EXPECT_EQ(table.ParentOf({kFunction, Pointer(0x20)}).wire, kModule);
  table.Unbind({kModule, Pointer(0x10)});
  EXPECT_EQ(table.Find(HandleKind::kFunction, kFunction), nullptr);
  EXPECT_EQ(table.Reverse(HandleKind::kFunction, Pointer(0x20)), 0u);
  EXPECT_EQ(table.Find(HandleKind::kContext, kContext), Pointer(0x1));
  EXPECT_EQ(table.live(), 1u);
}

TEST(HandlesTest, AnEmptiedOwnerStays) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kContext, kContext, Pointer(0x1)));
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10), {kContext, Pointer(0x1)}));
  ASSERT_TRUE(table.Bind(HandleKind::kFunction, kFunction, Pointer(0x20), {kModule, Pointer(0x10)}));
  EXPECT_EQ(table.EndContents(HandleKind::kContext, {kContext, Pointer(0x1)}, std::chrono::milliseconds(0),
                              [] { return CUDA_SUCCESS; }),
            CUDA_SUCCESS);
  EXPECT_EQ(table.Find(HandleKind::kContext, kContext), Pointer(0x1));
  EXPECT_EQ(table.Reverse(HandleKind::kContext, Pointer(0x1)), kContext);
  EXPECT_EQ(table.Find(HandleKind::kModule, kModule), nullptr);
  EXPECT_EQ(table.Find(HandleKind::kFunction, kFunction), nullptr);
}

TEST(HandlesTest, AnAdoptedObjectEndsWithItsNewOwner) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kContext, kContext, Pointer(0x1)));
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10), {kContext, Pointer(0x1)}));
  ASSERT_TRUE(table.Bind(HandleKind::kFunction, kFunction, Pointer(0x20), {kContext, Pointer(0x1)}));
  const Found context{kContext, Pointer(0x1)}, module{kModule, Pointer(0x10)},
      function{kFunction, Pointer(0x20)};
  table.Adopt(function, module);
  table.Adopt(module, function);  // nobody owns his owner
  table.Adopt(module, module);
  EXPECT_EQ(table.ParentOf({kFunction, Pointer(0x20)}).wire, kModule);
  EXPECT_EQ(table.ParentOf({kModule, Pointer(0x10)}).wire, kContext);
  table.Unbind({kModule, Pointer(0x10)});
  EXPECT_EQ(table.Find(HandleKind::kFunction, kFunction), nullptr);
  EXPECT_EQ(table.live(), 1u);
  table.Adopt(function, context);  // both must be alive
  EXPECT_EQ(table.ParentOf({kFunction, Pointer(0x20)}).wire, 0u);
}

TEST(HandlesTest, APointerThatIsUsedAgainGetsItsNewNumber) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10)));
  ASSERT_TRUE(table.Bind(HandleKind::kFunction, kFunction, Pointer(0x20), {kModule, Pointer(0x10)}));
  table.Unbind({kModule, Pointer(0x10)});
  const WireHandle second = MakeWireHandle(HandleKind::kFunction, 2, 8);
  ASSERT_TRUE(table.Bind(HandleKind::kFunction, second, Pointer(0x20)));
  EXPECT_EQ(table.Reverse(HandleKind::kFunction, Pointer(0x20)), second);
  EXPECT_EQ(table.Find(HandleKind::kFunction, kFunction), nullptr);
}

TEST(HandlesTest, AKernelIsFoundAsAFunctionToo) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kKernel, kFunction, Pointer(0x20)));
  EXPECT_EQ(table.Find(HandleKind::kFunction, kFunction), Pointer(0x20));
  EXPECT_EQ(table.Find(HandleKind::kKernel, kFunction), Pointer(0x20));
  ASSERT_TRUE(table.Bind(HandleKind::kFunction, kFunction, Pointer(0x30)));
  EXPECT_EQ(table.Find(HandleKind::kKernel, kFunction), nullptr);
}

TEST(HandlesTest, NothingIsBoundBelowTheDead) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10)));
  table.Unbind({kModule, Pointer(0x10)});
  EXPECT_FALSE(table.Bind(HandleKind::kFunction, kFunction, Pointer(0x20), {kModule, Pointer(0x10)}));
  EXPECT_EQ(table.BindOrKnown(HandleKind::kFunction, kFunction, Pointer(0x20), {kModule, Pointer(0x10)}), 0u);
}

// The request of another thread, which begins and ends when it is told.
class OtherRequest {
 public:
  enum class As { kRequest, kAnswered, kOwn };
  OtherRequest(HandleTable& table, HandleKind kind, WireHandle wire, As as = As::kRequest) {
    thread_ = std::thread([&, kind, wire, as] {
      if (as == As::kOwn) {
        HandleTable::OwnUse use(table);
        Hold(use.Find(kind, wire));
      } else {
        table.BeginRequest();
        locked_.fetch_add(1);
        void* const found = table.Use(kind, wire);
        if (as == As::kAnswered) table.RestRequest();
        Hold(found);
      }
      table.EndRequest();
    });
    step_.wait(0);
  }
  ~OtherRequest() { End(); }
  bool found() const { return found_; }
  void End() {
    if (!thread_.joinable()) return;
    step_.store(2);
    step_.notify_all();
    thread_.join();
  }

 private:
  void Hold(const void* found) {
    found_ = found != nullptr;
    step_.store(1);
    step_.notify_all();
    step_.wait(1);
  }
  std::thread thread_;
  std::atomic<int> step_{0}, locked_{0};
  bool found_ = false;
};

TEST(HandlesTest, TheLastUserMakesTheCall) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10)));
  ASSERT_TRUE(table.Bind(HandleKind::kFunction, kFunction, Pointer(0x20), {kModule, Pointer(0x10)}));
  std::thread::id caller;
  int calls = 0;
  const auto unload = [&] {
    ++calls;
    caller = std::this_thread::get_id();
    return CUDA_SUCCESS;
  };
  OtherRequest other(table, HandleKind::kFunction, kFunction);
  ASSERT_TRUE(other.found());
  EXPECT_EQ(End(table, HandleKind::kModule, kModule, unload), CUDA_SUCCESS);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(table.deferred(), 1u);
  EXPECT_EQ(table.Find(HandleKind::kFunction, kFunction), nullptr);  // dead at once
  EXPECT_EQ(End(table, HandleKind::kModule, kModule, unload), CUDA_ERROR_INVALID_HANDLE);
  // Its number is free for another one.
  ASSERT_TRUE(table.Bind(HandleKind::kModule, MakeWireHandle(HandleKind::kModule, 2, 7), Pointer(0x11)));
  other.End();
  EXPECT_EQ(calls, 1);
  EXPECT_NE(caller, std::this_thread::get_id());
  EXPECT_EQ(table.deferred(), 0u);
}

// Whoever has learned that a request is executed is told what the driver says of an end, also before the request's thread has gone on.
TEST(HandlesTest, ARequestThatIsExecutedLeavesTheEndToItsCaller) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10)));
  OtherRequest other(table, HandleKind::kModule, kModule, OtherRequest::As::kAnswered);
  ASSERT_TRUE(other.found());
  EXPECT_EQ(End(table, HandleKind::kModule, kModule, [] { return CUDA_ERROR_NOT_PERMITTED; }),
            CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(End(table, HandleKind::kModule, kModule, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
  EXPECT_EQ(table.deferred(), 0u);
}

TEST(HandlesTest, AnEndWaitsForWhatTheWorkerDoesByItself) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10)));
  OtherRequest other(table, HandleKind::kModule, kModule, OtherRequest::As::kOwn);
  ASSERT_TRUE(other.found());
  std::atomic<bool> has_ended{false};
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    has_ended = true;
    other.End();
  });
  const auto unload = [&] {
    EXPECT_TRUE(has_ended);
    return CUDA_ERROR_NOT_PERMITTED;
  };
  EXPECT_EQ(End(table, HandleKind::kModule, kModule, unload), CUDA_ERROR_NOT_PERMITTED);
  ends.join();
}

TEST(HandlesTest, WhoeverKeepsAnObjectTooLongForTheWorkerMakesTheCall) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10)));
  OtherRequest other(table, HandleKind::kModule, kModule, OtherRequest::As::kOwn);
  int calls = 0;
  EXPECT_EQ(End(table, HandleKind::kModule, kModule, [&] { return ++calls, CUDA_SUCCESS; }), CUDA_SUCCESS);
  EXPECT_EQ(calls, 0);
  other.End();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(table.deferred(), 0u);
}

// The call of a context's end waits for the context's work, natively too.
TEST(HandlesTest, TheEndOfAContextWaitsForTheWorkerAsLongAsItTakes) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kContext, kContext, Pointer(0x1)));
  OtherRequest other(table, HandleKind::kContext, kContext, OtherRequest::As::kOwn);
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    other.End();
  });
  EXPECT_EQ(End(table, HandleKind::kContext, kContext, [] { return CUDA_ERROR_NOT_PERMITTED; }),
            CUDA_ERROR_NOT_PERMITTED);
  ends.join();
}

// What a thread has used for the worker itself while it had a request makes its left-over calls with the request's end.
TEST(HandlesTest, AnOwnUseWithinARequestLeavesItsUsesAlone) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10)));
  ASSERT_TRUE(table.Bind(HandleKind::kContext, kContext, Pointer(0x1)));
  table.EndRequest();  // which uses what it has bound
  table.BeginRequest();
  ASSERT_NE(table.Use(HandleKind::kModule, kModule), nullptr);
  {
    HandleTable::OwnUse use(table);
    EXPECT_EQ(use.Find(HandleKind::kContext, kContext), Pointer(0x1));
  }
  int calls = 0;
  std::thread([&] {
    EXPECT_EQ(End(table, HandleKind::kContext, kContext, [] { return CUDA_ERROR_NOT_PERMITTED; }),
              CUDA_ERROR_NOT_PERMITTED);
    EXPECT_EQ(End(table, HandleKind::kModule, kModule, [&] { return ++calls, CUDA_SUCCESS; }), CUDA_SUCCESS);
    table.EndRequest();
  }).join();
  EXPECT_EQ(calls, 0);
  table.EndRequest();
  EXPECT_EQ(calls, 1);
}

// A guest may bind one number to another object between the look-up and the end of a request.
TEST(HandlesTest, ANumberThatIsAnotherObjectsByNowEndsNothing) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10)));
  const void* const found = table.UseToEnd(HandleKind::kModule, kModule);
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x11)));
  const auto unexpected = [] { return ADD_FAILURE(), CUDA_SUCCESS; };
  EXPECT_EQ(table.EndObject(HandleKind::kModule, kModule, found, false, unexpected),
            CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(table.Find(HandleKind::kModule, kModule), Pointer(0x11));
}

// Nor does the new object have the references of the former one, of which the driver refuses to take one back.
TEST(HandlesTest, ANumberThatIsAnotherObjectsByNowHasNoOtherReferences) {
  HandleTable table;
  constexpr auto kKind = HandleKind::kAllocation;
  const WireHandle allocation = MakeWireHandle(kKind, 1, 20);
  ASSERT_TRUE(table.Bind(kKind, allocation, Pointer(0x10)));
  ASSERT_EQ(table.BindOrKnown(kKind, allocation, Pointer(0x10), {}, true), allocation);
  const auto refuse = [&] {
    EXPECT_TRUE(table.Bind(kKind, allocation, Pointer(0x11)));
    return CUDA_ERROR_NOT_PERMITTED;
  };
  EXPECT_EQ(End(table, kKind, allocation, refuse), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(End(table, kKind, allocation, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
  EXPECT_EQ(table.Find(kKind, allocation), nullptr);
}

TEST(HandlesTest, WithoutUsersTheResultIsTheDrivers) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10)));
  ASSERT_TRUE(table.Bind(HandleKind::kFunction, kFunction, Pointer(0x20), {kModule, Pointer(0x10)}));
  const auto refuse = [&] {
    EXPECT_EQ(table.Find(HandleKind::kFunction, kFunction), nullptr);
    return CUDA_ERROR_NOT_PERMITTED;
  };
  EXPECT_EQ(End(table, HandleKind::kModule, kModule, refuse), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(table.Find(HandleKind::kModule, kModule), Pointer(0x10));
  EXPECT_EQ(table.Find(HandleKind::kFunction, kFunction), Pointer(0x20));
  EXPECT_EQ(table.Reverse(HandleKind::kFunction, Pointer(0x20)), kFunction);
  EXPECT_EQ(End(table, HandleKind::kModule, kModule, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
  EXPECT_EQ(table.live(), 0u);
}

TEST(HandlesTest, AnOwnerTakesAlongWhatWaits) {
  HandleTable table;
  const WireHandle graph = MakeWireHandle(HandleKind::kGraph, 1, 20);
  const WireHandle event = MakeWireHandle(HandleKind::kEvent, 1, 21);
  ASSERT_TRUE(table.Bind(HandleKind::kContext, kContext, Pointer(0x1)));
  ASSERT_TRUE(table.Bind(HandleKind::kGraph, graph, Pointer(0x30)));
  ASSERT_TRUE(table.Bind(HandleKind::kEvent, event, Pointer(0x40), {kContext, Pointer(0x1)}));
  table.BeginRequest();
  ASSERT_NE(table.Use(HandleKind::kEvent, event), nullptr);
  table.HoldUsed({&graph, 1});
  table.EndRequest();
  int event_ends = 0, context_ends = 0;
  EXPECT_EQ(End(table, HandleKind::kEvent, event, [&] { return ++event_ends, CUDA_SUCCESS; }), CUDA_SUCCESS);
  EXPECT_EQ(event_ends, 0);  // the graph remembers it
  EXPECT_EQ(End(table, HandleKind::kContext, kContext, [&] { return ++context_ends, CUDA_SUCCESS; }),
            CUDA_SUCCESS);
  EXPECT_EQ(context_ends, 1);
  EXPECT_EQ(table.Find(HandleKind::kGraph, graph), nullptr);  // spent: it can be ended and no more
  EXPECT_EQ(table.UseToEnd(HandleKind::kGraph, graph), Pointer(0x30));
  EXPECT_EQ(End(table, HandleKind::kGraph, graph, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
  table.EndRequest();
  EXPECT_EQ(event_ends, 0);
  EXPECT_EQ(table.deferred(), 0u);
}

TEST(HandlesTest, WhatAGraphRemembersEndsAfterIt) {
  HandleTable table;
  const WireHandle graph = MakeWireHandle(HandleKind::kGraph, 1, 20);
  ASSERT_TRUE(table.Bind(HandleKind::kGraph, graph, Pointer(0x30)));
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10)));
  ASSERT_TRUE(table.Bind(HandleKind::kFunction, kFunction, Pointer(0x20), {kModule, Pointer(0x10)}));
  table.BeginRequest();
  ASSERT_NE(table.Use(HandleKind::kFunction, kFunction), nullptr);
  table.HoldUsed({&graph, 1});
  table.EndRequest();
  int ended = 0;
  EXPECT_EQ(End(table, HandleKind::kModule, kModule, [&] { return ++ended, CUDA_SUCCESS; }), CUDA_SUCCESS);
  EXPECT_EQ(ended, 0);
  EXPECT_EQ(End(table, HandleKind::kGraph, graph, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
  table.EndRequest();
  EXPECT_EQ(ended, 1);
}

// A guest may bind the number of an object that lives to another one. The first is found nowhere then and
// gets no other number, and what it ends with waits for those that found it before.
TEST(HandlesTest, AnObjectThatLostItsNumberEndsWithItsOwner) {
  HandleTable table;
  const WireHandle second = MakeWireHandle(HandleKind::kModule, 1, 30);
  ASSERT_TRUE(table.Bind(HandleKind::kContext, kContext, Pointer(0x1)));
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10), {kContext, Pointer(0x1)}));
  ASSERT_TRUE(table.Bind(HandleKind::kFunction, kFunction, Pointer(0x20), {kModule, Pointer(0x10)}));
  OtherRequest other(table, HandleKind::kFunction, kFunction);
  ASSERT_TRUE(other.found());
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x11)));
  EXPECT_EQ(table.Find(HandleKind::kFunction, kFunction), nullptr);
  EXPECT_EQ(table.Reverse(HandleKind::kModule, Pointer(0x10)), 0u);
  EXPECT_EQ(table.BindOrKnown(HandleKind::kModule, second, Pointer(0x10), {kContext, Pointer(0x1)}), 0u);
  int calls = 0;
  EXPECT_EQ(End(table, HandleKind::kContext, kContext, [&] { return ++calls, CUDA_SUCCESS; }), CUDA_SUCCESS);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(table.Find(HandleKind::kModule, kModule), Pointer(0x11));  // it was made elsewhere
  other.End();
  EXPECT_EQ(calls, 1);
}

// Between a look-up and what is made of it the number of the owner may have become another's.
TEST(HandlesTest, AnOwnerIsTheOneThatWasFound) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10)));
  const Found found{kModule, table.Find(HandleKind::kModule, kModule)};
  OtherRequest other(table, HandleKind::kModule, kModule);
  ASSERT_TRUE(other.found());
  int calls = 0;
  EXPECT_EQ(End(table, HandleKind::kModule, kModule, [&] { return ++calls, CUDA_SUCCESS; }), CUDA_SUCCESS);
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x11)));
  EXPECT_EQ(table.BindOrKnown(HandleKind::kFunction, kFunction, Pointer(0x20), found), 0u);
  EXPECT_FALSE(table.Bind(HandleKind::kFunction, kFunction, Pointer(0x20), found));
  EXPECT_EQ(table.ParentOf(found).wire, 0u);
  other.End();
  EXPECT_EQ(calls, 1);
}

// What waits for one graph is not mixed up with what another graph of the same number remembers.
TEST(HandlesTest, AGraphThatWaitsRemembersWithoutItsNumber) {
  HandleTable table;
  const WireHandle graph = MakeWireHandle(HandleKind::kGraph, 1, 20);
  const WireHandle events[] = {MakeWireHandle(HandleKind::kEvent, 1, 21),
                               MakeWireHandle(HandleKind::kEvent, 1, 22)};
  int ends[2] = {};
  const auto end_event = [&](int which) {
    return End(table, HandleKind::kEvent, events[which], [&, which] { return ++ends[which], CUDA_SUCCESS; });
  };
  const auto remember = [&](int which) {
    table.BeginRequest();
    ASSERT_NE(table.Use(HandleKind::kEvent, events[which]), nullptr);
    table.HoldUsed({&graph, 1});
    table.EndRequest();
  };
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(table.Bind(HandleKind::kEvent, events[i], Pointer(0x40 + static_cast<uintptr_t>(i))));
  ASSERT_TRUE(table.Bind(HandleKind::kGraph, graph, Pointer(0x30)));
  remember(0);
  OtherRequest other(table, HandleKind::kGraph, graph);
  ASSERT_TRUE(other.found());
  EXPECT_EQ(End(table, HandleKind::kGraph, graph, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
  ASSERT_TRUE(table.Bind(HandleKind::kGraph, graph, Pointer(0x31)));
  remember(1);
  EXPECT_EQ(end_event(0), CUDA_SUCCESS);
  EXPECT_EQ(end_event(1), CUDA_SUCCESS);
  EXPECT_EQ(ends[0], 0);
  other.End();  // the first graph has ended, the second has not
  EXPECT_EQ(ends[0], 1);
  EXPECT_EQ(ends[1], 0);
  EXPECT_EQ(End(table, HandleKind::kGraph, graph, [] { return CUDA_SUCCESS; }), CUDA_SUCCESS);
  table.EndRequest();
  EXPECT_EQ(ends[1], 1);
  EXPECT_EQ(table.deferred(), 0u);
}

// Threads use, make and end a few objects at random. An object is a cell that its end empties: who finds a
// number must find its cell full until its request is over.
TEST(HandlesTest, NothingEndsUnderAUser) {
  constexpr uint32_t kThreads = 4, kObjects = 4, kRounds = 20000;
  struct Cell {
    uint64_t full = 0;  // not atomic: ThreadSanitizer must find every use ordered before the end
  };
  HandleTable table;
  std::vector<std::unique_ptr<Cell>>
      cells[kThreads];  // none goes: a number that is bound again loses its own
  std::atomic<uint64_t> uses{0}, ends{0}, locked{0};
  const uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const auto run = [&](uint32_t number) {
    std::mt19937_64 random(seed + number);
    for (uint32_t round = 0; round < kRounds; ++round) {
      const auto index = static_cast<uint32_t>(random() % kObjects);
      const WireHandle owner = MakeWireHandle(HandleKind::kModule, 1, 10 + index);
      const WireHandle child = MakeWireHandle(HandleKind::kFunction, 1, 50 + index);
      table.BeginRequest();
      locked.fetch_add(1);
      const uint64_t action = random() % 8;
      if (action == 0) {
        cells[number].push_back(std::make_unique<Cell>(Cell{1}));
        table.Bind(HandleKind::kModule, owner, cells[number].back().get());
      } else if (action == 1) {
        void* cell = table.Use(HandleKind::kModule, owner);
        if (cell != nullptr) table.BindOrKnown(HandleKind::kFunction, child, cell, {owner, cell});
      } else if (action == 2) {
        auto* cell = static_cast<Cell*>(table.UseToEnd(HandleKind::kModule, owner));
        const auto end = [cell, &ends] {
          cell->full = 0;
          ends.fetch_add(1);
          return CUDA_SUCCESS;
        };
        if (cell != nullptr) table.EndObject(HandleKind::kModule, owner, cell, false, end);
      } else if (action == 3) {
        HandleTable::OwnUse use(table);
        const auto* cell = static_cast<const Cell*>(use.Find(HandleKind::kModule, owner));
        for (int i = 0; cell != nullptr && i < 20; ++i) ASSERT_EQ(cell->full, 1u);
      } else {
        const bool through_child = action < 6;
        const auto* cell = static_cast<const Cell*>(through_child ? table.Use(HandleKind::kFunction, child)
                                                                  : table.Use(HandleKind::kModule, owner));
        for (int i = 0; cell != nullptr && i < 20; ++i) ASSERT_EQ(cell->full, 1u);
        if (cell != nullptr) uses.fetch_add(1);
      }
      table.EndRequest();
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) threads.emplace_back(run, i);
  for (std::thread& thread : threads) thread.join();
  table.EndRequest();
  EXPECT_GT(uses.load(), 0u);
  EXPECT_GT(ends.load(), 0u);
  EXPECT_EQ(table.deferred(), 0u);
}

// A module's number and a stream's name the same place of the table. One thread binds them in turns; no look-up of
// the others may pair the number of one with the pointer of the other.
TEST(HandlesTest, ALookUpBesideBindingsNeverFindsAnotherKindsPointer) {
  constexpr uint32_t kBindings = 200000, kReaders = 3;
  int module_object = 0, stream_object = 0, function_object = 0, kernel_object = 0;
  const WireHandle module = MakeWireHandle(HandleKind::kModule, 1, 10);
  const WireHandle stream = MakeWireHandle(HandleKind::kStream, 1, 10);
  const WireHandle function = MakeWireHandle(HandleKind::kFunction, 1, 11);
  HandleTable table;
  std::atomic<bool> done{false};
  std::atomic<uint64_t> found{0}, wrong{0};
  const auto read = [&] {
    while (!done.load(std::memory_order_relaxed)) {
      const auto expect = [&](const void* value, const void* right) {
        if (value != nullptr) (value == right ? found : wrong).fetch_add(1, std::memory_order_relaxed);
      };
      expect(table.Find(HandleKind::kModule, module), &module_object);
      expect(table.Find(HandleKind::kStream, stream), &stream_object);
      expect(table.Find(HandleKind::kKernel, function), &kernel_object);
    }
  };
  std::vector<std::thread> readers;
  for (uint32_t i = 0; i < kReaders; ++i) readers.emplace_back(read);
  for (uint32_t i = 0; i < kBindings; ++i) {
    table.BeginRequest();
    table.Bind(HandleKind::kModule, module, &module_object);
    table.Bind(HandleKind::kKernel, function, &kernel_object);
    table.Bind(HandleKind::kStream, stream, &stream_object);
    table.Bind(HandleKind::kFunction, function, &function_object);
    table.EndRequest();
  }
  done.store(true);
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_GT(found.load(), 0u);
}

}  // namespace
}  // namespace causeway::host
