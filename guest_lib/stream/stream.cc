// SPDX-License-Identifier: Apache-2.0
// Streams and events. Creation, recording and waiting are posted; the guest itself knows what a stream is.
#include <algorithm>

#include "guest_lib/session/captures.h"
#include "guest_lib/stream/completion.h"
#include "guest_lib/stream/giving_back.h"
#include "guest_lib/stream/inquiry.h"
#include "guest_lib/stream/quiet_event.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/protocol/maybe_result.h"

namespace causeway::guest {
namespace {

// Another process may ask for the event as soon as it hears of the record, so the driver has it by then.
bool IsShared(CUevent event) {
  return (Find(event)->flags & CU_EVENT_INTERPROCESS) != 0;
}

// Lower numbers are stronger; the driver clamps to its range, which is the same for every device so far.
constexpr int kGreatestPriority = -5;

// Events belong in streams of their own context; what the driver makes of others and of flags, the call says.
bool IsOrdinaryRecord(const Object* event, CUstream stream, unsigned flags) {
  const Object* object = nullptr;
  if (stream != nullptr && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD)
    object = Find(stream);
  const Object* context = object != nullptr ? object->context : CurrentContextObject();
  return event->context == context && flags == CU_EVENT_RECORD_DEFAULT;
}

void Remember(CUstream stream, unsigned flags, int priority) {
  Object* object = Find(stream);
  object->flags = flags;
  object->number = priority > 0 ? 0 : priority < kGreatestPriority ? kGreatestPriority : priority;
  object->id = NextId();
  NoteStream(flags == CU_STREAM_DEFAULT);
}

// Of what is no stream that can be destroyed: of a default stream the driver looks at the context and captures first.
CUresult RefuseDestroy(CUstream stream) {
  if (stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = NeedContext()) return result;
  return AnswerBesideCaptures(CUDA_ERROR_INVALID_HANDLE, CaptureRule::kInStream, stream);
}

CUstream MakePerThreadStream() {
  ThreadState& thread = ThisThread();
  std::erase_if(thread.default_streams, [](const DefaultStream& own) { return !own.alive(); });
  CUstream stream = nullptr;
  if (cuStreamCreate(&stream, CU_STREAM_DEFAULT) != CUDA_SUCCESS) return nullptr;
  Object* object = Find(stream);
  thread.default_streams.push_back({CurrentContextObject(), object, object->id});
  return stream;
}

void EndThread(ThreadState& thread) {
  Session* session = Session::Get();
  if (session == nullptr) return;
  thread.contexts.clear();
  for (const DefaultStream& own : thread.default_streams) {
    if (!own.alive()) continue;
    thread.contexts.assign(1, own.context);
    cuStreamDestroy_v2(reinterpret_cast<CUstream>(own.stream));
  }
  if (thread.channel >= 0) session->ReleaseChannel(static_cast<uint32_t>(thread.channel));
}

// What the driver answers to the first forms of stream memory operations for the stream's sake.
CUresult FirstFormsAnswer(CUstream stream) {
  const CUresult result = Wait<Op::cuStreamBatchMemOp>(stream, 0u, nullptr, 0u);
  return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
}

[[gnu::constructor]] void SetHooks() {
  thread_hooks = {MakePerThreadStream, EndThread};
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedContext()) return result;
  const CUresult result = Post<Op::cuStreamCreate>(stream, flags);
  if (result == CUDA_SUCCESS) Remember(*stream, flags, 0);
  return result;
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedContext()) return result;
  const CUresult result = Post<Op::cuStreamCreateWithPriority>(stream, flags, priority);
  if (result == CUDA_SUCCESS) Remember(*stream, flags, priority);
  return result;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (Find(stream) == nullptr) return RefuseDestroy(stream);
  FreeHeld();  // what is freed in it
  return PostWork<Op::cuStreamDestroy_v2>(SubmissionOn(stream), stream);
}

