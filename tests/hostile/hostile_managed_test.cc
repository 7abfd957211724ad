// SPDX-License-Identifier: Apache-2.0
// Managed memory that goes while it is copied, and ranges that reach beyond it: the driver refuses them, the
// worker touches nothing by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "ivshmem_ring/messages/managed_messages.h"
#include "tests/hostile/hostile_guest.h"

namespace causeway::test {
namespace {

constexpr uint64_t kMib = 1 << 20;
constexpr uint64_t kBlock = 65536;

class HostileManaged : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(guest_.Open()) << guest_.refusal();
    guest_.RetainPrimary();
    guest_.AddArena(guest_.first_slice(), 4 * kMib);
    if (!Allocate().ok()) GTEST_SKIP() << "no managed memory here";
  }
  Answer Allocate() {
    return guest_.Call(Op::cuMemAllocManaged, Pack(kBlock, uint32_t{CU_MEM_ATTACH_GLOBAL}));
  }
  // Three blocks in a row, the middle one freed; from the first to the end of the last.
  bool MakeHole(ManagedPiece* whole) {
    std::vector<uint64_t> blocks;
    for (int i = 0; i < 40; ++i) blocks.push_back(Allocate().Get<uint64_t>());
    std::sort(blocks.begin(), blocks.end());
    for (size_t i = 0; i + 2 < blocks.size(); ++i) {
      const uint64_t bytes = blocks[i + 2] + 4096 - blocks[i];
      if (bytes > kMib) continue;
      *whole = {blocks[i], bytes};
      return guest_.Call(Op::cuMemFree_v2, Pack(blocks[i + 1])).ok();
    }
    return false;
  }
  Answer Copy(Op op, const ManagedPiece& piece, WireHandle stream = 0, uint32_t channel = 0) {
    const Wire wire{.channel = channel, .bulk_offset = guest_.first_slice(), .bulk_bytes = kMib};
    return guest_.Call(op, Pack(ManagedCopyBody{stream, 1, 0}, piece), wire);
  }

  HostileDaemon daemon_;
  HostileGuest guest_{daemon_};
};

TEST_F(HostileManaged, RangesAcrossAFreedBlock) {
  ManagedPiece whole{};
  if (!MakeHole(&whole)) GTEST_SKIP() << "the driver places blocks far from each other";
  EXPECT_FALSE(Copy(Op::kWriteManaged, whole).lost);
  EXPECT_FALSE(Copy(Op::kReadManaged, whole).lost);
  EXPECT_EQ(guest_.HowItEnded(), "");
}

TEST_F(HostileManaged, BlocksThatAreFreedMeanwhile) {
  ASSERT_TRUE(guest_.OpenChannel(5).ok());
  std::atomic<uint64_t> block{Allocate().Get<uint64_t>()};
  std::atomic<bool> over{false};
  std::thread copies([&] {
    while (!over) {
      if (Copy(Op::kWriteManaged, {block, kBlock}, 0, 5).lost) return;
      if (Copy(Op::kReadManaged, {block, kBlock}, 0, 5).lost) return;
    }
  });
  int rounds = 0;
  for (int round = 0; round < 300; ++round) {
    if (guest_.Call(Op::cuMemFree_v2, Pack(block.load())).lost) break;
    const Answer fresh = Allocate();
    if (fresh.lost) break;
    if (!fresh.ok()) continue;
    rounds = round;
    block = fresh.Get<uint64_t>();
  }
  over = true;
  copies.join();
  EXPECT_EQ(guest_.HowItEnded(), "") << "after round " << rounds;
}

// What is the worker's own, and what overflows.
TEST_F(HostileManaged, OtherAddresses) {
  uint64_t heap = 0;
  for (const Mapping& each : guest_.worker().Maps()) heap = each.name == "[heap]" ? each.begin : heap;
  ASSERT_NE(heap, 0u);
  const WireHandle stream = MakeWireHandle(HandleKind::kStream, 1, 30);
  ASSERT_TRUE(guest_.Call(Op::cuStreamCreate, Pack(stream, uint32_t{1})).ok());
  for (const WireHandle on : {WireHandle{0}, stream}) {
    for (const uint64_t address : {heap, heap + 1, uint64_t{0}, ~uint64_t{0} - 4095, uint64_t{1} << 63}) {
      const std::string before = guest_.worker().Read(heap, 4096);
      Copy(Op::kWriteManaged, {address, 4096}, on);
      EXPECT_NE(Copy(Op::kReadManaged, {address, 4096}, on).result, CUDA_SUCCESS) << address;
    }
  }
  EXPECT_EQ(guest_.HowItEnded(), "");
}

// A copy that is right does what it says.
TEST_F(HostileManaged, WholeBlocksAreCopied) {
  const uint64_t block = Allocate().Get<uint64_t>();
  std::byte* bytes = guest_.base() + guest_.first_slice();
  std::memset(bytes, 0x5a, kBlock);
  ASSERT_TRUE(Copy(Op::kWriteManaged, {block, kBlock}).ok());
  std::memset(bytes, 0, kBlock);
  const Answer answer = Copy(Op::kReadManaged, {block, kBlock});
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer.bulk_bytes, kBlock);
  EXPECT_EQ(bytes[0], std::byte{0x5a});
  EXPECT_EQ(bytes[kBlock - 1], std::byte{0x5a});
}

}  // namespace
}  // namespace causeway::test
