// SPDX-License-Identifier: Apache-2.0
// Where a copy between host and device waits for its VM's part of the link (docs/sharing.md). One for each worker and GPU.
//
// While others copy much as well, a large copy goes to the driver in pieces, of which two or a few are under way: enough that
// the link never waits for this process, and so few that a VM which is to wait soon does. Small copies never wait. As the gate
// (gate.h) it delays in the thread that would call the driver and never for ever: a closed grant is the daemon's, which closes
// it only while others get on; it is ignored 50 ms after the daemon was last seen; and what may be under way doubles every
// 10 ms in which nothing is finished, because the stream may wait for something else.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

#include "host_backend/common/shares/link_words.h"
#include "host_backend/worker/gate/surroundings.h"

namespace causeway::host {

// Any thread, several at once.
class LinkGate {
 public:
  static constexpr uint64_t kSmallBytes = 16 << 10;  // of a copy that never waits
  static constexpr uint64_t kLeastPiece = 64 << 10, kMostPiece = 16 << 20;
  // How long a thread that waits for a piece looks for its end without sleeping, and how long it sleeps between two looks then.
  static constexpr uint64_t kPieceSpinNs = 20'000, kPieceNapNs = 50'000;

  // All outlive the gate. `words` are this worker's own and all zero.
  LinkGate(const LinkGrantWords& grant, LinkWords& words, Surroundings& surroundings)
      : grant_(&grant), words_(words), surroundings_(surroundings) {}
  // From now on that grant counts.
  void Follow(const LinkGrantWords& grant) { grant_.store(&grant, std::memory_order_release); }

  // Before a copy: how many of its bytes may go now, from the first on. 0: `stop` became true. Each piece needs a Leave by the
  // same thread, once it was submitted.
  uint64_t Enter(uint32_t direction, uint64_t bytes, const std::atomic<bool>& stop) {
    if (bytes <= kSmallBytes || IsOpen(direction)) [[likely]] {
      Count(direction, bytes);
      return bytes;
    }
    return Await(direction, bytes, stop);
  }
  // The same for a copy that goes in one piece. False: `stop` became true.
  bool EnterWhole(uint32_t direction, uint64_t bytes, const std::atomic<bool>& stop) {
    const uint64_t piece = Enter(direction, bytes, stop);
    if (piece < bytes && piece != 0) Count(direction, bytes - piece);
    return piece != 0 || bytes == 0;
  }
  // `done`: the driver has copied it already.
  void Leave(uint32_t direction, uint64_t bytes, bool done) {
    if (bytes > kSmallBytes && !done && !IsOpen(direction)) [[unlikely]]
      Note(direction, bytes);
  }
  // Whether other workers copy much, as the daemon last said. One thread at a time.
  bool OthersCopy();
  // No mark that is outstanding will be written any more.
  void ForgetMarks();

  // One step of Enter, for tests under a clock of their own: how many of the bytes may go now; 0: none.
  uint64_t MayPass(uint32_t direction, uint64_t bytes, uint64_t now_ns);

 private:
  struct Mark {
    uint32_t value = 0;
    uint64_t bytes = 0;  // 0: not outstanding
  };
  struct NewMark {
    uint32_t slot = 0, value = 0;
  };
  struct Side {
    std::array<Mark, kLinkMarks> marks{};
    uint32_t last_value = 0;
    uint64_t unmarked = 0;  // bytes that passed and have no mark behind them
    // When a piece was last seen done, or the first of those under way was given.
    uint64_t last_finished_ns = 0;
    uint64_t passed_asleep_ns = 0;  // when a piece last passed because nobody looked
  };
  const LinkGrantWords& grant() const { return *grant_.load(std::memory_order_acquire); }
  LinkGrant GrantOf(uint32_t direction) const {
    return static_cast<LinkGrant>(grant().grant[direction].load(std::memory_order_relaxed));
  }
  bool IsOpen(uint32_t direction) const { return GrantOf(direction) == LinkGrant::kOpen; }
  void Count(uint32_t direction, uint64_t bytes) {
    words_.copied[direction].fetch_add(bytes, std::memory_order_relaxed);
  }
  uint64_t Await(uint32_t direction, uint64_t bytes, const std::atomic<bool>& stop);
  void Note(uint32_t direction, uint64_t bytes);
  std::optional<NewMark> ReserveMark(uint32_t direction, uint64_t now_ns);
  void Place(uint32_t direction, const std::optional<NewMark>& mark);
  uint64_t UnderWay(uint32_t direction, uint64_t now_ns);
  uint64_t WindowOf(uint32_t direction) const;
  uint64_t PieceOf(uint32_t direction, uint64_t bytes) const;
  bool IsStale(uint64_t now_ns) const;
  uint64_t MayPassAsleep(uint32_t direction, uint64_t bytes, uint64_t now_ns);

  std::atomic<const LinkGrantWords*> grant_;
  LinkWords& words_;
  Surroundings& surroundings_;
  std::mutex mutex_;  // of what follows. The driver is never called under it
  std::array<Side, kLinkDirections> sides_{};
  // Of the thread that calls OthersCopy, without the lock: what it has found of this worker's own copies, and how many bytes these
  // were then.
  uint64_t looked_ns_ = 0, looked_bytes_ = 0;
  bool copies_much_ = false;
};

}  // namespace causeway::host
