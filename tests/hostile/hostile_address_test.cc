// SPDX-License-Identifier: Apache-2.0
// Addresses that a guest chooses: its window, its arenas, what it registers. Whatever keeps such an address
// finds the guest's memory there or nobody's, and none of them tells or takes anything of the worker's.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "ivshmem_ring/messages/address_windows.h"
#include "ivshmem_ring/messages/code_messages.h"
#include "ivshmem_ring/messages/copy_messages.h"
#include "ivshmem_ring/messages/graph_messages.h"
#include "ivshmem_ring/messages/sharing_messages.h"
#include "tests/hostile/hostile_guest.h"

namespace causeway::test {
namespace {

constexpr uint64_t kMib = 1 << 20;
constexpr uint64_t kFree = 0x600000000000;  // where a worker has nothing
const WireHandle kGraph = MakeWireHandle(HandleKind::kGraph, 1, 20);
const WireHandle kNode = MakeWireHandle(HandleKind::kGraphNode, 1, 21);
const WireHandle kExec = MakeWireHandle(HandleKind::kGraphExec, 1, 22);

class HostileAddress : public ::testing::Test {
 protected:
  void Open() { Open({}); }
  void Open(const HostileGuest::Options& options) {
    ASSERT_TRUE(guest_.Open(options)) << guest_.refusal();
    guest_.RetainPrimary();
  }
  uint64_t arena() { return guest_.first_slice(); }
  uint64_t backing() { return arena() + 16 * kMib; }  // slices for registrations

  Answer Register(uint64_t address, uint64_t bytes, uint32_t writable = 1) {
    return guest_.Call(Op::kRegisterHost, Pack(RegisterBody{address, bytes, backing(), 0, writable}));
  }
  Answer Unregister(uint64_t address) {
    return guest_.Call(Op::kUnregisterHost, Pack(RegisterBody{address, 0, 0, 0, 0}));
  }
  Answer DropArena(uint64_t offset, uint64_t bytes) {
    return guest_.Call(Op::kDropArena, Pack(ArenaBody{offset, bytes, ArenaUse::kPinned, 0}));
  }
  // A graph with one copy between device memory and an address of the host's.
  void MakeGraph(uint64_t host, uint64_t device, uint64_t bytes, bool to_host) {
    EXPECT_TRUE(guest_.Call(Op::cuGraphCreate, Pack(kGraph, uint32_t{0})).ok());
    NodeBody head{};
    head.verb = NodeVerb::kAdd;
    head.form = NodeForm::kTyped;
    head.node = kNode;
    head.owner = kGraph;
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    const WireHandle context = guest_.primary();
    std::memcpy(&params.memcpy.copyCtx, &context, sizeof context);
    CUDA_MEMCPY3D& box = params.memcpy.copyParams;
    box.srcMemoryType = to_host ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    box.dstMemoryType = to_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    (to_host ? box.srcDevice : box.dstDevice) = device;
    if (to_host) {
      box.dstHost = reinterpret_cast<void*>(host);
    } else {
      box.srcHost = reinterpret_cast<const void*>(host);
    }
    box.WidthInBytes = bytes;
    box.Height = box.Depth = 1;
    EXPECT_TRUE(guest_.Call(Op::cuGraphAddNode_v2, Pack(head, params)).ok());
    InstantiateBody instantiate{};
    instantiate.exec = kExec;
    instantiate.graph = kGraph;
    instantiate.form = InstantiateForm::kWithFlags;
    EXPECT_TRUE(guest_.Call(Op::cuGraphInstantiateWithParams, Pack(instantiate)).ok());
  }
  // The launch may fail or copy to nowhere; the worker lives.
  void LaunchGraph() {
    EXPECT_FALSE(guest_.Call(Op::cuGraphLaunch, Pack(kExec, uint64_t{0})).lost);
    EXPECT_FALSE(guest_.Call(Op::cuCtxSynchronize, {}).lost);
    guest_.ExpectNoCrash();
  }
  uint64_t FilledDevice(uint64_t bytes) {
    const uint64_t device = guest_.AllocateDevice(bytes);
    EXPECT_TRUE(guest_.Call(Op::cuMemsetD8_v2, Pack(device, uint8_t{0x41}, bytes)).ok());
    return device;
  }
  // Nothing of the worker's own came to lie there.
  void ExpectNobodysMemory(uint64_t address) {
    EXPECT_NE(guest_.worker().MapAt(address).name.find("causeway-retired"), std::string::npos)
        << guest_.worker().MapAt(address).name;
  }
  // A violation: one line of the log, and the session's end by the worker itself.
  void ExpectViolation(const Answer& answer) {
    EXPECT_TRUE(answer.lost || answer.result != CUDA_SUCCESS);
    EXPECT_EQ(EndOf(daemon_, guest_.worker()), "ended with exit status 3");
    EXPECT_EQ(daemon_.CountInLog("the guest broke the protocol"), 1u);
  }

