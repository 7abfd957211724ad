// SPDX-License-Identifier: Apache-2.0
#include "host_backend/lanes.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ivshmem_ring/waiter.h"

namespace causeway::host {
namespace {

template <size_t kPlaces>
size_t PlaceOf(uint64_t name) {
  static_assert((kPlaces & (kPlaces - 1)) == 0);
  const uint64_t mixed = name * 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio
  return static_cast<size_t>(mixed >> 40) % kPlaces;
}

}  // namespace

Lanes::Lane::Lane()
    : in(memory.get(), kLaneBytes, &tail, &head), out(memory.get(), kLaneBytes, &tail, &head, buffer) {}

Lanes::Lanes(uint32_t most, Execute execute)
    : most_(most < 2 ? 0 : std::min(most, kMost)), execute_(std::move(execute)) {}

Lanes::~Lanes() {
  Stop();
  for (const auto& lane : lanes_) {
    if (lane == nullptr) continue;
    StoreRelease(lane->tail, LoadAcquire(lane->tail) + 1);  // who is about to sleep does not
    WakeSleepers(lane->tail);
    lane->thread.join();
  }
}

bool Lanes::IsIdle() const {
  const uint32_t count = count_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    if (Waiting(i) != 0) return false;
  }
  return true;
}

uint64_t Lanes::Waiting(uint32_t lane) const {
  return lanes_[lane]->handed.load(std::memory_order_relaxed) -
         lanes_[lane]->executed.load(std::memory_order_acquire);  // partner: Run
}

// Where the order needs no waiting; else the thread's last lane, or the one with the least to do.
uint32_t Lanes::Choose(const Use& thread, const Use& stream) {
  if (IsPending(thread)) return thread.lane;
  if (IsPending(stream)) return stream.lane;
  const uint32_t count = count_.load(std::memory_order_relaxed);
  uint32_t best = thread.lane;
  if (thread.position == 0 || Waiting(best) != 0) {
    best = 0;
    for (uint32_t i = 1; i < count; ++i) {
      if (Waiting(i) < Waiting(best)) best = i;
    }
  }
  if (count == 0 || (count < most_ && Waiting(best) != 0)) {
    best = count;
    lanes_[count] = std::make_unique<Lane>();
    lanes_[count]->thread = std::thread([this, count] { Run(*lanes_[count]); });
    count_.store(count + 1, std::memory_order_release);  // partner: Await
  }
  return best;
}

template <class Done>
bool Lanes::WaitUntil(Done done) {
  Waiter waiter(OrderPolicy(), nullptr, nullptr, false);
  while (!done()) {
    if (stop_.load(std::memory_order_acquire)) return false;
    waiter.Step(0);
  }
  return true;
}

bool Lanes::Hand(const Names& names, std::span<const std::byte> record) {
  Use& thread = threads_[PlaceOf<kThreadUses>(names.thread)];
  Use& stream = objects_[PlaceOf<kObjectUses>(names.stream)];
  Use& event = objects_[PlaceOf<kObjectUses>(names.event != 0 ? names.event : names.stream)];
  const uint32_t chosen = Choose(thread, stream);
  for (const Use* use : {&thread, &stream, &event}) {
    if (use->lane != chosen && !WaitUntil([&] { return !IsPending(*use); })) return false;
  }
  Lane& lane = *lanes_[chosen];
  std::byte* space = nullptr;
  const size_t bytes = sizeof(RecordHeader) + record.size();
  if (!WaitUntil([&] { return (space = lane.in.Reserve(bytes)) != nullptr; })) return false;
  PutHeader(space, {});  // of the lane's ring
  std::memcpy(space + sizeof(RecordHeader), record.data(), record.size());
  lane.in.Publish(bytes);
  const uint64_t position = lane.handed.load(std::memory_order_relaxed) + 1;
  lane.handed.store(position, std::memory_order_release);  // partner: Await
  thread = stream = event = {chosen, position};
  Wake(lane.tail, lane.sleeping, true);
  return true;
}

void Lanes::Run(Lane& lane) {
  for (;;) {
    Waiter waiter(IdlePolicy(), &lane.tail, &lane.sleeping, true);
    std::span<const std::byte> record;
    bool waited = false;
    for (;; waited = true) {
      if (stop_.load(std::memory_order_acquire)) return;
      if (lane.out.Next(&record) == RingConsumer::Status::kRecord) break;
      waiter.Step(lane.out.seen_tail());
    }
    if (!waited) lane.out.Prefetch();
    record = record.subspan(sizeof(RecordHeader));
    execute_(record);
    RecordHeader header;
    std::memcpy(&header, record.data(), sizeof header);
    lane.out.Release();
    // partners: Await, IsPending, Waiting
    lane.sequence.store(header.sequence + 1, std::memory_order_release);
    lane.executed.store(lane.executed.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
}

bool Lanes::Drain() {
  const uint32_t count = count_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    if (!WaitUntil([&] { return Waiting(i) == 0; })) return false;
  }
  return true;
}

bool Lanes::Await(uint64_t sequence) {
  const uint32_t count = count_.load(std::memory_order_acquire);  // partner: Choose
  for (uint32_t i = 0; i < count; ++i) {
    const Lane& lane = *lanes_[i];
    const uint64_t handed = lane.handed.load(std::memory_order_acquire);  // partner: Hand
    const auto done = [&] {
      return lane.executed.load(std::memory_order_acquire) >= handed ||
             lane.sequence.load(std::memory_order_acquire) >= sequence;  // partner: Run
    };
    if (!WaitUntil(done)) return false;
  }
  return true;
}

uint32_t LaneCount() {
  constexpr uint32_t kFewProcessors = 4;
  if (const char* text = std::getenv("CAUSEWAY_LANES"))
    return static_cast<uint32_t>(std::min<unsigned long>(std::strtoul(text, nullptr, 10), Lanes::kMost));
  const uint32_t processors = KnownProcessors();
  return processors < kFewProcessors ? 0 : std::min(processors / 2, Lanes::kMost);
}

}  // namespace causeway::host
