// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/loop/worker_fd.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <mutex>
#include <system_error>
#include <thread>

#include "host_backend/daemon/loop/hand_off.h"
#include "ivshmem_ring/transport/packet.h"

namespace causeway::daemon {
namespace {

constexpr int64_t kNothing = -1;  // is discarded

struct Left {
  UniqueFd descriptor;
  int64_t discard_from = kNothing;
};

// Nobody else sends it, and where nothing handles it it does nothing.
constexpr int kInterrupt = SIGURG;
// A close that takes longer does not keep the next descriptor waiting: another thread closes that.
constexpr std::chrono::milliseconds kPatience{20};
// A close that takes longer is interrupted, again and again. A GPU's memory is freed sooner, and the kernel does
// not let that be interrupted.
constexpr time_t kInterruptAfter_s = 2;
// A thread that had nothing to close for so long ends, but for the last one, which sleeps until there is something.
constexpr std::chrono::seconds kIdle{10};

// Signals the calling thread while it is armed.
class InterruptTimer {
 public:
  InterruptTimer() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, kInterrupt);
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = kInterrupt;
    event._sigev_un._tid = pid_t(syscall(SYS_gettid));
    made_ = timer_create(CLOCK_MONOTONIC, &event, &timer_) == 0;
  }
  ~InterruptTimer() {
    if (made_) timer_delete(timer_);
  }
  InterruptTimer(const InterruptTimer&) = delete;
  InterruptTimer& operator=(const InterruptTimer&) = delete;

  void Arm(bool armed) {
    const timespec after{armed ? kInterruptAfter_s : 0, 0};
    const itimerspec times{after, after};
    if (made_) timer_settime(timer_, 0, &times, nullptr);
  }

 private:
  timer_t timer_{};
  bool made_ = false;
};

// Threads that close take what waits from one queue, each as much as it can, so that a close costs no change of threads: the
// daemon may have to close thousands in a second while all processors are busy.
class Closer {
 public:
  Closer() {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    sigaction(kInterrupt, &action, nullptr);
    std::thread([this] { Run(); }).detach();
  }
  void Add(UniqueFd descriptor, int64_t discard_from) {
    backlog_.fetch_add(1, std::memory_order_relaxed);
    added_.Put({std::move(descriptor), discard_from});
  }
  size_t backlog() const { return backlog_.load(std::memory_order_relaxed); }

 private:
  [[noreturn]] void Run() {
    // The event loop's own may be a better one (event_loop.h); what others left is not urgent.
    setpriority(PRIO_PROCESS, id_t(syscall(SYS_gettid)), 0);
    for (;;) {
      std::vector<Left> added = added_.AwaitAll();
      std::unique_lock lock(mutex_);
      std::move(added.begin(), added.end(), std::back_inserter(waiting_));
      FindAnother();
      for (uint64_t taken = taken_;
           !all_taken_.wait_for(lock, kPatience, [this] { return waiting_.empty(); }); taken = taken_) {
        if (taken == taken_) FindAnother();
      }
    }
  }

  // With mutex_ held: one more thread closes what waits.
  void FindAnother() {
    if (idle_ > 0) return waiting_changed_.notify_one();
    Hire();
  }

  // With mutex_ held. Where no thread can be had, one that closes something now comes back.
  void Hire() {
    if (threads_ >= kMostClosingThreads) return;
    try {
      std::thread([this] { CloseAll(); }).detach();
      ++threads_;
    } catch (const std::system_error&) {
    }
  }

  void CloseAll() {
    InterruptTimer timer;
    std::unique_lock lock(mutex_);
    while (AwaitOne(lock)) {
      Left left = std::move(waiting_.front());
      waiting_.pop_front();
      ++taken_;
      if (waiting_.empty()) all_taken_.notify_one();
      lock.unlock();
      Close(std::move(left), timer);
      lock.lock();
    }
    --threads_;
  }

  // False: this thread is not needed any more.
  bool AwaitOne(std::unique_lock<std::mutex>& lock) {
    const auto any = [this] { return !waiting_.empty(); };
    ++idle_;
    bool found = true;
    if (threads_ == 1) {
      waiting_changed_.wait(lock, any);
    } else {
      while (!(found = waiting_changed_.wait_for(lock, kIdle, any)) && threads_ == 1) continue;
    }
    --idle_;
    return found;
  }

  void Close(Left left, InterruptTimer& timer) {
    Discard(left);
    timer.Arm(true);
    const linger none{};
    setsockopt(left.descriptor.get(), SOL_SOCKET, SO_LINGER, &none,
               sizeof none);  // fails for what is no socket
    left.descriptor.reset();
    timer.Arm(false);
    backlog_.fetch_sub(1, std::memory_order_relaxed);
  }

  static void Discard(const Left& left) {
    struct stat info {};
    if (left.discard_from < 0 || fstat(left.descriptor.get(), &info) != 0 ||
        info.st_size <= left.discard_from)
      return;
    fallocate(left.descriptor.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, left.discard_from,
              info.st_size - left.discard_from);
  }

  HandOff<Left> added_;  // the event loop never waits for a thread of this class
  std::atomic<size_t> backlog_{0};
  std::mutex mutex_;  // of what follows; held for a few instructions
  std::condition_variable waiting_changed_, all_taken_;
  std::deque<Left> waiting_;
  uint64_t taken_ = 0;  // how many descriptors threads have taken from waiting_
  size_t threads_ = 0, idle_ = 0;
};

Closer& TheCloser() {
  static auto& closer = *new Closer;  // its thread uses it to the end
  return closer;
}

void Leave(UniqueFd descriptor, int64_t discard_from) {
  if (descriptor) TheCloser().Add(std::move(descriptor), discard_from);
}

}  // namespace

void CloseAside(UniqueFd descriptor) {
  Leave(std::move(descriptor), kNothing);
}

size_t ClosingBacklog() {
  return TheCloser().backlog();
}

void DiscardAside(UniqueFd file, int64_t from) {
  Leave(std::move(file), from);
}

ssize_t ReceiveFromStranger(int socket, void* bytes, size_t room, std::vector<WorkerFd>* descriptors,
                            int* got_flags) {
  std::array<int, kMostDescriptors> numbers;
  const ssize_t got = ReceivePacket(socket, bytes, room, numbers, MSG_DONTWAIT, got_flags);
  for (const int number : numbers) {
    if (number >= 0) descriptors->emplace_back(number);
  }
  return got;
}

bool StatStranger(int descriptor, struct statx* info) {
  return statx(descriptor, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, info) == 0;
}

void RefuseDescriptors(int socket) {
  constexpr int kPassRights = 83;  // SO_PASSRIGHTS, which headers of older kernels lack
  const int off = 0;
  setsockopt(socket, SOL_SOCKET, kPassRights, &off, sizeof off);
}

}  // namespace causeway::daemon
