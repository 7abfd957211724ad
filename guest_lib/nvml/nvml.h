// SPDX-License-Identifier: Apache-2.0
// The management library's session with the host. nvmlInit makes it, and the last nvmlShutdown ends it. It is
// not CUDA's: a process that uses both libraries has two sessions. In a forked child, and after the host's
// daemon was restarted, the next call connects again. Any thread may call; one request is sent at a time.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>

#include "guest_lib/connection/connect.h"
#include "ivshmem_ring/protocol/nvml_call.h"

namespace causeway::guest {

class NvmlSession {
 public:
  static NvmlSession& Get();

  // The answers of nvmlInit and nvmlShutdown. kDriverNotLoaded: the host cannot be reached; stderr says why.
  nvml::Return Initialise();
  nvml::Return Shutdown();
  bool initialised();
  // How many GPUs this VM may use. Connects if needed; the errors are Initialise's, or kUninitialized.
  nvml::Return DeviceCount(uint32_t* count);

  // The handle of the device with that number, which is below kMaxDevices.
  static nvml::DeviceHandle HandleOf(uint32_t index);
  // The device's number; -1 if it is no handle of this library's, or the device does not exist.
  int IndexOf(nvml::DeviceHandle handle);

 private:
  friend class NvmlCall;
  NvmlSession();
  nvml::Return Connect();  // the caller holds the lock
  nvml::Return AskForDevices();
  static void InForkedChild();

  std::mutex mutex_;
  uint32_t references_ = 0;
  std::atomic<uint32_t> device_count_{0};
  std::unique_ptr<Connection> connection_;
};

// One request and its reply: the caller writes the body, calls Finish, which waits, and reads the reply. It
// holds the session's lock as long as it lives.
class NvmlCall {
 public:
  explicit NvmlCall(nvml::Op op);
  Writer& writer() { return writer_; }
  Reader& reader() { return reader_; }
  // Writes the device, with which messages about a device begin that no row describes.
  void PutDevice(nvml::DeviceHandle device);
  // The host's result, or the error that kept the request from being sent. kUnknown: the session was lost.
  nvml::Return Finish();

 private:
  friend class NvmlSession;
  NvmlCall(nvml::Op op, NvmlSession& locked);
  void Begin();
  void Lose();

  NvmlSession& session_;
  std::unique_lock<std::mutex> lock_;
  nvml::Op op_;
  std::byte* record_ = nullptr;
  Writer writer_{{}};
  Reader reader_;
};

// What the directions of rows need in the guest (ivshmem_ring/protocol/nvml_directions.h).
struct NvmlRemote {
  NvmlCall StartCall(nvml::Op op) { return NvmlCall(op); }
  int IndexOf(nvml::DeviceHandle handle) { return NvmlSession::Get().IndexOf(handle); }
};

// Sends a row with its own directions: NvmlWait<Op::nvmlDeviceGetName>(device, text, bytes).
template <nvml::Op op, class... P>
nvml::Return NvmlWait(P... p) {
  NvmlRemote remote;
  return nvml::RowShape<op>::Wait(remote, op, p...);
}

// Of each function that the library exports.
#define NVML_EXPORT extern "C" __attribute__((visibility("default")))
NVML_EXPORT nvml::Return nvmlSystemGetProcessName(uint32_t pid, char* name, uint32_t bytes);
NVML_EXPORT nvml::Return nvmlDeviceGetHandleByPciBusId_v2(const char* id, nvml::DeviceHandle* device);

}  // namespace causeway::guest
