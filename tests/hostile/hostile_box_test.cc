// SPDX-License-Identifier: Apache-2.0
// Copies of boxes whose numbers mean more to the copy than to a careless check: a pitch or height of 0, rows
// that overlap, sums that overflow, sides of no known kind; in requests with a bulk buffer, in pinned memory
// and in graphs.
#include <gtest/gtest.h>

#include <algorithm>

#include "ivshmem_ring/messages/code_messages.h"
#include "ivshmem_ring/messages/graph_messages.h"
#include "tests/hostile/hostile_guest.h"
#include "tests/hostile/settled.h"

namespace causeway::test {
namespace {

constexpr uint64_t kMib = 1 << 20;

// The numbers of the host side; the device side is as wide and high as the box.
struct HostSide {
  size_t width = 4096, height = 272, depth = 1;
  size_t pitch = 0, rows = 0;
  size_t x = 0, y = 0, z = 0;
};

CUDA_MEMCPY3D Box(bool to_host, CUdeviceptr device, const HostSide& side, uint64_t host = 0) {
  CUDA_MEMCPY3D box{};
  box.srcMemoryType = to_host ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  box.dstMemoryType = to_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  box.WidthInBytes = side.width;
  box.Height = side.height;
  box.Depth = side.depth;
  if (to_host) {
    box.srcDevice = device;
    box.srcPitch = side.width;
    box.srcHeight = side.height;
    box.dstHost = reinterpret_cast<void*>(host);
    box.dstPitch = side.pitch;
    box.dstHeight = side.rows;
    box.dstXInBytes = side.x;
    box.dstY = side.y;
    box.dstZ = side.z;
  } else {
    box.dstDevice = device;
    box.dstPitch = side.width;
    box.dstHeight = side.height;
    box.srcHost = reinterpret_cast<const void*>(host);
    box.srcPitch = side.pitch;
    box.srcHeight = side.rows;
    box.srcXInBytes = side.x;
    box.srcY = side.y;
    box.srcZ = side.z;
  }
  return box;
}

BoxBody Message(const CUDA_MEMCPY3D& box, PackedSide packed_side, CopyForm form = CopyForm::kSynchronous) {
  BoxBody body{};
  body.box = box;
  body.packed_side = packed_side;
  body.form = form;
  return body;
}

class HostileBox : public ::testing::Test {
 protected:
  static constexpr uint64_t kDeviceBytes = 4 * kMib;
  void OpenShared() {
    ASSERT_TRUE(guest_.Open()) << guest_.refusal();
    Prepare();
    guest_.AddArena(guest_.first_slice(), 2 * kMib);
  }
  void OpenTcp() {
    ASSERT_TRUE(guest_.OpenTcp()) << guest_.refusal();
    Prepare();
  }
  void Prepare() {
    guest_.RetainPrimary();
    device_ = guest_.AllocateDevice(kDeviceBytes);
    ASSERT_TRUE(guest_.Call(Op::cuMemsetD8_v2, Pack(device_, uint8_t{0x41}, kDeviceBytes)).ok());
  }
  Wire Bulk(bool to_host, uint32_t bytes) {
    const uint64_t end =
        guest_.first_slice() + 2 * kMib;  // of the arena: what lies behind is not the guest's
    return {.bulk_offset = guest_.transport().shares_memory() ? end - bytes : 0,
            .bulk_bytes = bytes,
            .flags = uint16_t(to_host ? kBulkToGuest : kBulkToHost)};
  }

