// SPDX-License-Identifier: Apache-2.0
// The execution engine: queues, threads and the ordering between streams.
#include "tests/software_gpu/stream.h"

#include <pthread.h>

#include <map>
#include <thread>

#include "tests/software_gpu/config.h"
#include "tests/software_gpu/faults.h"
#include "tests/software_gpu/graph.h"
#include "tests/software_gpu/stream_handles.h"

namespace causeway::software_gpu {
namespace {

std::atomic<uint64_t> next_stream_id{7};
thread_local int per_thread_default_depth = 0;

// The calling thread's own streams, one for each context it used; closed when the thread ends.
struct ThreadStreams {
  std::map<Context*, StreamRef> by_context;
  ~ThreadStreams() {
    for (auto& entry : by_context) entry.second->Close();
  }
};
thread_local ThreadStreams thread_streams;

StreamRef LegacyStream(const ContextRef& context) {
  std::lock_guard lock(context->order_mutex);
  if (context->legacy_stream == nullptr) {
    context->legacy_stream = std::make_shared<Stream>(context, Stream::Kind::kLegacy, 0, 0);
    context->legacy_stream->handle = CU_STREAM_LEGACY;
  }
  return context->legacy_stream;
}

StreamRef PerThreadStream(const ContextRef& context) {
  StreamRef& stream = thread_streams.by_context[context.get()];
  bool usable = stream != nullptr && stream->context.lock() == context && !stream->IsClosed();
  if (!usable) {
    stream = std::make_shared<Stream>(context, Stream::Kind::kPerThread, 0, 0);
    stream->handle = CU_STREAM_PER_THREAD;
    std::lock_guard lock(context->order_mutex);
    context->all_streams.push_back(stream);
  }
  return stream;
}

void AddIfPending(const CompletionRef& completion, std::vector<CompletionRef>* list) {
  if (completion != nullptr && !completion->IsDone()) list->push_back(completion);
}

// Caller holds order_mutex. What an operation on `stream` must wait for in other streams of the context.
void AddLegacyDependencies(Context& context, const Stream& stream, std::vector<CompletionRef>* after) {
  if (stream.kind == Stream::Kind::kLegacy) {
    std::erase_if(context.all_streams, [&](const std::weak_ptr<Stream>& weak) {
      StreamRef other = weak.lock();
      if (other != nullptr && other->IsBlocking()) AddIfPending(other->Last(), after);
      return other == nullptr;
    });
  } else if (stream.IsBlocking() && context.legacy_stream != nullptr) {
    AddIfPending(context.legacy_stream->Last(), after);
  }
}

}  // namespace

Registry<CUstream, Stream>& Streams() {
  static auto* streams = new Registry<CUstream, Stream>;
  return *streams;
}

void Completion::Finish() {
  finished_at_ = std::chrono::steady_clock::now();
  done_.store(true, std::memory_order_release);
  done_.notify_all();
}

void Completion::Wait() const {
  done_.wait(false, std::memory_order_acquire);
}

Stream::Stream(const ContextRef& stream_context, Kind stream_kind, unsigned stream_flags, int stream_priority)
    : context(stream_context),
      kind(stream_kind),
      flags(stream_flags),
      priority(stream_priority),
      id(next_stream_id.fetch_add(1)) {}

void Stream::Append(Work work) {
  last_ = work.done;
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(work));
  if (!thread_started_) {
    thread_started_ = true;
    // The thread owns a reference: a destroyed stream still finishes its work.
    std::thread([self = shared_from_this()] { self->RunQueue(); }).detach();
  }
  changed_.notify_all();
}

void Stream::WaitForRoom() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.size() < kMaxQueuedOperations; });
}

void Stream::Close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

bool Stream::IsClosed() {
  std::lock_guard lock(mutex_);
  return closed_;
}

