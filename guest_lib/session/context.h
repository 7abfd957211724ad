// SPDX-License-Identifier: Apache-2.0
// Contexts as the guest keeps them: which is current in which thread, primary contexts and their references.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <atomic>
#include <vector>

#include "guest_lib/process/look_times.h"
#include "guest_lib/session/guest_state.h"
#include "guest_lib/session/handles.h"

namespace causeway::guest {

struct Context {
  int device = 0;
  bool primary = false;
  std::atomic<bool> active{false};
  uint32_t references = 0;  // of a primary context: the program's; of others: cuCtxAttach's
  uint32_t holds = 0;       // of a primary context: its green contexts
  Object* green = nullptr;  // the green context that this one stands for
  uint32_t flags = 0;
  Progress legacy_stream{};
  Progress copies{};  // what synchronous copies wait for (Inquiry::BeforeCopy)
};

// The stream that stands for PER_THREAD in one context. A context that ends takes it along, and its number
// may become another's: the id tells.
struct DefaultStream {
  Object* context;
  Object* stream;
  uint64_t id;
  bool alive() const {
    return FindObject(HandleKind::kStream, stream) != nullptr && stream->id == id &&
           stream->context == context;
  }
};

// What belongs to one thread of the program.
struct ThreadState {
  std::vector<Object*> contexts;  // the stack; the last is current
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  int channel = -1;
  bool past_errors = false;  // this call is answered after a fault as well
  int leases = 0;            // of the channel; while there is one, another request would overwrite it
  std::vector<DefaultStream> default_streams;
  uint64_t awaited = 0;         // replies so far
  bool blocking_waits = false;  // by BlockingWaits
  bool in_callback = false;     // a function of the program runs, of whatever kind;
  bool in_function = false;     // one with a number (guest_lib/stream/callbacks.h)
  LookTimes look_times;         // for words, by event or stream
};
// What only streams can do for a thread. Set by stream.cc while the library is loaded; called by that thread
// with no lock of this library's, and each may send messages.
struct ThreadHooks {
  // Makes the stream that stands for PER_THREAD in the current context. Null: it cannot be made.
  CUstream (*make_stream)() = nullptr;
  // The thread ends: its streams end with it, and its channel is free.
  void (*end)(ThreadState& thread) = nullptr;
};
inline constinit ThreadHooks thread_hooks;
extern constinit thread_local ThreadState* this_thread;
ThreadState& MakeThisThread();
inline ThreadState& ThisThread() {
  ThreadState* made = this_thread;
  return made != nullptr ? *made : MakeThisThread();
}

// While one lives, the waits of its thread go to sleep at once: where the program asked for it, by
// CU_EVENT_BLOCKING_SYNC (`asked`) or the current context's CU_CTX_SCHED_BLOCKING_SYNC.
class BlockingWaits {
 public:
  explicit BlockingWaits(bool asked = false);
  ~BlockingWaits() { ThisThread().blocking_waits = before_; }
  BlockingWaits(const BlockingWaits&) = delete;
  BlockingWaits& operator=(const BlockingWaits&) = delete;

 private:
  const bool before_ = ThisThread().blocking_waits;
};

inline Object* CurrentContextObject() {
  const ThreadState& thread = ThisThread();
  return thread.contexts.empty() ? nullptr : thread.contexts.back();
}

// Work that names a stream is done in the stream's context where no other is current, as NVIDIA's driver does
// it (seen with launches, fills, copies, allocations, host functions and events). While one lives, that
// context is current.
class WithContextOf {
 public:
  explicit WithContextOf(CUstream stream) : pushed_(ThisThread().contexts.empty() && Push(stream)) {}
  ~WithContextOf() {
    if (pushed_) ThisThread().contexts.pop_back();
  }
  WithContextOf(const WithContextOf&) = delete;
  WithContextOf& operator=(const WithContextOf&) = delete;

 private:
  static bool Push(CUstream stream);  // false for the default streams, which have no context of their own
  const bool pushed_;
};

inline Context& ContextOf(const Object* object) {
  return *static_cast<Context*>(object->detail);
}

// The wire handle of the current context for a message: 0 without one. 709 while it is not active.
CUresult CurrentContextWire(WireHandle* wire);
CUresult CurrentContextWire(const ThreadState& thread, WireHandle* wire);

// Makes the objects of the primary contexts; once, when the session opens.
void MakePrimaryContexts(int device_count);
// A context becomes active.
void NoteContextBegins(const Object* context);
// Whether the process has ever had two contexts.
bool HadSeveralContexts();
// The object of a device that exists.
Object* PrimaryContext(CUdevice device);
// False for a device number that does not exist.
bool IsDevice(CUdevice device);

}  // namespace causeway::guest
