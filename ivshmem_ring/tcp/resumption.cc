// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/tcp/resumption.h"

#include <chrono>

#include "ivshmem_ring/transport/waiter.h"

namespace causeway {

std::string Resumption::why() {
  const std::lock_guard lock(mutex_);
  return why_;
}

void Resumption::Lose(const std::string& why, const std::function<void()>& shut) {
  {
    const std::lock_guard lock(mutex_);
    if (state_.load() != State::kUp) return;
    state_.store(State::kDown);
    lost_us_ = NowUs();
    why_ = why;
    shut();
    changed_.notify_all();
  }
  lost_();
}

void Resumption::End() {
  const std::lock_guard lock(mutex_);
  state_.store(State::kOver);
  if (why_.empty()) why_ = "this side has ended it";
  changed_.notify_all();
}

bool Resumption::Park() {
  std::unique_lock lock(mutex_);
  const uint64_t socket = sockets_;
  parked_ = true;
  changed_.notify_all();
  // Not for its being up: it may be down again before this thread awakes, and finds that by reading.
  changed_.wait(lock, [&] { return sockets_ != socket || state_.load() == State::kOver; });
  return state_.load() != State::kOver;
}

Resumption::Parked Resumption::AwaitParked(uint64_t grace_us, uint64_t* lost_us) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return state_.load() != State::kUp; });
  *lost_us = lost_us_;
  const uint64_t now_us = NowUs(), end_us = lost_us_ + grace_us;
  changed_.wait_for(lock, std::chrono::microseconds(end_us > now_us ? end_us - now_us : 0),
                    [this] { return state_.load() == State::kOver || parked_; });
  if (state_.load() == State::kOver) return Parked::kOver;
  return parked_ ? Parked::kYes : Parked::kLate;
}

bool Resumption::GoOn(const std::function<void()>& exchange) {
  const std::lock_guard lock(mutex_);
  if (state_.load() != State::kDown) return false;
  exchange();
  state_.store(State::kUp);
  ++sockets_;
  parked_ =
      false;  // here, so that the keeper does not take a thread that has not awoken yet for parked at the next loss
  changed_.notify_all();
  return true;
}

bool Resumption::Acknowledge(uint64_t position) {
  if (position > sent_end_.load(std::memory_order_acquire)) return false;
  if (position <= acknowledged_.load(std::memory_order_relaxed)) return true;
  {
    const std::lock_guard lock(mutex_);  // between a waiter's test and its sleep nothing may be missed
    acknowledged_.store(position, std::memory_order_release);
  }
  changed_.notify_all();
  return true;
}

void Resumption::AwaitAcknowledgement(uint64_t position) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return acknowledged() > position || state_.load() == State::kOver; });
}

}  // namespace causeway
