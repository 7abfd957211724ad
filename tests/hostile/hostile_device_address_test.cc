// SPDX-License-Identifier: Apache-2.0
// Addresses of the worker's own memory where a message names device memory. With unified addressing a driver
// takes host addresses there, too: its typed calls only what it knows, its untyped ones anything. So the
// worker uses the typed ones alone (docs/hostile_rows.md), and this test asks each of them with the worker's
// heap and main stack.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ivshmem_ring/messages/code_messages.h"
#include "ivshmem_ring/messages/copy_messages.h"
#include "ivshmem_ring/messages/graph_messages.h"
#include "ivshmem_ring/messages/managed_messages.h"
#include "tests/hostile/hostile_guest.h"

namespace causeway::test {
namespace {

constexpr uint64_t kMib = 1 << 20;
constexpr uint64_t kBytes = 4096;

struct Case {
  std::string name;
  Op op;
  Bytes body;
  Wire wire{};
};

class HostileDeviceAddress : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(guest_.Open()) << guest_.refusal();
    guest_.RetainPrimary();
    guest_.AddArena(guest_.first_slice(), 2 * kMib);
    device_ = guest_.AllocateDevice(kMib);
    ASSERT_TRUE(guest_.Call(Op::cuStreamCreate, Pack(stream_, uint32_t{1})).ok());
    ASSERT_TRUE(guest_.Call(Op::cuGraphCreate, Pack(graph_, uint32_t{0})).ok());
  }

  BoxBody Box(bool to, uint64_t address, bool peer) const {
    BoxBody body{};
    CUDA_MEMCPY3D& box = body.box;
    box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    box.srcDevice = to ? device_ : address;
    box.dstDevice = to ? address : device_;
    box.srcPitch = box.dstPitch = box.WidthInBytes = 64;
    box.srcHeight = box.dstHeight = box.Height = 4;
    box.Depth = 1;
    if (peer) body.source_context = body.destination_context = guest_.primary();
    return body;
  }
  NodeBody Head() {
    NodeBody head{};
    head.verb = NodeVerb::kAdd;
    head.form = NodeForm::kGeneric;
    head.node = MakeWireHandle(HandleKind::kGraphNode, 1, next_node_++);
    head.owner = graph_;
    return head;
  }
  Bytes CopyNode(bool to, uint64_t address) {
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    const WireHandle context = guest_.primary();
    std::memcpy(&params.memcpy.copyCtx, &context, sizeof context);
    params.memcpy.copyParams = Box(to, address, false).box;
    return Pack(Head(), params);
  }
  Bytes SetNode(uint64_t address) {
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_MEMSET;
    const WireHandle context = guest_.primary();
    std::memcpy(&params.memset.ctx, &context, sizeof context);
    params.memset.dst = address;
    params.memset.elementSize = 1;
    params.memset.width = 64;
    params.memset.height = 1;
    return Pack(Head(), params);
  }
  static Bytes HintOf(uint64_t address, WireHandle stream) {
    ManagedHintBody hint{};
    hint.address = address;
    hint.bytes = kBytes;
    hint.location_type = CU_MEM_LOCATION_TYPE_DEVICE;
    hint.advice = CU_MEM_ADVISE_SET_READ_MOSTLY;
    hint.stream = stream;
    return Pack(hint);
  }

