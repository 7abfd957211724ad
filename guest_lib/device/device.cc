// SPDX-License-Identifier: Apache-2.0
// Initialisation and device queries: answered from what the host described when the session opened.
#include <cstdio>
#include <cstring>

#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

// 0, or the error of a device query.
CUresult Describe(CUdevice device, const DeviceDescription** description) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *description = &Session::Made().devices()[static_cast<size_t>(device)];
  return CUDA_SUCCESS;
}

int Attribute(const DeviceDescription& description, CUdevice_attribute attribute) {
  return description.attribute[attribute];
}

CUresult CopyText(char* to, int room, const char* from) {
  if (to == nullptr || room <= 0) return CUDA_ERROR_INVALID_VALUE;
  snprintf(to, static_cast<size_t>(room), "%s", from);
  return CUDA_SUCCESS;
}

}  // namespace

DeviceIdentity Identity(int device) {
  const DeviceDescription& description = Session::Made().devices()[static_cast<size_t>(device)];
  return {description.uuid, Attribute(description, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
          Attribute(description, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
          Attribute(description, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)};
}

int DriverVersion() {
  const Session* session = Session::Get();
  // We speak the interface of the headers we were built with, whatever newer one the host has.
  if (session == nullptr) return CUDA_VERSION;
  const int host = const_cast<Session*>(session)->host().driver_version;
  return host < CUDA_VERSION ? host : CUDA_VERSION;
}

}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuInit(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return Session::Open();
}

CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = DriverVersion();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = DeviceCount();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int room, CUdevice device) {
  const DeviceDescription* description;
  if (const CUresult result = Describe(device, &description)) return result;
  return CopyText(name, room, description->name);
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  const DeviceDescription* description;
  if (const CUresult result = Describe(device, &description)) return result;
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *uuid = description->uuid;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  const DeviceDescription* description;
  if (const CUresult result = Describe(device, &description)) return result;
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *uuid = description->uuid_v2;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetLuid(char* luid, unsigned int* mask, CUdevice device) {
  const DeviceDescription* description;
  if (const CUresult result = Describe(device, &description)) return result;
  if (luid == nullptr || mask == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(luid, description->luid, sizeof description->luid);
  *mask = description->luid_mask;
  return static_cast<CUresult>(description->luid_result);
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  const DeviceDescription* description;
  if (const CUresult result = Describe(device, &description)) return result;
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *bytes = description->total_bytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  const DeviceDescription* description;
  if (const CUresult result = Describe(device, &description)) return result;
  if (value == nullptr || attribute < 0 || static_cast<uint32_t>(attribute) >= kMaxAttributes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto result = static_cast<CUresult>(description->attribute_result[attribute]);
  if (result == CUDA_SUCCESS) *value = description->attribute[attribute];
  return result;
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  const DeviceDescription* description;
  if (const CUresult result = Describe(device, &description)) return result;
  if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *major = Attribute(*description, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  *minor = Attribute(*description, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop* properties, CUdevice device) {
  const DeviceDescription* description;
  if (const CUresult result = Describe(device, &description)) return result;
  if (properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto value = [&](CUdevice_attribute attribute) { return Attribute(*description, attribute); };
  properties->maxThreadsPerBlock = value(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  properties->maxThreadsDim[0] = value(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
  properties->maxThreadsDim[1] = value(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
  properties->maxThreadsDim[2] = value(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
  properties->maxGridSize[0] = value(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
  properties->maxGridSize[1] = value(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
  properties->maxGridSize[2] = value(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
  properties->sharedMemPerBlock = value(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  properties->totalConstantMemory = value(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
  properties->SIMDWidth = value(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  properties->memPitch = value(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
  properties->regsPerBlock = value(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
  properties->clockRate = value(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  properties->textureAlign = value(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* text, int room, CUdevice device) {
  const DeviceDescription* description;
  if (const CUresult result = Describe(device, &description)) return result;
  constexpr int kLeastRoom = sizeof "0000:00:00.0";
  if (room < kLeastRoom) return CUDA_ERROR_INVALID_VALUE;
  return CopyText(text, room, description->pci_bus_id);
}

CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (device == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  int domain = 0, bus = 0, slot = 0;
  if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
    domain = 0;
    if (sscanf(text, "%x:%x", &bus, &slot) != 2) return CUDA_ERROR_INVALID_VALUE;
  }
  for (int i = 0; i < DeviceCount(); ++i) {
    const DeviceIdentity identity = Identity(i);
    if (identity.pci_domain == domain && identity.pci_bus == bus && identity.pci_device == slot) {
      *device = i;
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

// What the hardware can do is told after a fault as well.
CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(device) || !IsDevice(peer)) return CUDA_ERROR_INVALID_DEVICE;
  ThisThread().past_errors = true;
  const CUresult result = Wait<Op::cuDeviceCanAccessPeer>(can, device, peer);
  ThisThread().past_errors = false;
  return result;
}

}  // extern "C"