  HostileDaemon daemon_;
  HostileGuest guest_{daemon_};
};

// The registration's context ends, a graph gets the address, the registration ends: the launch meets no stack
// that has come to lie there since.
TEST_F(HostileAddress, GraphOutlivesARegistrationWhoseContextEnded) {
  Open();
  const uint64_t device = FilledDevice(kMib);
  const WireHandle second = MakeWireHandle(HandleKind::kContext, 1, 40);
  CreateContextBody create{};
  create.context = second;
  ASSERT_TRUE(guest_.Call(Op::cuCtxCreate_v2, Pack(create)).ok());
  guest_.context = second;
  ASSERT_TRUE(Register(kFree, 9 * kMib).ok());
  guest_.context = guest_.primary();
  ASSERT_TRUE(guest_.Call(Op::cuCtxDestroy_v2, Pack(second)).ok());
  MakeGraph(kFree + 8 * kMib - kMib, device, kMib, true);
  EXPECT_FALSE(Unregister(kFree).lost);
  for (uint32_t channel = 5; channel < 12; ++channel) EXPECT_TRUE(guest_.OpenChannel(channel).ok());
  ExpectNobodysMemory(kFree + 7 * kMib);
  LaunchGraph();
  for (uint32_t channel = 5; channel < 12; ++channel)
    EXPECT_FALSE(guest_.Call(Op::cuCtxSynchronize, {}, {.channel = channel}).lost);
  guest_.ExpectNoCrash();
}

// The same in the hole of the worker's mappings where its next thread's stack will lie: not to be had at all.
TEST_F(HostileAddress, NothingIsRegisteredWhereThreadsStacksCome) {
  Open();
  uint64_t hole = 0, last = 0;
  for (const Mapping& each : guest_.worker().Maps()) {
    if (hole == 0 && last >= kDeviceWindows[1].begin && each.begin - last >= 10 * kMib) hole = last;
    last = each.end;
  }
  ASSERT_TRUE(hole != 0 && InDeviceWindow(hole)) << hole;
  EXPECT_EQ(Register(hole, 9 * kMib).result, CUDA_ERROR_NOT_SUPPORTED);
  // What lies there already is told by no other answer.
  EXPECT_EQ(Register(hole - 4096, 4096).result, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(guest_.worker().MapAt(hole).name.find("causeway"), std::string::npos);
}

TEST_F(HostileAddress, GraphOutlivesAnArena) {
  Open();
  guest_.AddArena(arena(), 2 * kMib);
  const uint64_t device = FilledDevice(kMib);
  MakeGraph(guest_.window() + arena(), device, kMib, true);
  EXPECT_TRUE(DropArena(arena(), 2 * kMib).ok());
  ExpectNobodysMemory(guest_.window() + arena());
  LaunchGraph();
}

TEST_F(HostileAddress, GraphReadsNothingOfTheWorkersWhereItsSourceWas) {
  Open();
  ASSERT_TRUE(Register(kFree, kMib).ok());
  const uint64_t device = FilledDevice(kMib);
  MakeGraph(kFree, device, kMib, false);
  EXPECT_TRUE(Unregister(kFree).ok());
  guest_.AddArena(arena(), 2 * kMib);
  for (uint32_t channel = 5; channel < 12; ++channel) EXPECT_TRUE(guest_.OpenChannel(channel).ok());
  LaunchGraph();
  if (!guest_.Call(Op::cuCtxSynchronize, {}).ok())
    return;  // NVIDIA's driver: the launch failed, and with it the context
  const Wire bulk{.bulk_offset = arena(), .bulk_bytes = kMib};
  ASSERT_TRUE(guest_
                  .Call(Op::kCopyToHost,
                        Pack(CopyBody{device, kMib, 0, CopyForm::kSynchronous, BytesIn::kRequestBuffer}),
                        bulk)
                  .ok());
  for (uint64_t i = 0; i < kMib; ++i) {
    const std::byte got = guest_.base()[arena() + i];
    ASSERT_TRUE(got == std::byte{0} || got == std::byte{0x41}) << i;
  }
}

// Registrations come and go at one address, with others beside them, as allocators have it.
TEST_F(HostileAddress, AnAddressCanBeRegisteredAgain) {
  Open();
  for (uint32_t round = 0; round < 50; ++round) {
    const uint64_t address = kFree + (round % 5) * 4096;
    ASSERT_TRUE(Register(address, 64 << 10).ok()) << round;
    std::memset(guest_.base() + backing(), int(round), 64 << 10);
    EXPECT_EQ(guest_.worker().Read(address + 4096, 1), std::string(1, char(round)));
    ASSERT_TRUE(Unregister(address).ok()) << round;
    ExpectNobodysMemory(address + 4096);
  }
  EXPECT_EQ(guest_.HowItEnded(), "");
}

// What the guest process may only read is no reason for the worker to fault.
TEST_F(HostileAddress, CopyIntoWhatIsRegisteredForReading) {
  Open();
  const uint64_t device = FilledDevice(kMib);
  const Answer registered = guest_.Call(
      Op::kRegisterHost, Pack(RegisterBody{kFree, kMib, backing(), CU_MEMHOSTREGISTER_READ_ONLY, 0}));
  ASSERT_FALSE(registered.lost);
  const uint64_t host = kFree, bytes = kMib;
  EXPECT_FALSE(guest_.Call(Op::cuMemcpyDtoH_v2, Pack(device, host, bytes)).lost);
  EXPECT_FALSE(guest_.Call(Op::cuCtxSynchronize, {}).lost);
  guest_.ExpectNoCrash();
}

// One channel lends a bulk buffer that another takes away all the time.
TEST_F(HostileAddress, ArenaGoesUnderRequestsThatHoldBulk) {
  Open();
  EXPECT_TRUE(guest_.OpenChannel(5).ok());
  const uint64_t device = FilledDevice(kMib);
  const WireHandle context = guest_.context;
  std::atomic<bool> over{false};
  std::thread user([&] {
    const Wire wire{.channel = 5, .bulk_offset = arena(), .bulk_bytes = kMib};
    while (!over) {
      for (const Op op : {Op::kCopyToHost, Op::kCopyToDevice}) {
        if (guest_
                .Call(op, Pack(CopyBody{device, kMib, 0, CopyForm::kSynchronous, BytesIn::kRequestBuffer}),
                      wire)
                .lost)
          return;
      }
      if (guest_.Call(Op::kOpen, {}, wire).lost) return;
      if (guest_.Call(Op::kBeginBlob, Pack(BlobBody{kMib}), {.channel = 5}).lost) return;
      if (guest_.Call(Op::kAppendBlob, {}, wire).lost) return;
    }
  });
  for (int round = 0; round < 300; ++round) {
    if (guest_.Call(Op::kAddArena, Pack(ArenaBody{arena(), 2 * kMib, ArenaUse::kStaging, 0})).lost) break;
    if (DropArena(arena(), 2 * kMib).lost) break;
  }
  over = true;
  user.join();
  EXPECT_EQ(guest_.context, context);
  EXPECT_EQ(guest_.HowItEnded(), "");
}

TEST_F(HostileAddress, ArenaBeforeAgreementEndsTheSession) {
  Open({.agree = false});
  ExpectViolation(guest_.Call(Op::kAddArena, Pack(ArenaBody{arena(), 2 * kMib, ArenaUse::kPinned, 0})));
}

TEST_F(HostileAddress, RegistrationBeforeAgreementEndsTheSession) {
  Open({.agree = false});
  ExpectViolation(Register(kFree, 4096));
}

// Looking for the worker's program, heap and stack by registering at one address after the other.
TEST_F(HostileAddress, LookingForTheWorkersMappingsEndsTheSession) {
  Open();
  uint64_t heap = 0;
  for (const Mapping& each : guest_.worker().Maps()) heap = each.name == "[heap]" ? each.begin : heap;
  ASSERT_NE(heap, 0u);
  // An honest program's memory may lie there by chance, so the first answers are errors.
  for (int chance = 0; chance < 3; ++chance) {
    const Answer answer = Register(heap, 4096);
    ASSERT_FALSE(answer.lost);
    EXPECT_EQ(answer.result, CUDA_ERROR_NOT_SUPPORTED);
  }
  ExpectViolation(Register(heap, 4096));
}

TEST_F(HostileAddress, LookingByWindowsEndsTheSession) {
  Open({.agree = false});
  uint64_t heap = 0;
  for (const Mapping& each : guest_.worker().Maps()) heap = each.name == "[heap]" ? each.begin : heap;
  ASSERT_NE(heap, 0u);
  const uint64_t taken = heap / kGranuleBytes * kGranuleBytes;
  Answer answer;
  for (int tries = 0; tries < 100 && !answer.lost; ++tries)
    answer = guest_.Call(Op::kAgreeOnAddresses, Pack(AddressBody{taken, 0, 0}));
  ExpectViolation(answer);
}

TEST_F(HostileAddress, LookingByWishesTellsNothing) {
  Open();
  uint64_t heap = 0;
  for (const Mapping& each : guest_.worker().Maps()) heap = each.name == "[heap]" ? each.begin : heap;
  const uint64_t bytes = 2 * kMib, none = 0;
  for (const uint64_t wish : {kFree, (heap / bytes + 4096) * bytes, heap / bytes * bytes}) {
    const Answer answer = guest_.Call(Op::cuMemAddressReserve, Pack(bytes, none, wish, none));
    if (answer.ok()) {
      EXPECT_NE(answer.Get<uint64_t>(), wish);
    }
  }
  EXPECT_EQ(guest_.HowItEnded(), "");
}

TEST_F(HostileAddress, NothingIsRegisteredInTheWindow) {
  Open();
  guest_.AddArena(arena(), 2 * kMib);
  for (const uint64_t address : {guest_.window() + arena(), guest_.window() + arena() + 4 * kMib,
                                 guest_.window() - 4096, guest_.window() + guest_.region_bytes() - 4096}) {
    EXPECT_EQ(Register(address, 8192).result, CUDA_ERROR_INVALID_VALUE) << address;
  }
  guest_.ExpectNoCrash();
}

// Requests name ranges that begin in their memory and end elsewhere, or overflow.
TEST_F(HostileAddress, CopiesBeyondTheirMemoryAreRefused) {
  Open();
  guest_.AddArena(arena(), 2 * kMib);
  ASSERT_TRUE(Register(kFree, 64 << 10).ok());
  const uint64_t device = FilledDevice(4 * kMib), window = guest_.window();
  struct {
    uint64_t host, bytes;
  } const ranges[] = {{window + arena(), 2 * kMib + 1},
                      {window + arena() + 2 * kMib - 1, 2},
                      {window + arena() - 1, 2},
                      {kFree, (64 << 10) + 1},
                      {kFree - 1, 2},
                      {window, 4096},
                      {0, 4096}};  // beyond all addresses: hostile_caps_test.cc
  for (const auto& [host, bytes] : ranges) {
    EXPECT_EQ(guest_.Call(Op::cuMemcpyDtoH_v2, Pack(device, host, bytes)).result, CUDA_ERROR_INVALID_VALUE)
        << host << " " << bytes;
    EXPECT_EQ(guest_.Call(Op::cuMemcpyHtoD_v2, Pack(device, host, bytes)).result, CUDA_ERROR_INVALID_VALUE)
        << host << " " << bytes;
  }
  guest_.ExpectNoCrash();
}

}  // namespace
}  // namespace causeway::test
