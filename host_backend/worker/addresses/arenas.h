// SPDX-License-Identifier: Apache-2.0
// The session's region memory: mapped at the guest's own addresses and registered with the driver, so that
// one pointer means the same bytes to guest, worker and GPU. One arena is one registration: no copy may span
// two. All host memory that messages may name is looked up here, also what the guest has registered of its
// own (host_backend/worker/host_register/host_register.h).
//
// Registrations end with the context that made them. They are made again in another one, at once or as soon
// as there is one. Registering, and above all its end, may wait for the device: a look-up must not wait with
// it. So arenas change under change_mutex_, and what look-ups see under named_mutex_, which is taken after it
// and held for a few instructions. Any thread.
//
// A driver may refuse to register pages that Xen's domain 0 grants to a guest. The session goes on without: staging buffers
// are pageable memory for the driver, which copies through buffers of its own, and what programs pin is refused.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <thread>
#include <vector>

#include "host_backend/common/shares/account_page.h"
#include "host_backend/worker/addresses/host_span.h"
#include "host_backend/worker/addresses/region_view.h"
#include "host_backend/worker/session/session.h"
#include "ivshmem_ring/messages/address_windows.h"
#include "ivshmem_ring/messages/callback_messages.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::host {

class Arenas : public SessionPart {
 public:
  Arenas(Session& session, const RegionView& region);
  // Waits for the first registration.
  void Stop() override { ReleaseCallbackWords(); }
  void Join() override;
  void ContextEnds(CUcontext context) override;

  // Once, before anything is mapped for the guest: from now on slices lie there, and nothing else will.
  CUresult ReserveWindow(uint64_t address);
  bool agreed() const { return agreed_.load(std::memory_order_acquire); }
  const RegionView& region() const { return region_; }  // whose window stays once it is agreed on
  Window SlicesAt(uint64_t offset, uint64_t bytes) const {
    return {region_.window_address + offset, region_.window_address + offset + bytes};
  }

  CUresult Add(uint64_t offset, uint64_t bytes, MemoryKind kind);
  // For a guest that shares no memory: the worker's own memory in which its staging buffers lie is registered, soon and in each
  // context as an arena is, so that the device reads and writes there what the connection brings. No message can name it. Once,
  // before anything is served; the memory outlives the session.
  void AddStaging(std::span<std::byte> memory);
  CUresult Drop(uint64_t offset, uint64_t bytes);
  CUresult ContextBegins(CUcontext context, WireHandle wire);
  // The guest takes the warm context over from the worker. False: nothing was left to take.
  bool TakeWarmContext();

  // The slot's words for callbacks; null unless the GPU can read and write them.
  CallbackWords* callback_words() const {
    return callback_words_ready_.load(std::memory_order_acquire) ? CallbackWordsOfSlot() : nullptr;
  }
  // Ends all waits of the GPU for these words, now and later.
  void ReleaseCallbackWords() const;

  // The mapped bytes of [offset, offset + bytes), or none unless one arena holds them all.
  HostSpan ResolveOffset(uint64_t offset, uint64_t bytes) const;
  // The same for an address, as messages name pinned memory: in an arena, or inside one registration.
  HostSpan ResolveAddress(uint64_t address, uint64_t bytes) const;
  // Add and remove a range that look-ups find beside arenas. No two ranges overlap.
  void Name(uint64_t address, uint64_t bytes);
  void Forget(uint64_t address);

 private:
  struct Arena {
    uint64_t bytes;
    CUcontext context;  // in which it is registered; null: in none
    MemoryKind kind = MemoryKind::kPinned;
    bool leaving = false;
  };
  struct KnownContext {
    CUcontext context;
    WireHandle wire;
  };

  HostSpan Find(uint64_t address, uint64_t bytes) const;  // the caller holds named_mutex_
  CUresult UnregisterArena(void* address);
  // Calls `run`, which registers, with change_mutex_ held; no later than the next context is used.
  void RegisterSoon(std::function<void()> run);
  CallbackWords* CallbackWordsOfSlot() const {
    return reinterpret_cast<CallbackWords*>(region_.base + SlotOffset(region_.slot) + kCallbackWordsOffset);
  }
  // The caller of these holds change_mutex_.
  bool TakeWindow(uint64_t address);
  CUresult RestoreRegistrations();
  void RegisterStaging();
  bool GoesOnWithout(const Arena& arena);  // that the driver has refused to register
  CUcontext AnyContext();                  // that stays until the request ends; null: there is none
  CUresult Register(uint64_t offset, Arena* arena);
  CUresult RegisterAt(void* address, Arena* arena, CUdeviceptr* on_device = nullptr);
  void RegisterCallbackWords();

  Session& session_;
  RegionView region_;  // its window changes under both mutexes
  std::atomic<bool> agreed_{false};
  std::atomic<bool> callback_words_ready_{false};
  std::thread first_registration_;

  std::mutex change_mutex_;  // guards what follows
  uint32_t refused_windows_ = 0;
  bool has_arenas_ = false;             // or had
  bool refusal_said_ = false;           // that the driver registers no granted pages
  std::map<uint64_t, Arena> arenas_;    // by offset
  std::vector<KnownContext> contexts_;  // each may be ending
  Arena words_arena_{sizeof(CallbackWords), nullptr};
  std::byte* staging_ = nullptr;  // of AddStaging
  Arena staging_arena_{0, nullptr, MemoryKind::kStaging};

  mutable std::shared_mutex named_mutex_;
  std::map<uint64_t, uint64_t> named_;  // from address to bytes; guarded by named_mutex_
};

// The primary context of device 0 that the worker made before it had a guest; null once the guest holds it.
extern std::atomic<CUcontext> warm_context;

}  // namespace causeway::host
