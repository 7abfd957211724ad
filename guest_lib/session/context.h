// SPDX-License-Identifier: Apache-2.0
// Contexts as the guest keeps them: which one is current in which thread, primary contexts and their
// references. A thread's own state is changed by that thread alone; contexts are changed under the context
// lock (context_calls.cc), except for their atomics.
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
  bool has_words = false;  // the GPU can write words behind its work (MayWriteWords)
  std::atomic<bool> active{false};
  uint32_t references = 0;  // the program's: cuDevicePrimaryCtxRetain of a primary context, else cuCtxAttach
  uint32_t holds = 0;       // of a primary context: how many green contexts keep it active
  Object* green = nullptr;  // the green context for which this one was made; null: none
  uint32_t flags = 0;
  Progress legacy_stream{};
  Progress copies{};  // what synchronous copies wait for (Inquiry::BeforeCopy)
};

// The stream that CU_STREAM_PER_THREAD means in one context. The stream ends with the context, and another
// object may get its number; the id shows that.
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
  std::vector<Object*> contexts;  // the stack of contexts; the last one is current
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  int channel = -1;  // the thread's RPC channel; -1: none yet
  // The thread's present call is sent even after a fault (sticky error), and leaves an error that is still to be told to the next call.
  bool past_errors = false;
  int leases = 0;  // ChannelLease objects of the thread; more than one would overwrite a request
  std::vector<DefaultStream> default_streams;
  uint64_t awaited = 0;         // how many replies the thread has waited for
  bool blocking_waits = false;  // set by BlockingWaits
  bool in_callback = false;     // the library is calling a function of the program in this thread
  bool in_function = false;     // it is one that was sent as a number (guest_lib/callbacks/callbacks.h)
  LookTimes look_times;         // of no-spin waits for fence values, by event or stream
};
// What only streams can do for a thread. stream.cc sets these while the library is loaded. The thread itself
// calls them, with no lock of this library's held, and each may send messages.
struct ThreadHooks {
  // Makes the stream that CU_STREAM_PER_THREAD means in the current context. Null: it cannot be made.
  CUstream (*make_stream)() = nullptr;
  // Ends the streams of a thread that ends, and frees its channel.
  void (*end)(ThreadState& thread) = nullptr;
};
inline constinit ThreadHooks thread_hooks;
extern constinit thread_local ThreadState* this_thread;
ThreadState& MakeThisThread();
inline ThreadState& ThisThread() {
  ThreadState* made = this_thread;
  return made != nullptr ? *made : MakeThisThread();
}

// While an object of this class lives, waits of its thread are no-spin waits if the program asked for that,
// by CU_EVENT_BLOCKING_SYNC (`asked`) or by the current context's CU_CTX_SCHED_BLOCKING_SYNC.
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

// Whether the stream is one that each context has by itself, and not one that a program has created.
inline bool IsDefaultStream(CUstream stream) {
  return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

// Where no context is current, work that names a stream is done in the stream's context, as NVIDIA's driver
// does it (seen with launches, fills, copies, allocations, host functions and events). While an object of
// this class lives, that context is current then.
class WithContextOf {
 public:
  explicit WithContextOf(CUstream stream) : pushed_(ThisThread().contexts.empty() && Push(stream)) {}
  // The same for work on memory, or anything else, of that context. Null, or a context that has ended: none.
  explicit WithContextOf(Object* context) : pushed_(ThisThread().contexts.empty() && Push(context)) {}
  ~WithContextOf() {
    if (pushed_) ThisThread().contexts.pop_back();
  }
  WithContextOf(const WithContextOf&) = delete;
  WithContextOf& operator=(const WithContextOf&) = delete;

 private:
  static bool Push(Object* context);
  static bool Push(CUstream stream);  // false for the default streams, which have no context of their own
  const bool pushed_;
};

inline Context& ContextOf(const Object* object) {
  return *static_cast<Context*>(object->detail);
}

// The number of successful calls so far that changed how the driver runs kernels of a context.
inline std::atomic<uint64_t> context_settings{0};
// Makes the objects of the primary contexts. Called once, when the session opens.
void MakePrimaryContexts(int device_count);
// Makes a context active, with a new id. The caller has made it so on the host.
void BeginContext(Object* context);
// Whether the process has ever had two contexts.
bool HadSeveralContexts();
// The object of the primary context of a device, which must exist.
Object* PrimaryContext(CUdevice device);
// The stream behind a handle, for answers in the guest; *object is null for the default streams of the
// current context. CUDA_ERROR_INVALID_CONTEXT: there is none; CUDA_ERROR_INVALID_HANDLE: no such stream.
CUresult FindStream(CUstream stream, Object** object);
// The context that it belongs to; of a default stream the current one.
CUresult ContextOfStream(CUstream stream, CUcontext* context);
// Whether a device has that number.
bool IsDevice(CUdevice device);

}  // namespace causeway::guest
