// SPDX-License-Identifier: Apache-2.0
// Every handle that this library gives to a program is the address of an Object in one reserved array, so a
// handle is checked by arithmetic and never dereferenced before. Objects are reused oldest first.
#pragma once
#include <atomic>
#include <cstdint>

#include "ivshmem_ring/protocol/handle.h"

namespace causeway::guest {

struct Object;

// How far the work of a stream, an event or a context has come (guest_lib/session/progress.h).
struct Progress {
  std::atomic<uint64_t> work;        // posts up to the newest that works there
  std::atomic<uint64_t> done_posts;  // posts and calls up to which all is known to be done
  std::atomic<uint64_t> done_calls;
  // Events, of the last record that was posted: its stream, null for a default one, and the calls before it.
  std::atomic<const Object*> recorded_in;
  std::atomic<uint64_t> recorded_calls;
  // Blocking events (guest_lib/stream/quiet_event.h).
  std::atomic<Object*> stand_in;    // null: none was made yet
  std::atomic<uint8_t> place;       // where it was recorded last
  std::atomic<uint8_t> word_waits;  // in a row, the last ones
};

struct alignas(64) Object {
  std::atomic<uint8_t> kind;  // HandleKind; kNone while free
  uint8_t reserved[3];
  uint32_t generation;
  Object* context;  // the context it belongs to; null for contexts and context-independent objects
  void* detail;     // kFunction: Function*; kContext: Context*
  uint64_t id;      // streams, contexts: unique and never reused
  uint32_t flags;   // as given at creation
  int32_t number;   // streams: priority; allocations: references beyond the first
  std::atomic<WireHandle> parent;  // functions: the module or library that ends them
  // Streams, events, contexts. On a line of its own: it changes while other threads look at the first.
  alignas(64) Progress progress;
};
static_assert(sizeof(Object) == 128);

// Null when all numbers are taken.
Object* NewObject(HandleKind kind, Object* context);
void FreeObject(Object* object);
// Dead like a freed one, but its number is not used again and `detail` stays: others may still hold the
// pointer (contexts on the stacks of other threads).
void RetireObject(Object* object);
// Where the array lies; before there is one, where no handle can.
inline std::atomic<uintptr_t> objects_begin{uintptr_t{1} << 63};
// The live object behind a handle, or null.
inline Object* FindObject(HandleKind kind, const void* handle) {
  const uintptr_t begin = objects_begin.load(std::memory_order_relaxed);
  const uintptr_t offset = reinterpret_cast<uintptr_t>(handle) - begin;
  if (offset >= sizeof(Object) * kMaxHandles || offset % sizeof(Object) != 0) return nullptr;
  auto* object = static_cast<Object*>(const_cast<void*>(handle));
  return object->kind.load(std::memory_order_acquire) == static_cast<uint8_t>(kind) ? object : nullptr;
}
inline WireHandle WireOf(const Object* object) {
  const uintptr_t begin = objects_begin.load(std::memory_order_relaxed);
  const auto index = static_cast<uint32_t>((reinterpret_cast<uintptr_t>(object) - begin) / sizeof(Object));
  return MakeWireHandle(static_cast<HandleKind>(object->kind.load(std::memory_order_relaxed)),
                        object->generation, index);
}
Object* ObjectOf(WireHandle wire);  // null if not alive
// References beyond an object's first; ReleaseReference is false when there is none.
inline void AddReference(Object* object) {
  std::atomic_ref<int32_t>(object->number).fetch_add(1);
}
inline bool ReleaseReference(Object* object) {
  std::atomic_ref<int32_t> number(object->number);
  int32_t more = number.load();
  while (more > 0 && !number.compare_exchange_weak(more, more - 1)) {
  }
  return more > 0;
}
// Frees everything that belongs to a context, except the context itself.
void FreeObjectsOf(const Object* context);
// Frees everything whose parent that object is, after `last` has had a look at each.
void FreeChildrenOf(WireHandle parent, void (*last)(Object*));
uint64_t NextId();

template <class T>
Object* Find(T handle) {
  return FindObject(kKindOf<T>, handle);
}

}  // namespace causeway::guest
