// SPDX-License-Identifier: Apache-2.0
#include "tests/hostile/hostile_guest.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>

#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/release/api_hash.h"
#include "ivshmem_ring/transport/packet.h"
#include "ivshmem_ring/transport/record.h"
#include "ivshmem_ring/transport/ring.h"
#include "ivshmem_ring/transport/ring_transport.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway::test {
namespace {

OpenBlock GoodBlock(uint64_t window, const HostileGuest::Options& options) {
  OpenBlock block{};
  block.magic = kRegionMagic;
  block.abi_major = kAbiMajor;
  block.abi_minor = kAbiMinor;
  block.pid = uint32_t(getpid());
  block.api_hash = kWireHash;
  block.window_address = window;
  block.kind = SessionKind::kCuda;
  block.environment_bytes = uint32_t(std::min<size_t>(options.environment.size(), sizeof block.environment));
  std::memcpy(block.environment, options.environment.data(), block.environment_bytes);
  if (options.edit) options.edit(block);
  return block;
}

}  // namespace

HostileGuest::~HostileGuest() {
  Close();
}

void HostileGuest::Close() {
  transport_.reset();
  tcp_ = nullptr;
  socket_.reset();
  if (base_ != nullptr) munmap(base_, region_bytes_);
  base_ = nullptr;
  region_fd_.reset();
}

