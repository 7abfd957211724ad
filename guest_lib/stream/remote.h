// SPDX-License-Identifier: Apache-2.0
// The guest's half of the rows: what Shape::Wait and Shape::Post (ivshmem_ring/protocol/shape.h) need of
// handles and sending. Any thread may call these functions; they send messages.
#pragma once
#include "guest_lib/session/context.h"
#include "guest_lib/session/device_reach.h"
#include "guest_lib/session/session.h"
#include "guest_lib/stream/capture_rule.h"
#include "guest_lib/stream/stand_in.h"

namespace causeway::guest {

// A stream of the program's, looked up once for all that a call needs of it. CU_STREAM_PER_THREAD becomes the
// calling thread's own stream, which may be made now, by a message.
class ResolvedStream {
 public:
  explicit ResolvedStream(CUstream stream) : handle_(stream) {
    if (stream == CU_STREAM_PER_THREAD) {
      object_ = Find(PerThreadStream());
      if (object_ != nullptr) handle_ = reinterpret_cast<CUstream>(object_);
    } else if (!IsLegacy()) {
      object_ = Find(stream);
    }
  }
  // CUDA_ERROR_INVALID_HANDLE if the handle names no stream; a thread without a context has no stream of its own.
  CUresult error() const {
    if (object_ != nullptr || IsLegacy()) return CUDA_SUCCESS;
    return handle_ == CU_STREAM_PER_THREAD && CurrentContextObject() == nullptr
               ? CUDA_ERROR_INVALID_CONTEXT
               : InvalidHandleError(HandleKind::kStream);
  }
  bool IsLegacy() const { return handle_ == nullptr || handle_ == CU_STREAM_LEGACY; }
  CUstream handle() const { return handle_; }  // not CU_STREAM_PER_THREAD, unless there is an error
  Object* object() const { return object_; }   // null: the legacy stream, or an error
  // The wire handle by which messages name it.
  WireHandle wire() const {
    if (object_ != nullptr) return WireOf(object_);
    return handle_ == CU_STREAM_LEGACY ? kLegacyStreamWire : 0;
  }
  // Of a message that works in this stream alone. The legacy stream holds up others, so work in it counts as
  // work anywhere.
  Submission submission() const { return {.stream = object_, .stays_in_stream = true}; }
  // The wire handle for the body that `w` writes. An error fails that writer.
  WireHandle Put(Writer& w) const {
    if (const CUresult result = error()) w.Fail(result);
    return wire();
  }

 private:
  CUstream handle_;
  Object* object_ = nullptr;
};
inline Submission SubmissionOn(CUstream stream) {
  return ResolvedStream(stream).submission();
}

// Lives until the messages that it starts are sent.
struct Remote {
  PendingCall StartCall(Op op) { return PendingCall(op, submission); }
  PendingPost StartPost(Op op) { return PendingPost(op, submission); }
  Submission submission;  // of the message that is written: ToWire states what it names
  bool names_events_for_good = true;

  template <class T>
  WireHandle ToWire(T handle, Writer& w) && {
    static_assert(!std::is_same_v<T, CUstream>, "the message would not state that it names the stream");
    return ToWire(handle, w);
  }
  template <class T>
  WireHandle ToWire(T handle, Writer& w) & {
    if (handle == nullptr) return 0;
    if constexpr (std::is_same_v<T, CUstream>) {
      // A record that works in one stream has looked it up before.
      if (submission.stream != nullptr && handle == reinterpret_cast<CUstream>(submission.stream))
        return WireOf(submission.stream);
      const ResolvedStream stream(handle);
      if (stream.object() != nullptr) submission.Name(stream.object());
      return stream.Put(w);
    } else {
      const Object* object = Find(handle);
      if (object == nullptr) {
        w.Fail(InvalidHandleError(kKindOf<T>));
        return 0;
      }
      if constexpr (std::is_same_v<T, CUevent>) {
        submission.event = Find(handle);
        object = OnHost(object, names_events_for_good);
      }
      return WireOf(object);
    }
  }

  template <class T>
  T Make(Writer& w) {
    if (!w.ok()) return nullptr;
    Object* object = NewObject(kKindOf<T>, EndsWithContext(kKindOf<T>) ? CurrentContextObject() : nullptr);
    if (object == nullptr) w.Fail(CUDA_ERROR_OUT_OF_MEMORY);
    return reinterpret_cast<T>(object);
  }

  template <class T>
  void Forget(T handle) {
    Object* object = Find(handle);
    if constexpr (std::is_same_v<T, Allocation>) {
      if (object != nullptr && ReleaseReference(object)) return;
    }
    FreeObject(object);
  }

  // The program's handle for a wire handle; null if the object does not exist any more.
  template <class T>
  T FromWire(WireHandle wire) {
    Object* object = wire != 0 ? ObjectOf(wire) : nullptr;
    if constexpr (std::is_same_v<T, CUevent>) object = object != nullptr ? OfProgram(object) : nullptr;
    return reinterpret_cast<T>(object);
  }

