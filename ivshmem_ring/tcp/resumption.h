// SPDX-License-Identifier: Apache-2.0
// The state of a connection that can go on over another socket (TcpConnection::MakeResumable). It has no socket itself.
//
//            a send or receive fails, the peer is silent,
//            Break                                         End
//     up ───────────────────────────────▶ down ────────────────▶ over
//      ▲                                   │
//      └────────── another socket ─────────┘
//
// Down, senders keep what they send and go on; the one thread that reads is parked; and one thread, the keeper, gets another socket
// (link_keeper.h). The numbers are those of frames' bytes, in each direction from 0 on.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "ivshmem_ring/tcp/sent_bytes.h"

namespace causeway {

class Resumption {
 public:
  // When so many bytes were received, the next frame takes an acknowledgement along; when so many more were, it is sent for itself, which
  // wakes a thread of the peer. That is rare: who receives much also sends, a request for each staging buffer and a word for each
  // kMainCreditBytes, and so no staging buffer is lent again before its last bytes were acknowledged.
  static constexpr uint64_t kAcknowledgeBytes = 128u << 10, kForceBytes = 4u << 20;

  // `lost` is called for each loss, by the thread that notices it, which may hold the lock of sending.
  // `closing_ends`: a peer that has closed its side in order does not come back.
  Resumption(std::function<void()> lost, bool closing_ends)
      : closing_ends_(closing_ends), lost_(std::move(lost)) {}

  bool closing_ends() const { return closing_ends_; }
  bool down() const { return state_.load(std::memory_order_acquire) != State::kUp; }
  bool over() const { return state_.load(std::memory_order_acquire) == State::kOver; }
  // How many sockets have come in the place of others.
  uint64_t sockets() const { return sockets_.load(std::memory_order_relaxed); }
  // Why it is down or over.
  std::string why();

  // From up to down; `shut` is called meanwhile, so that it shuts this socket and no later one. Any thread.
  void Lose(const std::string& why, const std::function<void()>& shut);
  // To over, from which nothing leads away. Any thread.
  void End();
  // The reading thread's: waits while it is down. False: it is over.
  bool Park();
  // The keeper's: waits until it is down and the reading thread is parked; *lost_us is when it was lost (NowUs). kLate: that thread did
  // not notice the loss within `grace_us`, because a queue has been full since. kOver: it is over.
  enum class Parked { kYes, kLate, kOver };
  Parked AwaitParked(uint64_t grace_us, uint64_t* lost_us);
  // The keeper's, after AwaitParked: `exchange` puts another socket in the place of the old one, unless it is over (false).
  bool GoOn(const std::function<void()>& exchange);

  // What was sent. With the lock of sending held, as Prune is.
  SentBytes sent;
  // Forgets what the peer has acknowledged.
  void Prune() {
    if (const uint64_t position = acknowledged_.load(std::memory_order_acquire); position > sent.begin())
      sent.Forget(position);
  }
  // After something was added to `sent`, before it leaves.
  void NoteSent() { sent_end_.store(sent.end(), std::memory_order_release); }
  // The peer says that it has received so many bytes. An older number than the last says nothing. False: there are not so many.
  bool Acknowledge(uint64_t position);
  uint64_t acknowledged() const { return acknowledged_.load(std::memory_order_acquire); }
  // Waits until more than that was acknowledged, or it is over. Without the lock of sending.
  void AwaitAcknowledgement(uint64_t position);

  // The reading thread has received so many bytes more.
  void NoteReceived(uint64_t bytes) {
    received_.store(received_.load(std::memory_order_relaxed) + bytes, std::memory_order_release);
  }
  uint64_t received() const { return received_.load(std::memory_order_acquire); }
  // How many of these the peer has not been told of.
  uint64_t Untold() const { return received() - told_.load(std::memory_order_relaxed); }
  // The number to tell it now. With the lock of sending held.
  uint64_t Tell() {
    const uint64_t now = received();
    told_.store(now, std::memory_order_relaxed);
    return now;
  }

 private:
  enum class State { kUp, kDown, kOver };

  const bool closing_ends_;
  const std::function<void()> lost_;
  std::mutex mutex_;  // of these; held for no longer than `shut` and `exchange` take
  std::condition_variable changed_;
  std::atomic<State> state_{State::kUp};  // written with mutex_
  bool parked_ = false;
  uint64_t lost_us_ = 0;              // when it was lost last
  std::atomic<uint64_t> sockets_{0};  // that came in the place of others; written with mutex_
  std::string why_;
  std::atomic<uint64_t> sent_end_{0}, acknowledged_{0}, received_{0}, told_{0};
};

}  // namespace causeway
