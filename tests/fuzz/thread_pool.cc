// SPDX-License-Identifier: Apache-2.0
// The members of std::thread that libstdc++ does not define in its header, defined here in their place: the
// program's own come before a library's.
#include "tests/fuzz/thread_pool.h"

#include <pthread.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/fuzz/fuzz_input.h"

namespace causeway::fuzz {
namespace {

std::atomic<void (*)()> thread_begins{nullptr};

// One thread; lives as long as the process. It is the pool's while idle, then its std::thread's until that is
// joined or detached and its work is done: whoever comes last gives it back.
struct Pooled {
  enum : uint32_t { kIdle, kRunning, kRunningDetached, kDone };
  std::atomic<uint32_t> state{kIdle};
  std::unique_ptr<std::thread::_State> work;
};

class Pool {
 public:
  Pooled* Take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return nullptr;
    Pooled* taken = idle_.back();
    idle_.pop_back();
    return taken;
  }
  void Return(Pooled* pooled) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(pooled);
  }

 private:
  std::mutex mutex_;
  std::vector<Pooled*> idle_;
};
Pool& ThePool() {
  static auto& pool = *new Pool;
  return pool;
}

void GoBack(Pooled* pooled) {
  pooled->state.store(Pooled::kIdle);
  ThePool().Return(pooled);
}

void* RunPooled(void* argument) {
  auto* pooled = static_cast<Pooled*>(argument);
  for (;;) {
    const uint32_t state = pooled->state.load();
    if (state == Pooled::kIdle || state == Pooled::kDone) {
      pooled->state.wait(state);
      continue;
    }
    if (auto* begins = thread_begins.load()) begins();
    pooled->work->_M_run();
    pooled->work.reset();
    uint32_t running = Pooled::kRunning;
    if (pooled->state.compare_exchange_strong(running, Pooled::kDone)) {
      pooled->state.notify_all();
    } else {
      GoBack(pooled);
    }
  }
}

}  // namespace

void SetThreadBegins(void (*begins)()) {
  thread_begins.store(begins);
}

}  // namespace causeway::fuzz

// A thread's id is the address of its Pooled.
static_assert(sizeof(std::thread) == sizeof(void*));

void std::thread::_M_start_thread(_State_ptr work, void (*)()) {
  using namespace causeway::fuzz;
  Pooled* pooled = ThePool().Take();
  const bool fresh = pooled == nullptr;
  if (fresh) pooled = new Pooled;
  pooled->work = std::move(work);
  pooled->state.store(Pooled::kRunning);
  pooled->state.notify_all();
  if (fresh) {
    pthread_t started;
    Require(pthread_create(&started, nullptr, RunPooled, pooled) == 0 && pthread_detach(started) == 0);
  }
  std::memcpy(static_cast<void*>(this), &pooled, sizeof pooled);
}

void std::thread::join() {
  using namespace causeway::fuzz;
  Pooled* pooled;
  std::memcpy(&pooled, static_cast<void*>(this), sizeof pooled);
  Require(pooled != nullptr);
  pooled->state.wait(Pooled::kRunning);
  GoBack(pooled);
  _M_id = id();
}

void std::thread::detach() {
  using namespace causeway::fuzz;
  Pooled* pooled;
  std::memcpy(&pooled, static_cast<void*>(this), sizeof pooled);
  Require(pooled != nullptr);
  _M_id = id();
  uint32_t running = Pooled::kRunning;
  if (!pooled->state.compare_exchange_strong(running, Pooled::kRunningDetached)) GoBack(pooled);
}
