// SPDX-License-Identifier: Apache-2.0
// A worker's question to the daemon gets its own answer or none: one that comes too late is no answer to the next
// question.
#include "host_backend/worker/process/daemon_link.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <thread>

#include "ivshmem_ring/transport/packet.h"

namespace causeway::host {
namespace {

// Until a question is given up; the answers that are to be in time come at once.
constexpr std::chrono::milliseconds kShort{1000};
constexpr ImageHash kFirst{{1}}, kSecond{{2}};
constexpr uint64_t kFirstBytes = 4096, kSecondBytes = 1 << 20;

// The daemon's end of the control socket, in the test's hands.
class DaemonLinkTest : public ::testing::Test {
 protected:
  DaemonLinkTest() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    worker_ = UniqueFd(ends[0]);
    daemon_ = UniqueFd(ends[1]);
  }
  // The next question; it waits for one.
  SharingRequest Read() {
    SharingRequest request{};
    EXPECT_EQ(recv(daemon_.get(), &request, sizeof request, 0), ssize_t(sizeof request));
    return request;
  }
  static SharingReply AnswerTo(const SharingRequest& request) {
    SharingReply reply{};
    reply.number = request.number;
    return reply;
  }
  static UniqueFd FileOf(uint64_t bytes) {
    UniqueFd file(memfd_create("image", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
    return file;
  }
  static uint64_t BytesOf(const UniqueFd& file) {
    struct stat status {};
    return file && fstat(file.get(), &status) == 0 ? static_cast<uint64_t>(status.st_size) : 0;
  }
  // A question that nobody answers in time.
  SharingRequest GiveUpOne(DaemonLink& link) {
    UniqueFd file;
    EXPECT_EQ(link.GetImage(kFirst, kFirstBytes, &file), CUDA_ERROR_OPERATING_SYSTEM);
    return Read();
  }

  UniqueFd worker_, daemon_;
};

TEST_F(DaemonLinkTest, ALateAnswerIsNoneToTheNextQuestion) {
  DaemonLink link(worker_.get(), kShort);
  const SharingRequest first = GiveUpOne(link);
  link.Deliver(AnswerTo(first), FileOf(kFirstBytes));  // nobody waits
  UniqueFd file;
  CUresult result = CUDA_ERROR_UNKNOWN;
  std::thread asks([&] { result = link.GetImage(kSecond, kSecondBytes, &file); });
  const SharingRequest second = Read();
  EXPECT_NE(second.number, 0u);
  EXPECT_NE(second.number, first.number);
  link.Deliver(AnswerTo(first), FileOf(kFirstBytes));
  link.Deliver(AnswerTo(second), FileOf(kSecondBytes));
  asks.join();
  ASSERT_EQ(result, CUDA_SUCCESS);
  EXPECT_EQ(BytesOf(file), kSecondBytes);
}

// One of an earlier release.
TEST_F(DaemonLinkTest, ADaemonThatNumbersNothingIsBelievedUntilItIsLate) {
  DaemonLink link(worker_.get(), kShort);
  const auto ask = [&](bool numbered) {
    UniqueFd file;
    CUresult result = CUDA_ERROR_UNKNOWN;
    std::thread asks([&] { result = link.GetImage(kSecond, kSecondBytes, &file); });
    SharingReply reply = AnswerTo(Read());
    if (!numbered) reply.number = 0;
    link.Deliver(reply, FileOf(kSecondBytes));
    asks.join();
    return result;
  };
  EXPECT_EQ(ask(false), CUDA_SUCCESS);
  GiveUpOne(link);
  EXPECT_EQ(ask(false), CUDA_ERROR_OPERATING_SYSTEM) << "it may be the answer to the question before";
  EXPECT_EQ(ask(false), CUDA_SUCCESS)
      << "it was not: the daemon has crashed, and the next one answers in time";
  GiveUpOne(link);
  EXPECT_EQ(ask(true), CUDA_SUCCESS) << "the next daemon numbers its answers";
  EXPECT_EQ(ask(false), CUDA_SUCCESS) << "and has answered all that were asked before";
}

TEST_F(DaemonLinkTest, AsManyAnswersWithoutNumbersAreSkippedAsAreOverdue) {
  DaemonLink link(worker_.get(), kShort);
  const SharingReply unnumbered{};
  const auto ask = [&](int late) {
    UniqueFd file;
    CUresult result = CUDA_ERROR_UNKNOWN;
    std::thread asks([&] { result = link.GetImage(kSecond, kSecondBytes, &file); });
    Read();
    for (int i = 0; i < late; ++i) link.Deliver(unnumbered, FileOf(kFirstBytes));
    link.Deliver(unnumbered, FileOf(kSecondBytes));
    asks.join();
    EXPECT_EQ(result, CUDA_SUCCESS);
    return BytesOf(file);
  };
  GiveUpOne(link);
  link.Deliver(unnumbered, FileOf(kFirstBytes));  // nobody waits
  EXPECT_EQ(ask(0), kSecondBytes);
  GiveUpOne(link);
  GiveUpOne(link);
  link.Deliver(unnumbered, FileOf(kFirstBytes));
  EXPECT_EQ(ask(1), kSecondBytes) << "the other one comes while the next question waits";
  EXPECT_EQ(ask(0), kSecondBytes);
}

}  // namespace
}  // namespace causeway::host
