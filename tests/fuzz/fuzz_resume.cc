// SPDX-License-Identifier: Apache-2.0
// What somebody makes of a connection that is lost and made again: any numbers in acknowledgements and in the message by which a guest comes
// back, with any frames before and behind it; a host's answer to a guest; and what is kept for a peer, beside a plain copy of it.
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "ivshmem_ring/messages/resume_messages.h"
#include "tests/fuzz/guest_stream.h"

namespace causeway::fuzz {
namespace {

// Pieces are copied or referred to, forgotten, and read again from anywhere.
void KeepAndForget(Input& input) {
  SentBytes sent;
  std::vector<std::byte> all;
  std::list<std::vector<std::byte>> elsewhere;
  while (!input.empty()) {
    const uint8_t choice = input.Byte();
    const uint64_t kept = sent.end() - sent.begin();
    if (choice % 4 == 0) {
      sent.Forget(sent.begin() + input.Word() % (kept + 1));
      continue;
    }
    std::vector<std::byte> bytes(choice > 250 ? 70'000 : input.Byte() * size_t{8});
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(uint8_t(all.size() + i * choice));
    const bool copied = choice % 4 != 1;
    if (!sent.HasRoom(copied ? bytes.size() : 0, copied ? 0 : bytes.size())) break;
    all.insert(all.end(), bytes.begin(), bytes.end());
    if (copied)
      sent.Copy(bytes);
    else
      sent.Refer(elsewhere.emplace_back(std::move(bytes)));
    Require(sent.end() == all.size());
    const uint64_t from = sent.begin() + input.Byte() % (sent.end() - sent.begin() + 1);
    auto expected = all.begin() + static_cast<ptrdiff_t>(from);
    Require(sent.From(from, [&](std::span<const std::byte> piece) {
      Require(piece.size() <= static_cast<size_t>(all.end() - expected) &&
              std::equal(piece.begin(), piece.end(), expected));
      expected += static_cast<ptrdiff_t>(piece.size());
      return true;
    }));
    Require(expected == all.end());
  }
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
  if (const auto grant = GrantOf(reply)) Require(grant->grace_s != 0 && grant->grace_s <= kMaxResumeGraceS);
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