CUresult cuStreamQuery(CUstream stream) {
  Inquiry inquiry = Inquiry::OfStream(stream);
  if (const auto known = inquiry.Answer()) return *known;
  return inquiry.Note(Wait<Op::cuStreamQuery>(stream));
}
CUresult cuStreamSynchronize(CUstream stream) {
  Mark mark;
  return Inquiry::OfStream(stream).Await(
      mark, [&] { return mark.Await(stream); },
      [&] {
        const GivingBack giving_back(stream);
        const CUresult result = Wait<Op::cuStreamSynchronize>(stream);
        giving_back.Note(result);
        return result;
      });
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  if (flags > CU_EVENT_WAIT_EXTERNAL)
    return AnswerBesideCaptures(CUDA_ERROR_INVALID_VALUE, CaptureRule::kInStream, stream);
  if (Find(event) == nullptr)
    return AnswerBesideCaptures(CUDA_ERROR_INVALID_HANDLE, CaptureRule::kLaunches, stream);
  if (flags != CU_EVENT_WAIT_DEFAULT) {
    if (const CUresult refused = CaptureRefusal(CaptureRule::kInStream, stream)) return refused;
    return Wait<Op::cuStreamWaitEvent>(stream, event, flags);
  }
  return PostWork<Op::cuStreamWaitEvent>(SubmissionOn(stream), stream, event, flags);
}

CUresult cuStreamGetFlags(CUstream stream, unsigned int* flags) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Object* object;
  if (const CUresult result = FindStream(stream, &object)) return result;
  if (const CUresult refused = CaptureRefusal(CaptureRule::kOutsideCaptures, stream)) return refused;
  *flags = object != nullptr ? object->flags : 0;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream stream, int* priority) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Object* object;
  if (const CUresult result = FindStream(stream, &object)) return result;
  if (const CUresult refused = CaptureRefusal(CaptureRule::kInStream, stream)) return refused;
  *priority = object != nullptr ? object->number : 0;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uint64_t value = 0;
  if (const CUresult result = StreamId(stream, &value)) return result;
  if (const CUresult refused = CaptureRefusal(CaptureRule::kOutsideCaptures, stream)) return refused;
  *id = value;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  CUcontext found = nullptr;
  if (const CUresult result = ContextOfStream(stream, &found)) return result;
  if (const CUresult refused = CaptureRefusal(CaptureRule::kInStream, stream)) return refused;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = found;
  return CUDA_SUCCESS;
}

// The driver lets a program ask for either alone.
CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext* context, CUgreenCtx* green) {
  CUcontext unwanted = nullptr;
  CUgreenCtx unwanted_green = nullptr;
  if (green == nullptr && context != nullptr) green = &unwanted_green;
  return Wait<Op::cuStreamGetCtx_v2>(stream, context != nullptr ? context : &unwanted, green);
}

CUresult cuStreamGetDevice(CUstream stream, CUdevice* device) {
  CUcontext context = nullptr;
  if (const CUresult result = ContextOfStream(stream, &context)) return result;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult refused = CaptureRefusal(CaptureRule::kOutsideCaptures, stream)) return refused;
  const Object* object = Find(context);
  if (object == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *device = ContextOf(object).device;
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  if (const CUresult result = NeedContext()) return result;
  constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if ((flags & ~kKnown) != 0 ||
      ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult result = Post<Op::cuEventCreate>(event, flags);
  if (result == CUDA_SUCCESS) Find(*event)->flags = flags;
  return result;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  if (Find(event) == nullptr)
    return AnswerBesideCaptures(CUDA_ERROR_INVALID_HANDLE, CaptureRule::kInStream, stream);
  if (IsShared(event) || !IsOrdinaryRecord(Find(event), stream, 0)) {
    return Wait<Op::cuEventRecord>(event, stream);
  }
  const RecordPlace place(Find(event));
  return PostWork<Op::cuEventRecord>(SubmissionOn(stream), event, stream);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  if (Find(event) == nullptr)
    return AnswerBesideCaptures(CUDA_ERROR_INVALID_HANDLE, CaptureRule::kInStream, stream);
  if (IsShared(event) || !IsOrdinaryRecord(Find(event), stream, flags)) {
    return Wait<Op::cuEventRecordWithFlags>(event, stream, flags);
  }
  const RecordPlace place(Find(event));
  return PostWork<Op::cuEventRecordWithFlags>(SubmissionOn(stream), event, stream, flags);
}

CUresult cuEventDestroy_v2(CUevent event) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (Find(event) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUevent stand_in = TakeStandIn(event)) Post<Op::cuEventDestroy_v2>(stand_in);
  return Post<Op::cuEventDestroy_v2>(event);
}