  std::vector<Case> CasesAt(uint64_t at) {
    const uint64_t bytes = kBytes, one = 1, none = 0;
    const uint32_t zero = 0;
    const uint8_t value = 0x55;
    const WireHandle context = guest_.primary();
    const Wire bulk{.bulk_offset = guest_.first_slice(), .bulk_bytes = uint32_t(kBytes)};
    const uint64_t pinned = guest_.window() + guest_.first_slice();
    CUstreamBatchMemOpParams operation{};
    operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    operation.writeValue.address = at;
    operation.writeValue.value64 = 0x5555;
    Bytes in_message = Pack(CopyBody{at, 64, stream_, CopyForm::kStreamThenWait, BytesIn::kMessage});
    in_message.resize(in_message.size() + 64);
    return {
        {"kCopyToDevice", Op::kCopyToDevice,
         Pack(CopyBody{at, bytes, 0, CopyForm::kSynchronous, BytesIn::kRequestBuffer}), bulk},
        {"kCopyToDevice, asynchronous", Op::kCopyToDevice,
         Pack(CopyBody{at, bytes, stream_, CopyForm::kStreamThenWait, BytesIn::kRequestBuffer}), bulk},
        {"kCopyToDevice, in the message", Op::kCopyToDevice, in_message},
        {"kCopyToHost", Op::kCopyToHost,
         Pack(CopyBody{at, bytes, 0, CopyForm::kSynchronous, BytesIn::kRequestBuffer}), bulk},
        {"kCopyToHost, asynchronous", Op::kCopyToHost,
         Pack(CopyBody{at, bytes, stream_, CopyForm::kStreamThenWait, BytesIn::kRequestBuffer}), bulk},
        {"kCopyToHost, in the reply", Op::kCopyToHost,
         Pack(CopyBody{at, 64, 0, CopyForm::kSynchronous, BytesIn::kMessage})},
        {"cuMemcpyHtoD_v2", Op::cuMemcpyHtoD_v2, Pack(at, pinned, bytes)},
        {"cuMemcpyDtoH_v2", Op::cuMemcpyDtoH_v2, Pack(at, pinned, bytes)},
        {"cuMemcpyHtoDAsync_v2", Op::cuMemcpyHtoDAsync_v2, Pack(PinnedBody{at, pinned, bytes, stream_, 0})},
        {"cuMemcpyDtoHAsync_v2", Op::cuMemcpyDtoHAsync_v2, Pack(PinnedBody{at, pinned, bytes, stream_, 0})},
        {"cuMemcpyDtoD_v2, to", Op::cuMemcpyDtoD_v2, Pack(at, device_, bytes)},
        {"cuMemcpyDtoD_v2, from", Op::cuMemcpyDtoD_v2, Pack(device_, at, bytes)},
        {"cuMemcpyDtoDAsync_v2, to", Op::cuMemcpyDtoDAsync_v2, Pack(at, device_, bytes, stream_)},
        {"cuMemcpyDtoDAsync_v2, from", Op::cuMemcpyDtoDAsync_v2, Pack(device_, at, bytes, stream_)},
        {"cuMemcpyPeer, to", Op::cuMemcpyPeer, Pack(at, context, device_, context, bytes)},
        {"cuMemcpyPeer, from", Op::cuMemcpyPeer, Pack(device_, context, at, context, bytes)},
        {"cuMemcpyPeerAsync", Op::cuMemcpyPeerAsync, Pack(at, context, device_, context, bytes, stream_)},
        {"cuMemcpy3D_v2, to", Op::cuMemcpy3D_v2, Pack(Box(true, at, false))},
        {"cuMemcpy3D_v2, from", Op::cuMemcpy3D_v2, Pack(Box(false, at, false))},
        {"cuMemcpy3DPeer", Op::cuMemcpy3D_v2, Pack(Box(true, at, true))},
        {"cuMemsetD8_v2", Op::cuMemsetD8_v2, Pack(at, value, bytes)},
        {"cuMemsetD32_v2", Op::cuMemsetD32_v2, Pack(at, zero, one)},
        {"cuMemsetD8Async", Op::cuMemsetD8Async, Pack(at, value, bytes, stream_)},
        {"cuMemsetD2D8_v2", Op::cuMemsetD2D8_v2, Pack(at, bytes, value, one, one)},
        {"cuStreamWriteValue32_v2", Op::cuStreamWriteValue32_v2, Pack(stream_, at, zero, zero)},
        {"cuStreamWriteValue64_v2", Op::cuStreamWriteValue64_v2, Pack(stream_, at, none, zero)},
        {"cuStreamWaitValue32_v2", Op::cuStreamWaitValue32_v2, Pack(stream_, at, zero, zero)},
        {"cuStreamBatchMemOp_v2", Op::cuStreamBatchMemOp_v2,
         Pack(stream_, uint32_t{1}, one, operation, zero)},
        {"cuMemPrefetchAsync_v2", Op::cuMemPrefetchAsync_v2, HintOf(at, stream_)},
        {"cuMemAdvise_v2", Op::cuMemAdvise_v2, HintOf(at, 0)},
        {"cuStreamAttachMemAsync", Op::cuStreamAttachMemAsync, Pack(stream_, at, none, uint32_t{1})},
        {"cuMemFree_v2", Op::cuMemFree_v2, Pack(at)},
        {"cuMemFreeAsync", Op::cuMemFreeAsync, Pack(at, stream_)},
        {"cuMemUnmap", Op::cuMemUnmap, Pack(at, bytes)},
        {"cuMemAddressFree", Op::cuMemAddressFree, Pack(at, bytes)},
        {"cuIpcCloseMemHandle", Op::cuIpcCloseMemHandle, Pack(at)},
        {"memcpy node, to", Op::cuGraphAddNode_v2, CopyNode(true, at)},
        {"memcpy node, from", Op::cuGraphAddNode_v2, CopyNode(false, at)},
        {"memset node", Op::cuGraphAddNode_v2, SetNode(at)},
    };
  }