  HostileDaemon daemon_{{.tcp = true}};
  HostileGuest guest_{daemon_};
  uint64_t device_ = 0;
};

const HostSide kTooLarge[] = {
    {},                                    // 272 rows of 4096, of which one is lent
    {.height = 2048},                      //
    {.height = 1, .depth = 272},           // slices
    {.depth = 2, .pitch = 4096},           // a height of 0
    {.pitch = 1},                          // rows that begin before the one above ends
    {.height = 2, .depth = 2, .rows = 1},  // slices that do
    {.width = 64, .height = 1, .x = 4096},
    {.width = 64, .height = 1, .y = 1 << 20},
    {.width = 64, .height = 1, .z = 1 << 20},
    {.width = 64, .height = 1, .pitch = size_t{1} << 40, .y = size_t{1} << 40},
    {.width = 64, .height = 1, .pitch = ~size_t{0}, .y = 2},
    {.width = 64, .height = 2, .pitch = ~size_t{0} - 63},
    {.width = 64, .height = size_t{1} << 60, .pitch = 16},
    {.width = ~size_t{0}, .height = 1},
    {.width = 64, .height = 1, .x = ~size_t{0} - 63},
};

// Over TCP the bulk buffer is the worker's own memory.
TEST_F(HostileBox, ReadsNoMoreThanWasLentOverTcp) {
  OpenTcp();
  for (const CopyForm form : {CopyForm::kSynchronous, CopyForm::kAsynchronous, CopyForm::kStreamThenWait}) {
    for (const HostSide& side : kTooLarge) {
      std::memset(guest_.TcpBuffer(0), 0x60, kMib);
      const BoxBody body = Message(Box(false, device_, side), PackedSide::kSource, form);
      const Answer answer = guest_.Call(Op::cuMemcpy3D_v2, Pack(body), Bulk(false, 4096));
      EXPECT_EQ(answer.result, CUDA_ERROR_INVALID_VALUE)
          << &side - kTooLarge << " " << static_cast<uint32_t>(form);
    }
  }
  // What did arrive is the guest's own.
  for (uint64_t at = 0; at < kDeviceBytes; at += 2048) {
    const Answer got = guest_.Call(
        Op::kCopyToHost, Pack(CopyBody{device_ + at, 2048, 0, CopyForm::kSynchronous, BytesIn::kMessage}));
    ASSERT_TRUE(got.ok());
    ASSERT_TRUE(std::all_of(got.body.begin(), got.body.end(), [](std::byte b) {
      return b == std::byte{0x41} || b == std::byte{0x60};
    })) << at;
  }
  guest_.ExpectNoCrash();
}

TEST_F(HostileBox, WritesNoMoreThanWasLentOverTcp) {
  OpenTcp();
  for (const CopyForm form : {CopyForm::kSynchronous, CopyForm::kAsynchronous, CopyForm::kStreamThenWait}) {
    for (const HostSide& side : kTooLarge) {
      const BoxBody body = Message(Box(true, device_, side), PackedSide::kDestination, form);
      EXPECT_EQ(guest_.Call(Op::cuMemcpy3D_v2, Pack(body), Bulk(true, 4096)).result, CUDA_ERROR_INVALID_VALUE)
          << &side - kTooLarge << " " << static_cast<uint32_t>(form);
    }
  }
  EXPECT_TRUE(guest_.Call(Op::cuCtxSynchronize, {}).ok());
  guest_.ExpectNoCrash();
}

// Over shared memory it is the last page of an arena.
TEST_F(HostileBox, TouchesNothingBehindAnArena) {
  OpenShared();
  for (const bool to_host : {false, true}) {
    for (const HostSide& side : kTooLarge) {
      const BoxBody body =
          Message(Box(to_host, device_, side), to_host ? PackedSide::kDestination : PackedSide::kSource);
      EXPECT_EQ(guest_.Call(Op::cuMemcpy3D_v2, Pack(body), Bulk(to_host, 4096)).result,
                CUDA_ERROR_INVALID_VALUE)
          << &side - kTooLarge << " " << to_host;
      const uint64_t last = guest_.window() + guest_.first_slice() + 2 * kMib - 4096;
      const BoxBody pinned = Message(Box(to_host, device_, side, last), PackedSide::kNone);
      EXPECT_EQ(guest_.Call(Op::cuMemcpy3D_v2, Pack(pinned)).result, CUDA_ERROR_INVALID_VALUE)
          << &side - kTooLarge << " " << to_host;
    }
  }
  guest_.ExpectNoCrash();
}

// The driver takes any address of its process for such a side.
TEST_F(HostileBox, SidesOfNoKnownKindAreRefused) {
  OpenShared();
  const uint64_t stack = [&] {
    uint64_t at = 0;
    for (const Mapping& each : guest_.worker().Maps()) at = each.name == "[stack]" ? each.end - 8192 : at;
    return at;
  }();
  ASSERT_NE(stack, 0u);
  // The worker's first thread may still be on its way to where it waits.
  const std::string before = Settled([&] { return guest_.worker().Read(stack, 8192); });
  for (const int type : {0, int(CU_MEMORYTYPE_UNIFIED), 5, 77, -1}) {
    for (const bool to_host : {false, true}) {
      CUDA_MEMCPY3D box = Box(to_host, device_, {.width = 64, .height = 2}, stack);
      (to_host ? box.dstMemoryType : box.srcMemoryType) = CUmemorytype(type);
      (to_host ? box.dstDevice : box.srcDevice) = stack;
      EXPECT_EQ(guest_.Call(Op::cuMemcpy3D_v2, Pack(Message(box, PackedSide::kNone))).result,
                CUDA_ERROR_INVALID_VALUE)
          << type;
      BoxBody between = Message(box, PackedSide::kNone);
      between.source_context = between.destination_context = guest_.primary();
      EXPECT_EQ(guest_.Call(Op::cuMemcpy3D_v2, Pack(between)).result, CUDA_ERROR_INVALID_VALUE) << type;
    }
  }
  EXPECT_EQ(guest_.worker().Read(stack, 8192), before);
  guest_.ExpectNoCrash();
}

// A node checks as a copy does.
TEST_F(HostileBox, NodesTouchNothingBehindAnArena) {
  OpenShared();
  const uint64_t last = guest_.window() + guest_.first_slice() + 2 * kMib - 4096;
  const WireHandle graph = MakeWireHandle(HandleKind::kGraph, 1, 20);
  ASSERT_TRUE(guest_.Call(Op::cuGraphCreate, Pack(graph, uint32_t{0})).ok());
  uint32_t number = 21;
  for (const bool to_host : {false, true}) {
    for (const HostSide& side : kTooLarge) {
      NodeBody head{};
      head.verb = NodeVerb::kAdd;
      head.form = NodeForm::kGeneric;
      head.node = MakeWireHandle(HandleKind::kGraphNode, 1, number++);
      head.owner = graph;
      CUgraphNodeParams params{};
      params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
      const WireHandle context = guest_.primary();
      std::memcpy(&params.memcpy.copyCtx, &context, sizeof context);
      params.memcpy.copyParams = Box(to_host, device_, side, last);
      EXPECT_EQ(guest_.Call(Op::cuGraphAddNode_v2, Pack(head, params)).result, CUDA_ERROR_INVALID_VALUE)
          << &side - kTooLarge << " " << to_host;
    }
  }
  guest_.ExpectNoCrash();
}

// The same numbers with all that they need are no violation.
TEST_F(HostileBox, WholeBoxesAreCopied) {
  OpenShared();
  for (const HostSide& side :
       {HostSide{.height = 16}, HostSide{.width = 64, .height = 4, .depth = 2, .x = 128, .y = 3, .z = 1},
        HostSide{.width = 64, .height = 4, .depth = 2, .pitch = 256, .rows = 8}}) {
    const BoxBody body = Message(Box(true, device_, side), PackedSide::kDestination);
    const Answer answer = guest_.Call(Op::cuMemcpy3D_v2, Pack(body), Bulk(true, 64 << 10));
    EXPECT_EQ(answer.result, CUDA_SUCCESS);
    const size_t pitch = side.pitch != 0 ? side.pitch : side.x + side.width;
    const size_t rows = side.rows != 0 ? side.rows : side.y + side.height;
    const size_t end =
        ((side.z + side.depth - 1) * rows + side.y + side.height - 1) * pitch + side.x + side.width;
    EXPECT_EQ(answer.bulk_bytes, end);
    const std::byte* bytes = guest_.base() + guest_.first_slice() + 2 * kMib - (64 << 10);
    EXPECT_EQ(bytes[end - 1], std::byte{0x41});
    EXPECT_EQ(bytes[end], std::byte{0});
    std::memset(guest_.base() + guest_.first_slice(), 0, 2 * kMib);
  }
}

}  // namespace
}  // namespace causeway::test
