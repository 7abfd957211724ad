// SPDX-License-Identifier: Apache-2.0
// Where a record that submits work waits for its VM's turn on the GPU (docs/sharing.md). One for each worker.
//
// The gate delays, in the thread that would call the driver; order within a session is as ever, and records behind
// wait as behind a slow GPU. How long is the daemon's matter: a paused VM waits until it is resumed, and one whose cap is used up until
// what it owes is paid. But work that may need the very record that waits here gets it: the daemon lets a VM whose work does not end
// submit every 100 ms (Grant::kBeside), what may be outstanding doubles every 50 ms in which nothing is finished, and a grant is ignored
// 50 ms after the daemon was last seen.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

#include "host_backend/common/shares/turn_words.h"
#include "host_backend/worker/gate/surroundings.h"

namespace causeway::host {

// Any thread, several at once.
class Gate {
 public:
  // All outlive the gate. `words` are this worker's own and all zero.
  Gate(const GrantWords& grant, TurnWords& words, Surroundings& surroundings)
      : grant_(&grant), words_(words), surroundings_(surroundings) {}
  // From now on that grant counts.
  void Follow(const GrantWords& grant) { grant_.store(&grant, std::memory_order_release); }

  // Before a record that submits work. False: `stop` became true. Each true needs
  // a Leave by the same thread, once the record was submitted.
  bool Enter(const std::atomic<bool>& stop) { return EnterOpen() || Await(stop); }
  // The same in two steps: false where the record may pass only once Await says so.
  bool EnterOpen() {
    Tell();
    return IsOpen();
  }
  // Tells the daemon that something is submitted, which EnterOpen does for each record. Threads that submit side by side would take
  // the cache line from each other each time, so they may call IsOpen alone for most records (DeviceGates::EnterLate).
  void Tell() {
    words_.submitted.store(words_.submitted.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  bool Await(const std::atomic<bool>& stop);
  // Nobody else wants the GPU: while it was so from EnterOpen on, Leave would do nothing.
  bool IsOpen() const {
    return grant().grant.load(std::memory_order_relaxed) == static_cast<uint32_t>(Grant::kOpen);
  }
  // `more`: the same thread goes on with another record, or calls MarkRest, so that this one needs no mark of its
  // own.
  void Leave(bool more) {
    if (!IsOpen()) [[unlikely]]
      Note(more);
  }
  // Whether records have passed that no mark is behind yet.
  bool HasUnmarked() const { return words_.unmarked.load(std::memory_order_relaxed) != 0; }
  // Puts a mark behind them, which the thread must have submitted that calls this.
  void MarkRest();
  struct Mark {
    uint32_t slot = 0, value = 0;
  };
  // The same for a caller that has the GPU write Mark::value into TurnWords::done[Mark::slot] itself, or calls DropMark
  // if it could not. Nothing: no record is without a mark, or there is no place.
  std::optional<Mark> TakeMark();
  void DropMark(const Mark& mark);
  // Puts a mark behind what has passed while nobody else wanted the GPU, so that the daemon knows what is still to be done when
  // another VM comes. Any thread that can submit where the last record went; it waits where the driver's queue is full.
  void MarkQueued();
  // No mark that is outstanding will be written any more.
  void ForgetMarks();

  // One step of Enter, for tests under a clock of their own: whether a record may pass now. If not, what passed before
  // it gets a mark, because nothing follows it until this record passes.
  bool MayPass(uint64_t now_ns);

 private:
  const GrantWords& grant() const { return *grant_.load(std::memory_order_acquire); }
  void Note(bool more);
  bool HasRoom(uint64_t now_ns);
  uint64_t UsualRecords() const;
  uint32_t BatchSize() const;
  std::optional<Mark> ReserveForPassed();
  std::optional<Mark> ReserveMark(uint32_t records);
  void Place(const std::optional<Mark>& mark);
  void GiveUpMarkLocked(uint32_t slot);
  struct UnderWay {
    uint32_t marks = 0, records = 0;
  };
  UnderWay Outstanding(uint64_t now_ns);
  void Adapt(uint64_t took_ns);
  void NoteRecord(uint64_t took_ns);

  std::atomic<const GrantWords*> grant_;
  TurnWords& words_;
  Surroundings& surroundings_;
  // Of what follows, and of what this worker writes into words_. The driver is never called under it.
  std::mutex mutex_;
  std::array<uint64_t, kTurnMarks> sent_ns_{};
  std::array<bool, kTurnMarks> outstanding_{};
  std::array<bool, kTurnMarks> queued_{};       // of those: placed by MarkQueued
  std::array<uint32_t, kTurnMarks> records_{};  // that each stands behind
  uint32_t last_value_ = 0;
  uint32_t openings_ = 0;           // of GrantWords, when a mark was last placed behind what passed without
  uint64_t record_ns_ = 0;          // that a record takes; 0: not known
  uint32_t usual_batches_ = 2;      // that may be outstanding
  uint32_t batch_ = 1;              // records for each mark
  std::atomic<bool> brief_{false};  // what is outstanding will be done sooner than a thread is woken
  uint64_t last_looked_ns_ = 0;     // when a thread last looked at what is outstanding
  // When a mark was last seen done, or the first of those outstanding was placed.
  uint64_t last_finished_ns_ = 0;
};

}  // namespace causeway::host
