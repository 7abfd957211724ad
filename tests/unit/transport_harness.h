// SPDX-License-Identifier: Apache-2.0
// A session over any transport, with a small server behind it: what transport_test.cc runs its suite on.
#pragma once
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ivshmem_ring/tcp/tcp_transport.h"
#include "ivshmem_ring/transport/ring_transport.h"
#include "tests/unit/ring_memory.h"
#include "tests/yield_until.h"

namespace causeway::test {

enum class Kind { kRingThreads, kRingProcesses, kTcpThreads, kTcpProcesses };

inline bool IsRing(Kind kind) {
  return kind == Kind::kRingThreads || kind == Kind::kRingProcesses;
}
inline bool HasProcesses(Kind kind) {
  return kind == Kind::kRingProcesses || kind == Kind::kTcpProcesses;
}
inline const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kRingThreads:
      return "RingThreads";
    case Kind::kRingProcesses:
      return "RingProcesses";
    case Kind::kTcpThreads:
      return "TcpThreads";
    case Kind::kTcpProcesses:
      return "TcpProcesses";
  }
  return "";
}

// What the server does with a message.
enum TestOp : uint16_t {
  kPostValue = 1,  // main: u64 that must count up from 0, then filler
  kPostError,      // main: u64, becomes an asynchronous error
  kPostPause,      // main: u64 milliseconds to sleep
  kEcho,           // channel: the body comes back
  kOrder,          // channel: reply is u64 posts seen, u64 of them out of order
  kSumBulk,        // channel: reply is u64 sum of the bulk bytes
  kFillBulk,       // channel: u64 seed; the bulk buffer is filled from it
  kInvertBulk,     // channel: every byte of the bulk buffer is inverted
  kNeverReply,     // channel
};

inline constexpr uint32_t kServedChannels = 16;

// Both ends of a TCP connection over the loopback.
inline std::pair<int, int> TcpPair() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, generic, sizeof address) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, generic, &length) != 0)
    abort();
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(client, generic, sizeof address) != 0) abort();
  const int server = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (server < 0) abort();
  close(listener);
  return {client, server};
}

// Serves every link of a transport until it stops.
class TestServer {
 public:
  explicit TestServer(ServerTransport& transport) : transport_(transport) {
    threads_.emplace_back([this] { ServeMain(); });
    for (uint32_t channel = 0; channel < kServedChannels; ++channel)
      threads_.emplace_back([this, channel] { ServeChannel(channel); });
  }
  ~TestServer() { Join(); }
  // Returns once every thread has seen kStopped (or worse, see corrupt()).
  void Join() {
    for (auto& thread : threads_)
      if (thread.joinable()) thread.join();
  }
  bool corrupt() const { return corrupt_.load(); }

 private:
  static uint64_t FirstWord(std::span<const std::byte> record) {
    uint64_t word = 0;
    if (record.size() >= sizeof(RecordHeader) + sizeof word)
      std::memcpy(&word, record.data() + sizeof(RecordHeader), sizeof word);
    return word;
  }

  void ServeMain() {
    for (;;) {
      std::span<const std::byte> record;
      const ReceiveStatus status = transport_.ReceiveMain(&record);
      if (status == ReceiveStatus::kCorrupt) corrupt_ = true;
      if (status != ReceiveStatus::kRecord) return;
      const RecordHeader header = HeaderOf(record);
      const uint64_t value = FirstWord(record);
      if (header.op == kPostValue && value != next_value_++) out_of_order_.fetch_add(1);
      if (header.op == kPostError) transport_.PostAsyncError(static_cast<uint32_t>(value));
      if (header.op == kPostPause) std::this_thread::sleep_for(std::chrono::milliseconds(value));
      transport_.DoneMain();
      dispatched_.store(header.sequence + 1, std::memory_order_release);
    }
  }