  HostileDaemon daemon_;
  HostileGuest guest_{daemon_};
  uint64_t device_ = 0;
  uint32_t next_node_ = 100;
  const WireHandle stream_ = MakeWireHandle(HandleKind::kStream, 1, 30);
  const WireHandle graph_ = MakeWireHandle(HandleKind::kGraph, 1, 31);
};

TEST_F(HostileDeviceAddress, EveryRowRefusesTheWorkersMemory) {
  for (const Mapping& each : guest_.worker().Maps()) {
    if (each.name != "[heap]" && each.name != "[stack]") continue;
    // Pages that nobody uses now: a row that did write there would be seen, not felt.
    const uint64_t at = each.name == "[heap]" ? each.end - 2 * kBytes : each.begin;
    const std::string before = guest_.worker().Read(at, kBytes);
    for (const Case& row : CasesAt(at)) {
      const Answer answer = guest_.Call(row.op, row.body, row.wire);
      EXPECT_NE(answer.result, CUDA_SUCCESS) << row.name << " took " << each.name;
      EXPECT_FALSE(answer.lost) << row.name << " with " << each.name;
      guest_.Call(Op::cuCtxSynchronize, {});
      EXPECT_EQ(guest_.worker().Read(at, kBytes), before) << row.name << " wrote into " << each.name;
      if (answer.lost) break;
    }
  }
  EXPECT_EQ(guest_.HowItEnded(), "");
}

// A pageable copy on a stream that is being captured: the graph that comes of it reads the guest's bytes or
// none.
TEST_F(HostileDeviceAddress, CapturedCopiesReadNothingOfTheWorkers) {
  for (const bool tcp : {false, true}) {
    SCOPED_TRACE(tcp ? "TCP" : "shared memory");
    HostileDaemon daemon({.tcp = true});
    HostileGuest guest(daemon);
    ASSERT_TRUE(tcp ? guest.OpenTcp() : guest.Open());
    guest.RetainPrimary();
    if (!tcp) guest.AddArena(guest.first_slice(), 2 * kMib);
    const uint64_t device = guest.AllocateDevice(kMib);
    ASSERT_TRUE(guest.Call(Op::cuMemsetD8_v2, Pack(device, uint8_t{0x41}, kMib)).ok());
    ASSERT_TRUE(guest.Call(Op::cuStreamCreate, Pack(stream_, uint32_t{1})).ok());
    ASSERT_TRUE(
        guest.Call(Op::cuStreamBeginCapture_v2, Pack(stream_, uint32_t{CU_STREAM_CAPTURE_MODE_RELAXED}))
            .ok());
    // In messages of both links, and in a bulk buffer.
    for (uint32_t i = 0; i < 4; ++i) {
      Bytes body =
          Pack(CopyBody{device + i * 4096, 2048, stream_, CopyForm::kAsynchronous, BytesIn::kMessage});
      body.resize(body.size() + 2048, std::byte{0x60});
      i % 2 == 0 ? guest.Post(Op::kCopyToDevice, body) : void(guest.Call(Op::kCopyToDevice, body));
    }
    std::memset(tcp ? guest.TcpBuffer(0) : guest.base() + guest.first_slice(), 0x61, 65536);
    const Wire bulk{.bulk_offset = tcp ? 0 : guest.first_slice(), .bulk_bytes = 65536, .flags = kBulkToHost};
    guest.Call(
        Op::kCopyToDevice,
        Pack(CopyBody{device + 32768, 65536, stream_, CopyForm::kAsynchronous, BytesIn::kRequestBuffer}),
        bulk);
    const Answer ended = guest.Call(Op::cuStreamEndCapture, Pack(stream_, graph_, uint64_t{0}),
                                    {.main_sequence = guest.posted()});
    if (!ended.ok()) continue;  // refused: the better way
    // What lay in the worker's buffers gives way to other messages.
    for (uint32_t i = 0; i < 64; ++i) {
      Bytes body = Pack(CopyBody{device + 512 * 1024, 2048, 0, CopyForm::kSynchronous, BytesIn::kMessage});
      body.resize(body.size() + 2048, std::byte{0x60});
      guest.Call(Op::kCopyToDevice, body);
    }
    InstantiateBody instantiate{};
    instantiate.exec = MakeWireHandle(HandleKind::kGraphExec, 1, 33);
    instantiate.graph = graph_;
    instantiate.form = InstantiateForm::kWithFlags;
    if (!guest.Call(Op::cuGraphInstantiateWithParams, Pack(instantiate)).ok()) continue;
    guest.Call(Op::cuGraphLaunch, Pack(instantiate.exec, uint64_t{0}));
    guest.Call(Op::cuCtxSynchronize, {});
    for (uint64_t at = 0; at < 98304; at += 2048) {
      const Answer got = guest.Call(
          Op::kCopyToHost, Pack(CopyBody{device + at, 2048, 0, CopyForm::kSynchronous, BytesIn::kMessage}));
      ASSERT_TRUE(got.ok());
      for (const std::byte byte : got.body)
        ASSERT_TRUE(byte == std::byte{0x41} || byte == std::byte{0x60} || byte == std::byte{0x61}) << at;
    }
    guest.ExpectNoCrash();
  }
}

