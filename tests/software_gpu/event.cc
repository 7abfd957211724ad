// SPDX-License-Identifier: Apache-2.0
// Event calls.
#include "tests/software_gpu/event.h"

#include "tests/software_gpu/device.h"
#include "tests/software_gpu/faults.h"
#include "tests/software_gpu/handles.h"
#include "tests/software_gpu/stream_handles.h"

namespace causeway::software_gpu {
namespace {

Registry<CUevent, Event>& Events() {
  static auto* events = new Registry<CUevent, Event>;
  return *events;
}

// What the event waits for now; false when the event's last record was captured.
bool RecordedWork(Event& event, CompletionRef* recorded) {
  std::lock_guard lock(event.mutex);
  *recorded = event.recorded;
  return event.capture.lock() == nullptr;
}

// The same for calls that need the event's state: asking for a captured one ends the capture.
bool AskForRecordedWork(Event& event, CompletionRef* recorded) {
  if (RecordedWork(event, recorded)) return true;
  std::lock_guard lock(GraphLock());
  std::lock_guard event_lock(event.mutex);
  if (CaptureRef capture = event.capture.lock()) capture->invalidated = true;
  return false;
}

CUresult Record(const ContextRef& context, CUevent hEvent, CUstream hStream, unsigned flags) {
  EventRef event = FindEvent(hEvent);
  StreamRef stream = FindStream(context, hStream);
  if (event == nullptr || stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (IsCaptureBroken(stream)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (flags > CU_EVENT_RECORD_EXTERNAL)
    return MeetsCapture(stream) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_ERROR_INVALID_VALUE;
  if (event->context.lock() != stream->context.lock()) return CUDA_ERROR_INVALID_HANDLE;
  if (flags == CU_EVENT_RECORD_EXTERNAL && IsCapturing(stream)) {
    return Submit(stream, {CU_GRAPH_NODE_TYPE_EVENT_RECORD, [event] { MarkEvent(*event); }, nullptr});
  }
  CUresult result = CUDA_SUCCESS;
  if (RecordInCapture(stream, *event, &result)) return result;
  RecordEvent(stream, event);
  return CUDA_SUCCESS;
}

}  // namespace

EventRef FindEvent(CUevent handle) {
  return Events().Find(handle);
}

void DestroyEventsOf(Context& context) {
  Events().RemoveIf([&](const Event& event) { return event.context.lock().get() == &context; });
}

void RecordEvent(const StreamRef& stream, const EventRef& event) {
  const bool is_blocking = (event->flags & CU_EVENT_BLOCKING_SYNC) != 0;
  CompletionRef done = Enqueue(stream, [is_blocking] {
    if (is_blocking) Interrupt();
  });
  std::lock_guard lock(event->mutex);
  event->recorded = done;
  event->capture.reset();
  event->capture_nodes.clear();
}

void MarkEvent(Event& event) {
  auto done = std::make_shared<Completion>();
  done->Finish();
  std::lock_guard lock(event.mutex);
  event.recorded = std::move(done);
  event.capture.reset();
  event.capture_nodes.clear();
}

void WaitForEvent(Event& event) {
  CompletionRef recorded;
  RecordedWork(event, &recorded);
  if (recorded != nullptr) recorded->Wait();
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuEventCreate(CUevent* phEvent, unsigned int Flags) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    bool interprocess_with_timing =
        (Flags & CU_EVENT_INTERPROCESS) != 0 && (Flags & CU_EVENT_DISABLE_TIMING) == 0;
    if (phEvent == nullptr || (Flags & ~kKnown) != 0 || interprocess_with_timing)
      return CUDA_ERROR_INVALID_VALUE;
    auto event = std::make_shared<Event>();
    event->flags = Flags;
    event->context = context;
    *phEvent = Events().Add(event);
    return CUDA_SUCCESS;
  });
}

CUresult cuEventDestroy_v2(CUevent hEvent) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    return Events().Remove(hEvent) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
  });
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream) {
  return InContextOfStream(__func__, hStream,
                           [&](const ContextRef& context) { return Record(context, hEvent, hStream, 0); });
}

CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
  return InContextOfStream(
      __func__, hStream, [&](const ContextRef& context) { return Record(context, hEvent, hStream, flags); });
}

CUresult cuEventQuery(CUevent hEvent) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    EventRef event = FindEvent(hEvent);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    CompletionRef recorded;
    if (!AskForRecordedWork(*event, &recorded)) return CUDA_ERROR_CAPTURED_EVENT;
    if (recorded != nullptr && !recorded->IsDone()) return CUDA_ERROR_NOT_READY;
    return StickyError();
  });
}

CUresult cuEventSynchronize(CUevent hEvent) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    EventRef event = FindEvent(hEvent);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    CompletionRef recorded;
    if (!AskForRecordedWork(*event, &recorded)) return CUDA_ERROR_INVALID_VALUE;
    if (recorded != nullptr) recorded->Wait();
    FlushDeviceOutput();
    return StickyError();
  });
}

CUresult cuEventElapsedTime_v2(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (pMilliseconds == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    EventRef start = FindEvent(hStart);
    EventRef end = FindEvent(hEnd);
    if (start == nullptr || end == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0) return CUDA_ERROR_INVALID_HANDLE;
    CompletionRef started;
    CompletionRef ended;
    if (!AskForRecordedWork(*start, &started) || !AskForRecordedWork(*end, &ended))
      return CUDA_ERROR_CAPTURED_EVENT;
    if (started == nullptr || ended == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (!started->IsDone() || !ended->IsDone()) return CUDA_ERROR_NOT_READY;
    std::chrono::duration<float, std::milli> elapsed = ended->finished_at() - started->finished_at();
    *pMilliseconds = elapsed.count();
    return CUDA_SUCCESS;
  });
}

CUresult cuEventElapsedTime(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  return cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
  return InContextOfStream(__func__, hStream, [&](const ContextRef& context) -> CUresult {
    StreamRef stream = FindStream(context, hStream);
    EventRef event = FindEvent(hEvent);
    if (Flags > CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    if (stream == nullptr || event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (Flags == CU_EVENT_WAIT_EXTERNAL) {
      if (!IsCapturing(stream)) return CUDA_ERROR_ILLEGAL_STATE;
      return Submit(stream, {CU_GRAPH_NODE_TYPE_WAIT_EVENT, [event] { WaitForEvent(*event); }, nullptr});
    }
    CUresult result = CUDA_SUCCESS;
    if (WaitInCapture(stream, *event, &result)) return result;
    CompletionRef recorded;
    RecordedWork(*event, &recorded);
    if (recorded != nullptr && !recorded->IsDone()) Enqueue(stream, [] {}, {recorded});
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
