// SPDX-License-Identifier: Apache-2.0
// Beginning and end, error texts, and what the guest knows better than the host: names of processes.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "guest_lib/nvml/nvml.h"

namespace causeway::guest {
namespace {

using nvml::Return;

Return NeedsInit() {
  return NvmlSession::Get().initialised() ? Return::kSuccess : Return::kUninitialized;
}

struct ErrorText {
  uint32_t result;
  const char* text;
};
constexpr ErrorText kErrorTexts[] = {
    {0, "Success"},
    {1, "Uninitialized"},
    {2, "Invalid Argument"},
    {3, "Not Supported"},
    {4, "Insufficient Permissions"},
    {5, "Already Initialized"},
    {6, "Not Found"},
    {7, "Insufficient Size"},
    {8, "Insufficient External Power"},
    {9, "Driver Not Loaded"},
    {10, "Timeout"},
    {11, "Interrupt Request Issue"},
    {12, "NVML Shared Library Not Found"},
    {13, "Function Not Found"},
    {14, "Corrupted infoROM"},
    {15, "GPU is lost"},
    {16, "GPU requires reset"},
    {17, "GPU access blocked by the operating system"},
    {18, "Driver/library version mismatch"},
    {19, "In use by another client"},
    {20, "Insufficient Memory"},
    {21, "No data"},
    {22, "vGPU ECC not supported"},
    {23, "Insufficient Resources"},
    {24, "Invalid Frequency"},
    {25, "Argument version mismatch"},
    {26, "Requested functionality has been deprecated"},
    {27, "System is not in ready state"},
    {28, "No supported GPUs were found"},
    {29, "Resource not in correct state to perform requested operation"},
    {30, "Reset type is not supported for given device"},
};

}  // namespace

NVML_EXPORT Return nvmlInit_v2() {
  return NvmlSession::Get().Initialise();
}
NVML_EXPORT Return nvmlInit() {
  return nvmlInit_v2();
}
// The flags say what to do without a GPU; a session without one is not made.
NVML_EXPORT Return nvmlInitWithFlags(uint32_t) {
  return nvmlInit_v2();
}
NVML_EXPORT Return nvmlShutdown() {
  return NvmlSession::Get().Shutdown();
}

NVML_EXPORT const char* nvmlErrorString(uint32_t result) {
  for (const ErrorText& error : kErrorTexts) {
    if (error.result == result) return error.text;
  }
  return "Unknown Error";
}

NVML_EXPORT Return nvmlUnitGetCount(uint32_t* count) {
  const Return result = NeedsInit();
  if (result != Return::kSuccess) return result;
  if (count == nullptr) return Return::kInvalidArgument;
  *count = 0;
  return Return::kSuccess;
}
NVML_EXPORT Return nvmlGetExcludedDeviceCount(uint32_t* count) {
  return nvmlUnitGetCount(count);
}
NVML_EXPORT Return nvmlGetBlacklistDeviceCount(uint32_t* count) {
  return nvmlUnitGetCount(count);
}

// As NVIDIA's library: the path of the program, or what the kernel calls it.
NVML_EXPORT Return nvmlSystemGetProcessName(uint32_t pid, char* name, uint32_t bytes) {
  if (const Return result = NeedsInit(); result != Return::kSuccess) return result;
  if (name == nullptr || bytes == 0) return Return::kInvalidArgument;
  char path[64];
  char text[4096];
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Return::kNotFound;
  const ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  text[got > 0 ? got : 0] = '\0';  // the program alone: its arguments follow after a NUL
  if (got <= 0) return Return::kNotFound;
  const size_t length = strnlen(text, sizeof text - 1);
  const size_t fits = length < bytes ? length : bytes - 1;
  memcpy(name, text, fits);
  name[fits] = '\0';
  return fits == length ? Return::kSuccess : Return::kInsufficientSize;
}

}  // namespace causeway::guest
