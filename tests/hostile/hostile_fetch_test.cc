// SPDX-License-Identifier: Apache-2.0
// Shared memory that changes between a look and its use: what daemon and worker do follows from one reading
// of it.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "ivshmem_ring/messages/address_windows.h"
#include "ivshmem_ring/transport/ring.h"
#include "tests/hostile/hostile_guest.h"

namespace causeway::test {
namespace {

constexpr uint64_t kMib = 1 << 20;

// Writes two values in turn until it ends.
template <class T>
class Flipper {
 public:
  Flipper(T& place, T first, T second)
      : thread_([this, &place, first, second] {
          for (uint64_t i = 0; !over_; ++i) {
            std::atomic_ref<T>(place).store(i % 2 != 0 ? first : second);
            for (int pauses = 0; pauses < 2000; ++pauses) asm volatile("pause");
          }
        }) {}
  ~Flipper() {
    over_ = true;
    thread_.join();
  }
  Flipper(const Flipper&) = delete;
  Flipper& operator=(const Flipper&) = delete;

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// Slices of the region that the worker has mapped elsewhere than where the daemon said.
std::string SlicesElsewhere(const HostileGuest& guest, uint64_t first_slice) {
  std::string found;
  for (const Mapping& each : guest.worker().Maps()) {
    const bool is_slice = each.permissions == "rw-s" && each.offset >= first_slice &&
                          each.name.find("region") != each.name.npos;
    const uint64_t expected = guest.window() + each.offset;
    if (is_slice && each.begin != expected) found += each.name + " ";
  }
  return found;
}

// The window moves after the daemon has checked it, to where the driver places memory and no daemon would
// allow it. An environment that this worker does not have yet makes it start anew, which gives the guest
// time.
TEST(HostileFetch, TheWindowIsWhatTheDaemonChecked) {
  HostileDaemon daemon;
  constexpr uint64_t kBad = 0x120000000;
  int served = 0;
  for (int attempt = 0; attempt < 16; ++attempt) {
    HostileGuest guest(daemon);
    std::unique_ptr<Flipper<uint64_t>> flipper;
    HostileGuest::Options options;
    options.environment = std::string("CUDA_LAUNCH_BLOCKING=1") + '\0';
    options.agree = false;
    options.asked = [&] {
      flipper = std::make_unique<Flipper<uint64_t>>(guest.open_block().window_address, kBad, guest.window());
    };
    const bool good = guest.Open(options);
    flipper.reset();
    if (!good) continue;
    ++served;
    guest.RetainPrimary();
    const uint64_t first = guest.first_slice();
    // With and without the agreement that a library makes first.
    if (attempt % 2 == 0) guest.AgreeOnAddresses(guest.window());
    guest.Call(Op::kAddArena, Pack(ArenaBody{first, 2 * kMib, ArenaUse::kPinned, 0}));
    EXPECT_EQ(SlicesElsewhere(guest, first), "") << attempt;
    EXPECT_EQ(guest.worker().MapAt(kBad + first).permissions.find('s'), std::string::npos) << attempt;
    guest.ExpectNoCrash();
    guest.Close();
  }
  EXPECT_GE(served, 2);
}

// Every field of the block changes while the daemon looks: the session is refused or served, the daemon
// lives.
TEST(HostileFetch, TheOpenBlockMayChangeAtAnyMoment) {
  HostileDaemon daemon;
  for (int attempt = 0; attempt < 40; ++attempt) {
    HostileGuest guest(daemon);
    std::unique_ptr<Flipper<uint32_t>> sizes;
    std::unique_ptr<Flipper<SessionKind>> kinds;
    HostileGuest::Options options;
    options.environment = std::string("CUDA_DEVICE_ORDER=PCI_BUS_ID") + '\0';
    options.agree = false;
    options.asked = [&] {
      OpenBlock& block = guest.open_block();
      sizes = std::make_unique<Flipper<uint32_t>>(block.environment_bytes,
                                                  uint32_t(options.environment.size()), ~0u);
      kinds = std::make_unique<Flipper<SessionKind>>(block.kind, SessionKind::kCuda, SessionKind(7));
    };
    guest.Open(options);
    sizes.reset();
    kinds.reset();
    guest.Close();
  }
  EXPECT_TRUE(daemon.Serves());
  EXPECT_EQ(daemon.CountInLog("was killed by signal"), 0u);
}

// Owners of slices change while arenas are made of them.
TEST(HostileFetch, OwnersMayChangeAtAnyMoment) {
  HostileDaemon daemon;
  HostileGuest guest(daemon);
  ASSERT_TRUE(guest.Open()) << guest.refusal();
  guest.RetainPrimary();
  const uint64_t first = guest.first_slice();
  {
    const Flipper<uint16_t> flipper(guest.owners()[first / kGranuleBytes + 1], 1, 2);
    for (int round = 0; round < 200; ++round) {
      const Bytes body = Pack(ArenaBody{first, 8 * kMib, ArenaUse::kPinned, 0});
      const Answer added = guest.Call(Op::kAddArena, body);
      if (added.lost) break;  // it asked for slices that are another slot's
      if (added.ok()) {
        EXPECT_TRUE(guest.Call(Op::kDropArena, body).ok());
      }
    }
  }
  const std::string how = guest.HowItEnded();
  EXPECT_TRUE(how.empty() || how == "ended with exit status 3") << how;
}

// Requests whose bulk buffer, a body that lies in it (kLargeRequest) and size change while they are served.
TEST(HostileFetch, LargeBodiesMayChangeAtAnyMoment) {
  HostileDaemon daemon;
  HostileGuest guest(daemon);
  ASSERT_TRUE(guest.Open()) << guest.refusal();
  guest.RetainPrimary();
  const uint64_t first = guest.first_slice();
  guest.AddArena(first, 2 * kMib);
  const WireHandle graph = MakeWireHandle(HandleKind::kGraph, 1, 20);
  ASSERT_TRUE(guest.Call(Op::cuGraphCreate, Pack(graph, uint32_t{0})).ok());
  auto* words = reinterpret_cast<uint64_t*>(guest.base() + first);
  const Bytes body = Pack(MakeWireHandle(HandleKind::kGraphNode, 1, 21), graph, uint64_t{4}, uint64_t{0},
                          uint64_t{0}, uint64_t{0}, uint64_t{0}, uint64_t{4});
  std::memcpy(words, body.data(), body.size());
  const Wire wire{.bulk_offset = first, .bulk_bytes = 4096, .flags = kLargeRequest};
  {
    const Flipper<uint64_t> count(words[2], 4, ~uint64_t{0}), other(words[7], 4, 1u << 16);
    for (int round = 0; round < 500; ++round) {
      if (guest.Call(Op::cuGraphAddEmptyNode, Pack(uint32_t(body.size())), wire).lost) break;
    }
  }
  guest.ExpectNoCrash();
}

}  // namespace
}  // namespace causeway::test
