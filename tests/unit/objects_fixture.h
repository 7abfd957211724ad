// SPDX-License-Identifier: Apache-2.0
// A context with a stream that captures, in the objects of a session without a driver: the calls that these tests make of one are here.
#pragma once
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <utility>

#include "host_backend/worker/driver/capture.h"
#include "host_backend/worker/driver/user_objects.h"
#include "host_backend/worker/objects/objects.h"
#include "tests/yield_until.h"

namespace causeway::host {

inline constexpr WireHandle kContext = MakeWireHandle(HandleKind::kContext, 1, 1);
inline constexpr WireHandle kStream = MakeWireHandle(HandleKind::kStream, 1, 2);
inline constexpr WireHandle kGraph = MakeWireHandle(HandleKind::kGraph, 1, 3);
inline constexpr WireHandle kFreshGraph = MakeWireHandle(HandleKind::kGraph, 2, 3);
inline constexpr WireHandle kPool = MakeWireHandle(HandleKind::kMemoryPool, 1, 4);
inline constexpr WireHandle kFreshPool = MakeWireHandle(HandleKind::kMemoryPool, 2, 4);
inline const auto kTheContext = reinterpret_cast<CUcontext>(0x10);
inline const auto kTheStream = reinterpret_cast<CUstream>(0x20);
inline const auto kTheGraph = reinterpret_cast<CUgraph>(0x30);
inline const auto kThePool = reinterpret_cast<CUmemoryPool>(0x40);
inline const auto kTheObject = reinterpret_cast<CUuserObject>(0x50);

inline CUresult Succeed() {
  return CUDA_SUCCESS;
}
inline CUresult Refuse() {
  return CUDA_ERROR_NOT_PERMITTED;
}

// Others run meanwhile; a thread that nothing holds gets far in so many turns.
inline void GiveWay() {
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
    driver.cuStreamBeginCapture_v2 = [](CUstream, CUstreamCaptureMode) {
      if (during_begin) during_begin();
      return begin_result;
    };
    driver.cuStreamGetCaptureInfo_v2 = [](CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph* graph,
                                          const CUgraphNode**,
                                          size_t*) { return *graph = kTheGraph, CUDA_SUCCESS; };
    WatchCaptures(driver);
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
    during_begin = nullptr;
    begin_result = CUDA_SUCCESS;
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

  // Of the driver's call that begins a capture.
  static inline std::function<void()> during_begin;
  static inline CUresult begin_result = CUDA_SUCCESS;

  Objects objects_;
  std::array<std::byte, 64> space_{};
  Writer out_{space_};
};

}  // namespace causeway::host
