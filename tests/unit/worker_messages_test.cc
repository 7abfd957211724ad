// SPDX-License-Identifier: Apache-2.0
// What a worker may say when, and with which fields (host_backend/daemon/workers/worker_messages.h).
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>

#include "host_backend/common/named_devices.h"
#include "host_backend/common/unique_fd.h"
#include "host_backend/daemon/workers/worker_messages.h"

namespace causeway::daemon {
namespace {

template <class Message>
std::span<const std::byte> Bytes(const Message& message) {
  return std::as_bytes(std::span(&message, 1));
}

bool Fails(const WorkerMessage& message) {
  return std::holds_alternative<WorkerViolation>(message);
}

WorkerReady GoodReady() {
  WorkerReady ready{};
  ready.device_count = 1;
  return ready;
}

WorkerDialogue Serving(WorkerKind kind = WorkerKind::kCuda) {
  WorkerDialogue dialogue(kind);
  EXPECT_FALSE(Fails(dialogue.Read(Bytes(GoodReady()), 0)));
  dialogue.Assigned();
  return dialogue;
}

SharingRequest Asking(SharingAction action, SharedKind kind = SharedKind{0}, uint32_t descriptors = 0) {
  SharingRequest request{};
  request.action = action;
  request.kind = kind;
  request.has_descriptor = descriptors;
  return request;
}

CheckpointOrder Ordering(CheckpointAction action) {
  CheckpointOrder order{};
  order.action = action;
  order.guest_pid = 1234;
  return order;
}

TEST(WorkerDialogue, ACheckpointHasNothingThatItsActionDoesNotUse) {
  const auto fails = [](CheckpointAction action, auto change) {
    CheckpointOrder order = Ordering(action);
    change(order);
    WorkerDialogue dialogue = Serving();
    return Fails(dialogue.Read(Bytes(order), 0));
  };
  const auto nothing = [](CheckpointOrder&) {};
  for (uint32_t action = 0; action < 8; ++action)
    EXPECT_EQ(fails(CheckpointAction(action), nothing), action == 0 || action > 5) << action;
  for (uint32_t number = 1; number <= 5; ++number) {
    const auto action = CheckpointAction(number);
    EXPECT_EQ(fails(action, [](CheckpointOrder& order) { order.timeout_ms = 1; }),
              action != CheckpointAction::kLock);
    EXPECT_EQ(fails(action, [](CheckpointOrder& order) { order.pairs = kMaxGpuPairs; }),
              action != CheckpointAction::kRestore);
    EXPECT_TRUE(fails(action, [](CheckpointOrder& order) { order.pairs = kMaxGpuPairs + 1; }));
    EXPECT_TRUE(fails(action, [](CheckpointOrder& order) { order.pairs = UINT32_MAX; }));
    EXPECT_TRUE(fails(action, [](CheckpointOrder& order) { order.again = 1; }));
    EXPECT_TRUE(fails(action, [](CheckpointOrder& order) { order.guest_pid = 0; }));
    EXPECT_TRUE(fails(action, [](CheckpointOrder& order) { order.guest_pid = 0x80000000; }));
    EXPECT_TRUE(fails(action, [](CheckpointOrder& order) { order.pair[kMaxGpuPairs - 1].to[15] = 1; }));
  }
  const auto second_pair = [](CheckpointOrder& order) {
    order.pairs = 1;
    order.pair[1].from[0] = 1;
  };
  EXPECT_TRUE(fails(CheckpointAction::kRestore, second_pair));
}

TEST(WorkerDialogue, OneCheckpointAtATimeAndOfASessionOfCudaAlone) {
  const CheckpointOrder order = Ordering(CheckpointAction::kGetState);
  WorkerDialogue dialogue = Serving();
  EXPECT_FALSE(Fails(dialogue.Read(Bytes(order), 0)));
  dialogue.Answered();
  EXPECT_FALSE(Fails(dialogue.Read(Bytes(order), 0)));
  EXPECT_TRUE(Fails(dialogue.Read(Bytes(order), 0)));
  EXPECT_TRUE(Fails(Serving().Read(Bytes(order), 1)));
  EXPECT_TRUE(Fails(Serving(WorkerKind::kManagement).Read(Bytes(order), 0)));
  WorkerDialogue early(WorkerKind::kCuda);
  EXPECT_TRUE(Fails(early.Read(Bytes(order), 0)));
}

TEST(WorkerDialogue, AfterATakeoverOneOrderMayComeASecondTime) {
  const CheckpointOrder order = Ordering(CheckpointAction::kLock);
  CheckpointOrder again = order;
  again.again = 1;
  // The daemon of before had read it: it is as any other.
  WorkerDialogue dialogue(WorkerKind::kCuda);
  dialogue.Resume(true, true);
  dialogue.AskedAgain();
  const WorkerMessage read = dialogue.Read(Bytes(again), 0);
  ASSERT_TRUE(std::holds_alternative<CheckpointOrder>(read));
  EXPECT_EQ(std::get<CheckpointOrder>(read).again, 0u);
  EXPECT_TRUE(Fails(dialogue.Read(Bytes(again), 0)));
  // This one has read it, and may have answered it already.
  for (const bool answered : {false, true}) {
    WorkerDialogue next(WorkerKind::kCuda);
    next.Resume(true, true);
    next.AskedAgain();
    EXPECT_TRUE(std::holds_alternative<CheckpointOrder>(next.Read(Bytes(order), 0)));
    if (answered) next.Answered();
    EXPECT_TRUE(std::holds_alternative<WorkerRepeats>(next.Read(Bytes(again), 0)));
    EXPECT_EQ(Fails(next.Read(Bytes(order), 0)), !answered);
  }
  // Not asked to.
  WorkerDialogue silent(WorkerKind::kCuda);
  silent.Resume(true, true);
  EXPECT_TRUE(Fails(silent.Read(Bytes(again), 0)));
}

TEST(WorkerDialogue, WhatTheDaemonOfBeforeHadAskedIsAnswered) {
  const WorkerReachable reachable{7, {}};
  WorkerDialogue dialogue(WorkerKind::kCuda);
  dialogue.Resume(true, true);
  EXPECT_FALSE(Fails(dialogue.Read(Bytes(reachable), 0)));
  EXPECT_TRUE(Fails(dialogue.Read(Bytes(reachable), 0)));
}

TEST(WorkerDialogue, ThatItCanBeReachedItSaysAsOftenAsItWasAsked) {
  const WorkerReachable reachable{7, {}};
  EXPECT_TRUE(Fails(Serving().Read(Bytes(reachable), 0)));
  WorkerDialogue dialogue = Serving();
  dialogue.AskedToBeReached();
  EXPECT_TRUE(Fails(dialogue.Read(Bytes(WorkerReachable{7, {0, 1}}), 0)));
  EXPECT_FALSE(Fails(dialogue.Read(Bytes(reachable), 0)));
  EXPECT_TRUE(Fails(dialogue.Read(Bytes(reachable), 0)));
}

TEST(WorkerDialogue, ThatItWaitsForItsGuestItSaysWhereItMay) {
  const WorkerLink lost{1, {}}, back{0, {}};
  EXPECT_TRUE(Fails(Serving().Read(Bytes(lost), 0)));
  for (const WorkerKind kind : {WorkerKind::kCuda, WorkerKind::kManagement}) {
    WorkerDialogue dialogue = Serving(kind);
    dialogue.MayWait();
    for (const WorkerLink& link : {lost, back, back, lost})
      EXPECT_FALSE(Fails(dialogue.Read(Bytes(link), 0)));
    EXPECT_TRUE(Fails(dialogue.Read(Bytes(lost), 1)));
    EXPECT_TRUE(Fails(dialogue.Read(Bytes(WorkerLink{2, {}}), 0)));
    EXPECT_TRUE(Fails(dialogue.Read(Bytes(WorkerLink{0, {0, 0, 0, 1}}), 0)));
  }
}

TEST(WorkerDialogue, EverySizeThatNoMessageHasEndsIt) {
  const std::vector<std::byte> packet(kWorkerPacketRoom);
  for (size_t bytes = 1; bytes <= packet.size(); ++bytes) {
    WorkerDialogue dialogue = Serving();
    const WorkerMessage message = dialogue.Read(std::span(packet).first(bytes), 0);
    EXPECT_TRUE(Fails(message) || bytes == sizeof(WorkerUsage)) << bytes;
  }
}

TEST(WorkerDialogue, BeforeItsSessionAWorkerSaysOnlyThatItIsReady) {
  for (const bool ready : {false, true}) {
    const auto fresh = [&] {
      WorkerDialogue dialogue(WorkerKind::kCuda);
      if (ready) dialogue.Read(Bytes(GoodReady()), 0);
      return dialogue;
    };
    EXPECT_TRUE(Fails(fresh().Read(Bytes(WorkerUsage{}), 0)));
    EXPECT_TRUE(Fails(fresh().Read(Bytes(WorkerConfined{1, 0, {}}), 0)));
    EXPECT_TRUE(Fails(fresh().Read(Bytes(Asking(SharingAction::kDrop)), 0)));
    EXPECT_TRUE(Fails(fresh().Read(Bytes(WorkerQuery{WorkerQuery::kPeers}), 0)));
    EXPECT_EQ(Fails(fresh().Read(Bytes(GoodReady()), 0)), ready);
  }
}

TEST(WorkerDialogue, AStartHasTextsThatEndAndPossibleNumbers) {
  const auto fails = [](auto change) {
    WorkerReady ready = GoodReady();
    change(ready);
    return Fails(WorkerDialogue(WorkerKind::kCuda).Read(Bytes(ready), 0));
  };
  EXPECT_FALSE(fails([](WorkerReady&) {}));
  EXPECT_TRUE(fails([](WorkerReady& ready) { std::memset(ready.text, 'x', sizeof ready.text); }));
  EXPECT_TRUE(fails([](WorkerReady& ready) { std::memset(ready.sandbox, 'x', sizeof ready.sandbox); }));
  EXPECT_TRUE(fails([](WorkerReady& ready) { ready.failed = 2; }));
  EXPECT_TRUE(fails([](WorkerReady& ready) { ready.loads_lazily = UINT32_MAX; }));
  EXPECT_TRUE(fails([](WorkerReady& ready) { ready.device_count = UINT32_MAX; }));
  const auto names = [](WorkerReady& ready) { ready.features |= kNamesDevices; };
  EXPECT_FALSE(fails(names));
  EXPECT_TRUE(fails([&](WorkerReady& ready) { names(ready), ready.device_count = kMostNamedDevices + 1; }));
  EXPECT_TRUE(
      fails([&](WorkerReady& ready) { names(ready), std::memset(ready.text, 'x', kNamedDevicesAt); }));
}

TEST(NamedDevices, AreBehindTheTextOrNotThere) {
  WorkerReady ready = GoodReady();
  const std::vector<NamedDevice> devices(kMostNamedDevices, NamedDevice{'c', 'a', 'u'});
  EXPECT_TRUE(NamedDevices(ready).empty()) << "an older worker's";
  std::memset(ready.text, 'x', kNamedDevicesAt - 1);
  NameDevices(devices, &ready);
  EXPECT_EQ(NamedDevices(ready), devices);
  EXPECT_EQ(std::strlen(ready.text), kNamedDevicesAt - 1);
  ready = GoodReady();
  std::memset(ready.text, 'x', kNamedDevicesAt);
  NameDevices(devices, &ready);
  EXPECT_TRUE(NamedDevices(ready).empty()) << "there is no room";
  ready = GoodReady();
  NameDevices(std::vector<NamedDevice>(kMostNamedDevices + 1), &ready);
  EXPECT_TRUE(NamedDevices(ready).empty()) << "there are too many";
}

TEST(WorkerDialogue, ConfinedIsTheFirstWordOfASessionAndTheOnlyOne) {
  const WorkerConfined confined{100, 1, {}};
  WorkerDialogue dialogue = Serving();
  EXPECT_FALSE(Fails(dialogue.Read(Bytes(confined), 1)));
  EXPECT_TRUE(Fails(dialogue.Read(Bytes(confined), 1))) << "a second listener";
  WorkerDialogue late = Serving();
  EXPECT_FALSE(Fails(late.Read(Bytes(WorkerUsage{1, 0}), 0)));
  EXPECT_TRUE(Fails(late.Read(Bytes(confined), 1))) << "after the guest could have spoken";
  EXPECT_TRUE(Fails(Serving().Read(Bytes(confined), 0)));
  EXPECT_TRUE(Fails(Serving().Read(Bytes(confined), 2)));
  EXPECT_TRUE(Fails(Serving().Read(Bytes(WorkerConfined{100, 2, {}}), 2)));
  EXPECT_TRUE(Fails(Serving().Read(Bytes(WorkerConfined{UINT32_MAX, 0, {}}), 0)));
  EXPECT_TRUE(Fails(Serving().Read(Bytes(WorkerConfined{100, 0, {0, 1}}), 0)));
}

TEST(WorkerDialogue, FiguresNeverFallAndViolationsAreBounded) {
  WorkerDialogue dialogue = Serving();
  const auto read = [&](WorkerUsage usage) { return std::get<WorkerUsage>(dialogue.Read(Bytes(usage), 0)); };
  EXPECT_EQ(read({UINT64_MAX, UINT64_MAX}).violations, WorkerDialogue::kMaxViolations);
  EXPECT_EQ(read({0, 0}).calls, UINT64_MAX);
  EXPECT_EQ(read({0, 0}).violations, WorkerDialogue::kMaxViolations);
}

TEST(WorkerDialogue, RequestsAreOfTheirListsAndHaveTheirDescriptors) {
  for (uint32_t action = 0; action < 12; ++action) {
    for (uint32_t kind = 0; kind < 10; ++kind) {
      for (uint32_t descriptors = 0; descriptors < 3; ++descriptors) {
        const bool put = action == 1, get = action == 2, of_list = kind >= 1 && kind <= 7;
        const bool known = (put || get) ? of_list : action >= 3 && action <= 5;
        const uint32_t wanted = (put && (kind == 3 || kind == 5)) || action == 4 ? 1 : 0;
        const SharingRequest request = Asking(SharingAction{action}, SharedKind{kind}, descriptors);
        EXPECT_EQ(Fails(Serving().Read(Bytes(request), descriptors)), !known || descriptors != wanted)
            << action << ' ' << kind << ' ' << descriptors;
        EXPECT_TRUE(Fails(Serving().Read(Bytes(request), descriptors + 1)));
      }
    }
  }
}

TEST(WorkerDialogue, EachKindOfWorkerHasItsOwnMessages) {
  const WorkerMemoryUse use{1, 0, UINT64_MAX, {}};
  const WorkerQuery query{WorkerQuery::kPeers};
  const SharingRequest request = Asking(SharingAction::kDrop);
  EXPECT_TRUE(Fails(Serving().Read(Bytes(use), 0)));
  EXPECT_TRUE(Fails(Serving().Read(Bytes(query), 0)));
  EXPECT_FALSE(Fails(Serving().Read(Bytes(request), 0)));
  EXPECT_FALSE(Fails(Serving(WorkerKind::kManagement).Read(Bytes(query), 0)));
  EXPECT_TRUE(Fails(Serving(WorkerKind::kManagement).Read(Bytes(WorkerQuery{2}), 0)));
  EXPECT_TRUE(Fails(Serving(WorkerKind::kManagement).Read(Bytes(request), 0)));
  WorkerDialogue watch(WorkerKind::kMemoryWatch);
  EXPECT_TRUE(Fails(WorkerDialogue(watch).Read(Bytes(use), 0))) << "before it is ready";
  EXPECT_FALSE(Fails(watch.Read(Bytes(GoodReady()), 0)));
  EXPECT_FALSE(Fails(watch.Read(Bytes(use), 0)));
  EXPECT_TRUE(Fails(watch.Read(Bytes(use), 1)));
  EXPECT_TRUE(Fails(watch.Read(Bytes(WorkerUsage{}), 0)));
  WorkerDeviceUse device{"GPU", {}, 100, 0, 1, 2};
  EXPECT_TRUE(Fails(watch.Read(Bytes(device), 0))) << "before it was asked";
  watch.AskedForDevices();
  EXPECT_FALSE(Fails(watch.Read(Bytes(device), 0)));
  EXPECT_TRUE(Fails(watch.Read(Bytes(device), 1)));
  device.load_percent = 101;
  EXPECT_TRUE(Fails(watch.Read(Bytes(device), 0)));
  device.load_percent = kDeviceLoadUnknown;
  EXPECT_FALSE(Fails(watch.Read(Bytes(device), 0)));
  device.free_bytes = 3;
  EXPECT_TRUE(Fails(watch.Read(Bytes(device), 0)));
  device.free_bytes = 0;
  std::memset(device.name, 'x', sizeof device.name);
  EXPECT_TRUE(Fails(watch.Read(Bytes(device), 0)));
}

TEST(ReadsItsAnswersTest, AFewMayLieUnread) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd own(ends[0]), other(ends[1]);
  const SharingReply reply{};
  int sent = 0;
  for (; sent < 1000 && ReadsItsAnswers(own.get()); ++sent)
    ASSERT_EQ(send(own.get(), &reply, sizeof reply, MSG_DONTWAIT), ssize_t(sizeof reply));
  EXPECT_GE(sent, 4);
  EXPECT_LE(sent, 64);
  SharingReply got{};
  for (int i = 0; i < sent; ++i) ASSERT_GT(recv(other.get(), &got, sizeof got, MSG_DONTWAIT), 0);
  EXPECT_TRUE(ReadsItsAnswers(own.get()));
}

}  // namespace
}  // namespace causeway::daemon
