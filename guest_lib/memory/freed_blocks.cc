// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/memory/freed_blocks.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "guest_lib/process/lock_order.h"
#include "guest_lib/process/own_thread.h"
#include "guest_lib/session/captures.h"
#include "guest_lib/stream/completion.h"
#include "guest_lib/stream/inquiry.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

struct Block {
  CUdeviceptr address;
  uint64_t bytes;
  Object* context;
  uint64_t context_id;
};

// Programs that allocate and free in turns hold a few.
constexpr size_t kMostHeld = 16;
constexpr uint64_t kMostBytes = 64u << 20;  // of all together
constexpr useconds_t kRoundUs = 250'000;    // within two of them what nobody takes is freed

struct Table {
  Mutex<Lock::kFreedBlocks> mutex;
  ConditionVariable wanted;
  std::vector<Block> held;
  uint64_t bytes = 0;
  uint64_t changes = 0;
  bool thread_started = false;
  bool thread_sleeps = false;
};
Table& table = *new Table;          // programs may allocate to the very end
thread_local bool freeing = false;  // what FreeBlocks posts needs nothing freed before it

bool IsAlive(const Block& block) {
  return FindObject(HandleKind::kContext, block.context) != nullptr &&
         ContextOf(block.context).active.load() && block.context->id == block.context_id;
}

// With the table's mutex.
void Count() {
  ++table.changes;
  held_blocks.store(static_cast<uint32_t>(table.held.size()));
}

void* FreeInTime(void*) {
  std::unique_lock lock(table.mutex);
  for (;;) {
    table.thread_sleeps = true;
    table.wanted.wait(lock, [&] { return !table.held.empty(); });
    table.thread_sleeps = false;
    const uint64_t seen = table.changes;
    lock.unlock();
    usleep(kRoundUs);
    lock.lock();
    if (table.changes != seen) continue;
    lock.unlock();
    FreeBlocks();
    lock.lock();
  }
}

}  // namespace

MaybeResult HoldFreedBlock(const DeviceAllocation& freed) {
  Session* session = Session::Get();
  Object* context = freed.context;
  if (session == nullptr || freed.from_pool || freed.sync_memops || freed.bytes > kMostBytes ||
      SharesDeviceMemory() || HadSeveralContexts() || context == nullptr ||
      context != CurrentContextObject() || !ContextOf(context).active.load() || AnyCapture()) {
    return {};
  }
  Inquiry inquiry = Inquiry::OfContext();
  MaybeResult done = inquiry.Answer();
  if (!done) {
    const BlockingWaits waits;
    done = DrainDevice();  // another thread may have begun a capture, which this does not break
  }
  if (*done != CUDA_SUCCESS) return done;
  const std::lock_guard lock(table.mutex);
  if (table.held.size() == kMostHeld || freed.bytes > kMostBytes - table.bytes) return {};
  if (!table.thread_started && StartOwnThread(FreeInTime, false) != 0) return {};
  table.thread_started = true;
  NotedLock<Lock::kMain> held;
  held.Take();
  const std::lock_guard posting(session->main_mutex());
  table.held.push_back({freed.address, freed.bytes, context, context->id});
  Count();
  // Whoever sends from here on sees what is held; what was sent before shows here.
  if (!inquiry.IsDone()) {
    table.held.pop_back();
    Count();
    return {};
  }
  table.bytes += freed.bytes;
  if (table.thread_sleeps) table.wanted.notify_one();
  return CUDA_SUCCESS;
}

MaybeResult TakeFreedBlock(CUdeviceptr* address, uint64_t bytes) {
  Session* session = Session::Get();
  if (!HoldsBlocks() || session == nullptr || address == nullptr || AnyCapture()) return {};
  const Object* context = CurrentContextObject();
  const std::lock_guard lock(table.mutex);
  // The newest first: it is the likeliest to be in the GPU's cache.
  const auto found = std::find_if(table.held.rbegin(), table.held.rend(), [&](const Block& block) {
    return block.bytes == bytes && block.context == context && IsAlive(block);
  });
  if (found == table.held.rend()) return {};
  if (const CUresult error = session->Check()) return error;
  *address = found->address;
  table.bytes -= bytes;
  table.held.erase(std::next(found).base());
  Count();
  return CUDA_SUCCESS;
}

namespace {

void FreeAllHeldBlocks() {
  if (freeing || Session::Get() == nullptr) return;
  // Until all is sent: nobody may overtake it with a message that would see it held.
  const std::lock_guard lock(table.mutex);
  freeing = true;
  for (const Block& block : table.held) {
    if (!IsAlive(block)) continue;
    std::vector<Object*> context{block.context};
    context.swap(ThisThread().contexts);
    Post<Op::cuMemFree_v2>(block.address);  // fails where everything does
    context.swap(ThisThread().contexts);
  }
  freeing = false;
  table.held.clear();
  table.bytes = 0;
  Count();
}

[[gnu::constructor]] void SetHook() {
  hooks.free_held_blocks = FreeAllHeldBlocks;
}

}  // namespace
}  // namespace causeway::guest
