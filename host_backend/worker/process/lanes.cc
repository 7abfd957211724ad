// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/process/lanes.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>

#include "ivshmem_ring/transport/waiter.h"

namespace causeway::host {
namespace {

constexpr size_t kProbes = 8;  // places that a name may have

size_t PlaceOf(uint64_t name, size_t places) {
  const uint64_t mixed = name * 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio
  return static_cast<size_t>(mixed >> 40) % places;
}

}  // namespace

Lanes::Lane::Lane()
    : in(memory.get(), kLaneBytes, &tail, &head), out(memory.get(), kLaneBytes, &tail, &head, buffer) {}

Lanes::Lanes(uint32_t most, Execute execute, std::function<void()> idle)
    : most_(most < 2 ? 0 : std::min(most, kMost)), execute_(std::move(execute)), idle_(std::move(idle)) {}

Lanes::~Lanes() {
  Stop();
  Join();
}

void Lanes::Join() {
  for (const auto& lane : lanes_) {
    if (lane == nullptr || !lane->thread.joinable()) continue;
    StoreRelease(lane->tail, LoadAcquire(lane->tail) + 1);  // who is about to sleep does not
    WakeSleepers(lane->tail);
    lane->thread.join();
  }
}

bool Lanes::IsPending(const Use& use) {
  if (use.position <= seen_[use.lane]) return false;
  const uint64_t executed = lanes_[use.lane]->executed.load(std::memory_order_acquire);  // partner: Run
  if (executed != seen_[use.lane]) moved_[use.lane] = ++moves_;
  seen_[use.lane] = executed;
  return use.position > executed;
}

bool Lanes::MayBePending(const Use& use) {
  constexpr uint32_t kSpared = 16;
  return use.position > seen_[use.lane] && (++looks_[use.lane] % kSpared != 0 || IsPending(use));
}

uint64_t Lanes::Waiting(uint32_t lane) {
  const uint64_t handed = lanes_[lane]->handed.load(std::memory_order_relaxed);
  return IsPending({0, handed, lane}) ? handed - seen_[lane] : 0;
}

bool Lanes::IsIdle() {
  const uint32_t count = count_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    if (Waiting(i) != 0) return false;
  }
  return true;
}

bool Lanes::MayBeBusy() const {
  const uint32_t count = count_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    if (lanes_[i]->handed.load(std::memory_order_relaxed) != seen_[i]) return true;
  }
  return false;
}

// Null: stopped.
Lanes::Use* Lanes::UseOf(std::span<Use> uses, uint64_t name) {
  const size_t first = PlaceOf(name, uses.size());
  Use* free = nullptr;
  for (size_t i = 0; i < kProbes; ++i) {
    Use& use = uses[(first + i) % uses.size()];
    if (use.name == name) return &use;
    if (free == nullptr && !MayBePending(use)) free = &use;
  }
  if (free == nullptr && !Drain()) return nullptr;
  if (free == nullptr) free = &uses[first];
  *free = {.name = name};
  return free;
}

// Where the order needs no waiting; else the thread's last lane, or the one with the least to do.
uint32_t Lanes::Choose(const Use& thread, const Use& stream) {
  if (MayBePending(thread)) return thread.lane;
  if (MayBePending(stream)) return stream.lane;
  return thread.position != 0 && Waiting(thread.lane) == 0 ? thread.lane : LeastUsed();
}

// By the threads that wait for it: how much they have posted so far says little of what they will post. Among
// equals the one that went on last: another may have a call that waits for just what comes now.
uint32_t Lanes::LeastUsed() {
  const uint32_t count = count_.load(std::memory_order_relaxed);
  std::array<uint64_t, kMost> threads{}, records{};
  for (const Use& use : threads_) threads[use.lane] += IsPending(use);
  for (uint32_t i = 0; i < count; ++i) records[i] = Waiting(i);
  uint32_t best = 0;
  for (uint32_t i = 1; i < count; ++i) {
    if (std::tuple(threads[i], records[i], ~moved_[i]) <
        std::tuple(threads[best], records[best], ~moved_[best]))
      best = i;
  }
  if (count != 0 && (count == most_ || records[best] == 0)) return best;
  return MakeLane() ? count : best;
}

