// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/memory/freed_memory.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "guest_lib/process/lock_order.h"
#include "guest_lib/session/captures.h"
#include "guest_lib/stream/giving_back.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

struct Held {
  CUdeviceptr address;
  uint64_t bytes;
  uint64_t source;
  StreamKey stream;
  uint64_t posts;  // of the process, when it was freed
};

// Programs that allocate and free in turns hold a few; more is for the driver's own pool to keep.
constexpr size_t kMostHeld = 64;
constexpr uint64_t kMostBytes = 64u << 20;  // of all together

struct Table {
  Mutex<Lock::kFreedMemory> mutex;
  std::vector<Held> held;
  uint64_t bytes = 0;
};
Table& table = *new Table;               // programs may allocate to the very end
std::atomic<uint64_t> current_pools{1};  // changes of the devices' current pools
std::atomic<bool> freed_late{false};
thread_local bool freeing = false;  // what FreeHeld sends needs nothing freed before it

// In the stream's context, whatever is current.
void FreeOnHost(const Held& held) {
  if (!IsAlive(held.stream)) return;
  std::vector<Object*> context{held.stream.context};
  context.swap(ThisThread().contexts);
  const auto stream = reinterpret_cast<CUstream>(held.stream.stream);
  if (SubmissionOn(stream).stream == nullptr || held.stream.stream->progress.work.load() > held.posts)
    freed_late.store(true, std::memory_order_relaxed);
  const OwnMessages own;
  PostWork<Op::cuMemFreeAsync>(SubmissionOn(stream), held.address, stream);  // fails where everything does
  NoteFreedOnHost(held.stream);
  context.swap(ThisThread().contexts);
}

}  // namespace

uint64_t SourceOfPool(CUmemoryPool pool) {
  constexpr uint64_t kCurrent = uint64_t{1} << 63;
  if (pool == nullptr) return kCurrent | current_pools.load();
  const Object* object = Find(pool);
  return object != nullptr ? WireOf(object) : 0;
}

void NoteCurrentPoolChange() {
  current_pools.fetch_add(1);
}

MaybeResult HoldFreed(CUdeviceptr address, uint64_t bytes, uint64_t source, CUstream stream) {
  StreamKey key;
  Session* session = Session::Get();
  if (session == nullptr || source == 0 || bytes > kMostBytes || !KeyOf(stream, &key)) return {};
  if (const CUresult error = session->Check()) return error;
  const uint64_t posts = session->transport().main_sequence();
  const std::lock_guard lock(table.mutex);
  if (table.held.size() == kMostHeld || bytes > kMostBytes - table.bytes) return {};
  table.held.push_back({address, bytes, source, key, posts});
  table.bytes += bytes;
  held_frees.store(table.held.size(), std::memory_order_release);
  return CUDA_SUCCESS;
}

MaybeResult TakeFreed(CUdeviceptr* address, uint64_t bytes, uint64_t source, CUstream stream) {
  StreamKey key;
  Session* session = Session::Get();
  if (!AnyHeld() || session == nullptr || address == nullptr || !KeyOf(stream, &key)) return {};
  const std::lock_guard lock(table.mutex);
  // The newest first: it is the likeliest to be in the GPU's cache.
  const auto found = std::find_if(table.held.rbegin(), table.held.rend(), [&](const Held& held) {
    return held.bytes == bytes && held.source == source && held.stream == key;
  });
  if (found == table.held.rend()) return {};
  if (const CUresult error = session->Check()) return error;
  *address = found->address;
  table.bytes -= bytes;
  table.held.erase(std::next(found).base());
  held_frees.store(table.held.size(), std::memory_order_release);
  return CUDA_SUCCESS;
}

namespace {

void FreeAllHeldMemory() {
  if (freeing || Session::Get() == nullptr) return;
  // Until all is sent: nobody may overtake it with a message that would see it held.
  const std::lock_guard lock(table.mutex);
  freeing = true;
  for (const Held& held : table.held) FreeOnHost(held);
  freeing = false;
  table.held.clear();
  table.bytes = 0;
  held_frees.store(0, std::memory_order_release);
}

[[gnu::constructor]] void SetFreedMemoryHook() {
  hooks.free_held_memory = FreeAllHeldMemory;
}

}  // namespace

bool WaitForLateFrees() {
  return freed_late.exchange(false) && Wait<Op::cuCtxSynchronize>() == CUDA_SUCCESS;
}

}  // namespace causeway::guest
