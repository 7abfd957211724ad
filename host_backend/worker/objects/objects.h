// SPDX-License-Identifier: Apache-2.0
// The objects of a session: what a request names, makes and ends, and the state of the caller that it is
// executed in. What one request does here is the calling thread's, between BeginRequest and EndRequest.
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "host_backend/worker/objects/handles.h"
#include "host_backend/worker/process/exclusive.h"
#include "ivshmem_ring/protocol/wire.h"
#include "ivshmem_ring/transport/record.h"

namespace causeway::host {

// Where the request of a thread works, as far as it is known.
struct Whereabouts {
  WireHandle context = 0;  // 0: none
  Found stream;            // that it has named first; none, or the legacy stream: all zero
  int device = -1;         // the driver's number of the context's device; -1: it has none
};

class Objects {
 public:
  Objects();
  // Called on the thread that has ended contexts in the driver, for each of them, before a new one can be known by the same pointer.
  std::function<void(CUcontext)> on_context_end;
  // Ends every wait, now and later.
  void Stop() { exclusive_.Stop(); }

  // ---- requests of the calling thread

  // As HandleTable::BeginRequest: a locked instruction comes between this and Enter.
  void BeginRequest() { handles_.BeginRequest(); }
  // The context and capture mode of the thread follow the message. 0, or the error that the call gets.
  CUresult Enter(const RecordPrefix& header);
  // The request is executed, with that result: what it had to itself is free for others.
  void Leave(CUresult result);
  // Of the calling thread's request.
  static const Whereabouts& whereabouts() { return whereabouts_; }
  // What Enter has found and made current, which stays until the request ends; null: none.
  static CUcontext entered_context();
  // The request is about to be answered: what it used may end.
  void RestRequest() { handles_.RestRequest(); }
  // It is answered.
  void EndRequest() { handles_.EndRequest(); }
  bool UsesMany() { return handles_.UsesMany(); }
  // As HandleTable::OwnUse.
  class OwnUse {
   public:
    explicit OwnUse(Objects& objects) : objects_(objects), use_(objects.handles_) {}
    // Between requests: from here to the thread's next one that context is the thread's, and beside captures the relaxed mode. False: it is
    // not alive.
    bool Enter(WireHandle context);
    CUstream FindStream(WireHandle wire) {
      return static_cast<CUstream>(use_.Find(HandleKind::kStream, wire));
    }

   private:
    Objects& objects_;
    HandleTable::OwnUse use_;
  };

  // ---- the policy that Shape::Serve needs: what a request names stays until it ends

  void* ToDriver(HandleKind kind, WireHandle wire, Reader& r);
  template <class T>
  T ToDriver(WireHandle wire, Reader& r) {
    if constexpr (std::is_same_v<T, CUfunction>) return FunctionToDriver(wire, r);
    if constexpr (std::is_same_v<T, CUstream>) return StreamToDriver(wire, r);
    return static_cast<T>(ToDriver(kKindOf<T>, wire, r));
  }
  // The same for an object that the call ends.
  void* ToEnd(HandleKind kind, WireHandle wire, Reader& r);
  // After all that a request names, before the driver's call: what of it the driver lets one thread use at a
  // time is the request's alone from here until it is executed.
  CUresult Prepare();
  // What Prepare gave the request is others' from here: before it waits for the device. Prepare may follow again.
  void Yield();
  // Whether Prepare gave it anything.
  bool HasAny() const;
  // Ends the object, named by ToEnd before, with the driver's `call` (HandleTable::EndObject). Whatever
  // `call` refers to must outlive the request.
  CUresult End(HandleKind kind, WireHandle wire, const void* value, HandleTable::Call call);
  void Bind(HandleKind kind, WireHandle wire, void* value, Writer& w);
  // The handle that the driver's object has; if none, `fresh` becomes it. 0 for null.
  WireHandle BindOrKnown(HandleKind kind, WireHandle fresh, void* value, Writer& w);
  // The same for an object whose owner is no argument of the call.
  WireHandle BindOrKnownTo(Found parent, HandleKind kind, WireHandle fresh, void* value, Writer& w);

  // ---- look-ups

