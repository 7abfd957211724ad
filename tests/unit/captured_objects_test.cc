// SPDX-License-Identifier: Apache-2.0
// Captures into graphs that were there before, what captured graphs remember, and captured graphs that end with their captures.
#include <atomic>
#include <thread>

#include "tests/unit/objects_fixture.h"

namespace causeway::host {
namespace {

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
  // A module with a function, and a request that launches that: `meanwhile` runs where the driver's call would.
  static constexpr WireHandle kModule = MakeWireHandle(HandleKind::kModule, 1, 13);
  static constexpr WireHandle kFunction = MakeWireHandle(HandleKind::kFunction, 1, 14);
  void BindFunction() {
    const auto module = reinterpret_cast<void*>(0xc0), function = reinterpret_cast<void*>(0xd0);
    Request(0, [&] {
      objects_.Bind(HandleKind::kModule, kModule, module, out_);
      objects_.BindOrKnownTo({kModule, module}, HandleKind::kFunction, kFunction, function, out_);
      return out_.error();
    });
  }
  void Launch(const std::function<void()>& meanwhile) {
    EXPECT_EQ(Use(HandleKind::kFunction, kFunction, meanwhile), CUDA_SUCCESS);
  }
  // As the request that ends a capture whose graph the driver has made.
  void EndTheCaptureOf(CUgraph graph) {
    EXPECT_EQ(Request(kContext,
                      [&] {
                        objects_.NameCapture();
                        CUresult result = objects_.Prepare();
                        if (result == CUDA_SUCCESS) result = objects_.EndCapture(kTheStream, Succeed);
                        objects_.ReleaseCaptured(kGraph, graph, out_);
                        return result;
                      }),
              CUDA_SUCCESS);
  }
  void ExpectThatTheModuleEndsAfter(WireHandle graph) {
    EXPECT_EQ(End(HandleKind::kModule, kModule, Counted()), CUDA_SUCCESS);
    EXPECT_EQ(ends_, 0) << "the graph has a node of the function";
    EXPECT_EQ(End(HandleKind::kGraph, graph, Succeed), CUDA_SUCCESS);
    EXPECT_EQ(ends_, 1);
  }
  CUresult EndTheCapture(CUresult result = CUDA_SUCCESS) {
    return Request(kContext, [&, result] {
      objects_.NameCapture();
      const CUresult prepared = objects_.Prepare();
      const auto call = [result] { return result; };
      return prepared != CUDA_SUCCESS ? prepared : objects_.EndCapture(kTheStream, call);
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
  BindFunction();
  const auto add_node = [&] {
    Reader in(std::span<const std::byte>{});
    objects_.ToDriver(HandleKind::kGraph, kInner, in);
    objects_.ToDriver(HandleKind::kFunction, kFunction, in);
    if (const CUresult result = objects_.Prepare()) return result;
    objects_.Bind(HandleKind::kGraphNode, kNode, reinterpret_cast<void*>(0xe0), out_);
    return out_.error();
  };
  EXPECT_EQ(Request(0, add_node), CUDA_ERROR_INVALID_HANDLE) << "nothing lies in itself";
  ExpectThatTheModuleEndsAfter(kOuter);
}

// Each of these launches was captured, as far as the driver can tell.
TEST_F(NestedGraphTest, ALaunchThatOutlastsACaptureIsRemembered) {
  BindFunction();
  Launch([&] {
    TheCaptures().Begin(kTheStream, {kTheGraph, false});
    std::thread([&] { EndTheCaptureOf(kTheGraph); }).join();
  });
  ExpectThatTheModuleEndsAfter(kGraph);
}

TEST_F(NestedGraphTest, ALaunchThatIsOverBeforeACaptureIsKnownIsRemembered) {
  BindFunction();
  during_begin = [&] { std::thread([&] { Launch([] {}); }).join(); };
  const auto begin = [] {
    EXPECT_EQ(TheDriver().cuStreamBeginCapture_v2(kTheStream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  };
  EXPECT_EQ(Use(HandleKind::kStream, kStream, begin, Op::cuStreamBeginCapture_v2), CUDA_SUCCESS);
  EndTheCaptureOf(kTheGraph);
  ExpectThatTheModuleEndsAfter(kGraph);
}

TEST_F(NestedGraphTest, WhatIsLaunchedWhileNoCaptureCanBeginIsForgotten) {
  BindFunction();
  during_begin = [&] { std::thread([&] { Launch([] {}); }).join(); };
  begin_result = CUDA_ERROR_ILLEGAL_STATE;
  const auto begin = [&] {
    Reader in(std::span<const std::byte>{});
    objects_.ToDriver(HandleKind::kStream, kStream, in);
    const CUresult result = objects_.Prepare();
    return result != CUDA_SUCCESS
               ? result
               : TheDriver().cuStreamBeginCapture_v2(kTheStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  };
  EXPECT_EQ(Request(kContext, begin, Op::cuStreamBeginCapture_v2), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_FALSE(Captures::Any());
  EXPECT_EQ(End(HandleKind::kModule, kModule, Counted()), CUDA_SUCCESS);
  EXPECT_EQ(ends_, 1);
}

TEST_F(NestedGraphTest, AGraphThatOutlastsItsCaptureRemembersIt) {
  const std::function<void()> ends[] = {
      [&] { EXPECT_NE(EndTheCapture(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED), CUDA_SUCCESS); },
      [&] { EXPECT_EQ(End(HandleKind::kStream, kStream, Succeed), CUDA_SUCCESS); }};
  for (const auto& end : ends) {
    BindFunction();
    TheCaptures().Begin(kTheStream, {kTheInner, true});
    Launch([] {});
    end();
    EXPECT_FALSE(Captures::Any());
    ExpectThatTheModuleEndsAfter(kOuter);
    ends_ = 0;
    SetUp();
  }
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
  Request(kContext, [&] { return objects_.EndCapture(kTheStream, Fail); });
  EXPECT_EQ(Release(), CUDA_ERROR_INVALID_VALUE) << "a graph with the same pointer holds nothing";
}

// The request that ends the capture need not have seen the number: another one may have given it while this one waited for its turn.
TEST_F(LostGraphTest, TakesTheNumberAlongThatItWasGivenMeanwhile) {
  ASSERT_EQ(objects_.Known(HandleKind::kGraph, kTheGraph), kGraph);
  Request(kContext, [&] { return objects_.EndCapture(kTheStream, Fail); });
  EXPECT_EQ(objects_.Known(HandleKind::kGraph, kTheGraph), 0u);
  EXPECT_EQ(objects_.Find(HandleKind::kGraph, kGraph), nullptr);
}

TEST_F(LostGraphTest, IsNotTakenForTheNextOneOfItsPointerAndNumber) {
  TheUserObjects().Begin(kTheObject, 1);
  BindGraph(reinterpret_cast<CUgraph>(0x31));
  Request(kContext, [&] { return objects_.EndCapture(kTheStream, Fail); });
  BindGraph(kTheGraph);
  ASSERT_EQ(Hold(), CUDA_SUCCESS);
  EXPECT_EQ(End(HandleKind::kStream, kStream, Succeed), CUDA_SUCCESS);
  ExpectThatTheGraphLives();
}

TEST_F(LostGraphTest, IsNotTakenForTheNextOneWhereTheEndOfItsStreamWaits) {
  TheUserObjects().Begin(kTheObject, 1);
  const auto end = [&] {
    std::thread([&] { EXPECT_EQ(End(HandleKind::kStream, kStream, Succeed), CUDA_SUCCESS); }).join();
    EXPECT_EQ(objects_.EndCapture(kTheStream, Fail), Fail());
    std::thread([&] { BindGraph(kTheGraph); }).join();
    EXPECT_EQ(Hold(), CUDA_SUCCESS);
  };
  Use(HandleKind::kStream, kStream, end);
  EXPECT_EQ(objects_.Known(HandleKind::kStream, kTheStream), 0u);
  ExpectThatTheGraphLives();
}

}  // namespace
}  // namespace causeway::host