  void ServeChannel(uint32_t channel) {
    for (;;) {
      std::span<const std::byte> record;
      const ReceiveStatus status = transport_.ReceiveRequest(channel, &record);
      if (status == ReceiveStatus::kCorrupt) corrupt_ = true;
      if (status != ReceiveStatus::kRecord) return;
      const RecordHeader header = HeaderOf(record);
      if (header.op == kNeverReply) continue;
      test::YieldUntil([&] { return dispatched_.load(std::memory_order_acquire) >= header.main_sequence; });
      std::byte* reply = transport_.ReserveReply(channel);
      if (reply == nullptr) return;
      RecordHeader answer{};
      answer.op = header.op;
      answer.bulk_offset = header.bulk_offset;
      const size_t body = Answer(channel, header, record, reply + sizeof answer, &answer.bulk_bytes);
      PutHeader(reply, answer);
      transport_.DoneRequest(channel);
      transport_.PublishReply(channel, sizeof answer + body);
    }
  }

  size_t Answer(uint32_t channel, const RecordHeader& header, std::span<const std::byte> record,
                std::byte* body, uint32_t* bulk_bytes) {
    const std::span<std::byte> bulk = transport_.BulkOf(channel, header);
    uint64_t words[2] = {0, 0};
    switch (header.op) {
      case kEcho:
        std::memcpy(body, record.data() + sizeof header, record.size() - sizeof header);
        return record.size() - sizeof header;
      case kOrder:
        words[0] = dispatched_.load();
        words[1] = out_of_order_.load();
        break;
      case kSumBulk:
        for (const std::byte byte : bulk) words[0] += static_cast<uint64_t>(byte);
        words[1] = bulk.size();
        break;
      case kFillBulk:
        FillBody(bulk, FirstWord(record));
        *bulk_bytes = static_cast<uint32_t>(bulk.size());
        break;
      case kInvertBulk:
        for (std::byte& byte : bulk) byte = ~byte;
        *bulk_bytes = static_cast<uint32_t>(bulk.size());
        break;
      default:
        break;
    }
    std::memcpy(body, words, sizeof words);
    return sizeof words;
  }

  ServerTransport& transport_;
  std::vector<std::thread> threads_;
  uint64_t next_value_ = 0;
  std::atomic<uint64_t> out_of_order_{0};
  std::atomic<uint64_t> dispatched_{0};
  std::atomic<bool> corrupt_{false};
};

inline std::unique_ptr<ServerTransport> MakeRingServer(std::byte* memory, uint64_t bytes) {
  RingServerOptions options;
  options.slot = memory;
  options.futex = true;
  options.resolve = [memory, bytes](uint64_t offset, uint64_t length) -> std::byte* {
    const bool inside = offset >= kGranuleBytes && offset <= bytes && length <= bytes - offset;
    return inside ? memory + offset : nullptr;
  };
  return std::make_unique<RingServer>(std::move(options));
}

// A client and, in threads or another process, the server.
class TestSession {
 public:
  explicit TestSession(Kind kind) : kind_(kind) {
    int client_fd = -1, server_fd = -1;
    if (!IsRing(kind)) std::tie(client_fd, server_fd) = TcpPair();
    if (HasProcesses(kind)) {
      server_process_ = fork();
      if (server_process_ < 0) abort();
      if (server_process_ == 0) {
        if (client_fd >= 0) close(client_fd);
        MakeServer(server_fd);
        server_->Join();
        _exit(server_->corrupt() ? 1 : 0);
      }
      if (server_fd >= 0) close(server_fd);
    } else {
      MakeServer(server_fd);
    }
    MakeClient(client_fd);
  }
  ~TestSession() {
    client_.reset();
    if (HasProcesses(kind_)) {
      KillServer();
      waitpid(server_process_, nullptr, 0);
    } else {
      server_transport_->Stop();
      server_->Join();
      EXPECT_FALSE(server_->corrupt()) << server_transport_->CorruptReason();
    }
  }

