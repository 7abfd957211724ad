// SPDX-License-Identifier: Apache-2.0
// The daemon's sockets and the words of a VM's guest page: clients of the UNIX socket and of TCP, and a causeway-tls that has been
// taken over, that say anything in any pieces, and a guest kernel that writes anything, between rounds of the daemon's event loop.
// There is no worker to be had, so each session is refused as late as can be. After every input all
// connections end, and nothing of them may be left.
// Time is the fuzzer's (daemon_parts.h).
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string>

#include "host_backend/common/remote/remote_hand_over.h"
#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/release/build_stamp.h"
#include "ivshmem_ring/transport/packet.h"
#include "tests/fuzz/daemon_parts.h"
#include "tests/fuzz/fuzz_input.h"

namespace causeway::fuzz {
namespace {

constexpr uint64_t kRegionMib = 32;  // all of it is zeroed after each input, a granule a round

daemon::Config MakeConfig(const std::string& folder) {
  daemon::Config config;
  config.socket = folder + "/socket";
  config.worker = folder + "/none";
  config.spare_workers = 0;
  config.local_region_mib = kRegionMib;
  config.max_sessions = 4;
  config.local_max_sessions = 2;
  daemon::VmConfig vm;
  vm.name = "vm";
  vm.region_file = folder + "/region";
  vm.region_mib = kRegionMib;
  vm.max_sessions = 3;
  vm.share.gpus = {"GPU-1", "GPU-2"};
  config.vms.push_back(vm);
  config.tcp.address = "127.0.0.1";
  config.tcp.max_sessions = 2;
  config.tls.hand_over = folder + "/socket.tls";
  return config;
}

// Everything of causewayd but main, workers and signals.
class Host {
 public:
  Host() {
    signal(SIGPIPE, SIG_IGN);
    parts_.launcher = std::make_unique<daemon::LauncherLink>(parts_.loop);
    parts_.pool.Use(parts_.launcher.get(), nullptr);
    Require(daemon::StartLog("", daemon::LogLevel::kError, false).empty());
    auto lock = daemon::LocalServer::LockSocket(parts_.config.socket);
    Require(lock.ok());
    auto local = daemon::LocalServer::Start(parts_.services, std::move(lock.value()),
                                            [this](const std::string&) { return Status(); });
    auto vm = daemon::VmServer::Start(parts_.services, parts_.config.vms[0]);
    auto tcp = daemon::TcpServer::Start(parts_.services);
    auto remote = daemon::RemoteServer::Start(parts_.services);
    if (!local.ok() || !vm.ok() || !tcp.ok() || !remote.ok()) {
      fprintf(stderr, "fuzz_daemon: %s%s%s%s\n", local.ok() ? "" : local.error().c_str(),
              vm.ok() ? "" : vm.error().c_str(), tcp.ok() ? "" : tcp.error().c_str(),
              remote.ok() ? "" : remote.error().c_str());
      exit(2);
    }
    parts_.local = std::move(local.value());
    parts_.vm = std::move(vm.value());
    parts_.tcp = std::move(tcp.value());
    parts_.remote = std::move(remote.value());
    const int file = open(parts_.config.vms[0].region_file.c_str(), O_RDWR | O_CLOEXEC);
    void* mapped = mmap(nullptr, kRegionMib << 20, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    Require(file >= 0 && mapped != MAP_FAILED);
    region_ = static_cast<std::byte*>(mapped);
    // Before main's end: the region's file is open, its name is not needed.
    unlink(parts_.config.vms[0].region_file.c_str());
    unlink((parts_.config.socket + ".lock").c_str());
  }
  ~Host() {
    unlink(parts_.config.socket.c_str());
    unlink(parts_.config.tls.hand_over.c_str());
    rmdir(folder_.c_str());
  }

  void Run(uint32_t rounds) { parts_.Run(rounds); }
  // Everything that was opened is over.
  bool Quiet() {
    return parts_.Report().sessions.empty() && parts_.scopes.live_sessions() == 0 && parts_.remote->quiet();
  }
  std::string Status() { return parts_.Status(); }

  const daemon::Config& config() const { return parts_.config; }
  uint16_t port() const {
    return static_cast<uint16_t>(atoi(parts_.tcp->address().c_str() + strlen("127.0.0.1:")));
  }
  std::byte* region() { return region_; }
  GuestPage& guest_page() { return *reinterpret_cast<GuestPage*>(region_ + kGuestPageOffset); }

 private:
  const std::string folder_ = MakeFolder();
  DaemonParts parts_{MakeConfig(folder_)};
  std::byte* region_ = nullptr;
};

// Written by a guest: mostly as it should be.
void MakeOpenBlock(Input& input, OpenBlock* block) {
  const uint8_t odd = input.Byte();
  std::memset(block, 0, offsetof(OpenBlock, environment));
  block->magic = odd % 32 == 1 ? input.Word() : kRegionMagic;
  block->abi_major = odd % 32 == 2 ? input.Byte() : kAbiMajor;
  block->abi_minor = kAbiMinor;
  block->pid = input.Byte();
  block->api_hash = odd % 32 == 3 ? input.Word() : kBuildStamp.api_hash;
  block->window_address = odd % 32 == 4 ? input.Word() : kDefaultWindowAddress + (odd % 32 == 5 ? 1 : 0);
  block->kind = static_cast<SessionKind>(odd % 32 == 6 ? input.Byte() : input.Byte() / 200);
  static constexpr const char* kNames[] = {
      "CUDA_VISIBLE_DEVICES=", "CUDA_LAUNCH_BLOCKING=", "CUDA_CACHE_PATH=", "LD_PRELOAD=", "=", ""};
  size_t at = 0;
  for (int variables = input.Byte() % 4; variables > 0; --variables) {
    const char* name = kNames[input.Byte() % std::size(kNames)];
    const auto value = input.Bytes(input.Byte() % 24);
    std::memcpy(block->environment + at, name, strlen(name));
    at += strlen(name);
    if (!value.empty()) std::memcpy(block->environment + at, value.data(), value.size());
    at += value.size();
    block->environment[at++] = '\0';
  }
  block->environment_bytes = odd % 32 == 7 ? static_cast<uint32_t>(input.Word()) : static_cast<uint32_t>(at);
  if (odd % 32 == 8) block->environment_bytes = kOpenTextBytes + input.Byte() % 2;
}

// One connection and what its peer does.
class Client {
 public:
  ~Client() { Close(); }
  void Close() {
    if (memory_ != nullptr) munmap(memory_, kMapped);
    if (socket_ >= 0) close(socket_);
    memory_ = nullptr;
    socket_ = -1;
    sent_ = 0;
  }
  bool open() const { return socket_ >= 0; }
  // A stream of bytes, not packets.
  bool over_tcp() const { return over_tcp_; }

