// SPDX-License-Identifier: Apache-2.0
// A guest process that speaks the ring protocol itself, over the local transport, a VM's region or TCP: it
// sends what no library of this project would send, at any moment, and writes any byte that a guest can
// write. Everything it does is what a stranger's process could do with this project's headers; what only the
// test may know comes from HostileDaemon and WorkerView.
//
//   HostileDaemon daemon;
//   HostileGuest guest(daemon);
//   ASSERT_TRUE(guest.Open());
//   guest.RetainPrimary();
//   EXPECT_EQ(guest.Call(Op::cuMemFree_v2, Pack(uint64_t{1})).result, CUDA_ERROR_INVALID_VALUE);
//   EXPECT_EQ(guest.HowItEnded(), "");   // alive
//
// Threads: as a ClientTransport: one thread to a channel, one to the main link.
#pragma once
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "host_backend/common/unique_fd.h"
#include "ivshmem_ring/messages/copy_messages.h"
#include "ivshmem_ring/messages/session_messages.h"
#include "ivshmem_ring/protocol/call.h"
#include "ivshmem_ring/tcp/tcp_transport.h"
#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/transport.h"
#include "tests/hostile/hostile_daemon.h"

namespace causeway::test {

using Bytes = std::vector<std::byte>;

template <class T>
void Append(Bytes& to, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const size_t before = to.size();
  to.resize(before + sizeof value);
  std::memcpy(&to[before], &value, sizeof value);
}
// A body as the wire has it: values one after the other, without padding between them.
template <class... T>
Bytes Pack(const T&... values) {
  Bytes bytes;
  (Append(bytes, values), ...);
  return bytes;
}

struct Answer {
  bool lost = false;  // the session ended before the reply came
  uint32_t result = ~0u;
  uint32_t bulk_bytes = 0;
  Bytes body;
  bool ok() const { return !lost && result == 0; }
  template <class T>
  T Get(size_t at = 0) const {
    T value{};
    if (body.size() >= at + sizeof value) std::memcpy(&value, body.data() + at, sizeof value);
    return value;
  }
};

// What a request or posted record says beside its body.
struct Wire {
  uint32_t channel = 0;
  uint64_t bulk_offset = 0;
  uint32_t bulk_bytes = 0;
  uint16_t flags = 0;
  uint64_t main_sequence = 0;
  WireHandle stream = 0, event = 0;  // of a posted record
};

class HostileGuest {
 public:
  struct Options {
    std::string environment{};  // NAME=VALUE, each with its NUL
    // Changes the OpenBlock before it is published.
    std::function<void(OpenBlock&)> edit{};
    // Runs when the block is published and the session asked for, before the answer is awaited.
    std::function<void()> asked{};
    bool agree = true;  // sends kAgreeOnAddresses first, as the library does
  };

  explicit HostileGuest(const HostileDaemon& daemon) : daemon_(daemon) {}
  ~HostileGuest();
  HostileGuest(const HostileGuest&) = delete;
  HostileGuest& operator=(const HostileGuest&) = delete;

