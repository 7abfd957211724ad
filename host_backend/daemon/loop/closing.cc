// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/loop/closing.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "host_backend/daemon/loop/hand_off.h"

namespace causeway::daemon {
namespace {

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

}  // namespace

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
  void Add(UniqueFd descriptor, ClosingAccountRef account) {
    if (account != nullptr) account->left_.fetch_add(1, std::memory_order_relaxed);
    backlog_.fetch_add(1, std::memory_order_relaxed);
    added_.Put({std::move(descriptor), std::move(account)});
  }
  size_t backlog() const { return backlog_.load(std::memory_order_relaxed); }

 private:
  struct Left {
    UniqueFd descriptor;
    ClosingAccountRef account;
  };

  [[noreturn]] void Run() {
    // The event loop's own may be a better one (event_loop.h); what others left is not urgent.
    setpriority(PRIO_PROCESS, id_t(syscall(SYS_gettid)), 0);
    for (;;) {
      std::vector<Left> added = added_.AwaitAll();
      std::unique_lock lock(mutex_);
      for (Left& each : added) Admit(std::move(each));
      if (!waiting_.empty()) FindAnother();
      for (uint64_t taken = taken_;
           !all_taken_.wait_for(lock, kPatience, [this] { return waiting_.empty(); }); taken = taken_) {
        if (taken == taken_) FindAnother();
      }
    }
  }

  // With mutex_ held.
  void Admit(Left left) {
    ClosingAccount* const account = left.account.get();
    if (account == nullptr) return waiting_.push_back(std::move(left));
    if (account->admitted_ < ClosingAccount::kMostOfAccount) {
      ++account->admitted_;
      return waiting_.push_back(std::move(left));
    }
    account->held_back_.push_back(std::move(left.descriptor));
    backlog_.fetch_sub(1, std::memory_order_relaxed);
  }

  // With mutex_ held: a descriptor of the account is closed, so the next one that waits for it may be.
  void AdmitNext(ClosingAccountRef account) {
    if (account == nullptr) return;
    account->left_.fetch_sub(1, std::memory_order_relaxed);
    if (account->held_back_.empty()) {
      --account->admitted_;
      return;
    }
    backlog_.fetch_add(1, std::memory_order_relaxed);
    UniqueFd next = std::move(account->held_back_.front());
    account->held_back_.pop_front();
    waiting_.push_back({std::move(next), std::move(account)});
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
      Close(std::move(left.descriptor), timer);
      lock.lock();
      AdmitNext(std::move(left.account));
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

  void Close(UniqueFd descriptor, InterruptTimer& timer) {
    timer.Arm(true);
    const linger none{};
    setsockopt(descriptor.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);  // fails for what is no socket
    descriptor.reset();
    timer.Arm(false);
    backlog_.fetch_sub(1, std::memory_order_relaxed);
  }

  HandOff<Left> added_;  // the event loop never waits for a thread of this class
  std::atomic<size_t> backlog_{0};
  std::mutex mutex_;  // of what follows; held for a few instructions
  std::condition_variable waiting_changed_, all_taken_;
  std::deque<Left> waiting_;
  uint64_t taken_ = 0;  // how many descriptors threads have taken from waiting_
  size_t threads_ = 0, idle_ = 0;
};

namespace {

Closer& TheCloser() {
  static auto& closer = *new Closer;  // its thread uses it to the end
  return closer;
}

std::atomic<size_t> discarding{0};

void Discard(int file, int64_t from) {
  struct stat info {};
  if (fstat(file, &info) != 0 || info.st_size <= from) return;
  fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, info.st_size - from);
}

}  // namespace

void CloseAside(UniqueFd descriptor, ClosingAccountRef account) {
  if (descriptor) TheCloser().Add(std::move(descriptor), std::move(account));
}

size_t ClosingBacklog() {
  return TheCloser().backlog() + discarding.load(std::memory_order_relaxed);
}

// A thread for each, and not the closer's: the kernel lets nobody interrupt it.
void DiscardAside(UniqueFd file, int64_t from) {
  if (!file) return;
  const int number = file.release();
  bool begun = discarding.fetch_add(1) < kMostDiscarding;
  try {
    if (begun) {
      std::thread([number, from] {
        setpriority(PRIO_PROCESS, id_t(syscall(SYS_gettid)), 0);
        Discard(number, from);
        CloseAside(UniqueFd(number));
        discarding.fetch_sub(1);
      }).detach();
    }
  } catch (const std::system_error&) {
    begun = false;
  }
  if (begun) return;
  discarding.fetch_sub(1);
  CloseAside(UniqueFd(number));
}

}  // namespace causeway::daemon
