// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/session/context.h"

#include <pthread.h>

namespace causeway::guest {

constinit thread_local ThreadState* this_thread = nullptr;

namespace {

// By device; made once. Programs call in here from exit handlers that run after ours: nothing is destroyed.
std::vector<Object*>& primary_contexts = *new std::vector<Object*>;

std::atomic<const Object*> only_context{nullptr};
std::atomic<bool> several_contexts{false};

void EndThread(void* state) {
  auto* thread = static_cast<ThreadState*>(state);
  thread_hooks.end(*thread);
  delete thread;
  this_thread = nullptr;  // destructors of other keys may still call
}

}  // namespace

// A key instead of a destructor of thread_local: the main thread's state must outlive its exit handlers.
ThreadState& MakeThisThread() {
  static const pthread_key_t key = [] {
    pthread_key_t made;
    pthread_key_create(&made, EndThread);
    return made;
  }();
  this_thread = new ThreadState;
  pthread_setspecific(key, this_thread);
  return *this_thread;
}

BlockingWaits::BlockingWaits(bool asked) {
  const Object* current = CurrentContextObject();
  const bool context =
      current != nullptr && (ContextOf(current).flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC;
  if (asked || context) ThisThread().blocking_waits = true;
}

bool WithContextOf::Push(Object* context) {
  if (context == nullptr || !ContextOf(context).active.load(std::memory_order_relaxed)) return false;
  ThisThread().contexts.push_back(context);
  return true;
}

bool WithContextOf::Push(CUstream stream) {
  const Object* object = Find(stream);
  if (object == nullptr || object->context == nullptr) return false;
  ThisThread().contexts.push_back(object->context);
  return true;
}

bool IsDevice(CUdevice device) {
  return device >= 0 && static_cast<size_t>(device) < primary_contexts.size();
}

void MakePrimaryContexts(int device_count) {
  for (int device = 0; device < device_count; ++device) {
    Object* object = NewObject(HandleKind::kContext, nullptr);
    auto* detail = new Context;
    detail->device = device;
    detail->primary = true;
    object->detail = detail;
    object->id = NextId();
    primary_contexts.push_back(object);
  }
}

Object* PrimaryContext(CUdevice device) {
  return primary_contexts[static_cast<size_t>(device)];
}

void BeginContext(Object* context) {
  context->id = NextId();
  const Object* none = nullptr;
  if (!only_context.compare_exchange_strong(none, context) && none != context) several_contexts.store(true);
  ContextOf(context).active.store(true);
}

bool HadSeveralContexts() {
  return several_contexts.load();
}

CUcontext CurrentContext() {
  return reinterpret_cast<CUcontext>(CurrentContextObject());
}

CUcontext PrimaryContextHandle(int device) {
  return IsDevice(device) ? reinterpret_cast<CUcontext>(PrimaryContext(device)) : nullptr;
}

bool IsContext(CUcontext context) {
  return Find(context) != nullptr;
}

CUresult ContextId(CUcontext context, uint64_t* id) {
  const Object* object = Find(context);
  if (object == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *id = object->id;
  return CUDA_SUCCESS;
}

CUstream PerThreadStream() {
  const Object* context = CurrentContextObject();
  for (const DefaultStream& own : ThisThread().default_streams) {
    if (own.context == context && own.alive()) return reinterpret_cast<CUstream>(own.stream);
  }
  return thread_hooks.make_stream();
}

CUcontext SwapCurrentContext(CUcontext context) {
  ThreadState& thread = ThisThread();
  CUcontext previous = CurrentContext();
  if (!thread.contexts.empty()) thread.contexts.pop_back();
  if (context != nullptr) thread.contexts.push_back(Find(context));
  return previous;
}

}  // namespace causeway::guest