  // Takes the wire handle that a reply says the object has: the fresh one, or one that the object had before.
  template <class T>
  T Settle(T fresh, WireHandle wire) {
    Object* object = Find(fresh);
    if (object != nullptr && WireOf(object) == wire) return fresh;
    FreeObject(object);
    const T known = FromWire<T>(wire);
    if constexpr (std::is_same_v<T, Allocation>) {
      if (known != nullptr) AddReference(Find(known));  // the driver counts them: each is released on its own
    }
    return known;
  }
};

// The first stream among a call's parameters; null: it names none.
constexpr CUstream StreamAmong() {
  return nullptr;
}
template <class First, class... Rest>
CUstream StreamAmong(First first, Rest... rest) {
  if constexpr (std::is_same_v<First, CUstream>) {
    return first;
  } else {
    return StreamAmong(rest...);
  }
}
// Whether the first of a call's parameters that names an object is null.
template <class First, class... Rest>
constexpr bool NamesNothing(First first, Rest... rest) {
  if constexpr (kKindOf<First> != HandleKind::kNone) {
    return first == nullptr;
  } else if constexpr (sizeof...(Rest) != 0) {
    return NamesNothing(rest...);
  } else {
    return false;
  }
}
// The answer that the program gets. INVALID_VALUE and NOT_SUPPORTED may have been found before the driver saw the call. Then this
// first looks at what the driver looks at first, as the row's traits state it, and answers with the error that it finds there.
template <Op op, class... P>
CUresult AnswerOfRow(CUresult own, P... p) {
  constexpr Traits kRow = TraitsOf(op);
  if constexpr (kRow.Has(traits::kObjectFirst)) {
    if (own == CUDA_ERROR_INVALID_VALUE && NamesNothing(p...)) return CUDA_ERROR_INVALID_HANDLE;
  }
  if constexpr (kRow.Has(traits::kContextFirst | traits::kCaptureFirst | traits::kForbiddenFirst)) {
    if (own != CUDA_ERROR_INVALID_VALUE && own != CUDA_ERROR_NOT_SUPPORTED) [[likely]]
      return own;
    const CUstream stream = StreamAmong(p...);
    const WithContextOf scope(stream);
    if constexpr (kRow.Has(traits::kContextFirst)) {
      if (const CUresult result = NeedContext()) return result;
    }
    if constexpr (kRow.Has(traits::kForbiddenFirst)) return AnswerBesideCaptures(own, CaptureRule::kUnsafe);
    if constexpr (kRow.Has(traits::kCaptureFirst))
      return AnswerBesideCaptures(own, CaptureRule::kInStream, stream);
  }
  return own;
}

// Lets the device reach the memory that a row's parameter names, if it is a parameter that names memory on the device.
template <class P>
void NameOneOnDevice(P parameter) {
  if constexpr (std::is_same_v<P, CUdeviceptr>) NameOnDevice(parameter);
  if constexpr (std::is_same_v<P, const CUDA_MEMSET_NODE_PARAMS*>) {
    if (parameter != nullptr) NameOnDevice(parameter->dst);
  }
  if constexpr (std::is_same_v<P, const CUDA_RESOURCE_DESC*>) {
    if (parameter == nullptr) return;
    if (parameter->resType == CU_RESOURCE_TYPE_LINEAR) NameOnDevice(parameter->res.linear.devPtr);
    if (parameter->resType == CU_RESOURCE_TYPE_PITCH2D) NameOnDevice(parameter->res.pitch2D.devPtr);
  }
}
template <class... P>
void NameOnDeviceAmong(P... parameters) {
  (NameOneOnDevice(parameters), ...);
}
inline void NameOnDeviceAmong(CUstream, unsigned int count, CUstreamBatchMemOpParams* operations,
                              unsigned int) {
  NameOnDevice(operations, count);
}

// Sends a row with its own directions: Wait<Op::cuMemAlloc_v2>(&pointer, bytes).
template <Op op, class... P>
CUresult Wait(P... p) {
  NameOnDeviceAmong(p...);
  Remote remote;
  remote.names_events_for_good = !TraitsOf(op).Has(traits::kNamesEventOnce);
  return AnswerOfRow<op>(RowShape<op>::Wait(remote, op, p...), p...);
}
template <Op op, class... P>
CUresult Post(P... p) {
  NameOnDeviceAmong(p...);
  Remote remote;
  remote.names_events_for_good = !TraitsOf(op).Has(traits::kNamesEventOnce);
  return RowShape<op>::Post(remote, op, p...);
}
// Of a row that works as stated and nowhere else. Events that it names it names once.
template <Op op, class... P>
CUresult PostWork(const Submission& submission, P... p) {
  NameOnDeviceAmong(p...);
  Remote remote;
  remote.names_events_for_good = false;
  remote.submission = submission;
  return RowShape<op>::Post(remote, op, p...);
}

}  // namespace causeway::guest
