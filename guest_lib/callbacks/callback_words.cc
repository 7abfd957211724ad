// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/callbacks/callback_words.h"

#include <sys/prctl.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "guest_lib/process/lock_order.h"
#include "guest_lib/process/own_thread.h"
#include "guest_lib/session/session.h"
#include "ivshmem_ring/messages/callback_messages.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway::guest::callback_words {
namespace {

// Never destroyed: the thread runs until the process is gone.
struct Table {
  Mutex<Lock::kCallbackWords> mutex;
  ConditionVariable taken;
  CallbackWords* words = nullptr;  // null: this process does not use them
  void (*run)(uint64_t id) = nullptr;
  std::vector<uint32_t> free;                        // the lowest last, so that few need watching
  std::atomic<uint32_t> watched{0};                  // words up to here have been taken
  std::atomic<uint32_t> pending{0};                  // functions that were not announced yet
  std::atomic<int64_t> in_graphs{0};                 // the same, of launched graphs; at least as many as will
  std::atomic<uint32_t> takes{0};                    // grows with every Take and Expect
  std::atomic<uint64_t> expected[kCallbackWords]{};  // number that the GPU will announce there; 0: none
};
Table& table = *new Table;  // never destroyed

// As a device attribute says it of all devices, any of which may get the next function.
bool GpuCanWait(const Session& session) {
  constexpr int kFirstDriver = 11070;  // whose cuStreamBatchMemOp needs no module parameter
  constexpr auto kAttribute = CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
  const char* chosen = std::getenv("CAUSEWAY_CALLBACKS");
  if (chosen != nullptr && std::string_view(chosen) == "host") return false;
  if (session.host().driver_version < kFirstDriver) return false;
  for (const DeviceDescription& device : session.devices()) {
    if (device.attribute_result[kAttribute] != CUDA_SUCCESS || device.attribute[kAttribute] == 0)
      return false;
  }
  return true;
}

// Runs what the GPU has announced. False: nothing.
bool RunDue() {
  bool any = false;
  const uint32_t end = table.watched.load(std::memory_order_acquire);
  for (uint32_t word = 0; word < end; ++word) {
    uint64_t id = table.expected[word].load(std::memory_order_acquire);
    if (id == 0) continue;
    // partner: the GPU's write of the number, in stream order after all that the function may read
    if (std::atomic_ref<uint64_t>(table.words->announced[word]).load(std::memory_order_acquire) != id)
      continue;
    if (!table.expected[word].compare_exchange_strong(id, 0)) continue;
    table.pending.fetch_sub(1);
    table.run(id);
    any = true;
  }
  return any;
}

bool AnyPending() {
  return table.pending.load() != 0 || table.in_graphs.load() > 0;
}

// The same for graphs. Their numbers mean nothing but what the table of callbacks says.
bool RunDueInGraphs() {
  if (table.in_graphs.load() <= 0) return false;
  bool any = false;
  GraphWords& words = table.words->graph;
  // partner: the worker, which has cleared the pairs below
  const uint64_t end = std::atomic_ref<uint64_t>(words.end).load(std::memory_order_acquire);
  for (uint64_t word = 0; word < end && word < kGraphWords; ++word) {
    std::atomic_ref<uint64_t> announced(words.announced[word]);
    // partner: the GPU's write of the number, after all in its graph that the function may read
    const uint64_t id = announced.load(std::memory_order_acquire);
    if (id == 0) continue;
    announced.store(0, std::memory_order_relaxed);  // the GPU writes it again only when it has seen the other
    table.in_graphs.fetch_sub(1);
    table.run(id);
    // partner: the GPU's wait, after which the graph may read all that the function wrote
    std::atomic_ref<uint64_t>(words.done[word]).store(id, std::memory_order_release);
    any = true;
  }
  return any;
}

void* ThreadMain(void*) {
  Session* session = Session::Get();
  if (session == nullptr) return nullptr;
  prctl(PR_SET_TIMERSLACK, 1000);  // ns, of this thread: bounded sleeps of 10 us should not become 60
  std::optional<Waiter> waiter;
  for (;;) {
    {
      std::unique_lock lock(table.mutex);
      table.taken.wait(lock, [&] { return AnyPending(); });
    }
    uint32_t seen = table.takes.load();
    waiter.emplace(DevicePolicy(), nullptr, nullptr, false);
    while (AnyPending()) {
      const uint32_t takes = table.takes.load();
      const bool in_stream = RunDue();
      if (RunDueInGraphs() || in_stream || takes != seen) {
        seen = takes;
        waiter.emplace(DevicePolicy(), nullptr, nullptr, false);
        continue;
      }
      waiter->Step(0);
      if (waiter->TimeToCheckPeer() && !session->transport().LossReason().empty()) return nullptr;
    }
  }
}

// At the first use. The caller holds the mutex.
void Start(void (*run)(uint64_t)) {
  if (table.run != nullptr) return;
  table.run = run;
  Session* session = Session::Get();
  if (session == nullptr || !GpuCanWait(*session)) return;
  CallbackWords* words = session->connection().callback_words();
  if (words == nullptr || StartOwnThread(ThreadMain, true) != 0) return;
  table.words = words;
  for (uint32_t word = kCallbackWords; word-- > 0;) table.free.push_back(word);
}

}  // namespace

uint32_t Take(uint64_t id, void (*run)(uint64_t)) {
  const std::lock_guard lock(table.mutex);
  Start(run);
  if (table.free.empty()) return kNoCallbackWord;
  const uint32_t word = table.free.back();
  table.free.pop_back();
  table.expected[word].store(id, std::memory_order_release);
  if (word >= table.watched.load(std::memory_order_relaxed)) table.watched.store(word + 1);
  table.takes.fetch_add(1);
  if (table.pending.fetch_add(1) == 0) table.taken.notify_one();
  return word;
}

void Release(uint32_t word, uint64_t id) {
  if (table.expected[word].exchange(0) != 0) table.pending.fetch_sub(1);
  // partner: the GPU's wait, after which the stream may read all that the function wrote
  std::atomic_ref<uint64_t>(table.words->done[word]).store(id, std::memory_order_release);
  const std::lock_guard lock(table.mutex);
  table.free.push_back(word);
}

bool WatchesGraphs(void (*run)(uint64_t)) {
  const std::lock_guard lock(table.mutex);
  Start(run);
  return table.words != nullptr;
}

void Expect(int64_t in_graphs) {
  const std::lock_guard lock(table.mutex);
  table.in_graphs.fetch_add(in_graphs);
  table.takes.fetch_add(1);
  table.taken.notify_one();
}

}  // namespace causeway::guest::callback_words
