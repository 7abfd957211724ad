// SPDX-License-Identifier: Apache-2.0
// Measures what kernel TLS would do for a session of a remote guest. The program makes connections over the loopback interface and gives
// each direction a traffic secret, as causeway-tls hands connections to a worker when the handshake is over. Either end has its records from the kernel (TLS_TX,
// TLS_RX) or from this process (TlsRecords), in all combinations, so that it is seen that each understands the other. For each, the
// processor time of both ends for a GiB is printed; that time is measured and not judged, as every machine has its own.
//
// Rounds of all combinations follow each other, and the least of a combination's counts: another load of the machine only adds.
//
// usage: kernel_tls [MIB]    so many are sent in each combination and round (default 64)
//        kernel_tls --try    only whether this user can give a socket to kernel TLS
// exit status: 0 all bytes arrived; 77 this user's sockets cannot have kernel TLS here; else bytes were lost or changed
#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/hmac.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "ivshmem_ring/tls/tls_records.h"

namespace causeway {
namespace {

constexpr size_t kPieceBytes = 64u << 10,
                 kWireBytes = 128u << 10;  // as a session's connection sends and receives
constexpr int kRounds = 7;
constexpr uint32_t kAes128Gcm = 0x1301;
constexpr int kSocketTls = 282;  // SOL_TLS
constexpr int kExpectNoPad = 4;  // TLS_RX_EXPECT_NO_PAD, which older headers lack
constexpr timeval kPatience{60, 0};

enum class Way { kPlain, kProcess, kKernel, kKernelNoPad };
constexpr const char* kNames[] = {"plain", "process", "kernel", "kernel, no padding"};

[[noreturn]] void Fail(const std::string& what) {
  std::printf("kernel_tls: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

// HKDF-Expand-Label of RFC 8446, 7.1: for what is no longer than the hash it is one HMAC.
std::vector<unsigned char> Expand(const TrafficSecret& secret, const std::string& label, size_t bytes) {
  const std::string name = "tls13 " + label;
  std::string info = {0, char(bytes), char(name.size())};
  info += name + '\0' + '\x01';
  std::vector<unsigned char> out(32);
  unsigned int size = 0;
  if (HMAC(EVP_sha256(), secret.data(), int(secret.size()),
           reinterpret_cast<const unsigned char*>(info.data()), info.size(), out.data(), &size) == nullptr)
    Fail("HMAC");
  out.resize(bytes);
  return out;
}

struct End {
  int fd = -1;
  std::unique_ptr<TlsRecords> records;
  std::vector<std::byte> wire = std::vector<std::byte>(kWireBytes);
  std::vector<std::byte> sealed;
};

// The kernel takes key and number of one direction; 0 or the error.
int GiveKey(int fd, int direction, const TlsDirection& from) {
  tls12_crypto_info_aes_gcm_128 info{};
  info.info.version = TLS_1_3_VERSION;
  info.info.cipher_type = TLS_CIPHER_AES_GCM_128;
  const auto key = Expand(from.secret, "key", sizeof info.key);
  const auto base = Expand(from.secret, "iv", sizeof info.salt + sizeof info.iv);
  std::memcpy(info.key, key.data(), sizeof info.key);
  std::memcpy(info.salt, base.data(), sizeof info.salt);
  std::memcpy(info.iv, &base[sizeof info.salt], sizeof info.iv);
  for (size_t i = 0; i < sizeof info.rec_seq; ++i)
    info.rec_seq[sizeof info.rec_seq - 1 - i] = static_cast<unsigned char>(from.sequence >> (8 * i));
  return setsockopt(fd, kSocketTls, direction, &info, sizeof info) == 0 ? 0 : errno;
}

int TakeOver(int fd) {
  return setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", sizeof "tls") == 0 ? 0 : errno;
}

std::pair<int, int> Connect() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  const int near = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener, address, length) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, address, &length) != 0 || connect(near, address, length) != 0)
    Fail("a connection over the loopback interface");
  const int far = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (far < 0) Fail("accept");
  close(listener);
  for (const int fd : {near, far}) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
  }
  return {near, far};
}

