// SPDX-License-Identifier: Apache-2.0
// One guest process as its worker sees it: transport, handles, memory, printed text. Everything a message
// names is looked up here first; nothing the guest sends is used as an address before it was found inside the
// session's own memory. Threads: the dispatcher (main link) and its lanes
// (host_backend/worker/process/lanes.h), one thread per opened channel.
#pragma once
#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "host_backend/common/account_page.h"
#include "host_backend/worker/addresses/host_span.h"
#include "host_backend/worker/device/device_resources.h"
#include "host_backend/worker/driver/driver.h"
#include "host_backend/worker/process/call_counter.h"
#include "host_backend/worker/process/exclusive.h"
#include "host_backend/worker/process/lanes.h"
#include "host_backend/worker/process/output.h"
#include "host_backend/worker/session/deferred_replies.h"
#include "host_backend/worker/session/handles.h"
#include "host_backend/worker/session/logs.h"
#include "host_backend/worker/staging/queued_copy.h"
#include "host_backend/worker/stream/callbacks.h"
#include "ivshmem_ring/messages/address_windows.h"
#include "ivshmem_ring/messages/session_messages.h"
#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/transport.h"

namespace causeway::host {

class DaemonLink;

inline constexpr uint64_t kBlobEnd = 64;  // zeros behind every blob

// One message while it is served.
struct Request {
  const RecordHeader& header;
  Reader& in;
  Writer& out;                       // body of the reply; empty space for posted records
  uint32_t channel = kChannelCount;  // kChannelCount: main link
  std::span<std::byte> bulk;         // lent by the guest, validated
  uint32_t bulk_written = 0;
  bool in_lane = false;    // a posted record that another thread than the dispatcher executes
  bool staged = false;     // a piece of a copy (host_backend/worker/session/deferred_replies.h),
  CUevent done = nullptr;  // whose reply waits for this
  bool unsettled = false;  // a posted copy that others may rely on, and that may not be done yet
};

struct RegionView {
  std::byte* base = nullptr;  // control part (granule 0 and slots), mapped by the worker
  int fd = -1;
  uint64_t bytes = 0;
  uint64_t window_address = 0;  // where slices are mapped
  uint32_t slot = 0;
};

// Whether every granule of the range is the slot's by the owner table, each entry read once.
bool OwnsGranules(const RegionView& region, uint64_t offset, uint64_t bytes);

// The primary contexts that the guest holds, by device: one at a time is made or ended, and each has one
// number as long as the session lasts.
struct Primaries {
  std::mutex mutex;
  std::map<CUdevice, CUcontext> held;
  std::map<CUdevice, WireHandle> numbers;
};

class Session {
 public:
  Session(std::unique_ptr<ServerTransport> transport, RegionView region);
  ~Session();

  // Serves until the guest ends, breaks the format, or Stop(). Returns the reason in one sentence.
  std::string Serve();
  void Stop();

  // Executes the request on the calling thread. What it uses stays until EndRequest, which comes when its
  // caller has the answer; before that more requests may be executed.
  CUresult Execute(Request& request);
  void EndRequest() { handles_.EndRequest(); }

  // The policy that Shape::Serve needs. What a request names stays until it ends.
  void* ToDriver(HandleKind kind, WireHandle wire, Reader& r);
  // The same for an object that the call ends.
  void* ToEnd(HandleKind kind, WireHandle wire, Reader& r);
  // After all that a request names, before the driver's call: what of it the driver lets one thread use at a
  // time is the request's alone from here until it is executed.
  CUresult Prepare();
  // Ends the object, named by ToDriver before, with the driver's `call` (HandleTable::EndObject). Whatever
  // `call` refers to must outlive the request.
  CUresult End(HandleKind kind, WireHandle wire, const void* value, HandleTable::Call call);
  // The handle that the driver's object has; 0 if none.
  WireHandle Known(HandleKind kind, void* value) const {
    return value != nullptr ? handles_.Reverse(kind, value) : 0;
  }
  // The handle that the driver's object has; if none, `fresh` becomes it. 0 for null.
  WireHandle BindOrKnown(HandleKind kind, WireHandle fresh, void* value, Writer& w);
  void Bind(HandleKind kind, WireHandle wire, void* value, Writer& w);
  // The same for an object whose owner is no argument of the call.
  WireHandle BindOrKnownTo(Found parent, HandleKind kind, WireHandle fresh, void* value, Writer& w);
  // The handle that the driver's object has; 0 if none.
  WireHandle Known(HandleKind kind, const void* value) const {
    return handles_.Reverse(kind, const_cast<void*>(value));
  }
  // From now on the object ends with `parent`.
  void Adopt(Found object, Found parent) { handles_.Adopt(object, parent); }
  // Of an object that the driver has ended by itself.
  void Unbind(WireHandle wire) { handles_.Unbind(wire); }
  // A primary context that was released or reset lives on as a number, what was in it does not.
  CUresult EndContents(WireHandle context, const HandleTable::Call& call);
  // The request asks for the graph of a capture, or ends one: one at a time does.
  void NameCapture();
  // The number of a graph that is being captured: it ends with the stream where that began, unless it was
  // there before and has one.
  WireHandle BindCaptured(WireHandle fresh, CUgraph graph, Writer& w);
  // The same of one that was captured: from now on it ends with nothing.
  WireHandle ReleaseCaptured(WireHandle fresh, CUgraph graph, Writer& w);
  // The stream's capture is over; what it made remembers what was used meanwhile.
  void CaptureEnds(CUstream stream);
  Found ParentOf(Found object) const { return handles_.ParentOf(object); }
  std::vector<WireHandle> All(HandleKind kind) const { return handles_.All(kind); }
  // Threads remember which context they set; a change here makes them set it again.
  uint64_t context_changes() const { return context_changes_.load(std::memory_order_acquire); }
  void NoteContextChange() { context_changes_.fetch_add(1, std::memory_order_release); }
  // Null if not alive; else it stays until the request ends.
  void* Find(HandleKind kind, WireHandle wire) { return handles_.Use(kind, wire); }

