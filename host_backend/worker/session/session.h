// SPDX-License-Identifier: Apache-2.0
// One guest process as its worker sees it: what serves it, and what belongs to it. A session is put together
// of classes of one subject each. Its objects are here; its main link (Dispatcher), its channels, its blobs
// and what folders above this one keep for it are its parts, which it owns and knows by name alone
// (api/dispatch.cc makes them). Everything a message names is looked up in one of these first; nothing the
// guest sends is used as an address before it was found inside the session's own memory.
//
// Threads: the dispatcher and its lanes (host_backend/worker/process/lanes.h), one thread per opened channel.
// What is public may be called from any of them.
#pragma once
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "host_backend/worker/driver/driver.h"
#include "host_backend/worker/driver/logs.h"
#include "host_backend/worker/objects/objects.h"
#include "host_backend/worker/process/call_counter.h"
#include "host_backend/worker/process/output.h"
#include "host_backend/worker/session/device_gates.h"
#include "ivshmem_ring/messages/session_messages.h"
#include "ivshmem_ring/transport/transport.h"

namespace causeway::host {

class Arenas;
class Blobs;
class Callbacks;
class Channels;
class CopyQueues;
class DaemonLink;
class DeviceResources;
class Dispatcher;
class HostRanges;
struct Primaries;

// One message while it is served.
struct Request {
  const RecordPrefix& header;
  Reader& in;
  Writer& out;                       // body of the reply; empty space for posted records
  uint32_t channel = kChannelCount;  // kChannelCount: main link
  std::span<std::byte> bulk;         // lent by the guest, validated
  uint32_t bulk_written = 0;
  bool in_lane = false;    // a posted record that another thread than the dispatcher executes
  bool staged = false;     // its reply may be sent when the device is done (deferred_replies.h),
  CUevent done = nullptr;  // which this event tells
  bool unsettled = false;  // a posted copy that others may rely on, and that may not be done yet
  bool is_over = false;    // all work of its stream is known to be done
};

// What a session is put together of. It ends with the session, after all threads that serve it.
class SessionPart {
 public:
  virtual ~SessionPart() = default;
  // Ends all waits that this part makes a thread or the GPU do, now and later. Any thread may call it again.
  virtual void Stop() {}
  // The driver has ended the context, on the calling thread.
  virtual void ContextEnds(CUcontext) {}
  // Waits for threads of this part, which may use the others. Called once, after Stop, and before any part is
  // destroyed; those that execute requests are the first parts, so that no others need to expect requests here.
  virtual void Join() {}
};

class Session {
 public:
  using Handler = CUresult (*)(Session&, Request&);
  // `handlers`: by opcode, null where there is none; they outlive the session.
  Session(std::unique_ptr<ServerTransport> transport, std::span<const Handler> handlers);
  ~Session();

  // Before it serves. Parts are told in the order in which they came.
  template <class Part>
  void Own(std::shared_ptr<Part> part) {
    std::get<Part*>(parts_) = part.get();
    owned_.push_back(std::move(part));
  }
  template <class Part>
  Part& part() const {
    return *std::get<Part*>(parts_);
  }

  // Ends Dispatcher::Run, and every wait, now and later.
  void Stop();
  bool stopped() const { return stop_.load(std::memory_order_acquire); }
  // Why the session ended, in one sentence; empty if the guest ended it.
  std::string reason();

  // Executes the request on the calling thread. What it uses stays until Objects::EndRequest, which comes
  // when its caller has the answer; before that more requests may be executed.
  CUresult Execute(Request& request);
  // Tells the parts.
  void ContextEnds(CUcontext context);

  Objects& objects() { return objects_; }
  const Objects& objects() const { return objects_; }
  // Where requests that submit work wait for the turn of their VM.
  DeviceGates& gates() { return gates_; }
  // A copy of so many bytes between host and device in that stream, for its VM's part of the link: `copy` gives the driver
  // a piece, from one byte on so many. `waits`: the piece is copied when `copy` returns.
  template <class Copy>
  CUresult CopyInPieces(bool to_device, uint64_t bytes, CUstream stream, bool waits, Copy copy) {
    const uint32_t direction = to_device ? kToDevice : kToHost;
    for (uint64_t at = 0;;) {
      const uint64_t piece = gates_.EnterLink(direction, bytes - at, false, stream, stop_);
      if (piece == 0 && bytes != 0) return CUDA_ERROR_DEINITIALIZED;
      const CUresult result = copy(at, piece);
      gates_.LeaveLink(direction, piece, stream, waits || result != CUDA_SUCCESS);
      at += piece;
      if (result != CUDA_SUCCESS || at >= bytes) return result;
    }
  }
  // The same for a copy that goes at once.
  template <class Copy>
  CUresult CopyAtOnce(bool to_device, uint64_t bytes, CUstream stream, bool waits, Copy copy) {
    const uint32_t direction = to_device ? kToDevice : kToHost;
    if (gates_.EnterLink(direction, bytes, true, stream, stop_) < bytes) return CUDA_ERROR_DEINITIALIZED;
    const CUresult result = copy();
    gates_.LeaveLink(direction, bytes, stream, waits || result != CUDA_SUCCESS);
    return result;
  }
  // What kernels have printed, and what the driver has logged.
  Output& output() { return output_; }
  Logs& logs() { return logs_; }
  // Null where nothing is shared with other processes: in tests.
  DaemonLink* daemon() const { return daemon_; }
  void set_daemon(DaemonLink* daemon) { daemon_ = daemon; }
  bool shares_memory() const { return transport_->shares_memory(); }

  // What no guest library does: counted, named in the log, and the end of the session. Not under a lock of
  // the session's.
  void Violation(const std::string& what);
  // Ends the session for a reason that is not its guest's fault; the first reason counts.
  void Fail(const std::string& reason);
  // The same, as what a handler returns.
  CUresult Breach(const std::string& what) {
    Violation(what);
    return CUDA_ERROR_INVALID_VALUE;
  }

  // For the session's figures; it is the guest that says how many.
  void CountCopied(bool to_device, uint64_t bytes) {
    (to_device ? copied_to_device : copied_to_host).fetch_add(bytes, std::memory_order_relaxed);
  }

  CallCounter calls;
  std::atomic<uint64_t> violations{0};
  std::atomic<uint64_t> errors{0};            // calls that failed
  std::atomic<uint64_t> copied_to_device{0};  // bytes, as the guest names them
  std::atomic<uint64_t> copied_to_host{0};

 private:
  const std::unique_ptr<ServerTransport> transport_;
  const std::span<const Handler> handlers_;
  Objects objects_;
  DeviceGates gates_;
  Output output_;
  Logs logs_;
  DaemonLink* daemon_ = nullptr;
  std::tuple<Arenas*, Blobs*, Callbacks*, Channels*, CopyQueues*, DeviceResources*, Dispatcher*, HostRanges*,
             Primaries*>
      parts_{};
  std::mutex reason_mutex_;
  std::string reason_;
  alignas(kHotBytes) std::atomic<bool> stop_{false};
  std::vector<std::shared_ptr<SessionPart>> owned_;  // last: their threads use all the rest
};

// Handlers written by hand, each beside its subject.
#define CAUSEWAY_HANDLER(name) CUresult Serve_##name(Session& session, Request& request)
#define OPERATION(name, ...) CAUSEWAY_HANDLER(name);
#include "ivshmem_ring/operations.def"
#define CUSTOM(fn, ...) CAUSEWAY_HANDLER(fn);
#include "ivshmem_ring/calls.def"

}  // namespace causeway::host