void SetUp(End* end, Way way, const TlsTraffic& traffic, uint64_t records_of_a_key) {
  if (way == Way::kPlain) return;
  if (way == Way::kProcess) {
    end->records = TlsRecords::Make(traffic, records_of_a_key);
    if (end->records == nullptr) Fail("TlsRecords");
    return;
  }
  for (const int error : {TakeOver(end->fd), GiveKey(end->fd, TLS_TX, traffic.writing),
                          GiveKey(end->fd, TLS_RX, traffic.reading)}) {
    errno = error;
    if (error != 0) Fail("kernel TLS");
  }
  const int on = 1;
  if (way == Way::kKernelNoPad && setsockopt(end->fd, kSocketTls, kExpectNoPad, &on, sizeof on) != 0)
    Fail("TLS_RX_EXPECT_NO_PAD");
}

// A connection; the first end is the one that sends.
std::pair<End, End> Join(Way sends, Way receives, uint64_t records_of_a_key = TlsRecords::kRecordsOfAKey) {
  std::random_device random;
  TlsTraffic traffic{};
  traffic.cipher = kAes128Gcm;
  for (TlsDirection* direction : {&traffic.writing, &traffic.reading})
    for (uint8_t& byte : direction->secret) byte = static_cast<uint8_t>(random());
  std::pair<End, End> ends;
  std::tie(ends.first.fd, ends.second.fd) = Connect();
  SetUp(&ends.first, sends, traffic, records_of_a_key);
  std::swap(traffic.writing, traffic.reading);
  SetUp(&ends.second, receives, traffic, records_of_a_key);
  return ends;
}

void Send(End* end, std::span<const std::byte> plain) {
  if (end->records != nullptr) {
    if (!end->records->Seal(plain)) Fail("Seal");
    end->records->TakeOutput(end->sealed);
    plain = end->sealed;
  }
  while (!plain.empty()) {
    const ssize_t sent = send(end->fd, plain.data(), plain.size(), MSG_NOSIGNAL);
    if (sent < 0) Fail("send");
    plain = plain.subspan(size_t(sent));
  }
}

// Fills the beginning of `plain`.
size_t Receive(End* end, std::span<std::byte> plain) {
  while (true) {
    if (end->records != nullptr) {
      const ptrdiff_t opened = end->records->Open(plain);
      if (opened < 0) Fail("Open");
      if (opened > 0) return size_t(opened);
    }
    const std::span<std::byte> room =
        end->records == nullptr ? plain
                                : std::span(end->wire).first(end->records->Wanted(plain.size(), kWireBytes));
    const ssize_t received = recv(end->fd, room.data(), room.size(), MSG_WAITALL);
    if (received <= 0) Fail("recv");
    if (end->records == nullptr) return size_t(received);
    end->records->Received(room.first(size_t(received)));
  }
}

