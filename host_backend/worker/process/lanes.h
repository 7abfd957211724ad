// SPDX-License-Identifier: Apache-2.0
// Worker queues ("lanes"; docs/waiting.md): threads that execute posted records of several guest threads at
// once, when one dispatcher is not enough. Natively each thread of the program pays for its own launches.
//
// The dispatcher stays the one reader of the submission queue. What it hands over is executed in order
// - among the records of one guest thread, as natively: programs may rely on the order of their own calls
//   beyond what streams and events say (kernels that wait for kernels of other streams);
// - among the records that work on one stream, or name one event, whichever thread posted them. All else has
//   no order but what the dispatcher gives it by waiting until the queues are empty. So work on the legacy
//   stream, which streams wait for by the order of calls, comes after all that was posted before it, and
//   before all that is posted after.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "ivshmem_ring/transport/record.h"
#include "ivshmem_ring/transport/ring.h"

namespace causeway::host {

class Lanes {
 public:
  static constexpr uint32_t kMost = 16;
  static constexpr size_t kMaxRecordBytes = 8u << 10;  // a larger one is the dispatcher's
  using Execute = std::function<void(std::span<const std::byte> record)>;

  // `most` threads, made when they are needed; below 2: none. Each calls `execute` for each record, and `idle` before it waits for
  // another one and before it ends.
  Lanes(uint32_t most, Execute execute, std::function<void()> idle = {});
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // ---- the dispatcher alone

  // What the order hangs on, as the record names it. The guest may lie: then its own calls lose their order.
  struct Names {
    uint32_t thread = 0;
    uint64_t stream = 0;
    uint64_t event = 0;  // 0: none
  };
  // Called for every record. Whether it should be handed over, if it can: several guest threads post, and
  // more is there than this record, or what came before is still being executed.
  bool Wanted(uint32_t thread, auto more_ready) {
    if (most_ == 0) return false;
    ++records_;
    if (crowded_ > 0) --crowded_;
    if (thread != last_.thread) {
      // One thread that goes on where another has ended is no crowd.
      if (records_ - last_.at < kCrowdedFor) crowded_ = kCrowdedFor;
      if (last_.at != 0) before_[++changes_ % kBefore] = {last_.thread, records_};
      last_ = {thread, records_};
    }
    const bool wanted = ((crowded_ > 0 || MayBeBusy()) && more_ready()) || !IsIdle();
    return wanted && (count_.load(std::memory_order_relaxed) != 0 || MakeLane());
  }
  // How many different threads have posted lately. Only the last few changes of the thread are remembered, so there may be more.
  uint32_t Posting() const {
    uint32_t count = 1;
    for (size_t i = 0; i < kBefore; ++i) {
      const Posted& one = before_[i];
      const auto same = [&](const Posted& other) { return other.thread == one.thread; };
      const bool is_new =
          one.thread != last_.thread && std::none_of(before_.begin(), before_.begin() + i, same);
      count += is_new && records_ - one.at < kCrowdedFor ? 1 : 0;
    }
    return count;
  }
  // Copies the record and returns; waits while its lane is full. False: stopped.
  bool Hand(const Names& names, std::span<const std::byte> record);
  // Waits until all that was handed over is executed. False: stopped.
  bool Drain();

  // ---- any thread

  // Waits until all that was handed over with a lower sequence is executed. The caller knows that the
  // dispatcher has come so far. False: stopped.
  bool Await(uint64_t sequence) {
    const uint32_t count = count_.load(std::memory_order_acquire);  // partner: MakeLane
    return count == 0 || AwaitThese(count, sequence);
  }
  // Ends every wait, now and later; what is not yet begun is never executed.
  void Stop() { stop_.store(true, std::memory_order_release); }
  // After Stop: waits until no lane executes anything any more. One thread alone may call it.
  void Join();

