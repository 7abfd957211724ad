// SPDX-License-Identifier: Apache-2.0
// A hostile guest that goes on and on against a daemon which others use: an attacker of beside.py. What it
// gets back does not matter, only what becomes of the others. usage: hostile_loop MODE SOCKET SECONDS SEED,
// or hostile_loop --list
//   messages   any opcode with any body and any lent memory, posted and waited for, over several channels
//   memory     the same while a thread writes over rings, slot, guest page and owner table
//   words      sessions that are opened with any open block and any slot word, and given up at any moment
//   sockets    packets and connections that are no sessions, hundreds of them idle
//   violations sessions whose first message ends them
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/transport/ring.h"
#include "tests/hostile/hostile_guest.h"

namespace causeway::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr uint32_t kChannels = 4;
constexpr uint64_t kArenaBytes = 4u << 20;

class Attack {
 public:
  Attack(double seconds, uint64_t seed)
      : random_(seed), end_(Clock::now() + std::chrono::milliseconds(int64_t(seconds * 1000))) {}

  void Messages() { Sessions(false); }
  void Memory() { Sessions(true); }
  void Words();
  void Sockets();
  void Violations();
  uint64_t done() const { return done_; }

 private:
  bool Over() const { return Clock::now() >= end_; }
  uint64_t Random(uint64_t least, uint64_t most) {
    return std::uniform_int_distribution<uint64_t>(least, most)(random_);
  }
  // A value as an attacker chooses it: small, an address, a size at an edge, a handle, or anything.
  uint64_t Value(HostileGuest& guest);
  Bytes Body(HostileGuest& guest);
  Wire Lent(HostileGuest& guest);
  void Sessions(bool scribble);
  void Scribble(HostileGuest& guest, const std::atomic<bool>& over, uint64_t seed);

  std::mt19937_64 random_;
  Clock::time_point end_;
  HostileDaemon daemon_;
  uint64_t done_ = 0;
};

uint64_t Attack::Value(HostileGuest& guest) {
  switch (Random(0, 7)) {
    case 0:
      return Random(0, 16);
    case 1:
      return guest.window() + Random(0, guest.region_bytes() + 4096);
    case 2:
      return (uint64_t{1} << Random(0, 63)) - Random(0, 2);
    case 3:
      return MakeWireHandle(HandleKind(Random(0, 24)), 1, uint32_t(Random(1, 8)));
    case 4:
      return guest.context;
    case 5:
      return guest.first_slice() + Random(0, kArenaBytes);
    case 6:
      return ~uint64_t{0} - Random(0, 65536);
    default:
      return random_();
  }
}

Bytes Attack::Body(HostileGuest& guest) {
  Bytes body;
  for (uint64_t words = Random(0, Random(0, 9) == 0 ? 200 : 12); words > 0; --words) {
    const uint64_t value = Value(guest);
    Random(0, 3) == 0 ? Append(body, uint32_t(value)) : Append(body, value);
  }
  return body;
}

Wire Attack::Lent(HostileGuest& guest) {
  Wire wire{.channel = uint32_t(Random(0, kChannels - 1))};
  if (Random(0, 1) == 0) return wire;
  wire.bulk_offset = Random(0, 3) == 0 ? Value(guest) : guest.first_slice() + Random(0, kArenaBytes);
  wire.bulk_bytes = uint32_t(Random(0, 3) == 0 ? Value(guest) : Random(0, kArenaBytes));
  wire.flags = uint16_t(Random(0, 15));
  if (Random(0, 9) == 0) wire.main_sequence = Value(guest);
  if (Random(0, 9) == 0) wire.stream = Value(guest);
  if (Random(0, 1) == 0) wire.event = Value(guest);
  return wire;
}

// Any byte that a guest may write, again and again.
void Attack::Scribble(HostileGuest& guest, const std::atomic<bool>& over, uint64_t seed) {
  std::mt19937_64 random(seed);
  while (!over) {
    const uint64_t places[] = {SlotOffset(0) + random() % kGranuleBytes, kGuestPageOffset + random() % 4096,
                               kOwnerTableOffset + random() % 4096,
                               guest.first_slice() + random() % kArenaBytes};
    std::byte* place = guest.base() + places[random() % 4];
    if (uintptr_t(place) % 4 == 0 && random() % 2 == 0) {
      std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(place)) = uint32_t(random());
    } else {
      *reinterpret_cast<volatile unsigned char*>(place) = static_cast<unsigned char>(random());
    }
    if (random() % 64 == 0) usleep(100);
  }
}