  // Once, before anything is mapped for the guest: from now on slices lie there, and nothing else will.
  CUresult ReserveWindow(uint64_t address);
  // Region memory of the session (host_backend/worker/addresses/arenas.cc).
  CUresult AddArena(uint64_t offset, uint64_t bytes, MemoryKind kind);
  CUresult DropArena(uint64_t offset, uint64_t bytes);
  // Registrations end with the context that made them. They are made again in another one, at once or as soon
  // as there is one.
  CUresult ContextBegins(CUcontext context, WireHandle wire);
  // The guest takes over from the worker. False: nothing was left to take.
  bool TakeWarmContext();
  void ContextEnds(CUcontext context);
  // The slot's words for callbacks; null unless the GPU can read and write them.
  CallbackWords* callback_words() const {
    return callback_words_ready_.load(std::memory_order_acquire) ? CallbackWordsOfSlot() : nullptr;
  }
  // Whatever the GPU waits for by these words, now and later, counts as done.
  void ReleaseCallbackWords() const;
  // Memory of the guest process itself, backed by region pages
  // (host_backend/worker/host_register/host_register.cc).
  CUresult RegisterHost(const RegisterBody& body, uint64_t* device_address);
  CUresult UnregisterHost(uint64_t address);
  // The mapped bytes of [offset, offset + bytes), or none unless one arena holds them all.
  HostSpan ResolveOffset(uint64_t offset, uint64_t bytes) const;
  // The same for an address, as messages name pinned memory: in the window, or inside one registration.
  HostSpan ResolveAddress(uint64_t address, uint64_t bytes) const;

  // Blobs belong to the channel that sends them.
  std::vector<std::byte>& blob(uint32_t channel) { return blobs_[channel]; }
  // Those of all channels together stay below kMaxBlobBytes. False: no room.
  bool TakeBlobRoom(uint64_t bytes);
  void ReturnBlobRoom(uint64_t bytes) { blob_bytes_.fetch_sub(bytes); }

  // The blob of a request, from its bulk buffer or of what its channel sent before, with zeros after its
  // `bytes`: text ends in one, and the driver may read a word past its end.
  std::shared_ptr<std::vector<std::byte>> TakeBlob(const Request& request, uint64_t* bytes);
  // What a call leaves on its channel for kFetchBlob; gone with the channel's next one.
  std::vector<std::byte>& left_blob(uint32_t channel) { return left_blobs_[channel]; }

  // What must live as long as an object of the driver's: the image of a library, the log buffers of a link.
  // Before the object is bound, so that who finds it finds this. What its number had before lives on: the
  // object may, too.
  void Keep(WireHandle object, std::shared_ptr<void> what);
  std::shared_ptr<void> Kept(WireHandle object);
  // Of a number that has meanwhile become another object's, only what was this one's.
  void Drop(WireHandle object, const std::shared_ptr<void>& what);

  // The result of the posted record of that sequence, told once.
  CUresult TakePostedResult(uint64_t sequence);

  // The dispatcher waits for posted copies that were made and not waited for yet; `or_more`: or until another
  // record is there.
  void Settle(bool or_more = false);

