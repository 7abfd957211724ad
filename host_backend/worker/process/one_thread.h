// SPDX-License-Identifier: Apache-2.0
// A thread that makes other threads' calls, one after the other: for a library that wants all calls about an object on one thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace causeway::host {

// Lives as long as the process: its thread starts with the first call and is never joined, because a call may hang in a library
// when the process ends. Thread-safe.
class OneThread {
 public:
  // Returns when the thread has made the call, which must not call Do itself. Throws std::system_error when there is no first thread
  // to be had.
  void Do(const std::function<void()>& call) {
    std::unique_lock lock(mutex_);
    if (!is_started_) std::thread([this] { Run(); }).detach();
    is_started_ = true;
    changed_.wait(lock, [this] { return call_ == nullptr; });
    call_ = &call;
    changed_.notify_all();
    changed_.wait(lock, [&] { return done_ == &call; });
    done_ = call_ = nullptr;
    changed_.notify_all();
  }

 private:
  [[noreturn]] void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return call_ != nullptr && done_ == nullptr; });
      lock.unlock();
      (*call_)();  // nobody changes it before it is done
      lock.lock();
      done_ = call_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_started_ = false;
  const std::function<void()>* call_ = nullptr;  // the one that is being made
  const std::function<void()>* done_ = nullptr;  // it, once it has been
};

}  // namespace causeway::host
