// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/callbacks/callbacks.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "guest_lib/callbacks/callback_words.h"
#include "guest_lib/process/lock_order.h"
#include "guest_lib/process/log.h"
#include "guest_lib/process/own_thread.h"
#include "guest_lib/session/captures.h"
#include "guest_lib/stream/completion.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/messages/callback_messages.h"

namespace causeway::guest::callbacks {
namespace {

enum class Form { kHostFunction, kStreamCallback, kNotification };

struct Entry {
  Form form = Form::kHostFunction;
  Kind kind = Kind::kOnce;
  uint32_t references = 1;
  void (*function)() = nullptr;
  void* user_data = nullptr;
  void* handle = nullptr;     // the stream, or the notification's own handle
  Object* context = nullptr;  // in which it was enqueued
  uint32_t word = kNoCallbackWord;
  bool begun = false;  // of those that run once
};

// Never destroyed: the thread runs until the process is gone.
struct Table {
  // Held while a function runs: they come from two threads, and run one after the other.
  Mutex<Lock::kRunCallback> run_mutex;
  Mutex<Lock::kCallbacks> mutex;  // of all below
  ConditionVariable grown;
  std::map<uint64_t, Entry> entries;
  std::map<std::pair<void (*)(), void*>, uint64_t> nodes;  // Kind::kEach by what it runs
  uint64_t last_id = 0;
  bool channel_opened = false;
  bool thread_started = false;
};
Table& table = *new Table;  // never destroyed

// Finds what is to be run. False: it is gone, or runs or has run already. One that the GPU announces may be
// announced by the host as well, after an error.
bool Begin(uint64_t id, Entry* entry) {
  const std::lock_guard lock(table.mutex);
  const auto found = table.entries.find(id);
  if (found == table.entries.end() || found->second.begun) return false;
  found->second.begun = found->second.kind != Kind::kEach;
  *entry = found->second;
  return true;
}

// Runs one function of the program. What it does to the thread (locale, floating point) is its own affair.
void Run(const DueCallback& due) {
  const std::lock_guard one(table.run_mutex);
  Entry entry;
  if (!Begin(due.id, &entry)) return;
  ThisThread().contexts.assign(entry.context != nullptr ? 1 : 0, entry.context);
  // It sees what the work before it wrote, and the work after it sees what it writes.
  if (work::IsWatched()) work::managed_pages.exchange(/*read_compared=*/true);
  const Scope inside;
  ThisThread().in_function = true;
  switch (entry.form) {
    case Form::kHostFunction:
      reinterpret_cast<CUhostFn>(entry.function)(entry.user_data);
      break;
    case Form::kStreamCallback:
      reinterpret_cast<CUstreamCallback>(entry.function)(static_cast<CUstream>(entry.handle),
                                                         static_cast<CUresult>(due.status), entry.user_data);
      break;
    case Form::kNotification: {
      CUasyncNotificationInfo info{};
      info.type = static_cast<CUasyncNotificationType>(due.type);
      info.info.overBudget.bytesOverBudget = due.detail;
      reinterpret_cast<CUasyncCallback>(entry.function)(&info, entry.user_data,
                                                        static_cast<CUasyncCallbackHandle>(entry.handle));
      break;
    }
  }
  ThisThread().in_function = false;
  if (work::IsWatched()) work::managed_pages.exchange(/*read_compared=*/false);
  if (entry.kind != Kind::kEach) Release(due.id);
}

void RunAnnounced(uint64_t id) {
  Run({.id = id, .ticket = 0, .status = CUDA_SUCCESS, .type = 0, .detail = 0});
}

// The session is lost. Of what was enqueued, stream callbacks run also after an error.
void RunStreamCallbacks(CUresult error) {
  std::vector<uint64_t> ids;
  {
    const std::lock_guard lock(table.mutex);
    for (const auto& [id, entry] : table.entries) {
      if (entry.form == Form::kStreamCallback) ids.push_back(id);
    }
  }
  for (const uint64_t id : ids)
    Run({.id = id, .ticket = 0, .status = static_cast<uint32_t>(error), .type = 0, .detail = 0});
}

// One round trip, past all checks: callbacks also run after an error. False: the session is gone.
bool Ask(ClientTransport& transport, const AwaitCallbackBody& body, DueCallback* due) {
  constexpr size_t kBytes = sizeof(RecordHeader) + sizeof body;
  std::byte* record = transport.ReserveRequest(kCallbackChannel, kBytes);
  if (record == nullptr) return false;
  RecordHeader header{};
  header.op = static_cast<uint16_t>(Op::kAwaitCallback);
  PutHeader(record, header);
  std::memcpy(record + sizeof header, &body, sizeof body);
  transport.PublishRequest(kCallbackChannel, kBytes);
  const auto reply = transport.AwaitReply(kCallbackChannel, {.patient = true});
  if (reply.size() < sizeof header) return false;
  std::memcpy(&header, reply.data(), sizeof header);
  if (header.result != CUDA_SUCCESS) return false;
  Reader in(reply.subspan(sizeof header));
  *due = in.Get<DueCallback>();
  return in.ok();
}

void* ThreadMain(void*) {
  Session* session = Session::Get();
  if (session == nullptr) return nullptr;
  ClientTransport& transport = session->transport();
  constexpr uint32_t kFirstWaitMs = 100;
  uint32_t wait_ms = kFirstWaitMs;
  AwaitCallbackBody body{};
  for (;;) {
    {
      std::unique_lock lock(table.mutex);
      // With nothing registered there is nothing to ask for.
      if (body.done_ticket == 0) table.grown.wait(lock, [&] { return !table.entries.empty(); });
      body.wait_ms = table.entries.empty() ? 0 : wait_ms;
    }
    DueCallback due{};
    if (!Ask(transport, body, &due)) break;
    body.done_ticket = due.ticket;
    wait_ms = due.id != 0 ? kFirstWaitMs : std::min(2 * wait_ms, kMostCallbackWaitMs);
    if (due.id != 0) Run(due);
  }
  // As all calls answer from now on. At the end of the process none runs any more.
  if (Session::Get() != nullptr) RunStreamCallbacks(CUDA_ERROR_EXTERNAL_DEVICE);
  return nullptr;
}

bool StartThread() {
  const int failed = StartOwnThread(ThreadMain, true);
  if (failed != 0) Complain("no thread can be started for host callbacks: " + std::string(strerror(failed)));
  return failed == 0;
}

// The first use opens the channel and starts the thread. The caller holds the table's mutex.
CUresult Start() {
  if (Session::Get() == nullptr) return InitialisedOrError();
  if (!table.channel_opened) {
    PendingPost post(Op::kOpenChannel);
    post.writer().Put(OpenChannelBody{kCallbackChannel, 0});
    if (const CUresult result = post.Finish()) return result;
    table.channel_opened = true;
  }
  if (!table.thread_started && !StartThread()) return CUDA_ERROR_OPERATING_SYSTEM;
  table.thread_started = true;
  return CUDA_SUCCESS;
}

uint64_t Add(const Entry& entry, CUresult* error) {
  const std::lock_guard lock(table.mutex);
  const CUresult result = Start();
  if (error != nullptr) *error = result;
  if (result != CUDA_SUCCESS) return 0;
  const std::pair what{entry.function, entry.user_data};
  if (entry.kind == Kind::kEach && entry.form == Form::kHostFunction) {
    if (const auto known = table.nodes.find(what); known != table.nodes.end()) {
      ++table.entries[known->second].references;
      return known->second;
    }
    table.nodes[what] = table.last_id + 1;
  }
  Entry& added = table.entries[++table.last_id] = entry;
  added.context = CurrentContextObject();
  if (entry.kind == Kind::kInStream) in_streams.fetch_add(1);
  // Under the lock: the numbers that one word gets only grow.
  if (entry.kind == Kind::kInStream) added.word = callback_words::Take(table.last_id, &RunAnnounced);
  table.grown.notify_one();
  return table.last_id;
}

}  // namespace

uint64_t Register(CUhostFn function, void* user_data, Kind kind, CUresult* error) {
  Entry entry;
  entry.kind = kind;
  entry.function = reinterpret_cast<void (*)()>(function);
  entry.user_data = user_data;
  return Add(entry, error);
}

uint64_t RegisterStreamCallback(CUstreamCallback function, CUstream stream, void* user_data,
                                CUresult* error) {
  Entry entry;
  entry.form = Form::kStreamCallback;
  entry.kind = AnyCapture() ? Kind::kOnce : Kind::kInStream;
  entry.function = reinterpret_cast<void (*)()>(function);
  entry.user_data = user_data;
  entry.handle = stream;
  return Add(entry, error);
}

uint64_t RegisterNotification(CUasyncCallback function, void* user_data, CUasyncCallbackHandle handle,
                              CUresult* error) {
  Entry entry;
  entry.form = Form::kNotification;
  entry.kind = Kind::kEach;
  entry.function = reinterpret_cast<void (*)()>(function);
  entry.user_data = user_data;
  entry.handle = handle;
  return Add(entry, error);
}

uint32_t WordOf(uint64_t id) {
  const std::lock_guard lock(table.mutex);
  const auto found = table.entries.find(id);
  return found != table.entries.end() ? found->second.word : kNoCallbackWord;
}

bool AnnouncedInGraphs() {
  return callback_words::WatchesGraphs(&RunAnnounced);
}

void Release(uint64_t id) {
  const std::lock_guard lock(table.mutex);
  const auto found = table.entries.find(id);
  if (found == table.entries.end() || --found->second.references != 0) return;
  if (found->second.kind == Kind::kEach && found->second.form == Form::kHostFunction) {
    table.nodes.erase({found->second.function, found->second.user_data});
  }
  if (found->second.word != kNoCallbackWord) callback_words::Release(found->second.word, id);
  if (found->second.kind == Kind::kInStream) in_streams.fetch_sub(1);
  table.entries.erase(found);
}

bool Find(uint64_t id, CUhostFn* function, void** user_data) {
  const std::lock_guard lock(table.mutex);
  const auto found = table.entries.find(id);
  if (found == table.entries.end() || found->second.form != Form::kHostFunction) return false;
  *function = reinterpret_cast<CUhostFn>(found->second.function);
  *user_data = found->second.user_data;
  return true;
}

Scope::Scope() {
  ThisThread().in_callback = true;
}
Scope::~Scope() {
  ThisThread().in_callback = false;
}

}  // namespace causeway::guest::callbacks