  void OpenChannel(uint32_t channel);
  Output& output() { return output_; }
  Callbacks& callbacks() { return *callbacks_; }
  Primaries& primaries() { return primaries_; }
  DeviceResources& resources() { return resources_; }
  CopyQueues& copy_queues() { return copy_queues_; }
  // Null where nothing is shared with other processes: in tests.
  DaemonLink* daemon() const { return daemon_; }
  void set_daemon(DaemonLink* daemon) { daemon_ = daemon; }
  Logs& logs() { return logs_; }
  const RegionView& region() const { return region_; }
  uint64_t live_handles() const { return handles_.live(); }

  // User objects end without a call: when their destructor is due, which the guest knows by the number it
  // gave it.
  void NoteUserObject(uint64_t callback, WireHandle object);
  void EndUserObject(uint64_t callback);
  bool shares_memory() const { return transport_->shares_memory(); }

  // What no guest library does: counted, named in the log, and the end of the session. Not under a lock of
  // Session's.
  void Violation(const std::string& what);
  // Ends the session for a reason that is not its guest's fault; the first reason counts.
  void Fail(const std::string& reason);
  // The same, as what a handler returns.
  CUresult Breach(const std::string& what) {
    Violation(what);
    return CUDA_ERROR_INVALID_VALUE;
  }

  CallCounter calls;
  std::atomic<uint64_t> violations{0};

 private:
  void Dispatch();
  // Gives the record to a lane if that is wanted and can be.
  enum class Handed { kNo, kYes, kStopped };
  Handed Hand(const RecordHeader& header, std::span<const std::byte> record);
  void ExecuteInLane(std::span<const std::byte> record);
  void NoteFailedPost(const RecordHeader& header, CUresult result);
  void ServeChannel(uint32_t channel);
  // Sends the replies of pieces that are done, until there is a request to serve or, if `all`, none is left.
  // False: the session stops.
  bool AnswerPieces(uint32_t channel, StagedPieces& pieces, bool all);
  bool PutReply(uint32_t channel, const RecordHeader& reply, std::span<const std::byte> body);
  void NoteText(RecordHeader* reply);
  bool WaitForMain(const RecordHeader& request);
  void LogFailedPost(uint16_t op, CUresult result);
  // Keeps the failure of a posted record whose caller will ask for it. False: nobody will.
  bool KeepPostedResult(const RecordHeader& header, CUresult result);
  std::atomic<uint32_t> failed_posts_{0};
  uint32_t unsettled_ = 0;  // copies; the dispatcher's
  RecordHeader last_unsettled_ = {};

  std::unique_ptr<ServerTransport> transport_;
  RegionView region_;
  HandleTable handles_;
  ExclusiveUses exclusive_;
  Output output_;
  Logs logs_;
  std::mutex user_objects_mutex_;
  std::map<uint64_t, WireHandle> user_objects_;  // by the number of their destructor
  const std::shared_ptr<Callbacks> callbacks_ = std::make_shared<Callbacks>();
  Primaries primaries_;
  std::mutex pools_mutex_;
  std::set<void*> made_pools_;  // by the guest: the driver's own never end
  DeviceResources resources_;
  CopyQueues copy_queues_;
  DaemonLink* daemon_ = nullptr;
  std::vector<std::byte> blobs_[kChannelCount];
  std::vector<std::byte> left_blobs_[kChannelCount];
  std::vector<std::byte> reply_bodies_[kChannelCount];  // of one channel's thread each
  std::atomic<uint64_t> blob_bytes_{0};
  std::atomic<uint64_t> context_changes_{0};
  Found OwnerOf(HandleKind kind) const;
  Found OwnerOfPart(Found part) const;
  void Remember();

  // Main records that were executed or handed to a lane; released in Dispatch, acquired in WaitForMain. On a
  // line of its own: it changes while other threads look at the rest.
  alignas(kHotBytes) std::atomic<uint64_t> dispatched_{0};
  alignas(kHotBytes) std::atomic<bool> stop_{false};
  std::mutex threads_mutex_;
  std::vector<std::thread> threads_;
  std::thread first_registration_;  // of the first AddArena
  uint64_t opened_channels_ = 0;
  std::mutex reason_mutex_;
  std::string reason_;

  std::mutex posted_results_mutex_;
  std::map<uint64_t, CUresult> posted_results_;  // failures alone