// A pageable copy to the host on a stream that is being captured keeps its destination in the graph, which
// writes there at each launch: no buffer that another request moves or frees may be given to it.
TEST_F(HostileDeviceAddress, CapturedCopiesToTheHostWriteNothingOfTheWorkers) {
  const Answer large = guest_.Call(
      Op::kCopyToHost, Pack(CopyBody{device_, 2048, stream_, CopyForm::kAsynchronous, BytesIn::kMessage}),
      {.bulk_offset = guest_.first_slice(), .bulk_bytes = 65536, .flags = kLargeReply | kBulkToGuest});
  EXPECT_EQ(large.result, CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(large.lost);
  ASSERT_TRUE(
      guest_.Call(Op::cuStreamBeginCapture_v2, Pack(stream_, uint32_t{CU_STREAM_CAPTURE_MODE_RELAXED})).ok());
  for (const uint32_t bytes : {256u, 2048u, 8192u}) {
    for (const bool is_large : {false, true}) {
      const Wire wire = is_large ? Wire{.bulk_offset = guest_.first_slice(),
                                        .bulk_bytes = 16 * bytes,
                                        .flags = kLargeReply | kBulkToGuest}
                                 : Wire{};
      guest_.Call(Op::kCopyToHost,
                  Pack(CopyBody{device_, bytes, stream_, CopyForm::kStreamThenWait, BytesIn::kMessage}),
                  wire);
    }
  }
  // Larger replies, by which a buffer that grows would move.
  ListBody list{};
  list.subject = MakeWireHandle(HandleKind::kGraph, 1, 34);
  ASSERT_TRUE(guest_.Call(Op::cuGraphCreate, Pack(list.subject, uint32_t{0})).ok());
  for (const uint32_t room : {65536u, 262144u, 1048576u}) {
    const Answer nodes = guest_.Call(
        Op::cuGraphGetNodes, Pack(list),
        {.bulk_offset = guest_.first_slice(), .bulk_bytes = room, .flags = kLargeReply | kBulkToGuest});
    EXPECT_TRUE(nodes.ok()) << nodes.result;
  }
  if (guest_
          .Call(Op::cuStreamEndCapture, Pack(stream_, MakeWireHandle(HandleKind::kGraph, 1, 35), uint64_t{0}))
          .ok()) {
    InstantiateBody instantiate{};
    instantiate.exec = MakeWireHandle(HandleKind::kGraphExec, 1, 36);
    instantiate.graph = MakeWireHandle(HandleKind::kGraph, 1, 35);
    instantiate.form = InstantiateForm::kWithFlags;
    if (guest_.Call(Op::cuGraphInstantiateWithParams, Pack(instantiate)).ok()) {
      for (int i = 0; i < 8; ++i) guest_.Call(Op::cuGraphLaunch, Pack(instantiate.exec, uint64_t{0}));
      guest_.Call(Op::cuCtxSynchronize, {});
    }
  }
  guest_.ExpectNoCrash();
}

}  // namespace
}  // namespace causeway::test
