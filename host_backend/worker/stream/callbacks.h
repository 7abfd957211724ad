// SPDX-License-Identifier: Apache-2.0
// Functions of the guest program that the driver calls. What the driver gets is one of the functions below
// with the guest's number as user data; it announces the number and, where stream order hangs on it, blocks
// the driver's thread until the guest says that its function has returned. A number that means nothing to the
// guest does nothing. Functions of a stream hold no thread where the GPU can announce them and wait by itself
// (ivshmem_ring/messages/callback_messages.h).
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "host_backend/worker/session/session.h"
#include "ivshmem_ring/messages/callback_messages.h"
#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway::host {

class Callbacks : public SessionPart {
 public:
  // Announces a function and blocks until the guest has run it, or the session stops. The driver's threads
  // call this and Announce.
  void Run(uint64_t id, CUresult status);
  // Announces a function for which the driver does not wait.
  void Announce(DueCallback due);
  // Serves the guest's request for due functions: notes what it has run, and then waits for the next one if
  // it wants to. The result has id 0 if its time is up, or the session stops.
  DueCallback Await(const AwaitCallbackBody& body);
  // Releases every function that blocks, now and later. Call it when no new request will be served.
  void Stop() override;

 private:
  std::mutex mutex_;
  std::condition_variable due_changed_;
  std::condition_variable done_changed_;
  std::deque<DueCallback> due_;
  std::unordered_set<uint64_t> running_;  // tickets that functions wait for
  uint64_t last_ticket_ = 0;
  bool stopped_ = false;
};

// Sets where the functions below find the session's Callbacks while these live. A worker has one session.
void SetCurrentCallbacks(const std::shared_ptr<Callbacks>& callbacks);

// A guest's number as the driver's user data, and back.
inline void* CallbackUserData(uint64_t id) {
  return reinterpret_cast<void*>(id);
}
inline uint64_t CallbackId(void* user_data) {
  return reinterpret_cast<uint64_t>(user_data);
}

// These are given to the driver, with CallbackUserData(id).
void CUDA_CB RunHostFunction(void* user_data);  // cuLaunchHostFunc, host nodes of graphs
void CUDA_CB RunStreamCallback(CUstream stream, CUresult status, void* user_data);  // cuStreamAddCallback
// Behind a stream callback that the GPU announces: tells the guest if there was an error.
void CUDA_CB ReportError(CUstream stream, CUresult status, void* user_data);
void AnnounceNotification(CUasyncNotificationInfo* info, void* user_data, CUasyncCallbackHandle handle);
void CUDA_CB AnnounceDestructor(void* user_data);  // user objects

}  // namespace causeway::host
