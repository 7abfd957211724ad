// SPDX-License-Identifier: Apache-2.0
// A stranger's descriptor whose close waits as long as the stranger likes keeps nobody: not the thread that
// receives it, not the one that lets go of it, and not the descriptors that are closed after it.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <vector>

#include "host_backend/daemon/loop/worker_fd.h"
#include "ivshmem_ring/transport/packet.h"
#include "tests/unit/lingering_socket.h"

namespace causeway::daemon {
namespace {

using test::LingeringSocket;

constexpr int kBound_ms = 60'000;  // of a wait that ends at once, or after seconds, unless something hangs

struct Pair {
  Pair() {
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    own.reset(ends[0]);
    other.reset(ends[1]);
  }
  UniqueFd own, other;
};

void ExpectThatOthersAreClosed() {
  Pair pair;
  { const WorkerFd closed(pair.other.release()); }
  pollfd gone{pair.own.get(), POLLIN, 0};
  EXPECT_EQ(poll(&gone, 1, kBound_ms), 1) << "a descriptor is not closed, as another one's close hangs";
}

TEST(ClosingTest, OneThatLingers) {
  LingeringSocket lingering;
  { const WorkerFd closed(lingering.own().release()); }
  ExpectThatOthersAreClosed();
}

TEST(ClosingTest, SocketsInWhichOneThatLingersWasNotRead) {
  std::vector<LingeringSocket> lingering(8);
  for (LingeringSocket& each : lingering) {
    Pair pair;
    ASSERT_TRUE(each.SendAway(pair.own.get())) << strerror(errno);
    const WorkerFd closed(pair.other.release());
  }
  ExpectThatOthersAreClosed();
}

TEST(ClosingTest, OneThatLingersAndWasReceived) {
  LingeringSocket lingering;
  Pair pair;
  ASSERT_TRUE(lingering.SendAway(pair.own.get())) << strerror(errno);
  std::vector<WorkerFd> descriptors;
  char byte = 0;
  int flags = 0;
  EXPECT_EQ(ReceiveFromStranger(pair.other.get(), &byte, 1, &descriptors, &flags), 1);
  EXPECT_EQ(descriptors.size(), 1u);
  EXPECT_EQ(flags & (MSG_TRUNC | MSG_CTRUNC), 0);
  descriptors.clear();
  ExpectThatOthersAreClosed();
}

// What one peer sends keeps nobody else's from being closed, however many of its closes wait.
TEST(ClosingTest, ManyOfOneAccountThatLinger) {
  const auto account = std::make_shared<ClosingAccount>();
  std::vector<LingeringSocket> lingering(40);
  for (LingeringSocket& each : lingering) {
    Pair pair;
    ASSERT_TRUE(each.SendAway(pair.own.get())) << strerror(errno);
    const WorkerFd closed(pair.other.release(), account);
  }
  ExpectThatOthersAreClosed();
  EXPECT_GT(account->left(), ClosingAccount::kMostOfAccount);
  EXPECT_LE(ClosingBacklog(), 20u) << "those that wait for others of their account count for nobody else";
  lingering.clear();  // their peers end, and the closes with them
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kBound_ms);
  while (account->left() != 0 && std::chrono::steady_clock::now() < end) usleep(1000);
  EXPECT_EQ(account->left(), 0u);
}

// A flood of connections leaves thousands of descriptors to be closed, which one or two threads do.
TEST(ClosingTest, ManyAreClosedByFewThreads) {
  constexpr size_t kMany = 4000, kAtOnce = 500,
                   kThreads = 16;  // some of them may linger from the tests before
  const auto threads = [] {
    return size_t(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kBound_ms);
  while (ClosingBacklog() != 0 && std::chrono::steady_clock::now() < end) usleep(1000);
  const size_t before = threads();
  for (size_t done = 0; done < kMany; done += kAtOnce) {
    std::vector<WorkerFd> all;
    for (size_t i = 0; i < kAtOnce; ++i) all.emplace_back(eventfd(0, EFD_CLOEXEC));
    all.clear();
    while (ClosingBacklog() > kAtOnce && std::chrono::steady_clock::now() < end) usleep(1000);
  }
  while (ClosingBacklog() != 0 && std::chrono::steady_clock::now() < end) usleep(1000);
  EXPECT_EQ(ClosingBacklog(), 0u);
  EXPECT_LE(threads(), before + kThreads);
}

TEST(ClosingTest, AllThatComeInAPacketAreReceived) {
  Pair pair;
  const std::vector<int> copies(kMostDescriptors, pair.own.get());
  ASSERT_TRUE(SendPacket(pair.own.get(), "12", 2, copies)) << strerror(errno);
  std::vector<WorkerFd> descriptors;
  char byte = 0;
  int flags = 0;
  EXPECT_EQ(ReceiveFromStranger(pair.other.get(), &byte, 1, &descriptors, &flags), 1);
  EXPECT_EQ(descriptors.size(), kMostDescriptors);
  EXPECT_EQ(flags & (MSG_TRUNC | MSG_CTRUNC), MSG_TRUNC);
  EXPECT_EQ(ReceiveFromStranger(pair.other.get(), &byte, 1, &descriptors, &flags), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST(ClosingTest, ASocketThatNeedsNoneRefusesThem) {
  Pair pair;
  RefuseDescriptors(pair.other.get());
  LingeringSocket lingering;
  if (lingering.SendAway(pair.own.get())) GTEST_SKIP() << "this kernel cannot (Linux 6.16)";
  EXPECT_EQ(errno, EPERM);
}

}  // namespace
}  // namespace causeway::daemon
