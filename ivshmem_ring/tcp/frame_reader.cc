// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/tcp/frame_reader.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <system_error>
#include <utility>

#include "ivshmem_ring/system/own_signals.h"

namespace causeway {
namespace {

constexpr uint64_t kTickUs = 1'000'000;

}  // namespace

FrameReader::FrameReader(TcpConnection& connection, FrameSink& sink, bool of_guest)
    : connection_(connection), sink_(sink), of_guest_(of_guest) {
  connection_.WhileNothingComes([this] {
    if (background_id_.load() == std::this_thread::get_id()) sink_.Tick();
  });
}

void FrameReader::Join() {
  if (!abandoned_) End();
  if (background_.joinable()) background_.join();
}

FrameReader::~FrameReader() {
  Join();
  if (epoll_ >= 0) close(epoll_);
  if (wake_ >= 0) close(wake_);
  if (timer_ >= 0) close(timer_);
}

void FrameReader::Abandon() {
  state_ = State::kOver;  // without the lock, which a thread of the parent may have held
  if (background_.joinable()) background_.detach();
  background_ = std::thread();
  abandoned_ = true;
}

std::string FrameReader::Start() {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event socket{}, wake{};
  socket.events = EPOLLIN | EPOLLONESHOT;
  socket.data.fd = connection_.fd();
  wake.events = EPOLLIN;
  wake.data.fd = wake_;
  if (epoll_ < 0 || wake_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, connection_.fd(), &socket) != 0 ||
      epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &wake) != 0)
    return "the connection cannot be watched: " + std::generic_category().message(errno);
  epoll_event timer{};
  timer.events = EPOLLIN;
  if (of_guest_) timer.data.fd = timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (timer_ >= 0 && epoll_ctl(epoll_, EPOLL_CTL_ADD, timer_, &timer) != 0) {
    close(timer_);
    timer_ = -1;
  }
  const WithoutProgramsSignals no_signals;
  std::string failure;
  try {
    background_ = std::thread([this] { RunBackground(); });
  } catch (const std::system_error& error) {
    failure = std::string("no thread can be started to read from the peer: ") + error.what();
  }
  return failure;
}

void FrameReader::Watch(uint32_t events) {
  epoll_event socket{};
  socket.events = events | EPOLLONESHOT;
  socket.data.fd = connection_.fd();
  if (epoll_ctl(epoll_, EPOLL_CTL_MOD, connection_.fd(), &socket) != 0 && errno == ENOENT)
    epoll_ctl(epoll_, EPOLL_CTL_ADD, connection_.fd(), &socket);  // another socket has its number
}

// The kernel watches the open file, which other processes may have as well, and not the number.
void FrameReader::Forget() {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, connection_.fd(), nullptr);
}

void FrameReader::WakeBackground() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
}

void FrameReader::Remind() {
  if (timer_ >= 0 && !reminds() && !reminding_.exchange(true)) SetTimer();
}

void FrameReader::SetTimer() {
  const itimerspec once{{}, {0, kRemindUs * 1000}};
  timerfd_settime(timer_, 0, &once, nullptr);
}

void FrameReader::TakeTimer() {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = read(timer_, &count, sizeof count);
  reminding_.store(false);  // first: a thread that finds it set relies on Reminded to see what it has done
  if (sink_.Reminded() && !reminding_.exchange(true)) SetTimer();
}

// While it is armed, each byte would wake the background thread as well.
void FrameReader::BeginReading() {
  if (state_ == State::kArmed) Watch(0);
  state_ = State::kReading;
  ++readings_;
}

void FrameReader::EndReading(bool full, bool waits) {
  if (state_ == State::kOver) return;
  const bool may_be_loose = !waits && (of_guest_ ? sleepers_ == 0 : sink_.BackSoon());
  state_ = full ? State::kStalled : may_be_loose ? State::kLoose : State::kArmed;
  if (state_ == State::kArmed) Watch(EPOLLIN);
  if (state_ == State::kLoose && !std::exchange(active_, true)) WakeBackground();
}

void FrameReader::Look(std::unique_lock<std::mutex>& lock) {
  if (state_ != State::kArmed && state_ != State::kLoose) return;
  BeginReading();
  lock.unlock();
  const bool full = Read(nullptr, {});
  lock.lock();
  EndReading(full, false);
}