CUresult cuEventQuery(CUevent event) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (Find(event) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Inquiry inquiry = Inquiry::OfEvent(event);
  if (const auto known = inquiry.Answer()) return *known;
  return inquiry.Note(Wait<Op::cuEventQuery>(event));
}

CUresult cuEventSynchronize(CUevent event) {
  if (const CUresult result = InitialisedOrError()) return result;
  Object* object = Find(event);
  if (object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const BlockingWaits waits((object->flags & CU_EVENT_BLOCKING_SYNC) != 0);
  Inquiry inquiry = Inquiry::OfEvent(event);
  if (const auto known = inquiry.Answer()) return *known;
  Mark mark;
  MaybeResult came;
  if (ThisThread().blocking_waits) came = mark.AwaitEvent(object);
  NoteBlockingWait(object, came.has_value());
  if (came) return inquiry.NoteWord(*came, 0);
  const CUresult result = AskForEvent(event);
  if (result == CUDA_SUCCESS) mark.HostWaited();
  return inquiry.NoteWait(result);
}

CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  if (const CUresult result = InitialisedOrError()) return result;
  // The driver has the same answer for a missing result.
  if (milliseconds == nullptr || Find(start) == nullptr || Find(end) == nullptr)
    return CUDA_ERROR_INVALID_HANDLE;
  return Wait<Op::cuEventElapsedTime_v2>(milliseconds, start, end);
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  const WithContextOf scope(stream);
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedContext()) return result;
  if (AnyCapture()) return Wait<Op::cuStreamIsCapturing>(stream, status);
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return ResolvedStream(stream).error();
}

// The first forms of the stream memory operations: drivers of today do them only where a setting of the kernel
// module says so. Else the answer depends on the stream alone, and arguments that must not reach the driver
// get it, too: a batch of no operations asks for it.
CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* operations,
                            unsigned int flags) {
  const auto passes = [](CUstreamBatchMemOpParams operation) { return Admit(operation) == CUDA_SUCCESS; };
  const bool known = OnlyFlags(flags, kNoFlags) && count <= kMaxElements &&
                     (operations != nullptr || count == 0) &&
                     std::all_of(operations, operations + count, passes);
  return known ? Wait<Op::cuStreamBatchMemOp>(stream, count, operations, flags) : FirstFormsAnswer(stream);
}
#define FIRST_FORM(fn, T, flags_of)                                                 \
  CUresult fn(CUstream stream, CUdeviceptr address, T value, unsigned int flags) {  \
    return OnlyFlags(flags, flags_of) ? Wait<Op::fn>(stream, address, value, flags) \
                                      : FirstFormsAnswer(stream);                   \
  }
FIRST_FORM(cuStreamWaitValue32, cuuint32_t, kWaitValueFlags)
FIRST_FORM(cuStreamWaitValue64, cuuint64_t, kWaitValueFlags)
FIRST_FORM(cuStreamWriteValue32, cuuint32_t, kWriteValueFlags)
FIRST_FORM(cuStreamWriteValue64, cuuint64_t, kWriteValueFlags)
#undef FIRST_FORM

}  // extern "C"
