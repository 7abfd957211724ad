// SPDX-License-Identifier: Apache-2.0
// What the worker knows of an object by its pointer goes before the driver ends it: the driver may give the
// pointer to a new one before another thread, or this one, has been told of the end.
#include "host_backend/worker/objects/objects.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "host_backend/worker/driver/capture.h"
#include "host_backend/worker/driver/user_objects.h"
#include "tests/yield_until.h"

namespace causeway::host {
namespace {

constexpr WireHandle kContext = MakeWireHandle(HandleKind::kContext, 1, 1);
constexpr WireHandle kStream = MakeWireHandle(HandleKind::kStream, 1, 2);
constexpr WireHandle kGraph = MakeWireHandle(HandleKind::kGraph, 1, 3);
constexpr WireHandle kFreshGraph = MakeWireHandle(HandleKind::kGraph, 2, 3);
constexpr WireHandle kPool = MakeWireHandle(HandleKind::kMemoryPool, 1, 4);
constexpr WireHandle kFreshPool = MakeWireHandle(HandleKind::kMemoryPool, 2, 4);
const auto kTheContext = reinterpret_cast<CUcontext>(0x10);
const auto kTheStream = reinterpret_cast<CUstream>(0x20);
const auto kTheGraph = reinterpret_cast<CUgraph>(0x30);
const auto kThePool = reinterpret_cast<CUmemoryPool>(0x40);
const auto kTheObject = reinterpret_cast<CUuserObject>(0x50);

CUresult Succeed() {
  return CUDA_SUCCESS;
}
CUresult Refuse() {
  return CUDA_ERROR_NOT_PERMITTED;
}

// Others run meanwhile; a thread that nothing holds gets far in so many turns.
void GiveWay() {
  int turns = 0;
  test::YieldUntil([&] { return ++turns >= 1000; });
}

class ObjectsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Driver& driver = DriverToFill();
    driver.cuCtxSetCurrent = [](CUcontext) { return CUDA_SUCCESS; };
    driver.cuGraphRetainUserObject = [](CUgraph, CUuserObject, unsigned, unsigned) { return CUDA_SUCCESS; };
    driver.cuGraphReleaseUserObject = [](CUgraph, CUuserObject, unsigned) { return CUDA_SUCCESS; };
    CountUserObjects(driver);
  }
  // A context with a stream that captures a graph.
  void SetUp() override {
    Request(kContext, [&] {
      objects_.Bind(HandleKind::kContext, kContext, kTheContext, out_);
      return CUDA_SUCCESS;
    });
    Request(kContext, [&] {
      objects_.Bind(HandleKind::kStream, kStream, kTheStream, out_);
      return CUDA_SUCCESS;
    });
    TheCaptures().Begin(kTheStream, {kTheGraph, false});
    Request(kContext, [&] {
      EXPECT_EQ(objects_.BindCaptured(kGraph, kTheGraph, out_), kGraph);
      return CUDA_SUCCESS;
    });
  }
  void TearDown() override {
    TheCaptures().Take(kTheStream);
    TheUserObjects().GraphEnds(kTheGraph);
  }

  CUresult Request(WireHandle context, const HandleTable::Call& serve, Op op = Op::cuLaunchKernel) {
    objects_.BeginRequest();
    RecordPrefix header{};
    header.op = static_cast<uint16_t>(op);
    header.context = objects_.Find(HandleKind::kContext, context) != nullptr ? context : 0;
    CUresult result = objects_.Enter(header);
    if (result == CUDA_SUCCESS) result = serve();
    objects_.Leave(result);
    objects_.EndRequest();
    return result;
  }
  CUresult End(HandleKind kind, WireHandle wire, const HandleTable::Call& call) {
    return Request(0, [&] {
      Reader in(std::span<const std::byte>{});
      const void* value = objects_.ToEnd(kind, wire, in);
      return in.ok() ? objects_.End(kind, wire, value, call) : in.error();
    });
  }
  // A request that names one object; `meanwhile` runs where the driver's call would.
  CUresult Use(HandleKind kind, WireHandle wire, const std::function<void()>& meanwhile,
               Op op = Op::cuLaunchKernel) {
    return Request(
        kContext,
        [&] {
          Reader in(std::span<const std::byte>{});
          objects_.ToDriver(kind, wire, in);
          if (!in.ok()) return in.error();
          const CUresult result = objects_.Prepare();
          if (result == CUDA_SUCCESS) meanwhile();
          return result;
        },
        op);
  }
  // That the driver has given the graph's pointer again, to a graph that is no capture's.
  CUresult EndFreshGraph() {
    Request(0, [&] {
      objects_.Bind(HandleKind::kGraph, kFreshGraph, kTheGraph, out_);
      return CUDA_SUCCESS;
    });
    return End(HandleKind::kGraph, kFreshGraph, Succeed);
  }

