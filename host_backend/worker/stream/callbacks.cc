// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/stream/callbacks.h"

#include <algorithm>
#include <chrono>

#include "host_backend/worker/addresses/arenas.h"
#include "host_backend/worker/driver/host_nodes.h"

namespace causeway::host {
namespace {

// What nobody waits for may pile up when the guest's callback is slow; more than this a program cannot own.
constexpr size_t kMostDue = kMaxHandles;

// The driver calls with a number alone, also after its session is gone.
std::mutex current_mutex;
std::weak_ptr<Callbacks>& Current() {
  static auto* current = new std::weak_ptr<Callbacks>;  // the driver may call until the very end
  return *current;
}

std::shared_ptr<Callbacks> CurrentCallbacks() {
  const std::lock_guard lock(current_mutex);
  return Current().lock();
}

}  // namespace

void SetCurrentCallbacks(const std::shared_ptr<Callbacks>& callbacks) {
  const std::lock_guard lock(current_mutex);
  Current() = callbacks;
}

void Callbacks::Run(uint64_t id, CUresult status) {
  std::unique_lock lock(mutex_);
  if (stopped_ || id == 0) return;
  const uint64_t ticket = ++last_ticket_;
  running_.insert(ticket);
  due_.push_back({id, ticket, static_cast<uint32_t>(status), 0, 0});
  due_changed_.notify_one();
  done_changed_.wait(lock, [&] { return stopped_ || !running_.contains(ticket); });
}

void Callbacks::Announce(DueCallback due) {
  const std::lock_guard lock(mutex_);
  if (stopped_ || due.id == 0 || due_.size() >= kMostDue) return;
  due.ticket = 0;
  due_.push_back(due);
  due_changed_.notify_one();
}

DueCallback Callbacks::Await(const AwaitCallbackBody& body) {
  std::unique_lock lock(mutex_);
  if (running_.erase(body.done_ticket) != 0) done_changed_.notify_all();
  if (body.wait_ms == 0) return {};
  const std::chrono::milliseconds most(std::min(body.wait_ms, kMostCallbackWaitMs));
  due_changed_.wait_for(lock, most, [&] { return stopped_ || !due_.empty(); });
  if (due_.empty()) return {};
  const DueCallback due = due_.front();
  due_.pop_front();
  return due;
}

void Callbacks::Stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  due_changed_.notify_all();
  done_changed_.notify_all();
}

void CUDA_CB RunHostFunction(void* user_data) {
  if (const auto callbacks = CurrentCallbacks()) callbacks->Run(CallbackId(user_data), CUDA_SUCCESS);
}

void CUDA_CB RunStreamCallback(CUstream, CUresult status, void* user_data) {
  if (const auto callbacks = CurrentCallbacks()) callbacks->Run(CallbackId(user_data), status);
}

// Behind a callback that the GPU announces: after an error it never does, and the driver tells it here. The
// guest ignores what has run already.
void CUDA_CB ReportError(CUstream, CUresult status, void* user_data) {
  if (status == CUDA_SUCCESS) return;
  if (const auto callbacks = CurrentCallbacks())
    callbacks->Announce({CallbackId(user_data), 0, static_cast<uint32_t>(status), 0, 0});
}

void CUDA_CB AnnounceDestructor(void* user_data) {
  if (const auto callbacks = CurrentCallbacks()) callbacks->Announce({CallbackId(user_data), 0, 0, 0, 0});
}

void AnnounceNotification(CUasyncNotificationInfo* info, void* user_data, CUasyncCallbackHandle) {
  const auto callbacks = CurrentCallbacks();
  if (callbacks == nullptr || info == nullptr) return;
  callbacks->Announce({CallbackId(user_data), 0, 0, static_cast<uint32_t>(info->type),
                       info->info.overBudget.bytesOverBudget});
}

CUresult Serve_cuDeviceRegisterAsyncNotification(Session& session, Request& request) {
  const auto body = request.in.Get<NotificationBody>();
  if (!request.in.ok()) return request.in.error();
  if (const CUresult result = RequireNumber(HandleKind::kAsyncCallback, body.handle)) return result;
  CUasyncCallbackHandle handle = nullptr;
  const CUresult result = TheDriver().cuDeviceRegisterAsyncNotification(body.device, &AnnounceNotification,
                                                                        CallbackUserData(body.id), &handle);
  if (result != CUDA_SUCCESS) return result;
  session.objects().Bind(HandleKind::kAsyncCallback, body.handle, handle, request.out);
  return request.out.error();
}