bool HostileGuest::Open(const Options& options) {
  const std::vector<pid_t> before = daemon_.IsOthers() ? std::vector<pid_t>() : daemon_.Workers();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  daemon_.socket().copy(address.sun_path, sizeof address.sun_path - 1);
  socket_.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const LocalRequest request{kLocalMagic, kAbiMajor, kAbiMinor, LocalRequestKind::kOpenSession};
  LocalReply reply{};
  int fd = -1;
  if (connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      send(socket_.get(), &request, sizeof request, MSG_NOSIGNAL) != ssize_t(sizeof request) ||
      ReceivePacket(socket_.get(), &reply, sizeof reply, std::span(&fd, 1)) != ssize_t(sizeof reply)) {
    refusal_ = "the daemon does not answer";
    return false;
  }
  region_fd_.reset(fd);
  if (reply.accepted != 1) {
    refusal_.assign(reply.text, strnlen(reply.text, sizeof reply.text));
    return false;
  }
  region_bytes_ = reply.region_bytes;
  void* mapped = mmap(nullptr, region_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (mapped == MAP_FAILED) return false;
  base_ = static_cast<std::byte*>(mapped);
  PutBlock(options);
  StoreRelease(guest_page().slot[0], SlotWord(1, uint32_t(SlotGuestState::kOpen)));
  if (send(socket_.get(), &kLocalReady, 1, MSG_NOSIGNAL) != 1) return false;
  if (!Serve(options, true)) return false;
  FindWorker(before);
  return !options.agree || AgreeOnAddresses(window_) == CUDA_SUCCESS;
}

// All slices are slot 0's.
void HostileGuest::PutBlock(const Options& options) {
  for (uint64_t granule = first_slice() / kGranuleBytes; granule < region_bytes_ / kGranuleBytes; ++granule)
    owners()[granule] = 1;
  open_block() = GoodBlock(window_, options);
}

bool HostileGuest::Serve(const Options& options, bool futex) {
  if (options.asked) options.asked();
  if (base_ == nullptr || !AwaitServing()) return false;
  RingClientOptions ring;
  ring.slot = base_ + SlotOffset(0);
  ring.futex = futex;
  ring.loss = [this] { return Lives() && !IsOverdue() ? std::string() : std::string("the session is over"); };
  transport_ = std::make_unique<RingClient>(std::move(ring));
  return true;
}

bool HostileGuest::OpenVm(const std::string& region_file, const Options& options) {
  const std::vector<pid_t> before = daemon_.IsOthers() ? std::vector<pid_t>() : daemon_.Workers();
  region_fd_.reset(open(region_file.c_str(), O_RDWR | O_CLOEXEC));
  struct stat info {};
  if (!region_fd_ || fstat(region_fd_.get(), &info) != 0) {
    refusal_ = "there is no region " + region_file;
    return false;
  }
  region_bytes_ = uint64_t(info.st_size);
  void* mapped =
      mmap(nullptr, region_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, region_fd_.get(), 0);
  if (mapped == MAP_FAILED) return false;
  base_ = static_cast<std::byte*>(mapped);
  // A new kernel: what the one before had is gone once the host says so.
  const uint64_t epoch = __atomic_load_n(&guest_page().epoch, __ATOMIC_ACQUIRE) + 1;
  StoreRelease(guest_page().slot[0], SlotWord(uint32_t(epoch), uint32_t(SlotGuestState::kFree)));
  __atomic_store_n(&guest_page().epoch, epoch, __ATOMIC_RELEASE);
  if (!WaitFor([&] { return __atomic_load_n(&host_page().reset_acknowledged, __ATOMIC_ACQUIRE) == epoch; })) {
    refusal_ = "the host does not see the VM's new kernel";
    return false;
  }
  PutBlock(options);
  guest_page().pid[0] = uint32_t(getpid());
  StoreRelease(guest_page().slot[0], SlotWord(uint32_t(epoch), uint32_t(SlotGuestState::kOpen)));
  vm_ = true;
  if (!Serve(options, false)) return false;
  FindWorker(before);
  return !options.agree || AgreeOnAddresses(window_) == CUDA_SUCCESS;
}

bool HostileGuest::OpenTcp(const Options& options) {
  const std::vector<pid_t> before = daemon_.IsOthers() ? std::vector<pid_t>() : daemon_.Workers();
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(daemon_.tcp_port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const OpenBlock block = GoodBlock(0, options);
  LocalReply reply{};
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      send(fd.get(), &block, sizeof block, MSG_NOSIGNAL) != ssize_t(sizeof block) ||
      recv(fd.get(), &reply, sizeof reply, MSG_WAITALL) != ssize_t(sizeof reply)) {
    refusal_ = "the daemon does not answer";
    return false;
  }
  if (reply.accepted != 1) {
    refusal_.assign(reply.text, strnlen(reply.text, sizeof reply.text));
    return false;
  }
  auto made = std::make_unique<TcpClient>(fd.release());
  tcp_ = made.get();
  transport_ = std::move(made);
  window_ = 0;
  FindWorker(before);
  return !options.agree || AgreeOnAddresses(0) == CUDA_SUCCESS;
}

bool HostileGuest::AwaitServing() {
  const auto* control = reinterpret_cast<HostControl*>(base_ + SlotOffset(0) + kHostControlOffset);
  bool served = false;
  WaitFor([&] {
    const uint32_t state = SlotState(LoadAcquire(host_page().slot[0]));
    served = state == uint32_t(SlotHostState::kServing);
    char byte;
    const bool gone = recv(socket_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
    return served || gone || state == uint32_t(SlotHostState::kRefused) ||
           state == uint32_t(SlotHostState::kFatal);
  });
  if (!served) refusal_.assign(control->refusal, strnlen(control->refusal, sizeof control->refusal));
  return served;
}

// The status names it once the session has one.
void HostileGuest::FindWorker(const std::vector<pid_t>& before) {
  if (daemon_.IsOthers()) return;  // whose sessions come and go meanwhile
  WaitFor([&] {
    for (const pid_t pid : daemon_.Workers()) {
      if (std::find(before.begin(), before.end(), pid) == before.end()) worker_ = WorkerView(pid);
    }
    return worker_.pid() != 0;
  });
}

void HostileGuest::Send(Op op, const Bytes& body, const Wire& wire) {
  auto header = HeaderOf<RecordHeader>(op, wire);
  header.main_sequence = wire.main_sequence;
  header.bulk_offset = wire.bulk_offset;
  header.bulk_bytes = wire.bulk_bytes;
  if (transport_ == nullptr) return;  // it was never served, as Await will say
  std::byte* record = transport_->ReserveRequest(wire.channel, sizeof header + body.size());
  if (record == nullptr) return;
  PutHeader(record, header);
  if (!body.empty()) std::memcpy(record + sizeof header, body.data(), body.size());
  transport_->PublishRequest(wire.channel, sizeof header + body.size());
}

Answer HostileGuest::Await(uint32_t channel) {
  Answer answer;
  RecordHeader header;
  std::span<const std::byte> reply;
  awaited_since_us_[channel] = NowUs();
  if (transport_ != nullptr) reply = transport_->AwaitReply(channel);
  EXPECT_FALSE(IsOverdue()) << "no answer on channel " << channel << " in " << kAnswerLimitUs / 1'000'000
                            << " s";
  awaited_since_us_[channel] = 0;
  if (reply.size() < sizeof header) {
    answer.lost = true;
    return answer;
  }
  std::memcpy(&header, reply.data(), sizeof header);
  answer.result = header.result;
  answer.bulk_bytes = header.bulk_bytes;
  answer.body.assign(reply.begin() + sizeof header, reply.end());
  return answer;
}

Answer HostileGuest::Call(Op op, const Bytes& body, const Wire& wire) {
  Send(op, body, wire);
  return Await(wire.channel);
}

void HostileGuest::Post(Op op, const Bytes& body, const Wire& wire) {
  std::unique_lock lock(main_mutex_);
  if (transport_ == nullptr) return;
  auto header = HeaderOf<PostedHeader>(op, wire);
  header.stream = wire.stream;
  header.event = wire.event;
  header.thread = 1;
  std::byte* record = transport_->ReserveMain(sizeof header + body.size(), lock);
  if (record == nullptr) return;
  PutHeader(record, header);
  if (!body.empty()) std::memcpy(record + sizeof header, body.data(), body.size());
  transport_->PublishMain(sizeof header + body.size());
}

Answer HostileGuest::AwaitPosted() {
  return Call(Op::cuCtxSynchronize, {}, {.main_sequence = posted()});
}

Answer HostileGuest::OpenChannel(uint32_t channel) {
  return Call(Op::kOpenChannel, Pack(OpenChannelBody{channel, 0}));
}

CUresult HostileGuest::AgreeOnAddresses(uint64_t window) {
  return CUresult(Call(Op::kAgreeOnAddresses, Pack(AddressBody{window, 0, 0})).result);
}

void HostileGuest::RetainPrimary() {
  const Answer answer = Call(Op::cuDevicePrimaryCtxRetain, Pack(int32_t{0}, uint32_t{0}, primary()));
  EXPECT_TRUE(answer.ok()) << "the primary context: " << answer.result;
  context = primary();
}

void HostileGuest::AddArena(uint64_t offset, uint64_t bytes) {
  const Answer answer = Call(Op::kAddArena, Pack(ArenaBody{offset, bytes, ArenaUse::kPinned, 0}));
  EXPECT_TRUE(answer.ok()) << "an arena: " << answer.result;
}

uint64_t HostileGuest::AllocateDevice(uint64_t bytes) {
  const Answer answer = Call(Op::cuMemAlloc_v2, Pack(bytes));
  EXPECT_TRUE(answer.ok()) << "device memory: " << answer.result;
  return answer.Get<uint64_t>();
}

bool HostileGuest::IsOverdue() const {
  const uint64_t now = NowUs();
  for (const auto& since : awaited_since_us_) {
    const uint64_t begun = since;  // other threads begin to wait meanwhile
    if (begun != 0 && now > begun + kAnswerLimitUs) return true;
  }
  return false;
}

bool HostileGuest::Lives() {
  if (base_ != nullptr && SlotState(LoadAcquire(host_page().slot[0])) == uint32_t(SlotHostState::kFatal))
    return false;
  if (tcp_ != nullptr) return tcp_->LossReason().empty();
  if (vm_)
    return base_ != nullptr &&
           SlotState(LoadAcquire(host_page().slot[0])) == uint32_t(SlotHostState::kServing);
  char byte;
  return socket_ && recv(socket_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) != 0;
}

std::string HostileGuest::HowItEnded() {
  return worker_.Alive() ? "" : EndOf(daemon_, worker_);
}

void HostileGuest::ExpectNoCrash() {
  const std::string how = HowItEnded();
  EXPECT_EQ(how.find("signal"), std::string::npos) << "the worker " << how;
}

}  // namespace causeway::test