  // Null if not alive; else it stays until the request ends.
  void* Find(HandleKind kind, WireHandle wire) { return handles_.Use(kind, wire); }
  // The handle that the driver's object has; 0 if none.
  WireHandle Known(HandleKind kind, const void* value) const {
    return value != nullptr ? handles_.Reverse(kind, const_cast<void*>(value)) : 0;
  }
  Found ParentOf(Found object) const { return handles_.ParentOf(object); }
  std::vector<WireHandle> All(HandleKind kind) const { return handles_.All(kind); }
  uint64_t live() const { return handles_.live(); }

  // ---- owners and ends

  // From now on the object ends with `parent`.
  bool Adopt(Found object, Found parent) { return handles_.Adopt(object, parent); }
  // Of an object that the driver has ended by itself.
  void Unbind(Found object) { handles_.Unbind(object); }
  // A primary context that was released or reset lives on as a number, what was in it does not.
  CUresult EndContents(Found context, const HandleTable::Call& call);
  // User objects end without a call: when their destructor is due, which the guest knows by its number. `object` is bound.
  void NoteUserObject(uint64_t callback, Found object);
  void EndUserObject(uint64_t callback);
  // Threads remember which context they set; a change here makes them set it again.
  void NoteContextChange() { context_changes_.fetch_add(1, std::memory_order_release); }

  // ---- captures

  // The request asks for the graph of a capture, or ends one: one at a time does.
  void NameCapture();
  // The number of a graph that is being captured. A new number ends with the stream of the capture.
  WireHandle BindCaptured(WireHandle fresh, CUgraph graph, Writer& w);
  // The same of one that was captured: from now on it ends with nothing.
  WireHandle ReleaseCaptured(WireHandle fresh, CUgraph graph, Writer& w);
  // Makes the driver's `call` that ends the stream's capture; what it made remembers what was used meanwhile.
  // The graph of a capture that fails ends with it. The request has named all captures (NameCapture) and is prepared.
  CUresult EndCapture(CUstream stream, const HandleTable::Call& call);

  // ---- what must live as long as an object of the driver's: the image of a library, the log buffers of a
  // link

  // By the driver's pointer, because numbers are the guest's to choose: one may be given to another object, of another kind too, while
  // the driver still has the first. Keep comes before the object is bound, so that a request that finds it finds this.
  void Keep(HandleKind kind, const void* object, std::shared_ptr<void> what);
  // Of an object that the request uses. T is what is kept for objects of that kind.
  template <class T>
  std::shared_ptr<T> Kept(HandleKind kind, const void* object) {
    return std::static_pointer_cast<T>(FindKept(kind, object));
  }
  // Once the driver has ended the object. Of a pointer that it has given again meanwhile only what was this object's.
  void Drop(HandleKind kind, const void* object, const std::shared_ptr<void>& what);

 private:
  void* Look(HandleKind kind, WireHandle wire, Reader& r);
  CUfunction FunctionToDriver(WireHandle wire, Reader& r);
  CUstream StreamToDriver(WireHandle wire, Reader& r);
  std::shared_ptr<void> FindKept(HandleKind kind, const void* object);
  CUresult SetCaller(CUcontext context, CUstreamCaptureMode mode) const;
  // `seen`: of context_changes_.
  static CUresult ChangeCaller(CUcontext context, CUstreamCaptureMode mode, uint64_t seen);
  void NameExclusive(HandleKind kind, Found object, Reader& r);
  CUresult PrepareExclusive();
  Found OwnerOf(HandleKind kind) const;
  Found OwnerOfPart(Found part) const;
  void Remember();
  CUresult EndInBooks(std::span<const HandleTable::Ended> ended, const HandleTable::Call& call);

  static constinit thread_local inline Whereabouts whereabouts_;

  HandleTable handles_;
  ExclusiveUses exclusive_;
  std::atomic<uint64_t> context_changes_{0};
  std::mutex user_objects_mutex_;
  std::map<uint64_t, Found> user_objects_;  // by the number of their destructor
  std::mutex kept_mutex_;
  std::multimap<std::pair<HandleKind, const void*>, std::shared_ptr<void>> kept_;
};

}  // namespace causeway::host
