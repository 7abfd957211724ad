// SPDX-License-Identifier: Apache-2.0
// Pinned memory of guests that share none: the worker has pages of its own at an address that the guest chooses, and copies
// bytes from and to them itself. It copies these pages and nothing else of its memory.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include "ivshmem_ring/messages/managed_messages.h"
#include "tests/hostile/hostile_guest.h"

namespace causeway::test {
namespace {

constexpr uint64_t kMib = 1 << 20;
constexpr uint64_t kBlock = 65536;
constexpr uint64_t kFree = 0x600000000000;  // where a worker has nothing

class HostilePinned : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(guest_.OpenTcp()) << guest_.refusal();
    guest_.RetainPrimary();
  }
  Answer Register(uint64_t address, uint64_t bytes, uint64_t offset = 0, uint32_t writable = 1) {
    return guest_.Call(Op::kRegisterHost, Pack(RegisterBody{address, bytes, offset, 0, writable}));
  }
  Answer Unregister(uint64_t address) {
    return guest_.Call(Op::kUnregisterHost, Pack(RegisterBody{address, 0, 0, 0, 0}));
  }
  Answer Write(const ManagedPiece& piece, uint32_t channel = 0) {
    const Wire wire{.channel = channel, .bulk_offset = 0, .bulk_bytes = kMib, .flags = kBulkToHost};
    return guest_.Call(Op::kWriteManaged, Pack(ManagedCopyBody{0, 1, 0}, piece), wire);
  }
  Answer Read(const ManagedPiece& piece, uint32_t channel = 0) {
    const Wire wire{.channel = channel, .bulk_offset = 0, .bulk_bytes = kMib, .flags = kBulkToGuest};
    return guest_.Call(Op::kReadManaged, Pack(ManagedCopyBody{0, 1, 0}, piece), wire);
  }

  HostileDaemon daemon_{{.tcp = true}};
  HostileGuest guest_{daemon_};
};

TEST_F(HostilePinned, PagesAreZeroAndWhatIsWrittenComesBack) {
  const Answer registered = Register(kFree, kBlock);
  ASSERT_TRUE(registered.ok());
  EXPECT_EQ(registered.Get<uint64_t>(), kFree);
  std::byte* const bulk = guest_.TcpBuffer(0);
  std::memset(bulk, 0x55, kBlock);
  ASSERT_TRUE(Read({kFree, kBlock}).ok());
  EXPECT_EQ(bulk[0], std::byte{0});
  EXPECT_EQ(bulk[kBlock - 1], std::byte{0});
  std::memset(bulk, 0x5a, kBlock);
  ASSERT_TRUE(Write({kFree + 1, kBlock - 2}).ok());
  ASSERT_TRUE(Read({kFree, kBlock}).ok());
  EXPECT_EQ(bulk[0], std::byte{0});
  EXPECT_EQ(bulk[1], std::byte{0x5a});
  EXPECT_EQ(bulk[kBlock - 1], std::byte{0});
  EXPECT_EQ(guest_.HowItEnded(), "");
}

// Another registration finds nothing of the one before it.
TEST_F(HostilePinned, WhatWasUnregisteredIsGone) {
  ASSERT_TRUE(Register(kFree, kBlock).ok());
  std::memset(guest_.TcpBuffer(0), 0x5a, kBlock);
  ASSERT_TRUE(Write({kFree, kBlock}).ok());
  ASSERT_TRUE(Unregister(kFree).ok());
  EXPECT_NE(Read({kFree, kBlock}).result, CUDA_SUCCESS);
  EXPECT_NE(Unregister(kFree).result, CUDA_SUCCESS);
  ASSERT_TRUE(Register(kFree, kBlock).ok());
  ASSERT_TRUE(Read({kFree, kBlock}).ok());
  EXPECT_EQ(guest_.TcpBuffer(0)[kBlock / 2], std::byte{0});
  EXPECT_EQ(guest_.HowItEnded(), "");
}

TEST_F(HostilePinned, PiecesBeyondARegistration) {
  ASSERT_TRUE(Register(kFree, kBlock).ok());
  for (const ManagedPiece& piece : {ManagedPiece{kFree, kBlock + 1}, ManagedPiece{kFree - 1, 16},
                                    ManagedPiece{kFree + kBlock, 1}, ManagedPiece{kFree + kBlock - 1, 2},
                                    ManagedPiece{kFree, ~uint64_t{0}}, ManagedPiece{~uint64_t{0} - 7, 64}}) {
    Write(piece);
    EXPECT_NE(Read(piece).result, CUDA_SUCCESS) << piece.address << " " << piece.bytes;
  }
  EXPECT_EQ(guest_.HowItEnded(), "");
}

TEST_F(HostilePinned, SizesThatNoProgramHas) {
  for (const uint64_t bytes : {uint64_t{0}, (uint64_t{4} << 30) + 1, ~uint64_t{0}, uint64_t{1} << 46})
    EXPECT_NE(Register(kFree, bytes).result, CUDA_SUCCESS) << bytes;
  for (const uint64_t address :
       {uint64_t{0}, uint64_t{4096}, (uint64_t{1} << 47) - 4096, ~uint64_t{0} - 4095})
    EXPECT_NE(Register(address, kBlock).result, CUDA_SUCCESS) << address;
  EXPECT_EQ(Register(kFree, (uint64_t{4} << 30) + 1).result, CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_TRUE(Register(kFree, kBlock, 0x7fff0001, 0).ok()) << "its place in a region means nothing here";
  EXPECT_EQ(Register(kFree + 4096, 1).result, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(guest_.HowItEnded(), "");
}

// What the worker has there stays, and whoever looks for it loses the session.
TEST_F(HostilePinned, AddressesOfTheWorkersOwn) {
  uint64_t heap = 0;
  for (const Mapping& each : guest_.worker().Maps()) heap = each.name == "[heap]" ? each.begin : heap;
  ASSERT_NE(heap, 0u);
  const std::string before = guest_.worker().Read(heap, 64);
  for (int tries = 0; tries < 3; ++tries) EXPECT_NE(Register(heap, 4096).result, CUDA_SUCCESS);
  EXPECT_EQ(guest_.worker().Read(heap, 64), before);
  Write({heap, 4096});
  EXPECT_NE(Read({heap, 4096}).result, CUDA_SUCCESS);
#ifndef __SANITIZE_ADDRESS__
  EXPECT_TRUE(Register(heap, 4096).lost);
#endif
}

// One channel copies while another ends the registration and begins it again.
TEST_F(HostilePinned, EndsUnderCopies) {
  ASSERT_TRUE(guest_.OpenChannel(5).ok());
  ASSERT_TRUE(Register(kFree, kMib).ok());
  std::atomic<bool> over{false};
  std::thread copies([&] {
    while (!over) {
      if (Write({kFree, kMib}, 5).lost || Read({kFree, kMib}, 5).lost) return;
    }
  });
  for (int round = 0; round < 200; ++round) {
    if (Unregister(kFree).lost || Register(kFree, kMib).lost) break;
  }
  over = true;
  copies.join();
  EXPECT_EQ(guest_.HowItEnded(), "");
}

}  // namespace
}  // namespace causeway::test
