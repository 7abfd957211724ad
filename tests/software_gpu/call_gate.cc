// SPDX-License-Identifier: Apache-2.0
#include "tests/software_gpu/call_gate.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace causeway::software_gpu {
namespace {

struct Gate {
  std::atomic<uint32_t> inside{0};
  std::atomic<bool> closed{false};
  std::mutex mutex;
  std::condition_variable changed;
};
Gate& TheGate() {
  static auto* gate = new Gate;
  return *gate;
}
thread_local int depth = 0;

}  // namespace

void CallGate::Enter() {
  if (depth++ != 0) return;
  Gate& gate = TheGate();
  for (;;) {
    // Sequentially consistent, as Close: either this call sees the closed gate or Close sees this call.
    gate.inside.fetch_add(1);
    if (!gate.closed.load()) return;
    std::unique_lock lock(gate.mutex);
    gate.inside.fetch_sub(1);
    gate.changed.notify_all();
    gate.changed.wait(lock, [&] { return !gate.closed.load(); });
  }
}

void CallGate::Leave() {
  if (--depth != 0) return;
  Gate& gate = TheGate();
  gate.inside.fetch_sub(1);
  if (!gate.closed.load()) return;
  const std::lock_guard lock(gate.mutex);
  gate.changed.notify_all();
}

bool CallGate::Close(std::chrono::milliseconds limit) {
  Gate& gate = TheGate();
  std::unique_lock lock(gate.mutex);
  gate.closed.store(true);
  const auto empty = [&] { return gate.inside.load() == 0; };
  if (limit.count() == 0) {
    gate.changed.wait(lock, empty);
    return true;
  }
  if (gate.changed.wait_for(lock, limit, empty)) return true;
  gate.closed.store(false);
  gate.changed.notify_all();
  return false;
}

void CallGate::Open() {
  Gate& gate = TheGate();
  const std::lock_guard lock(gate.mutex);
  gate.closed.store(false);
  gate.changed.notify_all();
}

}  // namespace causeway::software_gpu
