// SPDX-License-Identifier: Apache-2.0
// What somebody makes of a connection that is lost and made again: any numbers in acknowledgements and in the message by which a guest comes
// back, with any frames before and behind it; a host's answer to a guest; and what is kept for a peer, beside what was sent.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ivshmem_ring/messages/resume_messages.h"
#include "tests/fuzz/guest_stream.h"

namespace causeway::fuzz {
namespace {

constexpr size_t kLongPiece = 70'000;  // more than what is kept has room for at first
// After how many bytes the same ones are sent again. Prime, so that a place which is wrong by a ring's size shows.
constexpr size_t kPeriod = 65'521;

// What is sent from that position on, without a copy: making and comparing bytes one by one was most of an execution.
std::span<const std::byte> SentAt(uint64_t position, size_t bytes) {
  static const std::vector<std::byte> pattern = [] {
    std::vector<std::byte> made(kPeriod + std::max(kPeriod, kLongPiece));
    std::minstd_rand random;
    for (size_t i = 0; i < made.size(); ++i)
      made[i] = i < kPeriod ? std::byte(random() >> 8) : made[i - kPeriod];
    return made;
  }();
  return {&pattern[position % kPeriod], bytes};
}

// Whether what is kept from there on is what was sent.
bool KeepsFrom(const SentBytes& sent, uint64_t from) {
  uint64_t at = from;
  const bool is_same = sent.From(from, [&](std::span<const std::byte> piece) {
    while (!piece.empty()) {
      const auto part = piece.first(std::min(piece.size(), kPeriod));
      if (std::memcmp(part.data(), SentAt(at, part.size()).data(), part.size()) != 0) return false;
      at += part.size();
      piece = piece.subspan(part.size());
    }
    return true;
  });
  return is_same && at == sent.end();
}

// Pieces are copied, referred to or kept, forgotten, and read again from anywhere: from any place while little is kept, and of much
// its end, so that an input costs no more than its length lets it.
void KeepAndForget(Input& input) {
  constexpr uint64_t kLittle = 128u << 10;
  SentBytes sent;
  while (!input.empty()) {
    const uint8_t choice = input.Byte();
    if (choice % 4 == 0) {
      sent.Forget(sent.begin() + input.Word() % (sent.end() - sent.begin() + 1));
      continue;
    }
    const uint64_t position = sent.end();
    const auto bytes = SentAt(position, choice > 250 ? kLongPiece : input.Byte() * size_t{8});
    const bool copied = choice % 4 != 1 && choice % 8 != 7;
    if (!sent.HasRoom(copied ? bytes.size() : 0, copied ? 0 : bytes.size())) break;
    if (copied) {
      sent.Copy(bytes);
    } else if (choice % 4 == 1) {
      sent.Refer(bytes);
    } else {
      auto memory = std::make_unique<std::byte[]>(bytes.size());
      std::copy(bytes.begin(), bytes.end(), memory.get());
      sent.Keep(std::move(memory), bytes.size());
    }
    Require(sent.end() == position + bytes.size());
    const uint64_t kept = sent.end() - sent.begin(), left_out = kept - std::min(kept, kLittle);
    Require(KeepsFrom(sent, sent.begin() + left_out + input.Byte() % (kept - left_out + 1)));
  }
  Require(KeepsFrom(sent, sent.begin()));
}

void ReadAnswer(Input& input) {
  LocalReply reply{};
  const auto bytes = input.Bytes(sizeof reply);
  std::memcpy(&reply, bytes.data(), bytes.size());
  if (input.Byte() % 2 == 0) {
    reply.accepted = 1;
    reply.reserved = kGrantsResume;
    const uint64_t magic = kResumeMagic;
    std::memcpy(reply.text, &magic, sizeof magic);
  }
  const auto grant = GrantOf(reply);
  if (grant) Require(grant->grace_s != 0 && grant->grace_s <= kMaxResumeGraceS);
  const bool compresses = GrantsCompression(reply);
  LocalReply same{};
  same.accepted = 1;
  if (grant) PutGrant(grant->token, grant->grace_s, &same);
  if (compresses) PutCompression(&same);
  const auto again = GrantOf(same);
  Require(again.has_value() == grant.has_value() && GrantsCompression(same) == compresses);
  if (grant) Require(SameToken(again->token, grant->token) && again->grace_s == grant->grace_s);
  OpenBlock block{};
  const ResumeRequest request{grant ? grant->token : SessionToken{}, input.Byte(), input.Word()};
  PutRequest(request, &block);
  Require(std::memcmp(&request, block.reserved, sizeof request) == 0 &&
          RequestOf(block).received == request.received);
}

std::pair<int, int> Pair() {
  int pair[2];
  Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  return {pair[0], pair[1]};
}

// A session whose guest comes back once, with any numbers and frames. It ends, whatever they are.
void ComeBack(Input& input) {
  const auto [far, near] = Pair();
  const auto [far_again, near_again] = Pair();
  const uint64_t received = input.Byte() % 4 == 0 ? input.Word() : input.Byte();
  const bool valid_number = input.Byte() % 2 == 0;
  const Stream before = GuestStream(input, true), after = GuestStream(input, true);
  (void)!send(far, before.bytes.data(), before.bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  Fill(far_again, after);
  std::atomic<bool> taken{false};
  {
    TcpServer server(near, nullptr, nullptr, {1, [](bool) {}});
    std::thread others([&] { ServeOthers(server, kMain); });
    server.Offer([&, socket = near_again](uint64_t host_received, FreshSocket* fresh, std::string*) {
      Require(host_received <= before.bytes.size());
      fresh->fd = socket;
      taken = true;
      fresh->peer_received = valid_number ? 0 : received;
      return true;
    });
    ReceiveStatus status;
    while ((status = ServeOne(server, kMain)) == ReceiveStatus::kRecord) {
    }
    others.join();
    Require((status == ReceiveStatus::kCorrupt) == (*server.CorruptReason() != '\0'));
  }
  if (!taken) close(near_again);
  close(far);
  close(far_again);
}

}  // namespace
}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace causeway::fuzz;
  Input input(data, size);
  switch (input.Byte() % 4) {
    case 0:
      KeepAndForget(input);
      break;
    case 1:
      ReadAnswer(input);
      break;
    default:
      ComeBack(input);
  }
  return 0;
}