void FrameReader::Await(std::unique_lock<std::mutex>& lock, std::condition_variable& arrived,
                        const WaitPolicy& policy, const std::function<bool()>& ready) {
  bool may_read = true;
  while (!ready() && state_ != State::kOver) {
    if (!may_read || state_ == State::kReading || state_ == State::kStalled) {
      ++sleepers_;
      arrived.wait(lock);
      --sleepers_;
      continue;
    }
    BeginReading();
    lock.unlock();
    const bool full = Read(&policy, ready);
    lock.lock();
    EndReading(full, !ready());
    may_read = false;  // either its frame has come, or other threads' frames do
  }
}

// A wake-up costs more than a system call, but this happens only where a queue was full.
void FrameReader::RoomMade() {
  if (state_ != State::kStalled) return;
  state_ = State::kLoose;
  WakeBackground();
}

void FrameReader::End() {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kOver) return;
    state_ = State::kOver;
  }
  connection_.Shutdown();
  if (wake_ >= 0) WakeBackground();
}

bool FrameReader::Read(const WaitPolicy* policy, const std::function<bool()>& ready) {
  bool handed = false;
  for (;;) {
    Next next;
    while ((next = TakeNext()) == Next::kHanded || next == Next::kNoted)
      handed = handed || next == Next::kHanded;
    if (next != Next::kIncomplete) return next == Next::kFull;
    // What has been received must not stay behind: nothing would wake the background thread for it.
    if (connection_.OpenReceived()) continue;
    if (policy != nullptr) {
      const std::lock_guard lock(mutex_);
      if (state_ == State::kOver || ready()) return false;
    }
    switch (connection_.Fill(handed ? nullptr : policy)) {
      case TcpConnection::Filled::kSome:
        break;
      case TcpConnection::Filled::kNothing:
        return false;
      case TcpConnection::Filled::kEnded:
        sink_.Ended(connection_.reason());
        return false;
    }
  }
}

FrameReader::Next FrameReader::TakeNext() {
  const std::span<const std::byte> buffered = connection_.buffered();
  FrameHeader frame;
  if (buffered.size() < sizeof frame) return Next::kIncomplete;
  std::memcpy(&frame, buffered.data(), sizeof frame);
  const FrameSink::May may = sink_.MayCome(frame);
  if (may != FrameSink::May::kCome) return may == FrameSink::May::kFull ? Next::kFull : Next::kOver;
  const size_t bytes = sizeof frame + frame.record_bytes;
  if (buffered.size() < bytes) return Next::kIncomplete;
  connection_.Consume(bytes);
  const FrameSink::Taken taken = sink_.Take(frame, buffered.subspan(sizeof frame, frame.record_bytes));
  return taken == FrameSink::Taken::kOver     ? Next::kOver
         : taken == FrameSink::Taken::kHanded ? Next::kHanded
                                              : Next::kNoted;
}

bool FrameReader::ArmIfIdle() {
  if (!active_) return true;
  const bool idle = readings_ == std::exchange(seen_readings_, readings_);
  if (!idle || state_ == State::kStalled) return false;
  if (state_ == State::kLoose) {
    state_ = State::kArmed;
    Watch(EPOLLIN);
  }
  active_ = false;  // who reads now wakes this thread again
  return true;
}

bool FrameReader::AwaitEvents(uint64_t until_us) {
  std::array<epoll_event, 3> events{};
  const uint64_t now_us = NowUs(), left_us = until_us > now_us ? until_us - now_us : 0;
  const int count =
      epoll_wait(epoll_, events.data(), int(events.size()), static_cast<int>((left_us + 999) / 1000));
  bool readable = false;
  for (int i = 0; i < count; ++i) {
    if (events[size_t(i)].data.fd == wake_) {
      uint64_t wakes;
      [[maybe_unused]] const ssize_t got = read(wake_, &wakes, sizeof wakes);
    } else if (events[size_t(i)].data.fd == timer_) {
      TakeTimer();
    } else {
      readable = true;
    }
  }
  return readable;
}

void FrameReader::RunBackground() {
  constexpr uint64_t kLookUs = 5'000;
  uint64_t next_tick_us = NowUs() + kTickUs, next_look_us = 0;
  bool armed = true;
  background_id_.store(std::this_thread::get_id());
  for (;;) {
    const bool readable = AwaitEvents(armed ? next_tick_us : std::min(next_tick_us, next_look_us));
    const uint64_t now_us = NowUs();
    if (now_us >= next_tick_us) {
      next_tick_us = now_us + kTickUs;
      sink_.Tick();
    }
    std::unique_lock lock(mutex_);
    if (state_ == State::kOver) return;
    if (readable || (state_ == State::kLoose && !active_)) Look(lock);  // or RoomMade has been called
    if (!armed && now_us < next_look_us) continue;                      // a reminder
    armed = ArmIfIdle();
    next_look_us = now_us + kLookUs;
  }
}

}  // namespace causeway