  // A session over the local transport. False: refused, and refusal() says why.
  bool Open() { return Open(Options{}); }
  bool Open(const Options& options);
  // The same as process of a VM, with this test in the place of the VM's kernel: slot 0 of its region. A
  // guest before it in that region has ended with its session.
  bool OpenVm(const std::string& region_file) { return OpenVm(region_file, Options{}); }
  bool OpenVm(const std::string& region_file, const Options& options);
  // The same over TCP, for which the daemon must have been started.
  bool OpenTcp() { return OpenTcp(Options{}); }
  bool OpenTcp(const Options& options);
  // As a process that dies.
  void Close();
  // Any packet on the session's socket, without waiting.
  void SendToDaemon(const void* bytes, size_t count) {
    send(socket_.get(), bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  const std::string& refusal() const { return refusal_; }

  // Sends without waiting / waits / both.
  void Send(Op op, const Bytes& body, const Wire& wire = {});
  Answer Await(uint32_t channel = 0);
  Answer Call(Op op, const Bytes& body, const Wire& wire = {});
  // Posts on the main ring.
  void Post(Op op, const Bytes& body, const Wire& wire = {});
  // Waits until everything posted so far was executed: a request that comes after it.
  Answer AwaitPosted();
  // The newest failure of a posted record, 0 if none.
  uint64_t AsyncError() const { return transport_ != nullptr ? transport_->AsyncError() : 0; }
  uint64_t posted() const { return transport_ != nullptr ? transport_->main_sequence() : 0; }
  Answer OpenChannel(uint32_t channel);

  // The calls that nearly every case begins with. They fail the test if they fail.
  void RetainPrimary();  // the primary context of device 0, current from then on
  void AddArena(uint64_t offset, uint64_t bytes);
  uint64_t AllocateDevice(uint64_t bytes);
  CUresult AgreeOnAddresses(uint64_t window);

  // Which handle the headers of all further messages name as current context.
  WireHandle context = 0;
  WireHandle primary() const { return MakeWireHandle(HandleKind::kContext, 1, 1); }

  // The shared region; the guest may write all of it.
  std::byte* base() { return Opened(base_); }
  uint64_t region_bytes() const { return region_bytes_; }
  uint64_t window() const { return window_; }
  uint64_t first_slice() const { return FirstSliceOffset(SlotCount(region_bytes_)); }
  uint16_t* owners() { return reinterpret_cast<uint16_t*>(base() + kOwnerTableOffset); }
  OpenBlock& open_block() {
    return reinterpret_cast<GuestControl*>(base() + SlotOffset(0) + kGuestControlOffset)->open;
  }
  GuestPage& guest_page() { return *reinterpret_cast<GuestPage*>(base() + kGuestPageOffset); }
  HostPage& host_page() { return *reinterpret_cast<HostPage*>(base() + kHostPageOffset); }
  ClientTransport& transport() { return *Opened(transport_.get()); }
  // Over TCP: a bulk buffer of kBulkBytes that requests name by its index.
  std::byte* TcpBuffer(uint32_t index) { return Opened(tcp_)->BulkBuffer(index); }

  // The worker that serves this session, as the daemon's status says; valid after Open().
  const WorkerView& worker() const { return worker_; }
  // True while the session is served.
  bool Lives();
  // Empty while the worker lives; then how it ended (EndOf).
  std::string HowItEnded();
  // Fails the test unless the worker lives or ended by its own decision (an exit status): no signal, no
  // abort.
  void ExpectNoCrash();

 private:
  // Fails a test that goes on although its session was refused: exceptions do, and name the reason, where a null pointer would end the
  // whole program.
  template <class T>
  T* Opened(T* part) const {
    if (part == nullptr) throw std::logic_error("the session is not open: " + refusal_);
    return part;
  }
  template <class Header>
  Header HeaderOf(Op op, const Wire& wire) const {
    Header header{};
    header.op = uint16_t(op);
    header.flags = wire.flags;
    header.context = context;
    return header;
  }
  void PutBlock(const Options& options);
  bool Serve(const Options& options, bool futex);
  bool AwaitServing();
  void FindWorker(const std::vector<pid_t>& before);

  const HostileDaemon& daemon_;
  UniqueFd socket_;
  UniqueFd region_fd_;
  std::byte* base_ = nullptr;
  uint64_t region_bytes_ = 0;
  uint64_t window_ = kDefaultWindowAddress;
  std::mutex main_mutex_;
  std::unique_ptr<ClientTransport> transport_;
  TcpClient* tcp_ = nullptr;
  bool vm_ = false;
  WorkerView worker_;
  std::string refusal_;
  // No answer is waited for longer over shared memory: a worker that hangs is a failure, not a test that
  // does.
  static constexpr uint64_t kAnswerLimitUs = 60'000'000;
  std::atomic<uint64_t> awaited_since_us_[kChannelCount] = {};
  bool IsOverdue() const;
};

}  // namespace causeway::test