  void ConnectLocal(const std::string& path) {
    over_tcp_ = false;
    ConnectUnix(path, SOCK_SEQPACKET);
  }
  void ConnectAsTls(const std::string& path) {
    ConnectUnix(path, SOCK_STREAM);
    over_tcp_ = true;
  }
  void ConnectTcp(uint16_t port) {
    Close();
    over_tcp_ = true;
    socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const linger reset{1, 0};  // no address waits afterwards
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) Close();
  }
  void Send(const void* bytes, size_t count) {
    if (open() && send(socket_, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
  }
  // A step of the UNIX socket's protocol, or something that is none.
  void SayLocal(Input& input) {
    LocalTraceRequest request{};
    const uint8_t odd = input.Byte();
    request.request.magic = odd % 32 == 1 ? input.Word() : kLocalMagic;
    request.request.abi_major = odd % 32 == 2 ? input.Byte() : kAbiMajor;
    request.request.kind = static_cast<LocalRequestKind>(odd % 32 == 3 ? input.Byte() : 1 + input.Byte() % 3);
    request.session = odd % 4 == 0 ? input.Word() : kTraceList - input.Byte() % 2;
    const bool trace = request.request.kind == LocalRequestKind::kTrace;
    size_t bytes = trace ? sizeof request : sizeof request.request;
    if (odd % 32 == 4) bytes = 1 + input.Byte() % sizeof request;
    Send(&request, bytes);
  }
  void Receive() {
    if (!open()) return;
    char packet[64u << 10];
    int descriptor = -1;
    const ssize_t got =
        ReceivePacket(socket_, packet, sizeof packet, std::span(&descriptor, 1), MSG_DONTWAIT);
    if (got == sizeof(LocalReply) && !over_tcp_) {
      LocalReply reply;
      std::memcpy(&reply, packet, sizeof reply);
      Require(reply.magic == kLocalMagic && std::memchr(reply.text, 0, sizeof reply.text) != nullptr);
      Require(descriptor < 0 || reply.accepted == 1);
    }
    if (descriptor < 0) return;
    if (memory_ == nullptr) {
      void* mapped = mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
      memory_ = mapped != MAP_FAILED ? static_cast<std::byte*>(mapped) : nullptr;
    }
    close(descriptor);
  }
  void BeReady(Input& input) {
    if (memory_ != nullptr)
      MakeOpenBlock(input,
                    &reinterpret_cast<GuestControl*>(memory_ + SlotOffset(0) + kGuestControlOffset)->open);
    const char ready = input.Byte() < 240 ? kLocalReady : static_cast<char>(input.Byte());
    Send(&ready, 1);
  }
  // Of a guest, as causeway-tls does, or of keys; its parts in any order, with the guest's opening message behind, before or between.
  void SayTls(Input& input) {
    const uint8_t odd = input.Byte();
    KeyHandOver message{};
    message.who.magic = odd % 2 == 0 ? kKeyHandOverMagic : kHandOverMagic;
    if (odd % 32 == 5) message.who.magic = input.Word();
    std::memset(message.who.key, 'k', odd % 32 == 7 ? sizeof message.who.key : 5);
    std::memset(message.who.peer, 'p', odd % 32 == 9 ? sizeof message.who.peer : 5);
    std::memset(message.id, 'a' + odd % 3, odd % 32 == 11 ? sizeof message.id : 32);
    const std::string vm = odd % 16 == 3 ? "none" : "vm";
    if (odd % 32 == 13) std::memset(message.who.vm, 'v', sizeof message.who.vm);
    if (odd % 32 != 13) vm.copy(message.who.vm, sizeof message.who.vm);
    if (odd < 200) {
      size_t bytes = odd % 2 == 0 ? sizeof message : sizeof message.who;
      if (odd % 32 == 15) bytes = input.Byte() % (sizeof message + 1);
      return Send(&message, bytes);
    }
    std::array<KeyEnded, 4> ended{};
    for (KeyEnded& each : ended) {
      each.magic = odd % 8 == 1 && &each == &ended[2] ? kHandOverMagic : kKeyEndedMagic;
      std::memset(each.id, 'a' + input.Byte() % 3, odd % 8 == 2 ? sizeof each.id : odd % 8 == 3 ? 0 : 32);
    }
    Send(ended.data(),
         odd % 8 == 4 ? input.Byte() % (sizeof ended + 1) : sizeof(KeyEnded) * (1 + odd % ended.size()));
  }
  // The opening message in pieces.
  void SayTcp(Input& input) {
    if (sent_ == 0) MakeOpenBlock(input, &block_);
    const size_t left = sizeof block_ - sent_;
    const size_t piece = std::min<size_t>(input.Byte() < 160 ? left : 1 + input.Word() % sizeof block_, left);
    Send(reinterpret_cast<const char*>(&block_) + sent_, piece);
    sent_ = (sent_ + piece) % sizeof block_;
  }

 private:
  void ConnectUnix(const std::string& path, int type) {
    Close();
    socket_ = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    if (connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) Close();
  }

  static constexpr size_t kMapped = SlotOffset(1);
  int socket_ = -1;
  bool over_tcp_ = false;
  std::byte* memory_ = nullptr;
  OpenBlock block_{};
  size_t sent_ = 0;
};

// A guest's kernel, or a stranger in its place, writes a word.
void WriteGuestPage(Input& input, Host& host) {
  GuestPage& page = host.guest_page();
  const uint32_t slot = input.Byte() % 6;
  const uint8_t choice = input.Byte();
  const auto store = [](auto& word, auto value) {
    std::atomic_ref(word).store(static_cast<std::remove_reference_t<decltype(word)>>(value));
  };
  if (choice < 120) {  // opened, released, or a session later
    MakeOpenBlock(
        input,
        &reinterpret_cast<GuestControl*>(host.region() + SlotOffset(slot) + kGuestControlOffset)->open);
    store(page.pid[slot], input.Byte());
    store(page.slot[slot], SlotWord(SlotSession(page.slot[slot]) + input.Byte() % 2, 1 + input.Byte() % 2));
  } else if (choice < 200) {
    store(page.slot[slot],
          SlotWord(SlotSession(page.slot[slot]) + (choice < 190 ? 0 : input.Byte()), input.Byte() % 3));
  } else if (choice < 220) {
    store(page.slot[slot], static_cast<uint32_t>(input.Word()));
  } else if (choice < 230) {
    store(page.epoch, input.Word());
  } else {
    auto* owners = reinterpret_cast<uint16_t*>(host.region() + kOwnerTableOffset);
    store(owners[input.Byte() % (kRegionMib / 2)], input.Byte() % 16 == 0 ? input.Word() : input.Byte() % 7u);
  }
}

void EndAll(Host& host, std::array<Client, 4>& clients, uint64_t epoch) {
  for (Client& client : clients) client.Close();
  GuestPage& page = host.guest_page();
  std::memset(page.slot, 0, sizeof page.slot);
  page.epoch = epoch;  // as after a reset of the VM
  for (int looks = 0; looks < 200; ++looks) {
    host.Run(8);
    if (looks > 1 && host.Quiet()) return;
  }
  Require(false);
}

}  // namespace
}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace causeway::fuzz;
  static Host host;
  static uint64_t epoch = 0;
  std::array<Client, 4> clients;
  Input input(data, size);
  while (!input.empty()) {
    const uint8_t choice = input.Byte();
    Client& client = clients[choice / 64];
    switch (choice % 8) {
      case 0:
        if (!client.open()) client.ConnectLocal(host.config().socket);
        break;
      case 1:
        if (!client.open()) client.ConnectTcp(host.port());
        break;
      case 2:
      case 3:
        if (!client.open()) {
          if (choice % 8 == 3) client.ConnectAsTls(host.config().tls.hand_over);
          if (client.open()) client.SayTls(input);
          if (choice % 8 == 2) WriteGuestPage(input, host);
        } else if (client.over_tcp()) {
          client.SayTcp(input);
        } else {
          client.SayLocal(input);
        }
        break;
      case 4:
        client.Receive();
        if (!client.over_tcp()) client.BeReady(input);
        if (client.over_tcp() && choice >= 128) client.SayTls(input);
        break;
      case 5:
        WriteGuestPage(input, host);
        break;
      case 6:
        client.Close();
        break;
      default:
        host.Run(1 + input.Byte() % 16);
        continue;
    }
    host.Run(2);
  }
  EndAll(host, clients, ++epoch);
  return 0;
}