void Stream::RunQueue() {
  while (true) {
    Work work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !queue_.empty() || closed_; });
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
      if (queue_.size() + 1 == kMaxQueuedOperations) changed_.notify_all();
    }
    WaitAll(work.after);
    work.run();
    work.run = nullptr;  // what the operation held is released before its end is announced
    work.done->Finish();
  }
}

ScopedPerThreadDefault::ScopedPerThreadDefault() {
  ++per_thread_default_depth;
}
ScopedPerThreadDefault::~ScopedPerThreadDefault() {
  --per_thread_default_depth;
}

StreamRef FindStream(const ContextRef& context, CUstream handle) {
  if (handle == nullptr) {
    return per_thread_default_depth != 0 ? PerThreadStream(context) : LegacyStream(context);
  }
  if (handle == CU_STREAM_LEGACY) return LegacyStream(context);
  if (handle == CU_STREAM_PER_THREAD) return PerThreadStream(context);
  return Streams().Find(handle);
}

CompletionRef Enqueue(const StreamRef& stream, std::function<void()> run, std::vector<CompletionRef> extra,
                      bool always) {
  auto done = std::make_shared<Completion>();
  ContextRef context = stream->context.lock();
  if (context == nullptr) {
    done->Finish();
    return done;
  }
  stream->WaitForRoom();
  std::unique_lock lock(context->order_mutex);
  std::vector<CompletionRef> after;
  for (const CompletionRef& completion : extra) AddIfPending(completion, &after);
  AddLegacyDependencies(*context, *stream, &after);
  auto guarded = [run = std::move(run), always] {
    if (always || StickyError() == CUDA_SUCCESS) run();
  };
  if (!GetConfig().work_in_calls) {
    stream->Append({std::move(guarded), std::move(after), done});
    return done;
  }
  lock.unlock();
  WaitAll(after);
  guarded();
  done->Finish();
  return done;
}

std::vector<CompletionRef> PendingOn(const StreamRef& stream) {
  std::vector<CompletionRef> pending;
  ContextRef context = stream->context.lock();
  if (context == nullptr) return pending;
  std::lock_guard lock(context->order_mutex);
  AddIfPending(stream->Last(), &pending);
  AddLegacyDependencies(*context, *stream, &pending);
  return pending;
}

void WaitAll(const std::vector<CompletionRef>& completions) {
  for (const CompletionRef& completion : completions) completion->Wait();
}

void SynchronizeContext(Context& context) {
  std::vector<CompletionRef> pending;
  {
    std::lock_guard lock(context.order_mutex);
    if (context.legacy_stream != nullptr) AddIfPending(context.legacy_stream->Last(), &pending);
    for (const auto& weak : context.all_streams) {
      if (StreamRef stream = weak.lock()) AddIfPending(stream->Last(), &pending);
    }
  }
  WaitAll(pending);
  FlushDeviceOutput();
}

void SynchronizeDevice() {
  ForEachLiveContext([](const ContextRef& context) { SynchronizeContext(*context); });
}

CUresult SynchronizeContextFromApi(Context& context) {
  if (CUresult refused = RefuseWhileContextCaptures(context); refused != CUDA_SUCCESS) return refused;
  SynchronizeContext(context);
  return StickyError();
}

CUresult SynchronizeStream(const StreamRef& stream) {
  WaitAll(PendingOn(stream));
  FlushDeviceOutput();
  return StickyError();
}

void CloseStreamsOf(Context& context) {
  std::vector<StreamRef> closing;
  {
    std::lock_guard lock(context.order_mutex);
    if (context.legacy_stream != nullptr) closing.push_back(std::move(context.legacy_stream));
    context.legacy_stream = nullptr;
    for (const auto& weak : context.all_streams) {
      if (StreamRef stream = weak.lock()) closing.push_back(std::move(stream));
    }
    context.all_streams.clear();
  }
  for (const StreamRef& stream : closing) {
    Streams().Remove(stream->handle, false);
    stream->Close();
  }
}

}  // namespace causeway::software_gpu