bool Lanes::MakeLane() {
  const uint32_t made = count_.load(std::memory_order_relaxed);
  lanes_[made] = std::make_unique<Lane>();
  moved_[made] = ++moves_;
  try {
    lanes_[made]->thread = std::thread([this, made] {
      prctl(PR_SET_NAME, ("lane-" + std::to_string(made)).c_str());
      Run(*lanes_[made]);
    });
  } catch (const std::system_error&) {
    lanes_[made] = nullptr;
    most_ = made;
    return false;
  }
  count_.store(made + 1, std::memory_order_release);  // partner: Await
  return true;
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

uint64_t Lanes::Pack(const Use& use) {
  static_assert(kMost <= 1u << kLaneBits);
  return use.position << kLaneBits | use.lane;
}

bool Lanes::WaitFor(uint64_t packed) {
  if (packed == 0) return true;
  const uint64_t position = packed >> kLaneBits;
  const std::atomic<uint64_t>& executed = lanes_[packed % (1u << kLaneBits)]->executed;
  return WaitUntil([&] { return executed.load(std::memory_order_acquire) >= position; });  // partner: Run
}

bool Lanes::Hand(const Names& names, std::span<const std::byte> record) {
  Use* const thread = UseOf(threads_, names.thread);
  Use* const stream = UseOf(streams_, names.stream);
  Use* const event = names.event != 0 ? UseOf(events_, names.event) : stream;
  if (thread == nullptr || stream == nullptr || event == nullptr) return false;
  const uint32_t chosen = Choose(*thread, *stream);
  const auto after = [&](const Use& use) { return use.lane != chosen && IsPending(use) ? Pack(use) : 0; };
  const After others{after(*thread), after(*stream), after(*event)};
  Lane& lane = *lanes_[chosen];
  std::byte* space = nullptr;
  const size_t bytes = sizeof(RecordHeader) + sizeof others + record.size();
  if (!WaitUntil([&] { return (space = lane.in.Reserve(bytes)) != nullptr; })) return false;
  PutHeader(space, PostedHeader{});  // of the lane's ring
  std::memcpy(space + sizeof(RecordHeader), &others, sizeof others);
  std::memcpy(space + sizeof(RecordHeader) + sizeof others, record.data(), record.size());
  lane.in.Publish(bytes);
  const uint64_t position = lane.handed.load(std::memory_order_relaxed) + 1;
  lane.handed.store(position, std::memory_order_release);  // partner: Await
  for (Use* use : {thread, stream, event}) *use = {use->name, position, chosen};
  Wake(lane.tail, lane.sleeping, true);
  return true;
}

bool Lanes::AwaitRecord(Lane& lane, std::span<const std::byte>* record) {
  if (idle_) idle_();
  Waiter waiter(IdlePolicy(), &lane.tail, &lane.sleeping, true);
  while (lane.out.Next(record) != RingConsumer::Status::kRecord) {
    if (stop_.load(std::memory_order_acquire)) return false;
    waiter.Step(lane.out.seen_tail());
  }
  return true;
}

void Lanes::Run(Lane& lane) {
  Serve(lane);
  if (idle_) idle_();
}

void Lanes::Serve(Lane& lane) {
  while (!stop_.load(std::memory_order_acquire)) {
    std::span<const std::byte> record;
    if (lane.out.Next(&record) == RingConsumer::Status::kRecord) {
      lane.out.Prefetch();
    } else if (!AwaitRecord(lane, &record)) {
      return;
    }
    After others;
    std::memcpy(&others, record.data() + sizeof(RecordHeader), sizeof others);
    if (!WaitFor(others.thread) || !WaitFor(others.stream) || !WaitFor(others.event)) return;
    record = record.subspan(sizeof(RecordHeader) + sizeof others);
    execute_(record);
    const uint64_t sequence = ReadHeader<PostedHeader>(record).sequence;
    lane.out.Release(kHeldBytes);
    // partners: Await, IsPending, WaitFor
    lane.sequence.store(sequence + 1, std::memory_order_release);
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

bool Lanes::AwaitThese(uint32_t count, uint64_t sequence) {
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
  constexpr uint32_t kFewProcessors = 4, kEnough = 8;  // natively more threads bring no more
  if (const char* text = std::getenv("CAUSEWAY_LANES"))
    return static_cast<uint32_t>(std::min<unsigned long>(std::strtoul(text, nullptr, 10), Lanes::kMost));
  const uint32_t processors = KnownProcessors();
  return processors < kFewProcessors ? 0 : std::min(processors / 2, kEnough);
}

}  // namespace causeway::host