  // Registering, and above all its end, may wait for the device: who looks addresses up must not wait with
  // it, nor who needs an arena with one who ends something else. Each map changes under its own mutex and
  // arenas_mutex_, taken in this order.
  std::mutex memory_change_mutex_;  // arenas_
  std::mutex host_change_mutex_;    // host_ranges_
  mutable std::shared_mutex arenas_mutex_;
  struct Arena {
    uint64_t bytes;
    CUcontext context;  // in which it is registered; null: in none
    bool leaving = false;
  };
  std::atomic<bool> agreed_{false};   // on the window; set under memory_change_mutex_
  uint32_t refused_windows_ = 0;      // guarded by memory_change_mutex_
  bool TakeWindow(uint64_t address);  // the caller holds memory_change_mutex_
  Window SlicesAt(uint64_t offset, uint64_t bytes) const {
    return {region_.window_address + offset, region_.window_address + offset + bytes};
  }
  CUresult UnregisterArena(void* address);
  bool MayRegister(const RegisterBody& body);
  bool has_arenas_ = false;  // or had; guarded by memory_change_mutex_
  void RegisterFirst(Window range);
  CUresult RestoreRegistrations();  // the caller holds memory_change_mutex_
  struct KnownContext {
    CUcontext context;
    WireHandle wire;
  };
  std::vector<KnownContext> contexts_;  // guarded by memory_change_mutex_; each may be ending
  CUcontext AnyContext();               // that stays until the request ends; null: there is none
  CUresult Register(uint64_t offset, Arena* arena);
  std::map<uint64_t, Arena> arenas_;  // by offset
  std::mutex kept_mutex_;
  std::multimap<WireHandle, std::shared_ptr<void>> kept_;
  struct HostRange {
    uint64_t bytes;
  };
  std::map<uint64_t, HostRange> host_ranges_;  // by the guest's address; guarded by arenas_mutex_
  uint64_t host_range_bytes_ = 0;              // mapped for them
  uint32_t host_collisions_ = 0;               // refused because of the worker's own; by host_change_mutex_

  CallbackWords* CallbackWordsOfSlot() const {
    return reinterpret_cast<CallbackWords*>(region_.base + SlotOffset(region_.slot) + kCallbackWordsOffset);
  }
  CUresult RegisterAt(void* address, Arena* arena, CUdeviceptr* on_device = nullptr);
  void RegisterCallbackWords();                        // the caller holds memory_change_mutex_
  Arena words_arena_{sizeof(CallbackWords), nullptr};  // guarded by memory_change_mutex_
  std::atomic<bool> callback_words_ready_{false};

  Lanes lanes_;  // last: its threads use all the rest
};

// The primary context of device 0 that the worker made before it had a guest; null once the guest holds it
// instead.
extern std::atomic<CUcontext> warm_context;

// The context and capture mode of the calling thread follow the message. 0, or the error that the call gets.
CUresult EnterCallerState(Session& session, const RecordHeader& header);

// Runs the handler of an opcode (host_backend/worker/api/dispatch.cc).
CUresult ServeRecord(Session& session, Request& request);

// Handlers written by hand: context.cc, memory.cc, module.cc, function.cc, linker.cc, launch.cc, graph.cc,
// tensor_map.cc, open.cc.
#define CAUSEWAY_HANDLER(name) CUresult Serve_##name(Session& session, Request& request)
CAUSEWAY_HANDLER(kOpen);
CAUSEWAY_HANDLER(kOpenChannel);
CAUSEWAY_HANDLER(kAddArena);
CAUSEWAY_HANDLER(kDropArena);
CAUSEWAY_HANDLER(kBeginBlob);
CAUSEWAY_HANDLER(kAppendBlob);
CAUSEWAY_HANDLER(kFetchOutput);
CAUSEWAY_HANDLER(kCopyToDevice);
CAUSEWAY_HANDLER(kCopyToHost);
CAUSEWAY_HANDLER(kDescribeFunction);
CAUSEWAY_HANDLER(kDrainDevice);
CAUSEWAY_HANDLER(kAwaitCallback);
CAUSEWAY_HANDLER(kFetchBlob);
CAUSEWAY_HANDLER(kAgreeOnAddresses);
CAUSEWAY_HANDLER(kFindManaged);
CAUSEWAY_HANDLER(kWriteManaged);
CAUSEWAY_HANDLER(kReadManaged);
CAUSEWAY_HANDLER(kPostedResult);
CAUSEWAY_HANDLER(kUnsafeCall);
CAUSEWAY_HANDLER(kMark);
CAUSEWAY_HANDLER(kQueuedCopy);
CAUSEWAY_HANDLER(kDropShared);
CAUSEWAY_HANDLER(kRegisterHost);
CAUSEWAY_HANDLER(kUnregisterHost);
#define CUSTOM(fn) CAUSEWAY_HANDLER(fn);
#include "ivshmem_ring/calls.def"

}  // namespace causeway::host
