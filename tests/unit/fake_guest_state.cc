// SPDX-License-Identifier: Apache-2.0
// The fake guest and the few driver functions that the CUDA runtime needs for its start-up.
#define __CUDA_API_VERSION_INTERNAL  // declares every ABI of every function, without renaming any

#include "tests/unit/fake_guest_state.h"

#include <cstdio>
#include <vector>

#include "guest_lib/code/function.h"

namespace causeway::guest {
namespace test {
namespace {

thread_local CUcontext current_context = nullptr;

DeviceIdentity MakeDevice(int number) {
  DeviceIdentity device{};
  for (int i = 0; i < 16; ++i) device.uuid.bytes[i] = static_cast<char>(16 * number + 7 * i + 1);
  device.pci_domain = number;
  device.pci_bus = 0x41 + number;
  device.pci_device = 3;
  return device;
}

FakeGuest FreshGuest() {
  FakeGuest guest;
  guest.devices = {MakeDevice(0), MakeDevice(1)};
  guest.contexts = {{PrimaryOf(0), 1}, {PrimaryOf(1), 2}};
  return guest;
}

}  // namespace

FakeGuest& Guest() {
  static FakeGuest guest = FreshGuest();
  return guest;
}

void ResetGuest() {
  Guest() = FreshGuest();
  current_context = nullptr;
}

}  // namespace test

using test::Guest;

uint64_t RepliesAwaited() {
  return 0;
}
CUresult InitialisedOrError() {
  return Guest().initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult SessionOrError() {
  return InitialisedOrError();
}
int DeviceCount() {
  return static_cast<int>(Guest().devices.size());
}
DeviceIdentity Identity(int device) {
  return Guest().devices.at(static_cast<size_t>(device));
}
int DriverVersion() {
  return 13000;
}
CUcontext CurrentContext() {
  return Guest().initialised ? test::current_context : nullptr;
}

CUcontext PrimaryContextHandle(int device) {
  return device >= 0 && device < DeviceCount() ? test::PrimaryOf(device) : nullptr;
}

bool IsContext(CUcontext context) {
  return Guest().contexts.count(context) != 0;
}

CUresult ContextId(CUcontext context, uint64_t* id) {
  if (!IsContext(context)) return CUDA_ERROR_INVALID_CONTEXT;
  *id = Guest().contexts.at(context);
  return CUDA_SUCCESS;
}

CUcontext SwapCurrentContext(CUcontext context) {
  const CUcontext previous = test::current_context;
  test::current_context = context;
  return previous;
}

CUstream PerThreadStream() {
  return reinterpret_cast<CUstream>(&test::current_context);
}

CUresult FunctionsOf(CUmodule, std::vector<CUfunction>* functions) {
  for (unsigned i = 0; i < Guest().functions_in_module; ++i)
    functions->push_back(reinterpret_cast<CUfunction>(uintptr_t{0x500} + i));
  return CUDA_SUCCESS;
}

CUresult ModuleOf(CUlibrary, CUmodule* module) {
  *module = reinterpret_cast<CUmodule>(0x79);
  Guest().module_calls.push_back("module of a library");
  return CUDA_SUCCESS;
}

CUresult StreamId(CUstream stream, uint64_t* id) {
  uint64_t context_id = 0;
  if (ContextId(CurrentContext(), &context_id) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_CONTEXT;
  if (stream == nullptr || stream == CU_STREAM_LEGACY) {
    *id = 1000 * context_id;
  } else if (stream == CU_STREAM_PER_THREAD || stream == PerThreadStream()) {
    *id = 1000 * context_id + 1;
  } else if (Guest().streams.count(stream) != 0) {
    *id = Guest().streams.at(stream);
  } else {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  return CUDA_SUCCESS;
}

}  // namespace causeway::guest

using namespace causeway::guest;  // NOLINT: the driver functions below are all in terms of the fake guest

extern "C" {

CUresult cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Guest().initialised = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  *version = DriverVersion();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = DeviceCount();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal < DeviceCount() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
  std::snprintf(name, static_cast<size_t>(bytes), "Fake device %d", device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = size_t{1} << 30;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  *uuid = Identity(device).uuid;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return cuDeviceGetUuid(uuid, device);
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
      *value = Identity(device).pci_domain;
      break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      *value = Identity(device).pci_bus;
      break;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
      *value = Identity(device).pci_device;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      break;
    default:
      *value = 1;
      break;
  }
  return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = CurrentContext();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  SwapCurrentContext(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext, unsigned* version) {
  *version = 3020;
  return CUDA_SUCCESS;
}

// The form of CUDA 13: of a context, which is the current one if null.
CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
  const CUcontext asked = context == nullptr ? CurrentContext() : context;
  *device = asked == test::PrimaryOf(1) ? 1 : 0;
  return IsContext(asked) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  return cuCtxGetDevice_v2(device, nullptr);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = PrimaryContextHandle(device);
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = size_t{1} << 29;
  *total_bytes = size_t{1} << 30;
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  *module = reinterpret_cast<CUmodule>(0x77);
  Guest().loaded_image = image;
  Guest().module_calls.push_back("load");
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, CUjit_option* options,
                            void** values) {
  *module = reinterpret_cast<CUmodule>(0x78);
  Guest().loaded_image = image;
  const bool known = count == 3 && options[2] == CU_JIT_GLOBAL_SYMBOL_COUNT;
  Guest().module_calls.push_back(
      "load with " + std::to_string(known ? reinterpret_cast<uintptr_t>(values[2]) : 0) + " symbols");
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule) {
  Guest().module_calls.push_back("unload");
  return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option*, void**, unsigned count,
                           CUlibraryOption*, void**, unsigned) {
  *library = reinterpret_cast<CUlibrary>(0x99);
  Guest().loaded_image = image;
  Guest().module_calls.push_back("library with " + std::to_string(count) + " options");
  return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary) {
  Guest().module_calls.push_back("unload library");
  return CUDA_SUCCESS;
}

}  // extern "C"
