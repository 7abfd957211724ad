// SPDX-License-Identifier: Apache-2.0
// The driver's log, and notifications of devices (which this one never has a reason to send).
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "tests/software_gpu/context.h"
#include "tests/software_gpu/handles.h"

namespace causeway::software_gpu {
namespace {

constexpr size_t kMostLogBytes = 25600;

struct Listener {
  CUlogsCallback function;
  void* user_data;
};

struct Log {
  std::mutex mutex;
  std::deque<std::string> lines;
  CUlogIterator first = 0;  // number of lines.front()
  size_t bytes = 0;
  std::map<CUlogsCallbackHandle, Listener> listeners;
};
Log& TheLog() {
  static auto* log = new Log;
  return *log;
}

struct Notification {
  CUdevice device;
};
Registry<CUasyncCallbackHandle, Notification>& Notifications() {
  static auto* notifications = new Registry<CUasyncCallbackHandle, Notification>;
  return *notifications;
}

// The lines from the iterator on, as many of the newest as fit.
std::string Collect(Log& log, CUlogIterator* iterator, size_t room) {
  std::string text;
  const CUlogIterator end = log.first + static_cast<CUlogIterator>(log.lines.size());
  const CUlogIterator from = iterator != nullptr ? std::clamp(*iterator, log.first, end) : log.first;
  for (CUlogIterator at = end; at > from; --at) {
    const std::string& line = log.lines[at - 1 - log.first];
    if (text.size() + line.size() > room) break;
    text.insert(0, line);
  }
  if (iterator != nullptr) *iterator = end;
  return text;
}

}  // namespace

CUresult Logged(const char* function, CUresult result) {
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) return result;
  const char* name = "";
  cuGetErrorName(result, &name);
  std::string line = "[" + std::to_string(getpid()) + "][CUDA][E] " + function + " returned " + name + "\n";
  Log& log = TheLog();
  std::map<CUlogsCallbackHandle, Listener> listeners;
  {
    std::lock_guard lock(log.mutex);
    log.bytes += line.size();
    log.lines.push_back(line);
    while (log.bytes > kMostLogBytes) {
      log.bytes -= log.lines.front().size();
      log.lines.pop_front();
      ++log.first;
    }
    listeners = log.listeners;
  }
  for (const auto& [handle, listener] : listeners) {
    listener.function(listener.user_data, CU_LOG_LEVEL_ERROR, line.data(), line.size());
  }
  return result;
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuLogsRegisterCallback(CUlogsCallback callbackFunc, void* userData,
                                CUlogsCallbackHandle* callback_out) {
  if (callbackFunc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto handle = reinterpret_cast<CUlogsCallbackHandle>(NextHandleValue());
  std::lock_guard lock(TheLog().mutex);
  TheLog().listeners[handle] = {callbackFunc, userData};
  if (callback_out != nullptr) *callback_out = handle;
  return CUDA_SUCCESS;
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle callback) {
  std::lock_guard lock(TheLog().mutex);
  return TheLog().listeners.erase(callback) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogsCurrent(CUlogIterator* iterator_out, unsigned int /*flags*/) {
  if (iterator_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(TheLog().mutex);
  *iterator_out = TheLog().first + static_cast<CUlogIterator>(TheLog().lines.size());
  return CUDA_SUCCESS;
}

CUresult cuLogsDumpToMemory(CUlogIterator* iterator, char* buffer, size_t* size, unsigned int flags) {
  if (buffer == nullptr || size == nullptr || *size == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(TheLog().mutex);
  const bool none =
      TheLog().lines.empty() || (iterator != nullptr && *iterator >= TheLog().first + TheLog().lines.size());
  const std::string text = Collect(TheLog(), iterator, *size - 1);
  *size = text.size();
  std::memcpy(buffer, text.c_str(), text.size() + 1);
  return text.empty() && !none ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuLogsDumpToFile(CUlogIterator* iterator, const char* pathToFile, unsigned int flags) {
  if (pathToFile == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::FILE* file = std::fopen(pathToFile, "w");
  if (file == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(TheLog().mutex);
  const std::string text = Collect(TheLog(), iterator, kMostLogBytes);
  std::fwrite(text.data(), 1, text.size(), file);
  std::fclose(file);
  return CUDA_SUCCESS;
}

CUresult cuDeviceRegisterAsyncNotification(CUdevice device, CUasyncCallback callbackFunc, void*,
                                           CUasyncCallbackHandle* callback) {
  return Initialised(__func__, [&]() -> CUresult {
    if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (callbackFunc == nullptr || callback == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *callback = Notifications().Add(std::make_shared<Notification>(Notification{device}));
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceUnregisterAsyncNotification(CUdevice device, CUasyncCallbackHandle callback) {
  return Initialised(__func__, [&]() -> CUresult {
    if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
    return Notifications().Remove(callback) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

}  // extern "C"
