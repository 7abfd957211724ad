// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/addresses/arenas.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <future>
#include <system_error>
#include <utility>

#include "host_backend/worker/accounting/accounting.h"
#include "host_backend/worker/addresses/guest_addresses.h"
#include "host_backend/worker/driver/host_nodes.h"
#include "host_backend/worker/process/output.h"
#include "host_backend/worker/process/populate.h"
#include "host_backend/worker/session/session.h"

namespace causeway::host {

std::atomic<CUcontext> warm_context{nullptr};

bool RegionView::OwnsSlices(uint64_t offset, uint64_t size) const {
  if (offset < FirstSliceOffset(SlotCount(bytes)) || offset > bytes || size > bytes - offset) return false;
  const auto* owners = reinterpret_cast<const uint16_t*>(base + kOwnerTableOffset);
  const uint64_t end = (offset + size + kGranuleBytes - 1) / kGranuleBytes;
  for (uint64_t granule = offset / kGranuleBytes; granule < end; ++granule) {
    const uint16_t owner = std::atomic_ref<uint16_t>(const_cast<uint16_t&>(owners[granule])).load();
    if (owner != slot + 1) return false;
  }
  return true;
}

Arenas::Arenas(Session& session, const RegionView& region) : session_(session), region_(region) {}

void Arenas::Join() {
  if (first_registration_.joinable()) first_registration_.join();
}

void Arenas::Name(uint64_t address, uint64_t bytes) {
  const std::unique_lock lock(named_mutex_);
  named_[address] = bytes;
}

void Arenas::Forget(uint64_t address) {
  const std::unique_lock lock(named_mutex_);
  named_.erase(address);
}

CUresult Arenas::Add(uint64_t offset, uint64_t bytes, MemoryKind kind) {
  if (!session_.shares_memory()) return CUDA_ERROR_NOT_SUPPORTED;
  if (!agreed_.load(std::memory_order_acquire)) {
    session_.Violation("it maps memory before it has agreed on addresses");
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (bytes == 0 || offset % kGranuleBytes != 0 || bytes % kGranuleBytes != 0 ||
      !region_.OwnsSlices(offset, bytes)) {
    return session_.Breach("an arena is not the session's own memory");
  }
  std::unique_lock change(change_mutex_);
  const auto next = arenas_.lower_bound(offset);
  if (next != arenas_.end() && next->first < offset + bytes) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  if (next != arenas_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > offset) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  const Window range = SlicesAt(offset, bytes);
  // Claimed with the whole window, but not where that cannot be reserved (TSan).
  if (TheGuestAddresses().Claim(range) != GuestAddresses::Claimed::kYes ||
      !TheGuestAddresses().Map(range, PROT_READ | PROT_WRITE, region_.fd, offset)) {
    return CUDA_ERROR_MAP_FAILED;
  }
  Arena arena{bytes, nullptr, kind};
  const bool first = !std::exchange(has_arenas_, true);
  if (!first) {
    Populate(reinterpret_cast<std::byte*>(range.begin), bytes);
    if (const CUresult result = Register(offset, &arena); result != CUDA_SUCCESS && !GoesOnWithout(arena)) {
      TheGuestAddresses().Retire(range);
      return result;
    }
    RegisterCallbackWords();
  }
  arenas_[offset] = arena;
  Name(range.begin, bytes);
  TheAccounting().Hold(ChargeSpace::kArena, offset, TheAccounting().Reserve(kind, kNoDevice, bytes), false);
  change.unlock();
  if (!first) return CUDA_SUCCESS;
  RegisterSoon([this, range] {
    if (!arenas_.contains(range.begin - region_.window_address)) return;  // dropped at once
    Populate(reinterpret_cast<std::byte*>(range.begin), range.end - range.begin);
    RestoreRegistrations();
  });
  return CUDA_SUCCESS;
}

// The first arena, or the staging memory of a guest that has none, is added when the session opens. Its pages and
// its registration take 10 ms on an idle host and 200 beside many other processes of the driver, so the guest has
// its answer before. No work begins meanwhile: all work needs a context, and whoever makes or takes one waits for the mutex that is held here
// (registering would wait for work, and that perhaps for the guest). What fails here is tried again with the
// context, whose call tells.
void Arenas::RegisterSoon(std::function<void()> run) {
  std::promise<void> begun;
  std::future<void> has_begun = begun.get_future();
  const auto locked = [this, run = std::move(run)](std::promise<void> says) {
    const std::lock_guard change(change_mutex_);
    says.set_value();
    run();
  };
  try {
    first_registration_ = std::thread(
        [this, locked](std::promise<void> says) {
          session_.objects().BeginRequest();  // the context that it registers in must stay
          locked(std::move(says));
          session_.objects().EndRequest();
        },
        std::move(begun));
    has_begun.wait();
  } catch (const std::system_error&) {
    locked({});  // a part of what the calling thread does
  }
}

void Arenas::AddStaging(std::span<std::byte> memory) {
  TheAccounting().Hold(ChargeSpace::kArena, 0,
                       TheAccounting().Reserve(MemoryKind::kStaging, kNoDevice, memory.size()), false);
  RegisterSoon([this, memory] {
    madvise(memory.data(), memory.size(), MADV_HUGEPAGE);  // the driver touches each page
    staging_ = memory.data();
    staging_arena_.bytes = memory.size();
    RegisterStaging();
  });
}

// Needs a context: the caller's, or any that there is. Without one it waits for the next.
CUresult Arenas::Register(uint64_t offset, Arena* arena) {
  return RegisterAt(reinterpret_cast<void*>(region_.window_address + offset), arena);
}

CUresult Arenas::RegisterAt(void* address, Arena* arena, CUdeviceptr* on_device) {
  const Driver& driver = TheDriver();
  CUcontext current = nullptr;
  driver.cuCtxGetCurrent(&current);
  CUcontext used = current;
  if (used == nullptr) used = AnyContext();
  if (used == nullptr) return CUDA_SUCCESS;
  if (used != current) {
    if (const CUresult result = driver.cuCtxSetCurrent(used)) return result;
  }
  const CUresult result = driver.cuMemHostRegister_v2(
      address, arena->bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (result == CUDA_SUCCESS && on_device != nullptr &&
      driver.cuMemHostGetDevicePointer_v2(on_device, address, 0) != CUDA_SUCCESS) {
    *on_device = 0;
  }
  if (used != current) driver.cuCtxSetCurrent(current);
  arena->context = result == CUDA_SUCCESS ? used : nullptr;
  return result;
}

CUresult Arenas::RestoreRegistrations() {
  for (auto& [offset, arena] : arenas_) {
    if (arena.context != nullptr || arena.leaving) continue;
    const CUresult result = Register(offset, &arena);
    if (result != CUDA_SUCCESS && !GoesOnWithout(arena)) return result;
  }
  if (!arenas_.empty()) RegisterCallbackWords();
  RegisterStaging();
  return CUDA_SUCCESS;
}

// Copies do without: the driver then copies through buffers of its own.
void Arenas::RegisterStaging() {
  if (staging_ == nullptr || staging_arena_.context != nullptr) return;
  const CUresult result = RegisterAt(staging_, &staging_arena_);
  if (result != CUDA_SUCCESS && !std::exchange(refusal_said_, true))
    dprintf(Output::LogFd(),
            "causeway-worker[%d]: the driver registers no memory for the guest's copies (error %d): they go "
            "through its own buffers\n",
            getpid(), static_cast<int>(result));
}

bool Arenas::GoesOnWithout(const Arena& arena) {
  if (!region_.granted || arena.kind != MemoryKind::kStaging) return false;
  if (!std::exchange(refusal_said_, true)) {
    dprintf(
        Output::LogFd(),
        "causeway-worker[%d]: the driver registers no memory that is granted to a domain of Xen: copies go "
        "through its own buffers, and pinned memory is refused\n",
        getpid());
  }
  return true;
}

// What cannot be had is no error: callbacks have another way.
void Arenas::RegisterCallbackWords() {
  if (words_arena_.context != nullptr) return;
  CallbackWords* words = CallbackWordsOfSlot();
  CUdeviceptr address = 0;
  if (RegisterAt(words, &words_arena_, &address) != CUDA_SUCCESS) return;
  HostNodes& nodes = TheHostNodes();
  if (address != 0) nodes.Use(words, address);
  callback_words_ready_.store(words_arena_.context != nullptr, std::memory_order_release);
}

void Arenas::ReleaseCallbackWords() const {
  if (region_.base == nullptr) return;
  CallbackWords& words = *CallbackWordsOfSlot();
  const auto release = [](uint64_t& done) {
    std::atomic_ref<uint64_t>(done).store(INT64_MAX, std::memory_order_release);  // partner: the GPU's wait
  };
  for (uint64_t& done : words.done) release(done);
  for (auto& direction : words.queued) {
    for (QueuedPlace& place : direction) release(place.turn.value);
  }
  const uint64_t end = std::atomic_ref<uint64_t>(words.graph.end).load(std::memory_order_relaxed);
  for (uint64_t word = 0; word < end && word < kGraphWords; ++word) release(words.graph.done[word]);
}

CUresult Arenas::ContextBegins(CUcontext context, WireHandle wire) {
  const std::lock_guard change(change_mutex_);
  std::erase_if(contexts_, [&](const KnownContext& known) { return known.context == context; });
  contexts_.push_back({context, wire});
  return RestoreRegistrations();
}

bool Arenas::TakeWarmContext() {
  const std::lock_guard change(change_mutex_);  // nobody registers in it now
  return warm_context.exchange(nullptr) != nullptr;
}

CUcontext Arenas::AnyContext() {
  for (auto known = contexts_.rbegin(); known != contexts_.rend(); ++known) {
    if (session_.objects().Find(HandleKind::kContext, known->wire) == known->context) return known->context;
  }
  return warm_context.load();
}

void Arenas::ContextEnds(CUcontext context) {
  const std::lock_guard change(change_mutex_);
  std::erase_if(contexts_, [&](const KnownContext& known) { return known.context == context; });
  for (auto& [offset, arena] : arenas_) {
    if (arena.context == context) arena.context = nullptr;
  }
  if (staging_arena_.context == context) staging_arena_.context = nullptr;
  if (words_arena_.context == context) {
    words_arena_.context = nullptr;
    callback_words_ready_.store(false, std::memory_order_release);
  }
  RestoreRegistrations();  // what fails is tried again with the next context
}

CUresult Arenas::Drop(uint64_t offset, uint64_t bytes) {
  void* address = nullptr;
  bool registered = false;
  {
    const std::lock_guard change(change_mutex_);
    const auto found = arenas_.find(offset);
    if (found == arenas_.end() || found->second.bytes != bytes || found->second.leaving)
      return CUDA_ERROR_INVALID_VALUE;
    // An arena lies in the window that was agreed on, which stays.
    address = reinterpret_cast<void*>(SlicesAt(offset, bytes).begin);
    found->second.leaving = true;
    registered = found->second.context != nullptr;
  }
  const CUresult result = registered ? UnregisterArena(address) : CUDA_SUCCESS;
  const std::lock_guard change(change_mutex_);
  arenas_.erase(offset);
  Forget(SlicesAt(offset, bytes).begin);
  // Requests, copies and graphs may still name it.
  TheGuestAddresses().Retire(SlicesAt(offset, bytes));
  TheAccounting().Take(ChargeSpace::kArena, offset);
  return result;
}

// Without a context of the caller's, in any that there is: the GPU must not still use slices that others get.
CUresult Arenas::UnregisterArena(void* address) {
  const Driver& driver = TheDriver();
  CUresult result = driver.cuMemHostUnregister(address);
  if (result == CUDA_ERROR_INVALID_CONTEXT) {
    CUcontext current = nullptr;
    std::unique_lock change(change_mutex_);
    CUcontext used = AnyContext();
    // Nobody takes the worker's own meanwhile, in which nothing runs. Others stay until the request ends.
    if (used != warm_context.load()) change.unlock();
    driver.cuCtxGetCurrent(&current);
    if (used != nullptr && driver.cuCtxSetCurrent(used) == CUDA_SUCCESS) {
      result = driver.cuMemHostUnregister(address);
      driver.cuCtxSetCurrent(current);
    }
  }
  // Its context has just ended.
  return result == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED ? CUDA_SUCCESS : result;
}

HostSpan Arenas::Find(uint64_t address, uint64_t bytes) const {
  const auto next = named_.upper_bound(address);
  if (next == named_.begin()) return {};
  const auto [start, size] = *std::prev(next);
  if (address - start > size || bytes > size - (address - start)) return {};
  return {reinterpret_cast<std::byte*>(address), bytes};
}

HostSpan Arenas::ResolveOffset(uint64_t offset, uint64_t bytes) const {
  const std::shared_lock lock(named_mutex_);
  return offset < region_.bytes ? Find(region_.window_address + offset, bytes) : HostSpan();
}

HostSpan Arenas::ResolveAddress(uint64_t address, uint64_t bytes) const {
  const std::shared_lock lock(named_mutex_);
  return Find(address, bytes);
}

// The guest's own word: it decides under which name the bytes are shown, and whether the guest does without their registration.
static MemoryKind KindOf(ArenaUse use) {
  if (use == ArenaUse::kStaging) return MemoryKind::kStaging;
  return use == ArenaUse::kManaged ? MemoryKind::kManaged : MemoryKind::kPinned;
}

CUresult Serve_kAddArena(Session& session, Request& request) {
  const auto body = request.in.Get<ArenaBody>();
  return request.in.ok() ? session.part<Arenas>().Add(body.offset, body.bytes, KindOf(body.use))
                         : request.in.error();
}

CUresult Serve_kDropArena(Session& session, Request& request) {
  const auto body = request.in.Get<ArenaBody>();
  return request.in.ok() ? session.part<Arenas>().Drop(body.offset, body.bytes) : request.in.error();
}

}  // namespace causeway::host
