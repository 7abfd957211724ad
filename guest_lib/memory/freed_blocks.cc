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
constexpr size_t kMostBlocks = 16;
constexpr uint64_t kMostBlockBytes = 64u << 20;  // of all together
constexpr useconds_t kRoundUs = 250'000;         // within two of them what nobody takes is freed

struct Blocks {
  Mutex<Lock::kFreedBlocks> mutex;
  ConditionVariable wanted;
  std::vector<Block> held;
  uint64_t bytes = 0;
  uint64_t changes = 0;
  bool thread_started = false;
  bool thread_sleeps = false;
};
Blocks& blocks = *new Blocks;              // programs may allocate to the very end
thread_local bool freeing_blocks = false;  // what FreeBlocks posts needs nothing freed before it

bool IsAlive(const Block& block) {
  return FindObject(HandleKind::kContext, block.context) != nullptr &&
         ContextOf(block.context).active.load() && block.context->id == block.context_id;
}

// With the blocks' mutex.
void Count() {
  ++blocks.changes;
  held_blocks.store(static_cast<uint32_t>(blocks.held.size()));
}

void* FreeInTime(void*) {
  std::unique_lock lock(blocks.mutex);
  for (;;) {
    blocks.thread_sleeps = true;
    blocks.wanted.wait(lock, [&] { return !blocks.held.empty(); });
    blocks.thread_sleeps = false;
    const uint64_t seen = blocks.changes;
    lock.unlock();
    usleep(kRoundUs);
    lock.lock();
    if (blocks.changes != seen) continue;
    lock.unlock();
    FreeBlocks();
    lock.lock();
  }
}

}  // namespace

MaybeResult HoldFreedBlock(const DeviceAllocation& freed) {
  Session* session = Session::Get();
  Object* context = freed.context;
  if (session == nullptr || freed.from_pool || freed.sync_memops || freed.bytes > kMostBlockBytes ||
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
  const std::lock_guard lock(blocks.mutex);
  if (blocks.held.size() == kMostBlocks || freed.bytes > kMostBlockBytes - blocks.bytes) return {};
  if (!blocks.thread_started && StartOwnThread(FreeInTime, false) != 0) return {};
  blocks.thread_started = true;
  NotedLock<Lock::kMain> held;
  held.Take();
  const std::lock_guard posting(session->main_mutex());
  blocks.held.push_back({freed.address, freed.bytes, context, context->id});
  Count();
  // Whoever sends from here on sees what is held; what was sent before shows here.
  if (!inquiry.IsDone()) {
    blocks.held.pop_back();
    Count();
    return {};
  }
  blocks.bytes += freed.bytes;
  if (blocks.thread_sleeps) blocks.wanted.notify_one();
  return CUDA_SUCCESS;
}

MaybeResult TakeFreedBlock(CUdeviceptr* address, uint64_t bytes) {
  Session* session = Session::Get();
  if (!HoldsBlocks() || session == nullptr || address == nullptr || AnyCapture()) return {};
  const Object* context = CurrentContextObject();
  const std::lock_guard lock(blocks.mutex);
  // The newest first: it is the likeliest to be in the GPU's cache.
  const auto found = std::find_if(blocks.held.rbegin(), blocks.held.rend(), [&](const Block& block) {
    return block.bytes == bytes && block.context == context && IsAlive(block);
  });
  if (found == blocks.held.rend()) return {};
  if (const CUresult error = session->Check()) return error;
  *address = found->address;
  blocks.bytes -= bytes;
  blocks.held.erase(std::next(found).base());
  Count();
  return CUDA_SUCCESS;
}

namespace {

void FreeAllHeldBlocks() {
  if (freeing_blocks || Session::Get() == nullptr) return;
  // Until all is sent: nobody may overtake it with a message that would see it held.
  const std::lock_guard lock(blocks.mutex);
  freeing_blocks = true;
  const OwnMessages own;
  for (const Block& block : blocks.held) {
    if (!IsAlive(block)) continue;
    std::vector<Object*> context{block.context};
    context.swap(ThisThread().contexts);
    Post<Op::cuMemFree_v2>(block.address);  // fails where everything does
    context.swap(ThisThread().contexts);
  }
  freeing_blocks = false;
  blocks.held.clear();
  blocks.bytes = 0;
  Count();
}

[[gnu::constructor]] void SetBlocksHook() {
  hooks.free_held_blocks = FreeAllHeldBlocks;
}

}  // namespace
}  // namespace causeway::guest
