// SPDX-License-Identifier: Apache-2.0
// Devices: their handles are made here, one for each GPU that the VM may use.
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include <algorithm>
#include <string>

#include "guest_lib/nvml/nvml.h"
#include "ivshmem_ring/system/gpu_uuid.h"

namespace causeway::guest {
namespace {

using nvml::DeviceHandle;
using nvml::Op;
using nvml::Return;

// The first device for which `is_it` says so.
template <class Predicate>
Return FindDevice(DeviceHandle* device, bool arguments, Predicate is_it) {
  uint32_t count = 0;
  const Return result = NvmlSession::Get().DeviceCount(&count);
  if (result != Return::kSuccess) return result;
  if (device == nullptr || !arguments) return Return::kInvalidArgument;
  for (uint32_t i = 0; i < count; ++i) {
    const DeviceHandle candidate = NvmlSession::HandleOf(i);
    if (!is_it(candidate)) continue;
    *device = candidate;
    return Return::kSuccess;
  }
  return Return::kNotFound;
}

std::string UuidOf(DeviceHandle device) {
  char uuid[96] = "";
  NvmlWait<Op::nvmlDeviceGetUUID>(device, uuid, uint32_t{sizeof uuid});
  return uuid;
}

// Domain, bus and device of "0000:1B:00.0", where the domain may have eight digits or be missing.
bool ParseBusId(const char* text, uint32_t* domain, uint32_t* bus, uint32_t* device) {
  if (sscanf(text, "%x:%x:%x", domain, bus, device) == 3) return true;
  *domain = 0;
  return sscanf(text, "%x:%x", bus, device) == 2;
}

}  // namespace

NVML_EXPORT Return nvmlDeviceGetCount_v2(uint32_t* count) {
  uint32_t found = 0;
  const Return result = NvmlSession::Get().DeviceCount(&found);
  if (result != Return::kSuccess) return result;
  if (count == nullptr) return Return::kInvalidArgument;
  *count = found;
  return Return::kSuccess;
}
NVML_EXPORT Return nvmlDeviceGetCount(uint32_t* count) {
  return nvmlDeviceGetCount_v2(count);
}
NVML_EXPORT Return nvmlDeviceGetHandleByIndex_v2(uint32_t index, DeviceHandle* device) {
  uint32_t count = 0;
  const Return result = NvmlSession::Get().DeviceCount(&count);
  if (result != Return::kSuccess) return result;
  if (device == nullptr || index >= count) return Return::kInvalidArgument;
  *device = NvmlSession::HandleOf(index);
  return Return::kSuccess;
}
NVML_EXPORT Return nvmlDeviceGetHandleByIndex(uint32_t index, DeviceHandle* device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}
NVML_EXPORT Return nvmlDeviceGetHandleByPciBusId_v2(const char* id, DeviceHandle* device) {
  uint32_t domain = 0, bus = 0, number = 0;
  const bool good = id != nullptr && ParseBusId(id, &domain, &bus, &number);
  return FindDevice(device, good, [&](DeviceHandle candidate) {
    nvml::PciInfo info{};
    return NvmlWait<Op::nvmlDeviceGetPciInfo_v3>(candidate, &info) == Return::kSuccess &&
           info.domain == domain && info.bus == bus && info.device == number;
  });
}
NVML_EXPORT Return nvmlDeviceGetHandleByPciBusId(const char* id, DeviceHandle* device) {
  return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

NVML_EXPORT Return nvmlDeviceGetHandleBySerial(const char* serial, DeviceHandle* device) {
  return FindDevice(device, serial != nullptr, [&](DeviceHandle candidate) {
    char text[64] = "";
    return NvmlWait<Op::nvmlDeviceGetSerial>(candidate, text, uint32_t{sizeof text}) == Return::kSuccess &&
           strcmp(text, serial) == 0;
  });
}

NVML_EXPORT Return nvmlDeviceGetHandleByUUID(const char* uuid, DeviceHandle* device) {
  return FindDevice(device, uuid != nullptr,
                    [&](DeviceHandle candidate) { return strcasecmp(UuidOf(candidate).c_str(), uuid) == 0; });
}

NVML_EXPORT Return nvmlDeviceGetHandleByUUIDV(const nvml::Uuid* uuid, DeviceHandle* device) {
  constexpr uint32_t kText = 1, kBytes = 2;
  const bool good = uuid != nullptr && (uuid->type == kText || uuid->type == kBytes);
  if (good && uuid->version != nvml::V(1, sizeof *uuid)) return Return::kVersionMismatch;
  return FindDevice(device, good, [&](DeviceHandle candidate) {
    const std::string text = UuidOf(candidate);
    if (uuid->type == kText) return strncasecmp(text.c_str(), uuid->value, sizeof uuid->value) == 0;
    const DeviceUuid bytes = causeway::UuidOf(text);
    return bytes != DeviceUuid{} && memcmp(bytes.data(), uuid->value, bytes.size()) == 0;
  });
}

NVML_EXPORT Return nvmlDeviceGetIndex(DeviceHandle device, uint32_t* index) {
  NvmlSession& session = NvmlSession::Get();
  if (!session.initialised()) return Return::kUninitialized;
  const int found = session.IndexOf(device);
  if (found < 0 || index == nullptr) return Return::kInvalidArgument;
  *index = static_cast<uint32_t>(found);
  return Return::kSuccess;
}

// Each value is asked for by itself, so a long list is sent in pieces.
NVML_EXPORT Return nvmlDeviceGetFieldValues(DeviceHandle device, int32_t count, void* values) {
  constexpr int32_t kAtOnce = 64;
  if (count <= 0) values = nullptr;
  auto* at = static_cast<nvml::FieldValue*>(values);
  Return result = Return::kSuccess;
  do {
    const int32_t part = std::min(count, kAtOnce);
    result = NvmlWait<Op::nvmlDeviceGetFieldValues>(device, part, static_cast<void*>(at));
    count -= part;
    at += part;
  } while (result == Return::kSuccess && count > 0);
  return result;
}

}  // namespace causeway::guest
