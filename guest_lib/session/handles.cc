// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/session/handles.h"

#include <sys/mman.h>

#include <cstdlib>
#include <deque>
#include <mutex>

#include "guest_lib/process/lock_order.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace causeway::guest {
namespace {

struct Table {
  Mutex<Lock::kHandles> mutex;
  Object* objects = nullptr;
  uint32_t used = 1;  // number 0 is never given: wire 0 is the null handle
  std::deque<uint32_t> free;

  Table() {
    void* space = mmap(nullptr, sizeof(Object) * kMaxHandles, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) abort();  // 512 MiB of address space
    objects = static_cast<Object*>(space);
    objects_begin.store(reinterpret_cast<uintptr_t>(space), std::memory_order_relaxed);
#ifdef __SANITIZE_ADDRESS__
    __lsan_register_root_region(space, sizeof(Object) * kMaxHandles);  // what objects point to is not lost
#endif
  }
};

Table& TheTable() {
  static Table& table = *new Table;  // outlives every thread that may still call us at exit
  return table;
}

constexpr size_t kReuseAfter = 1024;  // freed numbers wait, so that a stale handle is noticed

template <class Match, class Last>
void FreeIf(Match match, Last last) {
  Table& table = TheTable();
  const std::lock_guard lock(table.mutex);
  for (uint32_t i = 1; i < table.used; ++i) {
    Object& object = table.objects[i];
    if (!match(object) || object.kind.load() == static_cast<uint8_t>(HandleKind::kNone)) continue;
    object.kind.store(static_cast<uint8_t>(HandleKind::kNone), std::memory_order_release);
    last(&object);
    table.free.push_back(i);
  }
}

}  // namespace

Object* NewObject(HandleKind kind, Object* context) {
  Table& table = TheTable();
  const std::lock_guard lock(table.mutex);
  uint32_t index;
  if (table.free.size() > kReuseAfter || (table.used == kMaxHandles && !table.free.empty())) {
    index = table.free.front();
    table.free.pop_front();
  } else if (table.used < kMaxHandles) {
    index = table.used++;
  } else {
    return nullptr;
  }
  Object& object = table.objects[index];
  object.generation = (object.generation + 1) & kGenerationMask;
  object.context = context;
  object.detail = nullptr;
  object.id = 0;
  object.flags = 0;
  object.number = 0;
  object.parent = 0;
  object.progress.work.store(0, std::memory_order_relaxed);
  object.progress.done_posts.store(0, std::memory_order_relaxed);
  object.progress.done_calls.store(0, std::memory_order_relaxed);
  object.progress.recorded_in.store(nullptr, std::memory_order_relaxed);
  object.progress.recorded_calls.store(0, std::memory_order_relaxed);
  object.progress.stand_in.store(nullptr, std::memory_order_relaxed);
  object.progress.place.store(0, std::memory_order_relaxed);
  object.progress.word_waits.store(0, std::memory_order_relaxed);
  object.kind.store(static_cast<uint8_t>(kind), std::memory_order_release);
  return &object;
}

void FreeObject(Object* object) {
  if (object == nullptr) return;
  Table& table = TheTable();
  const std::lock_guard lock(table.mutex);
  object->kind.store(static_cast<uint8_t>(HandleKind::kNone), std::memory_order_release);
  table.free.push_back(static_cast<uint32_t>(object - table.objects));
}

void RetireObject(Object* object) {
  object->kind.store(static_cast<uint8_t>(HandleKind::kNone), std::memory_order_release);
}

Object* ObjectOf(WireHandle wire) {
  if (WireIndex(wire) == 0 || WireIndex(wire) >= kMaxHandles) return nullptr;
  Object* object = TheTable().objects + WireIndex(wire);
  return WireOf(object) == wire ? object : nullptr;
}

EndedObjects::EndedObjects(const Object* context) {
  Table& table = TheTable();
  const std::lock_guard lock(table.mutex);
  for (uint32_t i = 1; i < table.used; ++i) {
    Object& object = table.objects[i];
    if (object.context != context || object.kind.load() == static_cast<uint8_t>(HandleKind::kNone)) continue;
    object.kind.store(static_cast<uint8_t>(HandleKind::kNone), std::memory_order_release);
    numbers_.push_back(i);
  }
}

EndedObjects::~EndedObjects() {
  Table& table = TheTable();
  const std::lock_guard lock(table.mutex);
  table.free.insert(table.free.end(), numbers_.begin(), numbers_.end());
}

void FreeChildrenOf(WireHandle parent, void (*last)(Object*)) {
  FreeIf([parent](const Object& object) { return object.parent == parent; }, last);
}

uint64_t NextId() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace causeway::guest
