// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/workers/worker_messages.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "host_backend/common/named_devices.h"

namespace causeway::daemon {
namespace {

// Messages are told apart by their sizes alone.
constexpr size_t kSizes[] = {sizeof(WorkerReady),     sizeof(WorkerConfined),  sizeof(WorkerUsage),
                             sizeof(SharingRequest),  sizeof(CheckpointOrder), sizeof(WorkerMemoryUse),
                             sizeof(WorkerReachable), sizeof(WorkerQuery),     sizeof(WorkerDeviceUse),
                             sizeof(WorkerLink)};
constexpr bool AllDiffer() {
  for (const size_t& one : kSizes) {
    for (const size_t& other : kSizes) {
      if (&one != &other && one == other) return false;
    }
  }
  return true;
}
static_assert(AllDiffer());
static_assert(kWorkerPacketRoom > *std::max_element(std::begin(kSizes), std::end(kSizes)));

WorkerMessage Wrong(const std::string& what) {
  return WorkerViolation{what};
}

template <class Message>
Message CopyOf(std::span<const std::byte> packet) {
  Message message;
  std::memcpy(&message, packet.data(), sizeof message);
  return message;
}

template <size_t kSize>
bool IsText(const char (&field)[kSize]) {
  return std::memchr(field, '\0', kSize) != nullptr;
}

bool IsKnown(SharedKind kind) {
  return kind >= SharedKind::kIpcMemory && kind <= SharedKind::kPoolPointer;
}

// Allocations and pools are shared by the descriptors that the driver gives out, everything else by 64 bytes.
bool IsByDescriptor(SharedKind kind) {
  return kind == SharedKind::kMemory || kind == SharedKind::kPool;
}

constexpr uint32_t kMostDevices = 1024;
constexpr uint32_t kMostPid = 0x7fffffff;
constexpr uint32_t kMostInstructions = 4096;  // the kernel's own limit

}  // namespace

bool ReadsItsAnswers(int control) {
  constexpr int kMostUnread = 16 << 10;  // with the kernel's own part of each packet, about 1 KiB
  int unread = 0;
  return ioctl(control, SIOCOUTQ, &unread) == 0 && unread <= kMostUnread;
}

WorkerMessage WorkerDialogue::Read(std::span<const std::byte> packet, size_t descriptors) {
  const auto without = [&](auto message, auto read) -> WorkerMessage {
    return descriptors == 0 ? (this->*read)(message) : Wrong("a descriptor where none belongs");
  };
  switch (packet.size()) {
    case sizeof(WorkerReady):
      return without(CopyOf<WorkerReady>(packet), &WorkerDialogue::ReadReady);
    case sizeof(WorkerUsage):
      return without(CopyOf<WorkerUsage>(packet), &WorkerDialogue::ReadUsage);
    case sizeof(CheckpointOrder):
      return without(CopyOf<CheckpointOrder>(packet), &WorkerDialogue::ReadCheckpoint);
    case sizeof(WorkerReachable):
      return without(CopyOf<WorkerReachable>(packet), &WorkerDialogue::ReadReachable);
    case sizeof(WorkerMemoryUse):
      return without(CopyOf<WorkerMemoryUse>(packet), &WorkerDialogue::ReadMemoryUse);
    case sizeof(WorkerDeviceUse):
      return without(CopyOf<WorkerDeviceUse>(packet), &WorkerDialogue::ReadDeviceUse);
    case sizeof(WorkerQuery):
      return without(CopyOf<WorkerQuery>(packet), &WorkerDialogue::ReadQuery);
    case sizeof(WorkerLink):
      return without(CopyOf<WorkerLink>(packet), &WorkerDialogue::ReadLink);
    case sizeof(WorkerConfined): {
      const auto confined = CopyOf<WorkerConfined>(packet);
      if (confined.has_listener > 1 || descriptors != confined.has_listener)
        return Wrong("other descriptors than it says");
      return ReadConfined(confined);
    }
    case sizeof(SharingRequest): {
      const auto request = CopyOf<SharingRequest>(packet);
      if (request.has_descriptor > 1 || descriptors != request.has_descriptor)
        return Wrong("other descriptors than it says");
      return ReadSharing(request);
    }
    default:
      return Wrong("a packet that is no message");
  }
}

WorkerMessage WorkerDialogue::ReadReady(WorkerReady ready) {
  if (stage_ != Stage::kStarting) return Wrong("a second time that it is ready");
  if (ready.failed > 1 || ready.loads_lazily > 1 || ready.device_count > kMostDevices ||
      !IsText(ready.text) || !IsText(ready.sandbox)) {
    return Wrong("an impossible start");
  }
  const bool names = (ready.features & kNamesDevices) != 0;
  if (names &&
      (ready.device_count > kMostNamedDevices || strnlen(ready.text, sizeof ready.text) >= kNamedDevicesAt))
    return Wrong("an impossible start");
  stage_ = Stage::kReady;
  return ready;
}

// A worker that has given up what it had says so before it looks at its guest: later the guest speaks.
WorkerMessage WorkerDialogue::ReadConfined(const WorkerConfined& confined) {
  if (stage_ != Stage::kAssigned) return Wrong("out of turn that it is confined");
  if (confined.filter_instructions == 0 || confined.filter_instructions > kMostInstructions ||
      confined.reserved[0] != 0 || confined.reserved[1] != 0) {
    return Wrong("an impossible filter");
  }
  stage_ = Stage::kServing;
  return confined;
}

bool WorkerDialogue::Serves() {
  if (stage_ == Stage::kAssigned) stage_ = Stage::kServing;
  return stage_ == Stage::kServing;
}

// Two threads of a worker may report at once, so the older report may come last: figures never fall.
WorkerMessage WorkerDialogue::ReadUsage(const WorkerUsage& usage) {
  if (kind_ == WorkerKind::kMemoryWatch || !Serves()) return Wrong("figures of a session that it has not");
  last_usage_.calls = std::max(last_usage_.calls, usage.calls);
  last_usage_.errors = std::max(last_usage_.errors, usage.errors);
  last_usage_.bytes_to_device = std::max(last_usage_.bytes_to_device, usage.bytes_to_device);
  last_usage_.bytes_to_host = std::max(last_usage_.bytes_to_host, usage.bytes_to_host);
  last_usage_.violations = std::min(std::max(last_usage_.violations, usage.violations), kMaxViolations);
  return last_usage_;
}

WorkerMessage WorkerDialogue::ReadSharing(const SharingRequest& request) {
  if (kind_ != WorkerKind::kCuda || !Serves()) return Wrong("a request for a session that it has not");
  bool wants_descriptor = false;
  switch (request.action) {
    case SharingAction::kPut:
    case SharingAction::kGet:
      if (!IsKnown(request.kind)) return Wrong("a request about nothing that is shared");
      wants_descriptor = request.action == SharingAction::kPut && IsByDescriptor(request.kind);
      break;
    case SharingAction::kPutImage:
      wants_descriptor = true;
      break;
    case SharingAction::kDrop:
    case SharingAction::kGetImage:
      break;
    default:
      return Wrong("a request that means nothing");
  }
  if (wants_descriptor != (request.has_descriptor != 0))
    return Wrong("a request with a descriptor too many or few");
  return request;
}

// What comes out has only what its action uses.
WorkerMessage WorkerDialogue::ReadCheckpoint(CheckpointOrder order) {
  if (kind_ != WorkerKind::kCuda || !Serves()) return Wrong("a request for a session that it has not");
  if (order.again == 1 && std::exchange(may_repeat_, false)) {
    // The daemon's question comes before all of its answers, so what was read since is this order.
    if (had_order_) return WorkerRepeats{};
    order.again = 0;
  }
  if (has_order_) return Wrong("a checkpoint before the last was answered");
  const bool locks = order.action == CheckpointAction::kLock;
  const bool restores = order.action == CheckpointAction::kRestore;
  const bool known = order.action >= CheckpointAction::kGetState && order.action <= CheckpointAction::kUnlock;
  if (!known || order.guest_pid == 0 || order.guest_pid > kMostPid || order.again != 0 ||
      order.pairs > kMaxGpuPairs || (order.timeout_ms != 0 && !locks) || (order.pairs != 0 && !restores)) {
    return Wrong("an impossible checkpoint");
  }
  const auto* unused = reinterpret_cast<const std::byte*>(order.pair + order.pairs);
  const auto* end = reinterpret_cast<const std::byte*>(order.pair + kMaxGpuPairs);
  if (std::any_of(unused, end, [](std::byte each) { return each != std::byte{0}; }))
    return Wrong("an impossible checkpoint");
  has_order_ = had_order_ = true;
  return order;
}

WorkerMessage WorkerDialogue::ReadReachable(const WorkerReachable& reachable) {
  if (kind_ != WorkerKind::kCuda || !Serves() || reach_asked_ == 0 || reachable.reserved[0] != 0 ||
      reachable.reserved[1] != 0) {
    return Wrong("that it can be reached, which it was not asked");
  }
  --reach_asked_;
  return reachable;
}

WorkerMessage WorkerDialogue::ReadMemoryUse(const WorkerMemoryUse& use) {
  if (kind_ != WorkerKind::kMemoryWatch || stage_ != Stage::kReady)
    return Wrong("what processes hold, which it was not asked");
  return use;
}

WorkerMessage WorkerDialogue::ReadDeviceUse(const WorkerDeviceUse& use) {
  if (kind_ != WorkerKind::kMemoryWatch || stage_ != Stage::kReady || !told_devices_)
    return Wrong("what devices have, which it was not asked");
  if (!IsText(use.name) || use.free_bytes > use.memory_bytes ||
      (use.load_percent > 100 && use.load_percent != kDeviceLoadUnknown))
    return Wrong("an impossible device");
  return use;
}

WorkerMessage WorkerDialogue::ReadQuery(const WorkerQuery& query) {
  if (kind_ != WorkerKind::kManagement || !Serves() || query.what != WorkerQuery::kPeers)
    return Wrong("a question that it may not ask");
  return query;
}

WorkerMessage WorkerDialogue::ReadLink(const WorkerLink& link) {
  if (!may_wait_ || !Serves()) return Wrong("that it waits for a guest, which it may not");
  if (link.waits > 1 || std::any_of(std::begin(link.reserved), std::end(link.reserved),
                                    [](uint32_t each) { return each != 0; }))
    return Wrong("an impossible connection");
  return link;
}

}  // namespace causeway::daemon
