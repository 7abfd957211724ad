// SPDX-License-Identifier: Apache-2.0
// What the worker knows of an object by its pointer goes before the driver ends it: the driver may give the
// pointer to a new one before another thread, or this one, has been told of the end.
#include <atomic>
#include <thread>

#include "tests/unit/objects_fixture.h"

namespace causeway::host {
namespace {

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
  const auto end = [&] { return objects_.EndCapture(kTheStream, Succeed); };
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
  EXPECT_EQ(Request(kContext, [&] { return objects_.EndCapture(kTheStream, fail); }),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  other.join();
  EXPECT_EQ(number.load(), kFreshGraph);
  EXPECT_EQ(objects_.Known(HandleKind::kGraph, kTheGraph), kFreshGraph);
  EXPECT_FALSE(Captures::Any());
  EXPECT_EQ(End(HandleKind::kGraph, kFreshGraph, Succeed), CUDA_SUCCESS);
}

TEST_F(ObjectsTest, ACaptureWhoseEndIsRefusedGoesOn) {
  EXPECT_EQ(Request(kContext, [&] { return objects_.EndCapture(kTheStream, Refuse); }),
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

}  // namespace
}  // namespace causeway::host
