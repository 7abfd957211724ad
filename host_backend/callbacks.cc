// SPDX-License-Identifier: Apache-2.0
// From the driver's thread to the guest's callback thread and back.
#include "host_backend/callbacks.h"

#include "host_backend/session.h"

namespace causeway::host {
namespace {

// What nobody waits for may pile up when the guest's callback is slow; more than this a program cannot own.
constexpr size_t kMostDue = kMaxHandles;

// The driver calls with a number alone, also after its session is gone.
std::mutex current_mutex;
std::shared_ptr<Callbacks>& Current() {
  static auto* current = new std::shared_ptr<Callbacks>;  // the driver may call until the very end
  return *current;
}

std::shared_ptr<Callbacks> CurrentCallbacks() {
  const std::lock_guard lock(current_mutex);
  return Current();
}

}  // namespace

void SetCurrentCallbacks(std::shared_ptr<Callbacks> callbacks) {
  const std::lock_guard lock(current_mutex);
  Current() = std::move(callbacks);
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
  if (body.wait == 0) return {};
  due_changed_.wait(lock, [&] { return stopped_ || !due_.empty(); });
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
  if (TheDriver().cuDeviceRegisterAsyncNotification == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUasyncCallbackHandle handle = nullptr;
  const CUresult result = TheDriver().cuDeviceRegisterAsyncNotification(body.device, &AnnounceNotification,
                                                                        CallbackUserData(body.id), &handle);
  if (result != CUDA_SUCCESS) return result;
  session.Bind(HandleKind::kAsyncCallback, body.handle, handle, request.out);
  return request.out.error();
}

CUresult Serve_kAwaitCallback(Session& session, Request& request) {
  const auto body = request.in.Get<AwaitCallbackBody>();
  if (!request.in.ok()) return request.in.error();
  // It may take for ever, which only the thread made for it may.
  if (body.wait != 0 && request.channel != kCallbackChannel) return CUDA_ERROR_INVALID_VALUE;
  const DueCallback due = session.callbacks().Await(body);
  session.EndUserObject(due.id);  // before the guest, told so, uses its number again
  request.out.Put(due);
  return request.out.error();
}

CUresult Serve_cuLaunchHostFunc(Session& session, Request& request) {
  const auto body = request.in.Get<HostFunctionBody>();
  auto stream = static_cast<CUstream>(session.ToDriver(HandleKind::kStream, body.stream, request.in));
  if (!request.in.ok()) return request.in.error();
  if (TheDriver().cuLaunchHostFunc == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return TheDriver().cuLaunchHostFunc(stream, &RunHostFunction, CallbackUserData(body.id));
}

CUresult Serve_cuStreamAddCallback(Session& session, Request& request) {
  const auto body = request.in.Get<HostFunctionBody>();
  auto stream = static_cast<CUstream>(session.ToDriver(HandleKind::kStream, body.stream, request.in));
  if (!request.in.ok()) return request.in.error();
  if (TheDriver().cuStreamAddCallback == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return TheDriver().cuStreamAddCallback(stream, &RunStreamCallback, CallbackUserData(body.id), 0);
}

}  // namespace causeway::host