  Objects objects_;
  std::array<std::byte, 64> space_{};
  Writer out_{space_};
};

TEST_F(ObjectsTest, ACaptureEndsWithItsStream) {
  EXPECT_EQ(End(HandleKind::kStream, kStream, Refuse), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(TheCaptures().GraphOf(kTheStream), kTheGraph) << "it goes on";
  EXPECT_EQ(End(HandleKind::kStream, kStream,
                [] {
                  EXPECT_FALSE(Captures::Any());
                  return CUDA_SUCCESS;
                }),
            CUDA_SUCCESS);
  EXPECT_EQ(EndFreshGraph(), CUDA_SUCCESS);
}

TEST_F(ObjectsTest, ACaptureEndsWithTheContextOfItsStream) {
  EXPECT_EQ(End(HandleKind::kContext, kContext,
                [] {
                  EXPECT_FALSE(Captures::Any());
                  return CUDA_SUCCESS;
                }),
            CUDA_SUCCESS);
  EXPECT_EQ(EndFreshGraph(), CUDA_SUCCESS);
}

TEST_F(ObjectsTest, TheEndOfAContextIsToldWhateverItEndsWith) {
  constexpr WireHandle kGreen = MakeWireHandle(HandleKind::kGreenContext, 1, 5);
  const auto green = reinterpret_cast<void*>(0x60), context = reinterpret_cast<void*>(0x70);
  constexpr WireHandle kOfGreen = MakeWireHandle(HandleKind::kContext, 1, 6);
  Request(0, [&] {
    objects_.Bind(HandleKind::kGreenContext, kGreen, green, out_);
    objects_.BindOrKnownTo({kGreen, green}, HandleKind::kContext, kOfGreen, context, out_);
    return CUDA_SUCCESS;
  });
  std::vector<void*> told;
  objects_.on_context_end = [&](CUcontext ended) { told.push_back(ended); };
  EXPECT_EQ(End(HandleKind::kGreenContext, kGreen, Refuse), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_TRUE(told.empty());
  EXPECT_EQ(End(HandleKind::kGreenContext, kGreen, Succeed), CUDA_SUCCESS);
  EXPECT_EQ(told, std::vector<void*>{context});
}

TEST_F(ObjectsTest, WhatAGraphHoldsCountsAfterItsCapture) {
  constexpr unsigned kMany = 0x3fffffff;
  TheUserObjects().Begin(kTheObject, 1);
  const auto hold = [] { return TheDriver().cuGraphRetainUserObject(kTheGraph, kTheObject, kMany, 0); };
  ASSERT_EQ(hold(), CUDA_SUCCESS);
  ASSERT_EQ(hold(), CUDA_SUCCESS);
  EXPECT_EQ(hold(), CUDA_ERROR_OUT_OF_MEMORY);
  const auto end = [&] { return objects_.EndCapture(kTheStream, kGraph, Succeed); };
  EXPECT_EQ(Request(kContext, end), CUDA_SUCCESS);
  EXPECT_EQ(hold(), CUDA_ERROR_OUT_OF_MEMORY) << "the graph still has all of them";
  EXPECT_EQ(End(HandleKind::kGraph, kGraph, Refuse), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(hold(), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(ObjectsTest, WhatAGraphHeldIsForgottenWithItsContext) {
  TheUserObjects().Begin(kTheObject, 1);
  const auto hold = [] { return TheDriver().cuGraphRetainUserObject(kTheGraph, kTheObject, 1, 0); };
  const auto release = [] { return TheDriver().cuGraphReleaseUserObject(kTheGraph, kTheObject, 1); };
  ASSERT_EQ(hold(), CUDA_SUCCESS);
  ASSERT_EQ(release(), CUDA_SUCCESS);
  ASSERT_EQ(hold(), CUDA_SUCCESS);
  EXPECT_EQ(
      Request(
          0,
          [&] {
            return objects_.EndContents({kContext, objects_.Find(HandleKind::kContext, kContext)}, Succeed);
          }),
      CUDA_SUCCESS);
  EXPECT_EQ(release(), CUDA_ERROR_INVALID_VALUE) << "a graph with the same pointer holds nothing";
}

// Pools that end, and the device's own, which does not.
class PoolsTest : public ObjectsTest {
 protected:
  static void SetUpTestSuite() {
    ObjectsTest::SetUpTestSuite();
    Driver& driver = DriverToFill();
    driver.cuDeviceGetCount = [](int* count) { return *count = 1, CUDA_SUCCESS; };
    driver.cuDeviceGet = [](CUdevice* device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; };
    driver.cuDeviceGetDefaultMemPool = [](CUmemoryPool* pool, CUdevice) {
      return *pool = default_pool, CUDA_SUCCESS;
    };
  }
  void SetUp() override {
    ObjectsTest::SetUp();
    default_pool = reinterpret_cast<CUmemoryPool>(0x41);
    Request(0, [&] {
      objects_.Bind(HandleKind::kMemoryPool, kPool, kThePool, out_);
      return CUDA_SUCCESS;
    });
  }
  // The number of the pool that the driver has named.
  WireHandle NumberOf(CUmemoryPool pool, Op op = Op::cuDeviceGetMemPool) {
    WireHandle wire = 0;
    const auto name = [&] {
      std::array<std::byte, 64> space{};
      Writer out{space};
      wire = objects_.BindOrKnown(HandleKind::kMemoryPool, kFreshPool, pool, out);
      return out.error();
    };
    Request(0, name, op);
    return wire;
  }
  static inline CUmemoryPool default_pool;
};

TEST_F(PoolsTest, AnEndedPoolsPointerMayBecomeTheDriversOwn) {
  EXPECT_EQ(NumberOf(kThePool), kPool);
  EXPECT_EQ(End(HandleKind::kMemoryPool, kPool, Refuse), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(NumberOf(kThePool), kPool);
  EXPECT_EQ(End(HandleKind::kMemoryPool, kPool, Succeed), CUDA_SUCCESS);
  EXPECT_EQ(NumberOf(kThePool, Op::cuDeviceGetDefaultMemPool), kFreshPool);
}

// The driver named it before another thread ended it.
TEST_F(PoolsTest, AnEndedPoolGetsNoOtherNumber) {
  EXPECT_EQ(End(HandleKind::kMemoryPool, kPool, Succeed), CUDA_SUCCESS);
  EXPECT_EQ(NumberOf(kThePool), 0u);
}

TEST_F(PoolsTest, APoolThatIsJustEndingGetsNoOtherNumber) {
  std::thread other;
  std::atomic<bool> begins{false};
  const auto end = [&] {
    other = std::thread([&] {
      begins = true;
      begins.notify_one();
      EXPECT_EQ(NumberOf(kThePool), 0u);
    });
    begins.wait(false);
    GiveWay();
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(End(HandleKind::kMemoryPool, kPool, end), CUDA_SUCCESS);
  other.join();
}

TEST_F(PoolsTest, ADevicesOwnPoolGetsItsNumberWhoeverNamesIt) {
  EXPECT_EQ(NumberOf(default_pool), kFreshPool);
}

// Another thread asks meanwhile for a graph that the driver has just made at the pointer of the one that ended
// with its capture: it gets a number of its own, which the end leaves alone.
TEST_F(ObjectsTest, AGraphMadeWhileACaptureFailsIsAnother) {
  std::thread other;
  std::atomic<WireHandle> number{0};
  const auto fail = [&] {
    EXPECT_FALSE(TheCaptures().Has(kTheGraph));
    other = std::thread([&] {
      Request(0, [&] {
        const Found owner{kStream, kTheStream};
        number.store(objects_.BindOrKnownTo(owner, HandleKind::kGraph, kFreshGraph, kTheGraph, out_));
        return CUDA_SUCCESS;
      });
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(number.load(), 0u) << "it waits";
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  };
  EXPECT_EQ(Request(kContext, [&] { return objects_.EndCapture(kTheStream, kGraph, fail); }),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  other.join();
  EXPECT_EQ(number.load(), kFreshGraph);
  EXPECT_EQ(objects_.Known(HandleKind::kGraph, kTheGraph), kFreshGraph);
  EXPECT_FALSE(Captures::Any());
  EXPECT_EQ(End(HandleKind::kGraph, kFreshGraph, Succeed), CUDA_SUCCESS);
}

TEST_F(ObjectsTest, ACaptureWhoseEndIsRefusedGoesOn) {
  EXPECT_EQ(Request(kContext, [&] { return objects_.EndCapture(kTheStream, kGraph, Refuse); }),
            CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(TheCaptures().GraphOf(kTheStream), kTheGraph);
  EXPECT_EQ(objects_.Known(HandleKind::kGraph, kTheGraph), kGraph);
}

TEST_F(ObjectsTest, WhatMayChangeACapturedGraphIsAskedByOneRequestAtATime) {
  const std::pair<HandleKind, WireHandle> both[] = {{HandleKind::kStream, kStream},
                                                    {HandleKind::kGraph, kGraph}};
  for (const auto& [first_kind, first] : both) {
    for (const auto& [kind, wire] : both) {
      std::atomic<bool> begins{false}, first_is_done{false};
      std::thread other;
      EXPECT_EQ(Use(first_kind, first,
                    [&, other_kind = kind, other_wire = wire] {
                      other = std::thread([&, other_kind, other_wire] {
                        begins = true;
                        begins.notify_one();
                        EXPECT_EQ(Use(other_kind, other_wire, [&] { EXPECT_TRUE(first_is_done); }),
                                  CUDA_SUCCESS);
                      });
                      begins.wait(false);
                      GiveWay();
                      first_is_done = true;
                    }),
                CUDA_SUCCESS);
      other.join();
    }
  }
}

// Each of these would wait for ever where it must not wait at all.
TEST_F(ObjectsTest, WhatWaitsForTheDeviceKeepsNoOtherFromACapture) {
  const auto use_beside = [&](Op op) {
    std::thread([&, op] {
      EXPECT_EQ(Use(
                    HandleKind::kStream, kStream, [] {}, op),
                CUDA_SUCCESS);
    }).join();
  };
  EXPECT_EQ(Use(HandleKind::kStream, kStream, [&] { use_beside(Op::cuStreamSynchronize); }), CUDA_SUCCESS);
  EXPECT_EQ(
      Use(
          HandleKind::kStream, kStream, [&] { use_beside(Op::cuLaunchKernel); }, Op::cuStreamSynchronize),
      CUDA_SUCCESS);
  EXPECT_EQ(Use(HandleKind::kStream, kStream,
                [&] {
                  objects_.Yield();
                  use_beside(Op::cuLaunchKernel);
                }),
            CUDA_SUCCESS);
  TheCaptures().Take(kTheStream);
  EXPECT_EQ(Use(HandleKind::kStream, kStream, [&] { use_beside(Op::cuLaunchKernel); }), CUDA_SUCCESS);
}

TEST_F(ObjectsTest, ACaptureBeginsWhileNoOtherDoes) {
  TheCaptures().Take(kTheStream);
  std::atomic<bool> begins{false}, first_is_done{false};
  std::thread other;
  EXPECT_EQ(Use(
                HandleKind::kStream, kStream,
                [&] {
                  other = std::thread([&] {
                    begins = true;
                    begins.notify_one();
                    EXPECT_EQ(Request(kContext,
                                      [&] {
                                        objects_.NameCapture();
                                        const CUresult result = objects_.Prepare();
                                        EXPECT_TRUE(first_is_done);
                                        return result;
                                      }),
                              CUDA_SUCCESS);
                  });
                  begins.wait(false);
                  GiveWay();
                  first_is_done = true;
                },
                Op::cuStreamBeginCapture_v2),
            CUDA_SUCCESS);
  other.join();
}

// A graph with a node that has a graph of its own, and no capture yet.
class NestedGraphTest : public ObjectsTest {
 protected:
  static constexpr WireHandle kOuter = MakeWireHandle(HandleKind::kGraph, 1, 10);
  static constexpr WireHandle kNode = MakeWireHandle(HandleKind::kGraphNode, 1, 11);
  static constexpr WireHandle kInner = MakeWireHandle(HandleKind::kGraph, 1, 12);
  static inline const auto kTheOuter = reinterpret_cast<CUgraph>(0x80);
  static inline const auto kTheNode = reinterpret_cast<CUgraphNode>(0x90);
  static inline const auto kTheInner = reinterpret_cast<CUgraph>(0xa0);

  void SetUp() override {
    ObjectsTest::SetUp();
    TheCaptures().Take(kTheStream);
    Request(0, [&] {
      objects_.Bind(HandleKind::kGraph, kOuter, kTheOuter, out_);
      objects_.BindOrKnownTo({kOuter, kTheOuter}, HandleKind::kGraphNode, kNode, kTheNode, out_);
      objects_.BindOrKnownTo({kNode, kTheNode}, HandleKind::kGraph, kInner, kTheInner, out_);
      return out_.error();
    });
  }
  CUresult EndTheCapture(CUresult result = CUDA_SUCCESS) {
    return Request(kContext, [&, result] {
      objects_.NameCapture();
      const CUresult prepared = objects_.Prepare();
      const auto call = [result] { return result; };
      return prepared != CUDA_SUCCESS ? prepared : objects_.EndCapture(kTheStream, 0, call);
    });
  }
  // Counts the driver's calls that end something.
  HandleTable::Call Counted() {
    return [this] { return ++ends_, CUDA_SUCCESS; };
  }

  std::atomic<int> ends_{0};
};

TEST_F(NestedGraphTest, AGraphEndsAfterACaptureIntoItThatBeganMeanwhile) {
  const auto begin = [&] {
    std::thread([&] { EXPECT_EQ(End(HandleKind::kGraph, kOuter, Counted()), CUDA_SUCCESS); }).join();
    TheCaptures().Begin(kTheStream, {kTheOuter, true});
  };
  EXPECT_EQ(Use(HandleKind::kGraph, kOuter, begin, Op::cuStreamBeginCaptureToGraph), CUDA_SUCCESS);
  EXPECT_EQ(ends_, 0) << "the stream captures into it";
  EXPECT_EQ(EndTheCapture(), CUDA_SUCCESS);
  EXPECT_EQ(ends_, 1);
}

TEST_F(NestedGraphTest, WhatIsAboveAGraphEndsAfterACaptureIntoIt) {
  const std::pair<HandleKind, WireHandle> above[] = {{HandleKind::kGraphNode, kNode},
                                                     {HandleKind::kGraph, kOuter}};
  for (const auto& [kind, wire] : above) {
    TheCaptures().Begin(kTheStream, {kTheInner, true});
    EXPECT_EQ(End(kind, wire, Counted()), CUDA_SUCCESS);
    EXPECT_EQ(ends_, 0);
    EXPECT_EQ(EndTheCapture(), CUDA_SUCCESS);
    EXPECT_EQ(ends_.exchange(0), 1);
    SetUp();
  }
}

TEST_F(NestedGraphTest, AGraphWaitsForWhatWaitsForACaptureInIt) {
  TheCaptures().Begin(kTheStream, {kTheInner, true});
  EXPECT_EQ(End(HandleKind::kGraphNode, kNode, Counted()), CUDA_SUCCESS);
  EXPECT_EQ(End(HandleKind::kGraph, kOuter, Counted()), CUDA_SUCCESS);
  EXPECT_EQ(ends_, 0);
  EXPECT_EQ(EndTheCapture(), CUDA_SUCCESS);
  EXPECT_EQ(ends_, 2) << "the node, and then its graph";
}

TEST_F(NestedGraphTest, AGraphEndsWhileAnotherIsCapturedInto) {
  const auto other = reinterpret_cast<CUstream>(0xb0);
  TheCaptures().Begin(other, {kTheGraph, true});
  TheCaptures().Begin(kTheStream, {kTheInner, true});
  EXPECT_EQ(End(HandleKind::kGraph, kOuter, Counted()), CUDA_SUCCESS);
  EXPECT_EQ(ends_, 0);
  EXPECT_EQ(EndTheCapture(), CUDA_SUCCESS);
  EXPECT_EQ(ends_, 1) << "the other capture is none of its concern";
  TheCaptures().Take(other);
}

TEST_F(NestedGraphTest, AGraphEndsAfterTheStreamThatCapturesIntoIt) {
  TheCaptures().Begin(kTheStream, {kTheInner, true});
  const auto destroy = [&] {
    std::thread([&] { EXPECT_EQ(End(HandleKind::kGraph, kOuter, Counted()), CUDA_SUCCESS); }).join();
    EXPECT_EQ(ends_, 0) << "the driver is just ending the stream";
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(End(HandleKind::kStream, kStream, destroy), CUDA_SUCCESS);
  EXPECT_FALSE(Captures::Any());
  EXPECT_EQ(ends_, 1);
}

TEST_F(NestedGraphTest, WhatANodeWithoutANumberPointsToIsRemembered) {
  constexpr WireHandle kModule = MakeWireHandle(HandleKind::kModule, 1, 13);
  constexpr WireHandle kFunction = MakeWireHandle(HandleKind::kFunction, 1, 14);
  const auto module = reinterpret_cast<void*>(0xc0), function = reinterpret_cast<void*>(0xd0);
  Request(0, [&] {
    objects_.Bind(HandleKind::kModule, kModule, module, out_);
    objects_.BindOrKnownTo({kModule, module}, HandleKind::kFunction, kFunction, function, out_);
    return out_.error();
  });
  const auto add_node = [&] {
    Reader in(std::span<const std::byte>{});
    objects_.ToDriver(HandleKind::kGraph, kInner, in);
    objects_.ToDriver(HandleKind::kFunction, kFunction, in);
    if (const CUresult result = objects_.Prepare()) return result;
    objects_.Bind(HandleKind::kGraphNode, kNode, reinterpret_cast<void*>(0xe0), out_);
    return out_.error();
  };
  EXPECT_EQ(Request(0, add_node), CUDA_ERROR_INVALID_HANDLE) << "nothing lies in itself";
  EXPECT_EQ(End(HandleKind::kModule, kModule, Counted()), CUDA_SUCCESS);
  EXPECT_EQ(ends_, 0) << "the driver has the node";
  EXPECT_EQ(End(HandleKind::kGraph, kOuter, Succeed), CUDA_SUCCESS);
  EXPECT_EQ(ends_, 1);
}

// A captured graph that ends with its capture after its number has become another graph's.
class LostGraphTest : public ObjectsTest {
 protected:
  static CUresult Hold() { return TheDriver().cuGraphRetainUserObject(kTheGraph, kTheObject, 1, 0); }
  static CUresult Release() { return TheDriver().cuGraphReleaseUserObject(kTheGraph, kTheObject, 1); }
  static CUresult Fail() { return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED; }
  void BindGraph(CUgraph graph) {
    Request(0, [&] {
      objects_.Bind(HandleKind::kGraph, kGraph, graph, out_);
      return out_.error();
    });
  }
  void ExpectThatTheGraphLives() {
    EXPECT_EQ(objects_.Known(HandleKind::kGraph, kTheGraph), kGraph);
    EXPECT_EQ(Release(), CUDA_SUCCESS);
  }
};

TEST_F(LostGraphTest, HoldsNothingAfterItsCapture) {
  TheUserObjects().Begin(kTheObject, 1);
  ASSERT_EQ(Hold(), CUDA_SUCCESS);
  BindGraph(reinterpret_cast<CUgraph>(0x31));
  Request(kContext, [&] { return objects_.EndCapture(kTheStream, 0, Fail); });
  EXPECT_EQ(Release(), CUDA_ERROR_INVALID_VALUE) << "a graph with the same pointer holds nothing";
}

TEST_F(LostGraphTest, IsNotTakenForTheNextOneOfItsPointerAndNumber) {
  TheUserObjects().Begin(kTheObject, 1);
  BindGraph(reinterpret_cast<CUgraph>(0x31));
  Request(kContext, [&] { return objects_.EndCapture(kTheStream, 0, Fail); });
  BindGraph(kTheGraph);
  ASSERT_EQ(Hold(), CUDA_SUCCESS);
  EXPECT_EQ(End(HandleKind::kStream, kStream, Succeed), CUDA_SUCCESS);
  ExpectThatTheGraphLives();
}

TEST_F(LostGraphTest, IsNotTakenForTheNextOneWhereTheEndOfItsStreamWaits) {
  TheUserObjects().Begin(kTheObject, 1);
  const auto end = [&] {
    std::thread([&] { EXPECT_EQ(End(HandleKind::kStream, kStream, Succeed), CUDA_SUCCESS); }).join();
    EXPECT_EQ(objects_.EndCapture(kTheStream, kGraph, Fail), Fail());
    std::thread([&] { BindGraph(kTheGraph); }).join();
    EXPECT_EQ(Hold(), CUDA_SUCCESS);
  };
  Use(HandleKind::kStream, kStream, end);
  EXPECT_EQ(objects_.Known(HandleKind::kStream, kTheStream), 0u);
  ExpectThatTheGraphLives();
}

}  // namespace
}  // namespace causeway::host
