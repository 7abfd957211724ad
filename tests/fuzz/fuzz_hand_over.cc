// SPDX-License-Identifier: Apache-2.0
// What a process of a TLS connection that a stranger has taken over sends to the two that listen to it: to the session's worker, which
// takes the guest's socket and keys from it once (common/remote/tls_hand_over.h), and to its listener, which answers its questions
// (host_backend/tls/dialogue.h). Packets of any bytes and lengths, with descriptors of every sort, in any order and number, over real
// sockets of both types. What is taken is what was sent in its form, and no descriptor is left behind.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "host_backend/common/remote/tls_hand_over.h"
#include "host_backend/tls/dialogue.h"
#include "ivshmem_ring/transport/packet.h"
#include "tests/fuzz/fuzz_input.h"

namespace causeway::fuzz {
namespace {

struct Pair {
  explicit Pair(int type) {
    int ends[2];
    Require(socketpair(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    sender.reset(ends[0]);
    receiver.reset(ends[1]);
  }
  UniqueFd sender, receiver;
};

// Made once: the first two are what a guest's socket may be.
const std::vector<UniqueFd>& Files() {
  static const std::vector<UniqueFd> files = [] {
    std::vector<UniqueFd> made;
    int ends[2];
    made.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    made.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    made.emplace_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    made.emplace_back(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    made.emplace_back(memfd_create("file", MFD_CLOEXEC));
    made.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    made.emplace_back(open("/", O_PATH | O_CLOEXEC));
    Require(pipe2(ends, O_CLOEXEC) == 0);
    made.emplace_back(ends[0]);
    made.emplace_back(ends[1]);
    for (const UniqueFd& file : made) Require(bool(file));
    return made;
  }();
  return files;
}
constexpr size_t kStreams = 2;

size_t OpenDescriptors() {
  constexpr int kEnd = 64;
  std::array<pollfd, kEnd> all;
  for (int at = 0; at < kEnd; ++at) all[size_t(at)] = {at, 0, 0};
  Require(poll(all.data(), all.size(), 0) >= 0);
  return size_t(std::count_if(all.begin(), all.end(), [](const pollfd& each) {
    return (each.revents & POLLNVAL) == 0 || fcntl(each.fd, F_GETFD) >= 0;
  }));
}

struct Packet {
  std::vector<std::byte> bytes;
  std::vector<size_t> files;  // of Files

  template <class Message>
  static Packet Of(const Message& message) {
    Packet packet;
    packet.bytes.resize(sizeof message);
    std::memcpy(packet.bytes.data(), &message, sizeof message);
    return packet;
  }
  bool Send(int socket) const {
    std::vector<int> numbers;
    for (const size_t file : files) numbers.push_back(Files()[file].get());
    return SendPacket(socket, bytes.data(), bytes.size(), numbers, MSG_DONTWAIT);
  }
};

// Other bytes, another length, other descriptors.
void Spoil(Input& input, Packet* packet) {
  const uint8_t odd = input.Byte();
  if (odd < 128) return;
  if (odd % 4 == 0 && !packet->bytes.empty())
    packet->bytes[input.Word() % packet->bytes.size()] ^= std::byte{input.Byte()};
  if (odd % 4 == 1) packet->bytes.resize(input.Byte() % 8 == 0 ? input.Word() % 70'000 : input.Word() % 400);
  if (odd % 4 == 2) {
    packet->files.clear();
    constexpr size_t kMost = 254;  // one more than the kernel carries
    for (size_t i = input.Byte() < 250 ? input.Byte() % 5 : kMost; i > 0; --i)
      packet->files.push_back(input.Byte() % Files().size());
  }
  if (odd % 4 == 3) {
    const auto bytes = std::as_bytes(input.Bytes(input.Byte()));
    packet->bytes.assign(bytes.begin(), bytes.end());
  }
}

Packet SomeHandOver(Input& input) {
  static constexpr uint32_t kCiphers[] = {0x1301, 0x1302, 0x1303, 0, ~0u};
  TlsHandOver message{kTlsHandOverMagic, {}};
  message.traffic.reading.secret.fill(input.Byte());
  message.traffic.reading.sequence = input.Word();
  message.traffic.cipher = kCiphers[input.Byte() < 230 ? 0 : input.Byte() % std::size(kCiphers)];
  Packet packet = Packet::Of(message);
  packet.files = {input.Byte() % kStreams};
  Spoil(input, &packet);
  return packet;
}

bool IsStream(size_t file) {
  return file < kStreams;
}

// As tls_hand_over.h promises it, of one packet.
bool IsGood(const Packet& packet) {
  TlsHandOver message;
  if (packet.bytes.size() != sizeof message || packet.files.size() != 1 || !IsStream(packet.files[0]))
    return false;
  std::memcpy(&message, packet.bytes.data(), sizeof message);
  return message.magic == kTlsHandOverMagic && TlsRecords::Make(message.traffic) != nullptr;
}

void TryWorker(Input& input) {
  const bool packets = input.Byte() % 4 == 0;  // a daemon's socket is a stream
  Pair pair(packets ? SOCK_SEQPACKET : SOCK_STREAM);
  std::vector<Packet> sent;
  for (int count = 1 + (input.Byte() > 200 ? input.Byte() % 3 : 0); count > 0; --count) {
    Packet packet = SomeHandOver(input);
    if (packet.Send(pair.sender.get())) sent.push_back(std::move(packet));
  }
  // Else the answer comes after 10 s.
  pair.sender.reset();
  const auto stream = ReceiveTlsStream(pair.receiver.get());
  const bool one = sent.size() == 1, good = !sent.empty() && IsGood(sent[0]);
  // In a stream of bytes the first part may be followed by others, or come in two.
  if (one && packets) Require(stream.ok() == good);
  if (one && good) Require(stream.ok());
  if (!stream.ok()) return Require(!stream.error().empty());
  int type = 0;
  socklen_t length = sizeof type;
  Require(getsockopt(stream.value().socket.get(), SOL_SOCKET, SO_TYPE, &type, &length) == 0);
  Require(type == SOCK_STREAM && stream.value().records != nullptr);
  Require((fcntl(stream.value().socket.get(), F_GETFD) & FD_CLOEXEC) != 0);
}

Packet SomeQuestion(Input& input) {
  tls::TlsQuestion question{};
  const uint8_t odd = input.Byte();
  question.word = odd < 240 ? tls::Word(1 + odd % 3) : tls::Word(uint32_t(input.Word()));
  const size_t digits = odd % 16 == 5 ? input.Byte() % sizeof question.id : kKeyIdDigits;
  std::memset(question.id, "0123456789abcdefgA"[input.Byte() % 18], digits);
  const auto text = input.Bytes(input.Byte() % (sizeof question.text + 1));
  if (!text.empty()) std::memcpy(question.text, text.data(), text.size());
  Packet packet = Packet::Of(question);
  Spoil(input, &packet);
  return packet;
}

// messages.h in other words.
class Expected {
 public:
  void Check(const tls::TlsQuestion& question, const tls::Dialogue::Said& said) {
    using tls::Dialogue;
    const std::string id(question.id, strnlen(question.id, sizeof question.id));
    const bool asks = question.word == tls::Word::kSecret && !named_ && IsKeyId(id);
    const bool proves = question.word == tls::Word::kProved && named_ && !refused_ && !proved_;
    const bool fails = question.word == tls::Word::kFailed && !proved_;
    Require(std::holds_alternative<Dialogue::AsksForSecret>(said) == (asks && !failed_));
    Require(std::holds_alternative<Dialogue::Proves>(said) == (proves && !failed_));
    Require(std::holds_alternative<Dialogue::Fails>(said) == (fails && !failed_));
    if (const auto* why = std::get_if<Dialogue::Fails>(&said)) {
      Require(why->why.size() <= sizeof question.text);
      Require(std::all_of(why->why.begin(), why->why.end(), [](char c) { return c >= ' ' && c <= '~'; }));
    }
    named_ = named_ || (asks && !failed_);
    proved_ = proved_ || (proves && !failed_);
    failed_ = failed_ || fails;
  }
  void Refuse() { refused_ = true; }

 private:
  bool named_ = false, refused_ = false, proved_ = false, failed_ = false;
};

void TryListener(Input& input) {
  Pair pair(SOCK_SEQPACKET);
  tls::Dialogue dialogue;
  Expected expected;
  tls::TlsQuestion question;
  for (int steps = 0; steps < 50 && !input.empty(); ++steps) {
    Require(tls::ReadQuestion(pair.receiver.get(), &question) == tls::Reading::kNothing);
    const Packet packet = SomeQuestion(input);
    if (!packet.Send(pair.sender.get())) continue;
    const tls::Reading reading = tls::ReadQuestion(pair.receiver.get(), &question);
    const bool whole = packet.bytes.size() == sizeof question;
    Require(reading == (whole ? tls::Reading::kMessage : tls::Reading::kEnd));
    if (!whole) continue;
    Require(std::memcmp(&question, packet.bytes.data(), sizeof question) == 0);
    const auto said = dialogue.Take(question);
    expected.Check(question, said);
    Require(dialogue.id().empty() || IsKeyId(dialogue.id()));
    if (std::holds_alternative<tls::Dialogue::AsksForSecret>(said) && input.Byte() % 4 == 0) {
      dialogue.Refuse();
      expected.Refuse();
    }
  }
  pair.sender.reset();
  Require(tls::ReadQuestion(pair.receiver.get(), &question) == tls::Reading::kEnd);
}

}  // namespace
}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace causeway::fuzz;
  Input input(data, size);
  Files();
  const size_t before = OpenDescriptors();
  if (input.Byte() % 2 == 0) {
    TryWorker(input);
  } else {
    TryListener(input);
  }
  Require(OpenDescriptors() == before);
  return 0;
}
