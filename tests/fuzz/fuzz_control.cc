// SPDX-License-Identifier: Apache-2.0
// What a taken worker says to the daemon on its control socket: packets of any bytes, with any number of
// descriptors, in any order, between the daemon's own steps.
#include <cstring>
#include <variant>
#include <vector>

#include "host_backend/daemon/workers/worker_messages.h"
#include "tests/fuzz/fuzz_input.h"

namespace causeway::fuzz {
namespace {

using daemon::WorkerKind;
using daemon::WorkerViolation;

template <size_t kSize>
void RequireText(const char (&field)[kSize]) {
  Require(std::memchr(field, '\0', kSize) != nullptr);
}

// What is promised of each message that comes out.
struct Check {
  const bool assigned, may_wait;
  const size_t descriptors;
  const WorkerUsage& last;

  void operator()(const WorkerViolation& violation) const { Require(!violation.what.empty()); }
  void operator()(const WorkerReady& ready) const {
    Require(!assigned && descriptors == 0);
    RequireText(ready.text);
    RequireText(ready.sandbox);
  }
  void operator()(const WorkerConfined& confined) const {
    Require(assigned && descriptors == confined.has_listener && confined.filter_instructions != 0);
  }
  void operator()(const WorkerUsage& usage) const {
    Require(assigned && usage.calls >= last.calls && usage.violations >= last.violations);
    Require(usage.violations <= daemon::WorkerDialogue::kMaxViolations);
  }
  void operator()(const SharingRequest& request) const {
    Require(assigned && descriptors == request.has_descriptor);
    Require(request.action >= SharingAction::kPut && request.action <= SharingAction::kGetImage);
  }
  void operator()(const CheckpointOrder& order) const {
    Require(assigned && descriptors == 0 && order.again == 0);
    Require(order.action >= CheckpointAction::kGetState && order.action <= CheckpointAction::kUnlock);
    Require(order.guest_pid != 0 && order.guest_pid <= 0x7fffffff && order.pairs <= kMaxGpuPairs);
    Require(order.action == CheckpointAction::kLock || order.timeout_ms == 0);
    Require(order.action == CheckpointAction::kRestore || order.pairs == 0);
  }
  void operator()(const daemon::WorkerRepeats&) const { Require(assigned && descriptors == 0); }
  void operator()(const WorkerReachable& reachable) const {
    Require(assigned && descriptors == 0 && reachable.reserved[0] == 0 && reachable.reserved[1] == 0);
  }
  void operator()(const WorkerMemoryUse&) const { Require(!assigned && descriptors == 0); }
  void operator()(const WorkerDeviceUse& use) const {
    Require(!assigned && descriptors == 0 && use.free_bytes <= use.memory_bytes);
    Require(std::memchr(use.name, 0, sizeof use.name) != nullptr);
    Require(use.load_percent <= 100 || use.load_percent == kDeviceLoadUnknown);
  }
  void operator()(const WorkerLink& link) const {
    Require(assigned && may_wait && descriptors == 0 && link.waits <= 1);
  }
  void operator()(const WorkerQuery& query) const { Require(assigned && query.what == WorkerQuery::kPeers); }
};

template <class Message>
void Append(std::vector<std::byte>& packet, const Message& message) {
  packet.resize(sizeof message);
  std::memcpy(packet.data(), &message, sizeof message);
}

// Nearly a message, or bytes.
std::vector<std::byte> SomePacket(Input& input) {
  std::vector<std::byte> packet;
  const auto small = [&] {
    return input.Byte() < 250 ? input.Byte() % 10u : static_cast<uint32_t>(input.Word());
  };
  switch (input.Byte() % 12) {
    case 11:
      Append(packet, WorkerLink{small(), {input.Byte() / 250u, 0, 0, 0}});
      break;
    case 10:
      Append(packet, WorkerDeviceUse{{}, {}, small(), 0, input.Word() >> 1, input.Word()});
      break;
    case 0: {
      WorkerReady ready{};
      ready.failed = input.Byte() % 3;
      ready.driver_version = small();
      ready.device_count = small();
      ready.loads_lazily = input.Byte() % 3;
      std::memset(ready.text, 'x', input.Byte() < 240 ? 20 : sizeof ready.text);
      std::memset(ready.sandbox, 'y', input.Byte() < 240 ? 20 : sizeof ready.sandbox);
      Append(packet, ready);
      break;
    }
    case 1:
      Append(packet, WorkerConfined{small(), input.Byte() % 3u, {input.Byte() / 250u, 0}});
      break;
    case 2:
      Append(packet, WorkerUsage{input.Word() >> input.Byte() % 64, input.Word() >> input.Byte() % 64});
      break;
    case 3:
    case 4: {
      SharingRequest request{};
      request.action = static_cast<SharingAction>(small());
      request.kind = static_cast<SharedKind>(small());
      request.has_descriptor = input.Byte() % 3;
      Append(packet, request);
      break;
    }
    case 5:
      Append(packet, WorkerMemoryUse{small(), 0, input.Word(), {}});
      break;
    case 6:
      Append(packet, WorkerQuery{small()});
      break;
    case 8:
      Append(packet, WorkerReachable{small(), {input.Byte() / 250u, 0}});
      break;
    case 7: {
      CheckpointOrder order{};
      order.action = static_cast<CheckpointAction>(small());
      order.guest_pid = small();
      order.timeout_ms = input.Byte() < 200 ? 0 : small();
      order.pairs = input.Byte() < 200 ? 0 : small();
      for (uint32_t i = 0; i < order.pairs % (kMaxGpuPairs + 1); ++i) order.pair[i].to[i % 16] = input.Byte();
      order.again = input.Byte() / 200u;
      Append(packet, order);
      break;
    }
    default: {
      const auto bytes = input.Bytes(input.Byte() * 9u);
      packet.resize(bytes.size());
      if (!bytes.empty()) std::memcpy(packet.data(), bytes.data(), bytes.size());
    }
  }
  if (input.Byte() > 245) packet.resize(input.Word() % (daemon::kWorkerPacketRoom + 1));
  if (input.Byte() > 230 && !packet.empty()) packet[input.Word() % packet.size()] ^= std::byte{input.Byte()};
  packet.shrink_to_fit();
  return packet;
}

}  // namespace
}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace causeway;
  using namespace causeway::fuzz;
  Input input(data, size);
  daemon::WorkerDialogue dialogue(static_cast<WorkerKind>(1 + input.Byte() % 3));
  bool assigned = false, may_wait = false;
  WorkerUsage last{};
  while (!input.empty()) {
    if (!assigned && input.Byte() % 8 == 0) {
      assigned = true;
      dialogue.Assigned();
      may_wait = input.Byte() % 2 == 0;
      if (may_wait) dialogue.MayWait();
    }
    const auto packet = SomePacket(input);
    if (input.Byte() % 2 == 0) dialogue.Answered();
    const uint8_t asked = input.Byte();
    if (asked % 4 == 0) dialogue.AskedToBeReached();
    if (asked % 16 == 1) dialogue.AskedAgain();
    if (asked % 8 == 2) dialogue.AskedForDevices();
    const size_t descriptors = input.Byte() < 200 ? input.Byte() % 2 : input.Byte() % 6;
    const auto message = dialogue.Read(packet, descriptors);
    std::visit(Check{assigned, may_wait, descriptors, last}, message);
    if (const auto* usage = std::get_if<WorkerUsage>(&message)) last = *usage;
  }
  return 0;
}