double ThreadSeconds() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  const auto seconds = [](const timeval& of) { return double(of.tv_sec) + double(of.tv_usec) / 1e6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Times {
  double sender = 0, receiver = 0;
};

// The pattern has a prime's length, so that no piece is like the one before; `compares`: the receiver looks at each byte.
Times Transfer(End* from, End* to, size_t bytes, bool compares) {
  constexpr size_t kPeriod = 251;
  std::vector<std::byte> pattern(kPieceBytes + kPeriod), got(kPieceBytes);
  for (size_t i = 0; i < pattern.size(); ++i) pattern[i] = std::byte(i % kPeriod);
  Times times;
  std::thread sender([&] {
    const double own = ThreadSeconds();
    for (size_t at = 0; at < bytes; at += kPieceBytes)
      Send(from, std::span(pattern).subspan(at % kPeriod, kPieceBytes));
    times.sender = ThreadSeconds() - own;
  });
  const double own = ThreadSeconds();
  for (size_t at = 0; at < bytes;) {
    const size_t received = Receive(to, std::span(got).first(std::min(kPieceBytes, bytes - at)));
    if (compares && std::memcmp(got.data(), &pattern[at % kPeriod], received) != 0)
      Fail("the bytes that came are others");
    at += received;
  }
  times.receiver = ThreadSeconds() - own;
  sender.join();
  return times;
}

struct Combination {
  Way sends, receives;
  Times least{1e9, 1e9};
};

void Measure(Combination* combination, size_t bytes) {
  auto [from, to] = Join(combination->sends, combination->receives);
  Transfer(&from, &to, 1u << 20, true);
  const Times times = Transfer(&from, &to, bytes, false);
  combination->least.sender = std::min(combination->least.sender, times.sender);
  combination->least.receiver = std::min(combination->least.receiver, times.receiver);
  close(from.fd);
  close(to.fd);
}

void MeasureAll(size_t bytes) {
  Combination all[] = {{Way::kPlain, Way::kPlain},    {Way::kProcess, Way::kProcess},
                       {Way::kKernel, Way::kKernel},  {Way::kKernel, Way::kKernelNoPad},
                       {Way::kKernel, Way::kProcess}, {Way::kProcess, Way::kKernel}};
  for (int round = 0; round < kRounds; ++round)
    for (Combination& each : all) Measure(&each, bytes);
  std::printf("processor time in s for a GiB, the least of %d rounds; TLS 1.3, AES-128-GCM\n", kRounds);
  std::printf("%-19s %-19s %10s %10s\n", "sends", "receives", "sender", "receiver");
  const double gib = double(bytes) / double(1u << 30);
  for (const Combination& each : all)
    std::printf("%-19s %-19s %10.2f %10.2f\n", kNames[int(each.sends)], kNames[int(each.receives)],
                each.least.sender / gib, each.least.receiver / gib);
  std::fflush(stdout);
}

// What TlsRecords does after 2^22 records of a key: says so in a record that is no data, and goes on with another key.
void TryKeyUpdate() {
  auto [from, to] = Join(Way::kProcess, Way::kKernel, 1);
  const std::vector<std::byte> word(8, std::byte{7});
  std::vector<std::byte> got(64);
  Send(&from, word);
  if (Receive(&to, std::span(got).first(word.size())) != word.size()) Fail("recv");
  Send(&from, word);  // the key update, and then this with another key
  const ssize_t plain = recv(to.fd, got.data(), got.size(), 0);
  std::printf("a key update of the peer: recv gives %s", plain < 0 ? std::strerror(errno) : "bytes");
  iovec vector{got.data(), got.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(1)];
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t typed = recvmsg(to.fd, &message, 0);
  const cmsghdr* const type = typed > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (type != nullptr) std::printf(", recvmsg a record of type %d", int(*CMSG_DATA(type)));
  const TlsDirection next{{}, 0};
  const int reading = GiveKey(to.fd, TLS_RX, next), writing = GiveKey(to.fd, TLS_TX, next);
  std::printf("\nanother key for a socket that has one: to read with %s, to write with %s\n",
              std::strerror(reading), std::strerror(writing));
  close(from.fd);
  close(to.fd);
}

}  // namespace
}  // namespace causeway

int main(int argc, char** argv) {
  using namespace causeway;
  const auto [near, far] = Connect();
  if (const int error = TakeOver(near); error != 0) {
    std::printf("kernel_tls: sockets of user %d cannot have kernel TLS here: %s\n", int(getuid()),
                std::strerror(error));
    return 77;
  }
  if (argc > 1 && std::string(argv[1]) == "--try") {
    std::printf("kernel_tls: sockets of user %d can have kernel TLS\n", int(getuid()));
    return 0;
  }
  close(near);
  close(far);
  const size_t bytes = (argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 64) << 20;
  if (bytes == 0) return 2;
  MeasureAll(bytes);
  TryKeyUpdate();
  return 0;
}
