// SPDX-License-Identifier: Apache-2.0
// Functions that get the driver's log, and the log in memory and files of the guest.
#include <stdio.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "guest_lib/callbacks/callbacks.h"
#include "guest_lib/process/lock_order.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/messages/callback_messages.h"

namespace causeway::guest {
namespace {

struct Listener {
  CUlogsCallbackHandle handle;
  CUlogsCallback function;
  void* user_data;
};

struct Listeners {
  Mutex<Lock::kLogListeners> mutex;
  std::vector<Listener> all;
};
Listeners& listeners = *new Listeners;  // never destroyed: threads may call until the very end

// Whether the host is to collect what the driver logs.
CUresult Listen(Op op) {
  PendingCall call(op);
  return call.Finish();
}

CUresult Dump(CUlogIterator* iterator, char* buffer, size_t* bytes, unsigned flags) {
  ChannelLease lease;
  if (lease.error() != CUDA_SUCCESS) return lease.error();
  const uint32_t index = lease.session().AcquireBulk();
  const Bulk bulk = lease.session().bulk(index);
  Writer w = lease.Begin();
  w.Put(LogDumpBody{std::min<uint64_t>(*bytes, kBulkBytes), iterator != nullptr ? *iterator : 0,
                    iterator != nullptr ? 1u : 0u, flags, 0});
  CUresult result = lease.Send(Op::cuLogsDumpToMemory, w, kBulkToGuest, bulk.offset, kBulkBytes);
  Reader reply;
  uint32_t filled = 0;
  if (result == CUDA_SUCCESS) result = lease.Await(&reply, &filled);
  const auto answer = reply.Get<LogDumpReply>();
  if (reply.ok()) {
    const size_t text = std::min<uint64_t>({answer.bytes, filled, *bytes - 1});
    std::memcpy(buffer, bulk.bytes, text);
    buffer[text] = '\0';
    *bytes = answer.bytes;
    if (iterator != nullptr) *iterator = answer.iterator;
  }
  lease.session().ReleaseBulk(index);
  return result;
}

void DeliverLog(uint32_t level, const char* text, size_t bytes) {
  std::vector<Listener> all;
  {
    const std::lock_guard lock(listeners.mutex);
    all = listeners.all;
  }
  const callbacks::Scope inside;  // the thread's channel is in use
  for (const Listener& listener : all) {
    std::string message(text, bytes);
    listener.function(listener.user_data, static_cast<CUlogLevel>(level), message.data(), message.size());
  }
}

[[gnu::constructor]] void SetHook() {
  hooks.deliver_log = DeliverLog;
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuLogsRegisterCallback(CUlogsCallback function, void* user_data, CUlogsCallbackHandle* handle) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = Listen(Op::cuLogsRegisterCallback)) return result;
  Object* object = NewObject(HandleKind::kLogsCallback, nullptr);
  if (object == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto made = reinterpret_cast<CUlogsCallbackHandle>(object);
  {
    const std::lock_guard lock(listeners.mutex);
    listeners.all.push_back({made, function, user_data});
  }
  if (handle != nullptr) *handle = made;
  return CUDA_SUCCESS;
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle) {
  if (const CUresult result = InitialisedOrError()) return result;
  Object* object = FindObject(HandleKind::kLogsCallback, handle);
  if (object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  {
    const std::lock_guard lock(listeners.mutex);
    std::erase_if(listeners.all, [&](const Listener& listener) { return listener.handle == handle; });
  }
  FreeObject(object);
  return Listen(Op::cuLogsUnregisterCallback);
}

// The driver does not look at these flags.
CUresult cuLogsCurrent(CUlogIterator* iterator, unsigned int) {
  return Wait<Op::cuLogsCurrent>(iterator, 0u);
}

CUresult cuLogsDumpToMemory(CUlogIterator* iterator, char* buffer, size_t* bytes, unsigned int flags) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (buffer == nullptr || bytes == nullptr || *bytes == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return Dump(iterator, buffer, bytes, flags);
}

CUresult cuLogsDumpToFile(CUlogIterator* iterator, const char* path, unsigned int flags) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (path == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  constexpr size_t kMostBytes = 64u << 10;  // the driver keeps 25,600
  const auto buffer = std::make_unique<char[]>(kMostBytes);
  size_t bytes = kMostBytes;
  FILE* file = fopen(path, "w");
  if (file == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = Dump(iterator, buffer.get(), &bytes, flags);
  if (result == CUDA_SUCCESS && fwrite(buffer.get(), 1, bytes, file) != bytes)
    result = CUDA_ERROR_OPERATING_SYSTEM;
  if (fclose(file) != 0 && result == CUDA_SUCCESS) result = CUDA_ERROR_OPERATING_SYSTEM;
  return result;
}

}  // extern "C"
