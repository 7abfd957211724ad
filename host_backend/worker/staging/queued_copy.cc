// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/staging/queued_copy.h"

#include <cstddef>

#include "host_backend/worker/addresses/arenas.h"
#include "host_backend/worker/session/dispatcher.h"

namespace causeway::host {
namespace {

CUresult Make(CopyQueue* queue) {
  const Driver& driver = TheDriver();
  if (!HasAll(driver.cuStreamWaitEvent, driver.cuStreamBatchMemOp_v2, driver.cuStreamWriteValue64_v2)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  for (uint32_t i = 0; i < kQueueStreams; ++i) {
    CUresult result = driver.cuStreamCreate(&queue->stream[i], CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS) result = driver.cuEventCreate(&queue->event[i], CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

void Drop(const CopyQueue& queue) {
  for (CUstream stream : queue.stream) {
    if (stream != nullptr) TheDriver().cuStreamDestroy_v2(stream);
  }
  for (CUevent event : queue.event) {
    if (event != nullptr) TheDriver().cuEventDestroy_v2(event);
  }
}

struct Enqueued {
  QueuedPiece piece;
  HostSpan bytes;
};

// One piece of a record. False: it makes no sense.
bool TakePiece(Session& session, Request& request, Enqueued* each) {
  const QueuedPiece& piece = each->piece = request.in.Get<QueuedPiece>();
  if (!request.in.ok() || piece.bytes == 0 || piece.bytes > kBulkBytes) return false;
  each->bytes = session.part<Arenas>().ResolveOffset(piece.offset, piece.bytes);
  return each->bytes && piece.place < kQueuedPlaces && piece.stream < kQueueStreams;
}

// All of them, before the driver has any.
bool Take(Session& session, Request& request, uint32_t count, Enqueued (&pieces)[kMostQueued]) {
  bool ok = count <= kMostQueued;
  for (uint32_t i = 0; i < count && ok; ++i) ok = TakePiece(session, request, &pieces[i]);
  if (!ok) session.Breach("a piece of a queued copy lies outside of the session's memory");
  return ok;
}

CUresult WaitForTurn(CUdeviceptr place, uint64_t turn, CUstream stream) {
  CUstreamBatchMemOpParams wait{};
  wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  wait.waitValue.address = place + offsetof(QueuedPlace, turn);
  wait.waitValue.value64 = turn;
  wait.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;  // a session that ends writes the largest
  return TheDriver().cuStreamBatchMemOp_v2(stream, 1, &wait, 0);
}

CUresult Enqueue(Session& session, const Enqueued& each, CUdeviceptr device, bool to_device,
                 CUdeviceptr words, CUstream stream) {
  const Driver& driver = TheDriver();
  const QueuedPiece& piece = each.piece;
  const CUdeviceptr place = words + sizeof(QueuedPlace) * piece.place;
  if (piece.turn != 0) {
    if (const CUresult result = WaitForTurn(place, piece.turn, stream)) return result;
  }
  const HostSpan& bytes = each.bytes;
  const CUresult result = session.CopyAtOnce(to_device, bytes.bytes(), stream, false, [&] {
    return to_device ? driver.cuMemcpyHtoDAsync_v2(device, bytes.data(), bytes.bytes(), stream)
                     : driver.cuMemcpyDtoHAsync_v2(bytes.data(), device, bytes.bytes(), stream);
  });
  if (result != CUDA_SUCCESS) return result;
  return driver.cuStreamWriteValue64_v2(stream, place + offsetof(QueuedPlace, done), piece.done,
                                        CU_STREAM_WRITE_VALUE_DEFAULT);
}

CUresult Begin(const CopyQueue& queue, CUstream programs) {
  const Driver& driver = TheDriver();
  CUresult result = driver.cuEventRecord(queue.event[0], programs);
  for (uint32_t i = 0; i < kQueueStreams && result == CUDA_SUCCESS; ++i)
    result = driver.cuStreamWaitEvent(queue.stream[i], queue.event[0], 0);
  return result;
}

CUresult End(const CopyQueue& queue, CUstream programs) {
  const Driver& driver = TheDriver();
  CUresult result = CUDA_SUCCESS;
  for (uint32_t i = 0; i < kQueueStreams && result == CUDA_SUCCESS; ++i) {
    result = driver.cuEventRecord(queue.event[i], queue.stream[i]);
    if (result == CUDA_SUCCESS) result = driver.cuStreamWaitEvent(programs, queue.event[i], 0);
  }
  return result;
}

// How far the streams are; never waits.
CUresult Look(Session& session, CUcontext context, bool to_device) {
  CopyQueue queue;
  if (!session.part<CopyQueues>().Find(context, to_device, &queue)) return CUDA_SUCCESS;
  for (CUstream stream : queue.stream) {
    if (const CUresult result = TheDriver().cuStreamQuery(stream)) return result;
  }
  return CUDA_SUCCESS;
}

// Where the words of the direction's places are for the GPU.
CUresult FindWords(const Session& session, bool to_device, CUdeviceptr* words) {
  CallbackWords* all = session.part<Arenas>().callback_words();
  if (all == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const CUresult result = TheDriver().cuMemHostGetDevicePointer_v2(words, all, 0);
  *words += offsetof(CallbackWords, queued) + (to_device ? sizeof all->queued[0] : 0);
  return result;
}

// Makes the streams, and has the GPU wait for what is the case. Whatever fails: copies then go another way.
CUresult Prepare(Session& session, CUcontext context, bool to_device) {
  CopyQueue queue;
  CUdeviceptr words = 0;
  CUresult result = FindWords(session, to_device, &words);
  if (result == CUDA_SUCCESS) result = session.part<CopyQueues>().Get(context, to_device, &queue);
  for (uint32_t i = 0; i < kQueueStreams && result == CUDA_SUCCESS; ++i)
    result = WaitForTurn(words + sizeof(QueuedPlace) * i, 0, queue.stream[i]);
  return result == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

CUresult CopyQueues::Get(CUcontext context, bool to_device, CopyQueue* queue) {
  const std::lock_guard lock(mutex_);
  const auto found = queues_.find({context, to_device});
  if (found != queues_.end()) {
    *queue = found->second;
    return CUDA_SUCCESS;
  }
  const CUresult result = Make(queue);
  if (result == CUDA_SUCCESS) {
    queues_[{context, to_device}] = *queue;
  } else {
    Drop(*queue);
  }
  return result;
}

bool CopyQueues::Find(CUcontext context, bool to_device, CopyQueue* queue) {
  const std::lock_guard lock(mutex_);
  const auto found = queues_.find({context, to_device});
  if (found != queues_.end()) *queue = found->second;
  return found != queues_.end();
}

void CopyQueues::ContextEnds(CUcontext context) {
  const std::lock_guard lock(mutex_);
  std::erase_if(queues_, [&](const auto& entry) { return entry.first.first == context; });
}

CUresult Serve_kQueuedCopy(Session& session, Request& request) {
  const auto body = request.in.Get<QueuedCopyBody>();
  auto programs = session.objects().ToDriver<CUstream>(body.stream, request.in);
  // Not by its number, which may have become another context's since: the streams are made in the current one.
  CUcontext context = Objects::entered_context();
  if (!request.in.ok()) return request.in.error();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const bool to_device = body.to_device != 0;
  if (request.channel != kChannelCount) {
    return (body.flags & kQueueMakes) != 0 ? Prepare(session, context, to_device)
                                           : Look(session, context, to_device);
  }
  Enqueued pieces[kMostQueued];
  if (!Take(session, request, body.count, pieces)) return CUDA_ERROR_INVALID_VALUE;
  CUdeviceptr words = 0;
  if (const CUresult result = FindWords(session, to_device, &words)) return result;
  CopyQueue queue;
  CUresult result = session.part<CopyQueues>().Get(context, to_device, &queue);
  session.part<Dispatcher>().Settle();  // the program's stream may be one that does not wait for such copies
  if (const CUresult prepared = session.objects().Prepare()) return prepared;
  if (result == CUDA_SUCCESS && (body.flags & kQueueBegins) != 0) result = Begin(queue, programs);
  CUdeviceptr device = body.device;
  for (uint32_t i = 0; i < body.count && result == CUDA_SUCCESS; ++i) {
    result = Enqueue(session, pieces[i], device, to_device, words, queue.stream[pieces[i].piece.stream]);
    device += pieces[i].piece.bytes;
    session.CountCopied(to_device, pieces[i].piece.bytes);
  }
  if (result != CUDA_SUCCESS || (body.flags & kQueueEnds) == 0) return result;
  // Others may rely on a synchronous copy once it is posted.
  request.unsettled = to_device && programs == nullptr && !request.in_lane;
  return End(queue, programs);
}

}  // namespace causeway::host
