// SPDX-License-Identifier: Apache-2.0
// Event sets. They exist, because nvidia-smi makes one at its start; devices have no events to put into them,
// and say so: the host's (Xid errors, clock changes) may be another tenant's.
#include <poll.h>

#include "guest_lib/nvml/nvml.h"

namespace causeway::guest {
namespace {

using nvml::DeviceHandle;
using nvml::Return;

// Nothing is kept in a set: one object stands for all.
char the_set;

// `good`: whether the arguments are.
Return Check(bool good) {
  if (!NvmlSession::Get().initialised()) return Return::kUninitialized;
  return good ? Return::kSuccess : Return::kInvalidArgument;
}

}  // namespace

NVML_EXPORT Return nvmlEventSetCreate(void** set) {
  const Return result = Check(set != nullptr);
  if (result == Return::kSuccess) *set = &the_set;
  return result;
}

NVML_EXPORT Return nvmlEventSetFree(void* set) {
  return Check(set == &the_set);
}

NVML_EXPORT Return nvmlEventSetWait_v2(void* set, void* data, uint32_t milliseconds) {
  const Return result = Check(set == &the_set && data != nullptr);
  if (result != Return::kSuccess) return result;
  constexpr uint32_t kLongest = 0x7fffffff;
  poll(nullptr, 0, static_cast<int>(milliseconds < kLongest ? milliseconds : kLongest));
  return Return::kTimeout;
}
NVML_EXPORT Return nvmlEventSetWait(void* set, void* data, uint32_t milliseconds) {
  return nvmlEventSetWait_v2(set, data, milliseconds);
}

NVML_EXPORT Return nvmlDeviceGetSupportedEventTypes(DeviceHandle device, uint64_t* types) {
  const Return result = Check(NvmlSession::Get().IndexOf(device) >= 0 && types != nullptr);
  if (result == Return::kSuccess) *types = 0;
  return result;
}

NVML_EXPORT Return nvmlDeviceRegisterEvents(DeviceHandle device, uint64_t types, void* set) {
  const Return result = Check(NvmlSession::Get().IndexOf(device) >= 0 && set == &the_set);
  if (result != Return::kSuccess || types == 0) return result;
  return Return::kNotSupported;
}

}  // namespace causeway::guest
