// SPDX-License-Identifier: Apache-2.0
// The objects behind the handles that this library gives to a program. A handle is the address of an Object
// in one reserved array, so a handle is checked by arithmetic before it is dereferenced. An object's number
// is its index there. A freed number is used again as late as possible, so that a stale handle is noticed.
// Any thread may call these functions; no message is sent with the lock inside held.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "ivshmem_ring/protocol/handle.h"

namespace causeway::guest {

struct Object;

// How far the work of a stream, an event or a context has come. Posts and calls are counted from the
// session's beginning, as in Stamp (guest_lib/session/submissions.h).
struct Progress {
  std::atomic<uint64_t> work;  // the count of posts with the newest one that works there
  // What works there of the first done_posts posts and of the first done_calls calls is known to be done.
  std::atomic<uint64_t> done_posts;
  std::atomic<uint64_t> done_calls;
  // Of an event that was recorded by a post: the stream of the last record (null for a default stream), and
  // the count of calls then.
  std::atomic<const Object*> recorded_in;
  std::atomic<uint64_t> recorded_calls;
  // Of a blocking event (guest_lib/stream/quiet_event.h).
  std::atomic<Object*> stand_in;    // its shadow event; null: none was made yet
  std::atomic<uint8_t> place;       // whether the event or its shadow event was recorded last
  std::atomic<uint8_t> word_waits;  // how many waits for it in a row, up to now, a fence value ended
};

struct alignas(64) Object {
  std::atomic<uint8_t> kind;  // a HandleKind; kNone while the object is free
  uint8_t reserved[3];
  uint32_t generation;
  Object* context;  // the context it belongs to; null for contexts and context-independent objects
  void* detail;     // kFunction: Function*; kContext: Context*
  uint64_t id;      // of streams and contexts: unique and never used again
  uint32_t flags;   // as given when it was made
  int32_t number;   // of a stream its priority; of an allocation its references beyond the first
  std::atomic<WireHandle> parent;  // the module, library, array or other object with which it ends; 0: none
  // Of streams, events and contexts. It has a line of its own: it changes while others read the rest.
  alignas(64) Progress progress;
};
static_assert(sizeof(Object) == 128);

// Whether the driver ends an object of this kind with the context that was current when it was made. Pools and allocations belong to
// their device, and links to the process (seen on driver 580.159; tests/driver/context_test.cc: OutlivesItsContext).
constexpr bool EndsWithContext(HandleKind kind) {
  switch (kind) {
    case HandleKind::kModule:
    case HandleKind::kFunction:
    case HandleKind::kKernel:
    case HandleKind::kStream:
    case HandleKind::kEvent:
    case HandleKind::kArray:
    case HandleKind::kMipmappedArray:
    case HandleKind::kGreenContext:
    case HandleKind::kTextureReference:
    case HandleKind::kSurfaceReference:
      return true;
    case HandleKind::kNone:
    case HandleKind::kContext:
    case HandleKind::kLibrary:
    case HandleKind::kGraph:
    case HandleKind::kGraphExec:
    case HandleKind::kGraphNode:
    case HandleKind::kMemoryPool:
    case HandleKind::kLink:
    case HandleKind::kUserObject:
    case HandleKind::kExternalMemory:
    case HandleKind::kExternalSemaphore:
    case HandleKind::kResourceDescriptor:
    case HandleKind::kLogsCallback:
    case HandleKind::kAsyncCallback:
    case HandleKind::kGraphicsResource:
    case HandleKind::kAllocation:
    case HandleKind::kCount:
      return false;
  }
  return false;
}

// Makes an object; null when all kMaxHandles numbers are taken. FreeObject takes null too; what `detail`
// points to is the caller's to free.
Object* NewObject(HandleKind kind, Object* context);
void FreeObject(Object* object);
// Ends an object like FreeObject, but its number is not used again and `detail` stays valid, because other
// threads may still have the pointer: contexts are on the stacks of threads.
void RetireObject(Object* object);
// The address of the array; before there is an array, an address that no handle can have.
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
// The live object with that wire handle, or null.
Object* ObjectOf(WireHandle wire);
// They count in `number` an allocation's references beyond the first. ReleaseReference returns false when
// there are none, so that the caller ends the object.
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
// Ends all objects that belong to a context, except the context itself. Their numbers are given to new objects only when this goes, which is
// when the host has ended the context: until then it knows the old ones by them.
class EndedObjects {
 public:
  explicit EndedObjects(const Object* context);
  ~EndedObjects();
  EndedObjects(EndedObjects&&) = default;
  EndedObjects& operator=(EndedObjects&&) = delete;

 private:
  std::vector<uint32_t> numbers_;
};
// Frees all objects of which that one is the parent, and calls `last` for each. It does so with the lock
// held, so `last` calls none of these functions.
void FreeChildrenOf(WireHandle parent, void (*last)(Object*));
// A number that was never given before.
uint64_t NextId();

template <class T>
Object* Find(T handle) {
  return FindObject(kKindOf<T>, handle);
}

}  // namespace causeway::guest
