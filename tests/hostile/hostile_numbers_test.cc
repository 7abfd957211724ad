// SPDX-License-Identifier: Apache-2.0
// A guest chooses the numbers of its objects. One that names a new object by a number of another kind, or by one that no object can
// have, gets an error before the driver is asked; what had that number stays what it was.
#include <gtest/gtest.h>

#include "ivshmem_ring/messages/callback_messages.h"
#include "ivshmem_ring/messages/code_messages.h"
#include "ivshmem_ring/messages/graph_messages.h"
#include "ivshmem_ring/protocol/operation.h"
#include "tests/hostile/hostile_guest.h"

namespace causeway::test {
namespace {

constexpr uint32_t kRefused = CUDA_ERROR_INVALID_VALUE;
constexpr char kPtx[] = ".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry f() { ret; }\n";

constexpr WireHandle Number(HandleKind kind, uint32_t index = 1) {
  return MakeWireHandle(kind, 1, 100 * static_cast<uint32_t>(kind) + index);
}
constexpr WireHandle kLink = Number(HandleKind::kLink), kLibrary = Number(HandleKind::kLibrary),
                     kGraph = Number(HandleKind::kGraph), kChild = Number(HandleKind::kGraph, 2),
                     kNode = Number(HandleKind::kGraphNode), kStream = Number(HandleKind::kStream),
                     kObject = Number(HandleKind::kUserObject);

class HostileNumbers : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(guest_.Open()) << guest_.refusal();
    guest_.RetainPrimary();
    guest_.AddArena(guest_.first_slice(), 2 << 20);
  }
  void TearDown() override {
    guest_.ExpectNoCrash();
    EXPECT_TRUE(guest_.Lives());
  }
  uint32_t Ask(Op op, const Bytes& body) { return guest_.Call(op, body).result; }
  uint32_t AskWith(Op op, const Bytes& body, const Bytes& blob) {
    std::memcpy(guest_.base() + guest_.first_slice(), blob.data(), blob.size());
    return guest_.Call(op, body, {.bulk_offset = guest_.first_slice(), .bulk_bytes = uint32_t(blob.size())})
        .result;
  }
  uint32_t Load(Op op, WireHandle number) {
    Bytes blob = Pack(ImageHeader{kImageMagic, 1}, uint64_t{sizeof kPtx});
    blob.resize(ImageAligned(blob.size()));
    const auto* text = reinterpret_cast<const std::byte*>(kPtx);
    blob.insert(blob.end(), text, text + sizeof kPtx);
    LoadBody body{};
    body.handle = number;
    return AskWith(op, Pack(body), blob);
  }
  uint32_t Link(Op op) {
    LinkBody body{};
    body.link = kLink;
    return AskWith(op, Pack(body), {});
  }
  uint32_t AddChild(WireHandle node, CUgraphChildGraphNodeOwnership ownership,
                    NodeVerb verb = NodeVerb::kAdd) {
    NodeBody body{};
    body.verb = verb;
    body.form = NodeForm::kGeneric;
    body.node = node;
    body.owner = verb == NodeVerb::kAdd ? kGraph : 0;
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_GRAPH;
    std::memcpy(&params.graph.graph, &kChild, sizeof kChild);
    params.graph.ownership = ownership;
    return Ask(Op::cuGraphAddNode_v2, Pack(body, params));
  }

  HostileDaemon daemon_;
  HostileGuest guest_{daemon_};
};

TEST_F(HostileNumbers, ALibraryIsNoLink) {
  ASSERT_EQ(Link(Op::cuLinkCreate_v2), 0u);
  EXPECT_EQ(Load(Op::cuLibraryLoadData, kLink), kRefused);
  EXPECT_EQ(Load(Op::cuModuleLoadDataEx, kLink), kRefused);
  ASSERT_EQ(Load(Op::cuLibraryLoadData, kLibrary), 0u);
  // The link is still one, with what it was made with.
  Link(Op::cuLinkComplete);
  EXPECT_EQ(Link(Op::cuLinkDestroy), 0u);
  EXPECT_EQ(Ask(Op::cuLibraryUnload, Pack(kLibrary)), 0u);
}

TEST_F(HostileNumbers, AUserObjectTakesNoOthersNumber) {
  ASSERT_EQ(Ask(Op::cuGraphCreate, Pack(kGraph, uint32_t{0})), 0u);
  constexpr uint64_t kDestructor = 7;
  const auto make = [&](WireHandle number) {
    return Ask(Op::cuUserObjectCreate,
               Pack(UserObjectBody{number, kDestructor, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC}));
  };
  EXPECT_EQ(make(kGraph), kRefused);
  ASSERT_EQ(make(kObject), 0u);
  EXPECT_EQ(Ask(Op::cuUserObjectRelease, Pack(kObject, uint32_t{1})), 0u);
  // Its destructor is due; with that number ends the object alone.
  guest_.OpenChannel(kCallbackChannel);
  guest_.Call(Op::kAwaitCallback, Pack(AwaitCallbackBody{0, 5'000, 0}), {.channel = kCallbackChannel});
  EXPECT_EQ(Ask(Op::cuUserObjectRetain, Pack(kObject, uint32_t{1})), uint32_t(CUDA_ERROR_INVALID_HANDLE));
  EXPECT_EQ(Ask(Op::cuGraphDestroy, Pack(kGraph)), 0u);
}

TEST_F(HostileNumbers, AGraphIsMovedIntoANodeThatCanBeNamed) {
  for (const WireHandle graph : {kGraph, kChild})
    ASSERT_EQ(Ask(Op::cuGraphCreate, Pack(graph, uint32_t{0})), 0u);
  for (const WireHandle node :
       {WireHandle{0}, kStream, kGraph, MakeWireHandle(HandleKind::kGraphNode, 1, kMaxHandles)})
    EXPECT_EQ(AddChild(node, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE), kRefused) << node;
  ASSERT_EQ(AddChild(kNode, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE), 0u);
  EXPECT_EQ(AddChild(kNode, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE, NodeVerb::kSet), kRefused);
  // It was moved nowhere.
  EXPECT_EQ(Ask(Op::cuGraphDestroy, Pack(kChild)), 0u);
  EXPECT_EQ(Ask(Op::cuGraphDestroy, Pack(kGraph)), 0u);
}

TEST_F(HostileNumbers, EachRowThatMakesSomethingAsksForItsKind) {
  for (const WireHandle number :
       {WireHandle{0}, kGraph, kLibrary, MakeWireHandle(HandleKind::kStream, 1, kMaxHandles),
        MakeWireHandle(HandleKind::kCount, 1, 1), ~WireHandle{0}}) {
    EXPECT_EQ(Ask(Op::cuStreamCreate, Pack(number, uint32_t{1})), kRefused) << number;
    EXPECT_EQ(Ask(Op::cuMemCreate, Pack(number, uint64_t{2 << 20}, CUmemAllocationProp{}, uint64_t{0})),
              kRefused)
        << number;
  }
  EXPECT_EQ(Ask(Op::cuStreamCreate, Pack(kStream, uint32_t{1})), 0u);
}

}  // namespace
}  // namespace causeway::test