  ClientTransport& client() { return *client_; }
  Bulk BulkAt(uint32_t index) {
    if (IsRing(kind_)) {
      const uint64_t offset = kGranuleBytes + uint64_t{index} * kBulkBytes;
      return {memory_.data() + offset, offset};
    }
    return {static_cast<TcpClient&>(*client_).BulkBuffer(index), index};
  }
  void KillServer() {
    if (server_process_ <= 0) return;
    kill(server_process_, SIGKILL);
    SleepUntil([&] { return ServerDead(); });
  }

 private:
  static constexpr uint64_t kMemoryBytes = kGranuleBytes + kBulkBuffers * kBulkBytes;

  bool ServerDead() {
    siginfo_t info{};
    if (!server_dead_.load() &&
        waitid(P_PID, static_cast<id_t>(server_process_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid != 0)
      server_dead_ = true;
    return server_dead_.load();
  }
  void MakeServer(int fd) {
    if (IsRing(kind_))
      server_transport_ = MakeRingServer(memory_.data(), kMemoryBytes);
    else
      server_transport_ = std::make_unique<TcpServer>(fd);
    server_ = std::make_unique<TestServer>(*server_transport_);
  }
  void MakeClient(int fd) {
    if (!IsRing(kind_)) {
      client_ = std::make_unique<TcpClient>(fd);
      return;
    }
    RingClientOptions options;
    options.slot = memory_.data();
    options.futex = true;
    options.loss = [this]() -> std::string {
      return HasProcesses(kind_) && ServerDead() ? "the server's process has ended" : "";
    };
    client_ = std::make_unique<RingClient>(std::move(options));
  }

  const Kind kind_;
  SharedMemory memory_{kMemoryBytes};
  pid_t server_process_ = -1;
  std::atomic<bool> server_dead_{false};
  std::unique_ptr<ServerTransport> server_transport_;
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<ClientTransport> client_;
};

// One posted record: `value`, then filler up to `bytes` in all. False: the session is lost.
inline bool Post(ClientTransport& client, uint16_t op, uint64_t value,
                 size_t bytes = sizeof(RecordHeader) + 8) {
  std::mutex alone;
  std::unique_lock lock(alone);
  std::byte* record = client.ReserveMain(bytes, lock);
  if (record == nullptr) return false;
  PostedHeader header{};
  header.op = op;
  PutHeader(record, header);
  std::memcpy(record + sizeof header, &value, sizeof value);
  client.PublishMain(bytes);
  return true;
}

// Sends a request without waiting. `bulk_flags` 0: it lends no buffer.
inline bool Request(ClientTransport& client, uint32_t channel, uint16_t op, std::span<const std::byte> body,
                    uint16_t bulk_flags = 0, uint64_t bulk_offset = 0, uint32_t bulk_bytes = 0) {
  std::byte* record = client.ReserveRequest(channel, sizeof(RecordHeader) + body.size());
  if (record == nullptr) return false;
  RecordHeader header{};
  header.op = op;
  header.flags = bulk_flags;
  header.main_sequence = client.main_sequence();
  header.bulk_offset = bulk_offset;
  header.bulk_bytes = bulk_bytes;
  PutHeader(record, header);
  if (!body.empty()) std::memcpy(record + sizeof header, body.data(), body.size());
  client.PublishRequest(channel, sizeof header + body.size());
  return true;
}

inline std::span<const std::byte> BytesOf(const uint64_t& word) {
  return std::as_bytes(std::span(&word, 1));
}
// Word `index` of a reply's body; fails the test if there is none.
inline uint64_t ReplyWord(std::span<const std::byte> reply, size_t index) {
  uint64_t word = 0;
  const size_t at = sizeof(RecordHeader) + index * sizeof word;
  if (reply.size() < at + sizeof word) {
    ADD_FAILURE() << "a reply of " << reply.size() << " bytes";
    return 0;
  }
  std::memcpy(&word, reply.data() + at, sizeof word);
  return word;
}

}  // namespace causeway::test