CUresult Serve_kAwaitCallback(Session& session, Request& request) {
  const auto body = request.in.Get<AwaitCallbackBody>();
  if (!request.in.ok()) return request.in.error();
  // It may take long, which only the thread made for it may.
  if (body.wait_ms != 0 && request.channel != kCallbackChannel) return CUDA_ERROR_INVALID_VALUE;
  const DueCallback due = session.part<Callbacks>().Await(body);
  session.objects().EndUserObject(due.id);  // before the guest, told so, uses its number again
  request.out.Put(due);
  return request.out.error();
}

namespace {

bool IsWordOrNone(Session& session, uint32_t word) {
  if (word < kCallbackWords || word == kNoCallbackWord || word == kGraphCallbackWord) return true;
  session.Breach("a callback names a word that does not exist");
  return false;
}

// The GPU announces the function and waits for it. CUDA_ERROR_NOT_SUPPORTED: it cannot, or no word was named.
CUresult EnqueueByWord(Session& session, CUstream stream, const HostFunctionBody& body) {
  const Driver& driver = TheDriver();
  CallbackWords* words = session.part<Arenas>().callback_words();
  if (body.word >= kCallbackWords || words == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUdeviceptr address = 0;
  if (driver.cuMemHostGetDevicePointer_v2(&address, words, 0) != CUDA_SUCCESS)
    return CUDA_ERROR_NOT_SUPPORTED;
  CUstreamBatchMemOpParams steps[2] = {};
  // With its barrier: what the stream did before is visible to whoever sees the number.
  steps[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  steps[0].writeValue.address = address + offsetof(CallbackWords, announced) + sizeof(uint64_t) * body.word;
  steps[0].writeValue.value64 = body.id;
  steps[0].writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  // The pair may have a later owner when the GPU looks.
  steps[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  steps[1].waitValue.address = address + offsetof(CallbackWords, done) + sizeof(uint64_t) * body.word;
  steps[1].waitValue.value64 = body.id;
  steps[1].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  return driver.cuStreamBatchMemOp_v2(stream, 2, steps, 0);
}

CUresult CaptureByWord(Session& session, CUstream stream, uint64_t id) {
  return session.part<Arenas>().callback_words() != nullptr ? TheHostNodes().Capture(stream, id)
                                                            : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

CUresult Serve_cuLaunchHostFunc(Session& session, Request& request) {
  const auto body = request.in.Get<HostFunctionBody>();
  auto stream = session.objects().ToDriver<CUstream>(body.stream, request.in);
  if (!request.in.ok()) return request.in.error();
  if (!IsWordOrNone(session, body.word)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = session.objects().Prepare()) return result;
  const CUresult by_word = body.word == kGraphCallbackWord ? CaptureByWord(session, stream, body.id)
                                                           : EnqueueByWord(session, stream, body);
  if (by_word != CUDA_ERROR_NOT_SUPPORTED) return by_word;
  return TheDriver().cuLaunchHostFunc(stream, &RunHostFunction, CallbackUserData(body.id));
}

CUresult Serve_cuStreamAddCallback(Session& session, Request& request) {
  const auto body = request.in.Get<HostFunctionBody>();
  auto stream = session.objects().ToDriver<CUstream>(body.stream, request.in);
  if (!request.in.ok()) return request.in.error();
  if (!IsWordOrNone(session, body.word)) return CUDA_ERROR_INVALID_VALUE;
  if (!Has(TheDriver().cuStreamAddCallback)) return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult result = session.objects().Prepare()) return result;
  const CUresult by_word = EnqueueByWord(session, stream, body);
  if (by_word != CUDA_SUCCESS && by_word != CUDA_ERROR_NOT_SUPPORTED) return by_word;
  const auto function = by_word == CUDA_SUCCESS ? &ReportError : &RunStreamCallback;
  return TheDriver().cuStreamAddCallback(stream, function, CallbackUserData(body.id), 0);
}

}  // namespace causeway::host
