// SPDX-License-Identifier: Apache-2.0
// What a worker says on its control socket, decoded: host_backend/common/worker_control.h is the format. A
// worker counts as taken by its guest, so each packet is an attacker's input. It is held to its form and to
// its place in the conversation before anything of it is used, and what comes out is checked: enums are of
// their lists, texts end, and descriptors are as many as the message says.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "host_backend/common/worker_control.h"
#include "host_backend/launcher/protocol.h"

namespace causeway::daemon {

using launcher::WorkerKind;  // of those the memory watch serves no session: WorkerMemoryUse, WorkerDeviceUse

// Not a message: the sentence says what is wrong with it, as "sent ...".
struct WorkerViolation {
  std::string what;
};

// The order that the daemon has read already, sent once more because the worker was asked to.
struct WorkerRepeats {};

using WorkerMessage =
    std::variant<WorkerViolation, WorkerReady, WorkerConfined, WorkerUsage, SharingRequest, CheckpointOrder,
                 WorkerRepeats, WorkerReachable, WorkerMemoryUse, WorkerDeviceUse, WorkerQuery, WorkerLink>;

// One worker's side of the conversation. Touches nothing outside of itself; of one thread.
class WorkerDialogue {
 public:
  // A session counts no more violations: the first that matters ends it.
  static constexpr uint64_t kMaxViolations = 1000;

  explicit WorkerDialogue(WorkerKind kind) : kind_(kind) {}

  // The daemon has handed a session to it; from now on what it says may be its guest's.
  void Assigned() { stage_ = Stage::kAssigned; }
  // The conversation was begun by a daemon of before: it is ready, or was handed a session, or serves it.
  // What it was asked of before, it may answer now.
  void Resume(bool assigned, bool serves) {
    stage_ = serves ? Stage::kServing : assigned ? Stage::kAssigned : Stage::kReady;
    reach_asked_ = 1;
  }

  // It is to say that it can be reached, once more.
  void AskedToBeReached() { ++reach_asked_; }
  // It was sent CheckpointAnswer::again, before any other answer of this daemon's: it may repeat one order.
  void AskedAgain() { may_repeat_ = true; }
  // It was sent WorkerTellDevices.
  void AskedForDevices() { told_devices_ = true; }
  // Its session waits for its guest: it was handed over with WorkerLongAssignment.
  void MayWait() { may_wait_ = true; }
  // Its checkpoint order was answered: it may send the next.
  void Answered() { has_order_ = false; }

  // `packet` in any alignment, as long as it was sent or, where it was longer, longer than every message;
  // `descriptors` came with it. The answer says the same of the same packets in the same order.
  WorkerMessage Read(std::span<const std::byte> packet, size_t descriptors);

 private:
  enum class Stage : uint8_t { kStarting, kReady, kAssigned, kServing };

  WorkerMessage ReadReady(WorkerReady ready);
  WorkerMessage ReadConfined(const WorkerConfined& confined);
  WorkerMessage ReadUsage(const WorkerUsage& usage);
  WorkerMessage ReadSharing(const SharingRequest& request);
  WorkerMessage ReadCheckpoint(CheckpointOrder order);
  WorkerMessage ReadReachable(const WorkerReachable& reachable);
  WorkerMessage ReadMemoryUse(const WorkerMemoryUse& use);
  WorkerMessage ReadDeviceUse(const WorkerDeviceUse& use);
  WorkerMessage ReadQuery(const WorkerQuery& query);
  WorkerMessage ReadLink(const WorkerLink& link);
  // Every message of a served session but WorkerConfined, which can only be the first.
  bool Serves();

  const WorkerKind kind_;
  Stage stage_ = Stage::kStarting;
  WorkerUsage last_usage_{};
  bool has_order_ = false;
  bool had_order_ = false;  // since this daemon listens
  bool may_repeat_ = false;
  uint64_t reach_asked_ = 0;
  bool told_devices_ = false;
  bool may_wait_ = false;
};

// Whether the worker has read what the daemon said before, but for a few packets: an honest one has one question at a
// time. What lies unread may hold descriptors, which count for the daemon's user.
bool ReadsItsAnswers(int control);

// Longer than every message: what a receiver needs to see that a packet is too long.
inline constexpr size_t kWorkerPacketRoom = sizeof(CheckpointOrder) + 8;

}  // namespace causeway::daemon
