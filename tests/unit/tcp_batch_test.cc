// SPDX-License-Identifier: Apache-2.0
// Frames that wait to be sent: none is left behind, none overtakes another, and who sends them need not wait for the socket.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <poll.h>

#include "ivshmem_ring/tcp/tcp_transport.h"
#include "tests/unit/transport_harness.h"

namespace causeway::test {
namespace {

// Stands for encryption: another byte for each, and a count of the pieces.
class OtherBytes final : public StreamLayer {
 public:
  explicit OtherBytes(int* pieces) : pieces_(pieces) {}
  bool Seal(std::span<const std::byte> plain) override {
    for (const std::byte byte : plain) output_.push_back(byte ^ std::byte{0x55});
    ++*pieces_;
    return true;
  }
  void TakeOutput(std::vector<std::byte>& wire) override {
    wire.clear();
    wire.swap(output_);
  }
  void Received(std::span<const std::byte>) override {}
  void KeepReceived() override {}
  ptrdiff_t Open(std::span<std::byte>) override { return 0; }

 private:
  int* pieces_;
  std::vector<std::byte> output_;
};

constexpr size_t kRecordBytes = 100;

FrameHeader Frame(uint32_t number) {
  return {number, kRecordBytes, 0, FrameKind::kRecord};
}
std::vector<std::byte> Record(uint32_t number) {
  return std::vector<std::byte>(kRecordBytes, std::byte(number * 7));
}

// Reads frames of Record's kind, which must be numbered from 0 on, until `count` have come.
void ReadFrames(int fd, uint32_t count, std::byte mask) {
  for (uint32_t i = 0; i < count; ++i) {
    std::vector<std::byte> bytes(sizeof(FrameHeader) + kRecordBytes);
    pollfd one{fd, POLLIN, 0};
    ASSERT_EQ(poll(&one, 1, 10'000), 1) << i;
    ASSERT_EQ(recv(fd, bytes.data(), bytes.size(), MSG_WAITALL), ssize_t(bytes.size())) << i;
    for (std::byte& byte : bytes) byte ^= mask;
    FrameHeader frame;
    std::memcpy(&frame, bytes.data(), sizeof frame);
    ASSERT_EQ(frame.link, i);
    ASSERT_TRUE(std::equal(bytes.begin() + sizeof frame, bytes.end(), Record(i).begin())) << i;
  }
}

TEST(TcpConnection, SendsWhatWaitsBeforeItsOwnFrameAndTogether) {
  const auto [fd, far] = TcpPair();
  int pieces = 0;
  TcpConnection connection(fd, std::make_unique<OtherBytes>(&pieces));
  for (uint32_t i = 0; i < 20; ++i) ASSERT_TRUE(connection.Put(Frame(i), Record(i)));
  pollfd one{far, POLLIN, 0};
  EXPECT_EQ(poll(&one, 1, 50), 0) << "Put has sent";
  EXPECT_EQ(connection.Send(Frame(20), Record(20), {}), "");
  EXPECT_EQ(pieces, 1);
  ReadFrames(far, 21, std::byte{0x55});
  std::string failure;
  EXPECT_FALSE(connection.Flush(&failure));
  EXPECT_EQ(pieces, 1);
  close(far);
}

TEST(TcpConnection, TakesNoMoreThanABatch) {
  const auto [fd, far] = TcpPair();
  TcpConnection connection(fd);
  uint32_t count = 0;
  while (connection.Put(Frame(count), Record(count))) ASSERT_LE(++count * kRecordBytes, kBatchBytes);
  EXPECT_GT(count * (sizeof(FrameHeader) + kRecordBytes), kBatchBytes - 2 * kRecordBytes);
  std::string failure;
  EXPECT_TRUE(connection.Flush(&failure));
  EXPECT_EQ(failure, "");
  EXPECT_TRUE(connection.Put(Frame(count), Record(count)));
  EXPECT_TRUE(connection.Flush(&failure));
  ReadFrames(far, count + 1, {});
  close(far);
}

// A thread that stood still there would not read, and the peer might be waiting for that.
void FlushWithoutARoom(bool encrypted) {
  const auto [fd, far] = TcpPair();
  const int small = 16 << 10;
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  setsockopt(far, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  int pieces = 0;
  TcpConnection connection(fd, encrypted ? std::make_unique<OtherBytes>(&pieces) : nullptr);
  std::string failure;
  uint32_t put = 0;
  const auto fill = [&] {
    while (connection.Put(Frame(put), Record(put))) ++put;
  };
  int rounds = 0;
  for (fill(); rounds < 10'000; ++rounds) {
    ASSERT_TRUE(connection.Flush(&failure));
    ASSERT_EQ(failure, "");
    const uint32_t before = put;
    fill();
    if (put == before) break;  // the socket is full, and so is the batch
  }
  ASSERT_LT(rounds, 10'000);
  std::thread reader(
      [&, far = far] { ReadFrames(far, put + 2, encrypted ? std::byte{0x55} : std::byte{0}); });
  EXPECT_EQ(connection.Send(Frame(put), Record(put), {}), "");
  ASSERT_TRUE(connection.Put(Frame(put + 1), Record(put + 1)));
  YieldUntil([&] { return !connection.Flush(&failure); });
  reader.join();
  EXPECT_EQ(failure, "");
  close(far);
}

TEST(TcpConnection, FlushNeverWaitsForTheSocket) {
  FlushWithoutARoom(false);
  FlushWithoutARoom(true);
}

TEST(TcpConnection, FlushReportsAConnectionThatHasEnded) {
  const auto [fd, far] = TcpPair();
  TcpConnection connection(fd);
  close(far);
  std::string failure;
  YieldUntil([&] {
    connection.Put(Frame(0), Record(0));
    connection.Flush(&failure);
    return !failure.empty();
  });
  EXPECT_EQ(failure.rfind("sending to the peer failed: ", 0), 0u) << failure;
}

// As if its machine were gone: its kernel looks at nothing that comes, and acknowledges nothing.
void DropAll(int fd) {
  sock_filter nothing[] = {{BPF_RET | BPF_K, 0, 0, 0}};
  const sock_fprog program{1, nothing};
  ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
}

// Asks once a second, as it has to be.
void AwaitSeconds(TcpConnection& connection, uint32_t seconds) {
  constexpr int kMost = 60;
  uint32_t silent = 0;
  for (int i = 0; i < kMost && silent < seconds; ++i) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    silent = connection.SecondsUnacknowledged();
  }
  EXPECT_EQ(silent, seconds);
}

TEST(TcpConnection, ToldApartAreAPeerThatIsGoneAndOneThatDoesNotRead) {
  const auto [fd, far] = TcpPair();
  TcpConnection connection(fd);
  std::string failure;
  uint32_t put = 0;
  for (bool more = true; more; connection.Flush(&failure)) {  // until the socket and the batch are full
    more = connection.Put(Frame(put), Record(put));
    if (more) ++put;
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(connection.SecondsUnacknowledged(), 0u);
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  DropAll(far);
  AwaitSeconds(connection, 2);
  close(far);
}

TEST(TcpConnection, APeerThatIsGoneIsNoticedWhileBytesWaitForIt) {
  const auto [fd, far] = TcpPair();
  TcpConnection connection(fd);
  EXPECT_EQ(connection.Send(Frame(0), Record(0), {}), "");
  ReadFrames(far, 1, {});
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_EQ(connection.SecondsUnacknowledged(), 0u) << "nothing waits";
  DropAll(far);
  EXPECT_EQ(connection.Send(Frame(1), Record(1), {}), "");
  AwaitSeconds(connection, 2);
  close(far);
}

// No call follows that would send them.
TEST(TcpClient, PostsAreNotLeftBehind) {
  const auto [client_fd, server_fd] = TcpPair();
  TcpClient client(client_fd);
  TcpServer server(server_fd);
  uint64_t expected = 0;
  for (const uint64_t burst : {1, 2, 3, 50, 1000}) {
    std::thread poster([&] {
      for (uint64_t i = 0; i < burst; ++i) ASSERT_TRUE(Post(client, kPostValue, i));
    });
    for (uint64_t i = 0; i < burst; ++i) {
      std::span<const std::byte> record;
      ASSERT_EQ(server.ReceiveMain(&record), ReceiveStatus::kRecord);
      EXPECT_EQ(HeaderOf(record).sequence, expected++);
      server.DoneMain();
    }
    poster.join();
  }
  EXPECT_EQ(client.LossReason(), "");
}

// Threads that post and wait while batches leave by the background thread, by full batches and by requests.
TEST(TcpClient, RequestsComeBehindAllPostsOfTheirThread) {
  TestSession session(Kind::kTcpThreads);
  ClientTransport& client = session.client();
  std::mutex mutex;
  uint64_t value = 0;
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (uint32_t channel = 0; channel < 3; ++channel) {
    threads.emplace_back([&, channel] {
      for (int round = 0; round < 100; ++round) {
        for (int i = 0; i < round % 7 * 40; ++i) {
          const std::lock_guard lock(mutex);  // the values count up
          if (!Post(client, kPostValue, value++)) ++failures;
        }
        uint64_t posted = 0;
        {
          const std::lock_guard lock(mutex);
          posted = value;
        }
        uint64_t words[2] = {0, 1};
        if (!Request(client, channel, kOrder, {})) ++failures;
        const auto reply = client.AwaitReply(channel);
        if (reply.size() < sizeof(RecordHeader) + sizeof words) return void(++failures);
        std::memcpy(words, reply.data() + sizeof(RecordHeader), sizeof words);
        if (words[0] < posted || words[1] != 0) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0) << client.LossReason();
}

}  // namespace
}  // namespace causeway::test
