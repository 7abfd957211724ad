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
  // Blocks until the guest is done with it, or the session stops.
  void Run(uint64_t id, CUresult status);
  // For functions that the driver does not wait for either.
  void Announce(DueCallback due);
  // The guest's thread: notes what is done, then, if it wants to wait, the next one. Nothing due (id 0): its
  // time is up, or the session stops.
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

// Of the session whose guest gets the driver's calls from now on, as long as they live; a worker has one.
void SetCurrentCallbacks(const std::shared_ptr<Callbacks>& callbacks);

// What a guest's number is as the driver's user data, and back.
inline void* CallbackUserData(uint64_t id) {
  return reinterpret_cast<void*>(id);
}
inline uint64_t CallbackId(void* user_data) {
  return reinterpret_cast<uint64_t>(user_data);
}

// To give to the driver, with CallbackUserData(id):
void CUDA_CB RunHostFunction(void* user_data);  // cuLaunchHostFunc, host nodes of graphs
void CUDA_CB RunStreamCallback(CUstream stream, CUresult status, void* user_data);  // cuStreamAddCallback
void CUDA_CB ReportError(CUstream stream, CUresult status,
                         void* user_data);  // behind one that the GPU announces
void AnnounceNotification(CUasyncNotificationInfo* info, void* user_data, CUasyncCallbackHandle handle);
void CUDA_CB AnnounceDestructor(void* user_data);  // user objects

}  // namespace causeway::host
