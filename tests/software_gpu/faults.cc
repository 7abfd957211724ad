// SPDX-License-Identifier: Apache-2.0
// The gate of all calls, device faults and device output.
#include "tests/software_gpu/faults.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "tests/software_gpu/config.h"
#include "tests/software_gpu/context.h"

namespace causeway::software_gpu {
namespace {

std::atomic<int> sticky_error{0};
std::atomic<bool> initialised{false};
std::atomic<bool> forked_child{false};
std::atomic<uint64_t> launches{0};
thread_local int host_function_depth = 0;

struct DeviceOutput {
  std::mutex mutex;
  std::string text;
};

DeviceOutput& Output() {
  static auto* output = new DeviceOutput;
  return *output;
}

void MarkForkedChild() {
  forked_child.store(initialised.load());
}

void Delay(uint64_t microseconds) {
  if (microseconds != 0) std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

}  // namespace

CUresult StickyError() {
  return static_cast<CUresult>(sticky_error.load(std::memory_order_acquire));
}

void RaiseFault(CUresult error, std::string_view message) {
  int expected = 0;
  // Release pairs with the acquire in StickyError: who sees the fault also sees the output before it.
  if (!sticky_error.compare_exchange_strong(expected, error, std::memory_order_acq_rel)) return;
  std::fprintf(stderr, "software GPU: device fault %d: %.*s\n", static_cast<int>(error),
               static_cast<int>(message.size()), message.data());
}

void PrintFromDevice(bool is_stderr, std::string_view text) {
  if (is_stderr) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    return;
  }
  std::lock_guard lock(Output().mutex);
  Output().text.append(text);
}

void FlushDeviceOutput() {
  std::lock_guard lock(Output().mutex);
  if (Output().text.empty()) return;
  std::fwrite(Output().text.data(), 1, Output().text.size(), stdout);
  std::fflush(stdout);
  Output().text.clear();
}

void CountLaunch() {
  const Config& config = GetConfig();
  Delay(config.launch_delay_us);
  uint64_t number = launches.fetch_add(1, std::memory_order_relaxed) + 1;
  if (number == config.abort_at_launch) {
    std::fprintf(stderr, "software GPU: aborting at launch %llu as SOFTWARE_GPU_ABORT_AT_LAUNCH asks.\n",
                 static_cast<unsigned long long>(number));
    std::abort();
  }
  if (config.lose_device_after_launches != 0 && number > config.lose_device_after_launches) {
    RaiseFault(CUDA_ERROR_LAUNCH_FAILED, "the device is lost, as SOFTWARE_GPU_LOSE_AFTER_LAUNCHES asks");
  }
}

ScopedHostFunction::ScopedHostFunction() {
  ++host_function_depth;
}
ScopedHostFunction::~ScopedHostFunction() {
  --host_function_depth;
}

bool IsForkedChild() {
  return forked_child.load(std::memory_order_relaxed);
}
bool IsInitialised() {
  return initialised.load(std::memory_order_acquire);
}

void MarkInitialised() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, MarkForkedChild);
    initialised.store(true, std::memory_order_release);
  });
}

CUresult EnterCall(const char* function, Needs needs, ContextRef* context) {
  Delay(GetConfig().call_delay_us);
  if (int injected = InjectedFailure(function)) return static_cast<CUresult>(injected);
  if (needs == Needs::kNothing) return CUDA_SUCCESS;
  if (IsForkedChild() || !IsInitialised()) return CUDA_ERROR_NOT_INITIALIZED;
  if (host_function_depth != 0) return CUDA_ERROR_NOT_PERMITTED;
  if (needs == Needs::kInit) return CUDA_SUCCESS;
  if (CUresult error = StickyError(); error != CUDA_SUCCESS) return error;
  if (needs == Needs::kDevice) return CUDA_SUCCESS;
  *context = CurrentContext();
  if (*context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!(*context)->alive.load(std::memory_order_acquire)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  NoteUse(reinterpret_cast<uint64_t>((*context)->handle), false);
  return CUDA_SUCCESS;
}

}  // namespace causeway::software_gpu