void Attack::Sessions(bool scribble) {
  while (!Over()) {
    HostileGuest guest(daemon_);
    if (!guest.Open()) {
      usleep(20'000);
      continue;
    }
    guest.context = guest.primary();
    guest.Call(Op::cuDevicePrimaryCtxRetain, Pack(int32_t{0}, uint32_t{0}, guest.primary()));
    guest.Call(Op::kAddArena, Pack(ArenaBody{guest.first_slice(), kArenaBytes, ArenaUse::kPinned, 0}));
    for (uint32_t channel = 1; channel < kChannels; ++channel) guest.OpenChannel(channel);
    std::atomic<bool> over{false};
    std::thread scribbler;
    if (scribble) scribbler = std::thread([&, seed = random_()] { Scribble(guest, over, seed); });
    for (uint64_t left = Random(1, 3000); left > 0 && !Over() && guest.Lives(); --left, ++done_) {
      const auto op = Op(Random(0, 700));
      if (Random(0, 2) == 0) {
        guest.Post(op, Body(guest), Lent(guest));
      } else if (guest.Call(op, Body(guest), Lent(guest)).lost) {
        break;
      }
    }
    over = true;
    if (scribbler.joinable()) scribbler.join();
  }
}

void Attack::Words() {
  while (!Over()) {
    HostileGuest guest(daemon_);
    HostileGuest::Options options;
    options.agree = false;
    options.edit = [this](OpenBlock& block) {
      auto* bytes = reinterpret_cast<unsigned char*>(&block);
      for (uint64_t count = Random(0, 8); count > 0; --count)
        bytes[Random(0, sizeof block - 1)] = static_cast<unsigned char>(random_());
    };
    options.asked = [this, &guest] {
      for (uint64_t count = Random(1, 200); count > 0; --count) {
        const uint64_t slot = Random(0, SlotCount(guest.region_bytes()) - 1);
        StoreRelease(guest.guest_page().slot[slot], decltype(guest.guest_page().slot[0] + 0)(random_()));
        const std::byte wake{static_cast<unsigned char>(kLocalReady)};
        guest.SendToDaemon(&wake, 1);
      }
      if (Random(0, 1) == 0) guest.Close();
    };
    guest.Open(options);
    ++done_;
  }
}

int Connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  close(fd);
  return -1;
}

void Attack::Sockets() {
  std::deque<int> held;
  while (!Over()) {
    const int fd = Connect(daemon_.socket());
    if (fd < 0) usleep(1000);
    if (fd >= 0) {
      LocalTraceRequest request{{kLocalMagic, kAbiMajor, kAbiMinor, LocalRequestKind(Random(0, 5))},
                                random_()};
      auto* bytes = reinterpret_cast<unsigned char*>(&request);
      if (Random(0, 1) == 0) bytes[Random(0, sizeof request - 1)] = static_cast<unsigned char>(random_());
      const Bytes large(Random(0, 65536));
      if (Random(0, 3) == 0) send(fd, large.data(), large.size(), MSG_NOSIGNAL);
      if (Random(0, 2) != 0) send(fd, &request, Random(0, sizeof request), MSG_NOSIGNAL);
      held.push_back(fd);
      ++done_;
    }
    while (held.size() > Random(0, 400)) {
      close(held.front());
      held.pop_front();
    }
  }
  for (const int fd : held) close(fd);
}

void Attack::Violations() {
  while (!Over()) {
    HostileGuest guest(daemon_);
    if (!guest.Open()) usleep(5000);
    if (guest.Lives()) guest.Call(Op(60'000), Body(guest), {.main_sequence = uint64_t{1} << 40});
    ++done_;
  }
}

const std::map<std::string, void (Attack::*)()> kModes = {{"messages", &Attack::Messages},
                                                          {"memory", &Attack::Memory},
                                                          {"words", &Attack::Words},
                                                          {"sockets", &Attack::Sockets},
                                                          {"violations", &Attack::Violations}};

int Run(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--list") {
    for (const auto& [name, mode] : kModes) std::printf("%s\n", name.c_str());
    return 0;
  }
  const auto mode = argc == 5 ? kModes.find(argv[1]) : kModes.end();
  if (mode == kModes.end()) {
    std::fprintf(stderr, "usage: hostile_loop MODE SOCKET SECONDS SEED, or hostile_loop --list\n");
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  setenv("CAUSEWAY_TEST_SOCKET", argv[2], 1);
  Attack attack(std::atof(argv[3]), std::strtoull(argv[4], nullptr, 10));
  (attack.*mode->second)();
  std::printf("%s: %llu\n", argv[1], static_cast<unsigned long long>(attack.done()));
  return 0;
}

}  // namespace
}  // namespace causeway::test

int main(int argc, char** argv) {
  return causeway::test::Run(argc, argv);
}