using namespace causeway;
using namespace causeway::guest;

namespace {

bool IsCaptured(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

CUresult PostFunction(Op op, CUstream stream, uint64_t id, uint32_t word) {
  const ResolvedStream resolved(stream);
  const Submission submission = resolved.submission();
  PendingPost post(op, submission);
  Writer& w = post.writer();
  w.Put(HostFunctionBody{resolved.Put(w), id, word, 0});
  const CUresult result = post.Finish();
  if (result != CUDA_SUCCESS) callbacks::Release(id);
  Hurry();  // the program may wait for what the function does
  return result;
}

CUresult AddStreamCallback(CUstream stream, CUstream named, CUstreamCallback function, void* user_data,
                           unsigned int flags) {
  const WithContextOf scope(stream);
  if (const CUresult result = InitialisedOrError()) return result;
  if (function == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (CurrentContextObject() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  CUresult error = CUDA_SUCCESS;
  const uint64_t id = callbacks::RegisterStreamCallback(function, named, user_data, &error);
  return id != 0 ? PostFunction(Op::cuStreamAddCallback, stream, id, callbacks::WordOf(id)) : error;
}

}  // namespace

extern "C" {

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* user_data) {
  const WithContextOf scope(stream);
  if (const CUresult result = InitialisedOrError()) return result;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CurrentContextObject() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  CUresult error = CUDA_SUCCESS;
  // A captured function runs with every launch of the graph.
  const auto kind = AnyCapture() && IsCaptured(stream) ? callbacks::Kind::kEach : callbacks::Kind::kInStream;
  const uint64_t id = callbacks::Register(function, user_data, kind, &error);
  if (id == 0) return error;
  const bool in_graph = kind == callbacks::Kind::kEach && callbacks::AnnouncedInGraphs();
  return PostFunction(Op::cuLaunchHostFunc, stream, id,
                      in_graph ? kGraphCallbackWord : callbacks::WordOf(id));
}

// The driver tells null for the per-thread form's stream 0.
CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback function, void* user_data,
                             unsigned int flags) {
  const CUstream named = stream == CU_STREAM_PER_THREAD ? nullptr : stream;
  return AddStreamCallback(stream, named, function, user_data, flags);
}

}  // extern "C"