 private:
  // As much as the main ring and more: records that fill it must not keep others from their lanes.
  static constexpr uint64_t kLaneBytes = 2 * kMainRingBytes;
  static constexpr uint64_t kHeldBytes = 4096;  // of a lane, before the dispatcher learns of its room
  static constexpr uint32_t kCrowdedFor = 256;  // records

  // What each record of a lane's ring begins with: which of other lanes must be executed before it (Pack); 0:
  // none. Those were handed over before, so no two lanes wait for each other.
  struct After {
    uint64_t thread, stream, event;
  };

  struct Lane {
    Lane();
    std::unique_ptr<std::byte[]> memory = std::make_unique_for_overwrite<std::byte[]>(kLaneBytes);
    std::vector<std::byte> buffer{kMaxRecordBytes + sizeof(RecordHeader) + sizeof(After)};
    HotWord tail{}, head{}, sleeping{};
    RingProducer in;
    RingConsumer out;
    // Records. The dispatcher's, released after the record is in the ring; acquired in Await.
    alignas(kHotBytes) std::atomic<uint64_t> handed{0};
    // The lane's, released after the record is executed; acquired by threads that wait for that.
    alignas(kHotBytes) std::atomic<uint64_t> executed{0};
    std::atomic<uint64_t> sequence{0};  // behind the newest executed record's
    std::thread thread;
  };
  // Where something was last named, and as which of its lane's records.
  struct Use {
    uint64_t name = 0;
    uint64_t position = 0;
    uint32_t lane = 0;
  };

  void Run(Lane& lane);
  void Serve(Lane& lane);
  bool AwaitRecord(Lane& lane, std::span<const std::byte>* record);  // false: stopped
  static constexpr uint32_t kLaneBits = 8;
  static uint64_t Pack(const Use& use);
  bool WaitFor(uint64_t packed);
  // Exactly: that takes the line from the lane that writes it.
  bool IsPending(const Use& use);
  // For callers that need not know at once that it is done.
  bool MayBePending(const Use& use);
  uint64_t Waiting(uint32_t lane);
  bool IsIdle();
  bool MayBeBusy() const;
  bool AwaitThese(uint32_t count, uint64_t sequence);
  Use* UseOf(std::span<Use> uses, uint64_t name);
  uint32_t Choose(const Use& thread, const Use& stream);
  uint32_t LeastUsed();
  // False: no thread can be had, and no other will be asked for.
  bool MakeLane();
  // False: stopped.
  template <class Done>
  bool WaitUntil(Done done);

  uint32_t most_;  // the dispatcher's
  const Execute execute_;
  const std::function<void()> idle_;
  std::unique_ptr<Lane> lanes_[kMost];
  std::atomic<uint32_t> count_{0};  // released when a lane is made; acquired in Await
  std::atomic<bool> stop_{false};

  // The dispatcher's, apart from what all lanes read. What nothing is pending of gives its place to others.
  static constexpr size_t kUses = 128;
  alignas(kHotBytes) std::array<Use, kUses> threads_, streams_, events_;
  std::array<uint64_t, kMost> seen_{};   // of Lane::executed, as far as it was looked at
  std::array<uint32_t, kMost> looks_{};  // calls of MayBePending; one in sixteen reads `executed`
  std::array<uint64_t, kMost> moved_{};  // moves_ when the lane was last seen to have executed more
  uint64_t moves_ = 0;
  struct Posted {
    uint32_t thread = 0;
    // In last_ the number of the thread's first record; in before_ the number of the record that followed its last one.
    uint64_t at = 0;
  };
  static constexpr size_t kBefore = 4;
  uint64_t records_ = kCrowdedFor, changes_ = 0;
  Posted last_;                           // which thread posts
  std::array<Posted, kBefore> before_{};  // those before it; one may be there twice
  uint32_t crowded_ = 0;                  // records for which several threads count as posting
};

// How many lanes a worker has: half of the processors it may use, 8 at most; none where there are few.
// CAUSEWAY_LANES=number in the daemon's environment says otherwise.
uint32_t LaneCount();

}  // namespace causeway::host
