// SPDX-License-Identifier: Apache-2.0
// cuGetExportTable: the private tables without which a static CUDA runtime does not start. A table is an
// array of words: its size in bytes, then functions (CONTEXT_LOCAL_STORAGE has no size word).
#include <cstring>
#include <string_view>

#include "tests/software_gpu/compile_cache.h"
#include "tests/software_gpu/context.h"
#include "tests/software_gpu/faults.h"
#include "tests/software_gpu/integrity.h"

namespace causeway::software_gpu {
namespace {

template <typename Function>
const void* Slot(Function* function) {
  return reinterpret_cast<const void*>(function);
}

template <size_t kSlots>
const void* SizeWord() {
  return reinterpret_cast<const void*>(kSlots * sizeof(void*));
}

CUresult NotSupported() {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult Succeed() {
  return CUDA_SUCCESS;
}

// CUDART_INTERFACE

CUresult LoadWrapper(CUmodule* module, const void* wrapper) {
  if (wrapper == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uint32_t version = 0;
  std::memcpy(&version, static_cast<const char*>(wrapper) + 4, sizeof version);
  if (version ==
      2) {  // relocatable: the inputs behind it belong to it; a library stays until the process ends
    CUlibrary library = nullptr;
    const CUresult result = cuLibraryLoadData(&library, wrapper, nullptr, nullptr, 0, nullptr, nullptr, 0);
    return result != CUDA_SUCCESS ? result : cuLibraryGetModule(module, library);
  }
  const void* fatbin = nullptr;
  std::memcpy(&fatbin, static_cast<const char*>(wrapper) + 8, sizeof fatbin);
  return cuModuleLoadFatBinary(module, fatbin);
}

CUresult LoadWrapperWithVariables(CUmodule* module, const void* wrapper, const char**, void**, unsigned) {
  return LoadWrapper(module, wrapper);
}

CUresult LoadFatbin(const void* fatbin, CUmodule* module, const char**, void**, unsigned) {
  return cuModuleLoadFatBinary(module, fatbin);
}

CUresult PrimaryContextHandle(CUcontext* handle, CUdevice device) {
  if (!IsInitialised() || IsForkedChild()) return CUDA_ERROR_NOT_INITIALIZED;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *handle = PrimaryContext(device)->handle;
  return CUDA_SUCCESS;
}

CUresult UnloadFromRuntime(CUmodule module) {
  return cuModuleUnload(module);
}

constexpr size_t kRuntimeSlots = 13;

const void* const* RuntimeTable() {
  static const void* const table[kRuntimeSlots] = {SizeWord<kRuntimeSlots>(),
                                                   Slot(LoadWrapper),
                                                   Slot(PrimaryContextHandle),
                                                   Slot(NotSupported),
                                                   Slot(NotSupported),
                                                   Slot(NotSupported),
                                                   Slot(LoadWrapperWithVariables),
                                                   Slot(UnloadFromRuntime),
                                                   Slot(LoadFatbin),
                                                   Slot(NotSupported),
                                                   Slot(NotSupported),
                                                   Slot(NotSupported),
                                                   Slot(Succeed)};
  return table;
}

// TOOLS_RUNTIME_CALLBACK_HOOKS: no tool is attached, so every flag is zero and no callback is ever made.

int callback_flags[4096];
int resource_flags[64];

void CallbackFlags(int** flags, size_t* count) {
  *flags = callback_flags;
  *count = std::size(callback_flags);
}

void ResourceFlags(int** flags, size_t* count) {
  *flags = resource_flags;
  *count = std::size(resource_flags);
}

const void* const* HooksTable() {
  static const void* const table[7] = {SizeWord<7>(), Slot(Succeed), Slot(CallbackFlags), Slot(Succeed),
                                       Slot(Succeed), Slot(Succeed), Slot(ResourceFlags)};
  return table;
}

// TOOLS_TLS

CUresult CurrentContextHandle(CUcontext* handle) {
  ContextRef context = CurrentContext();
  *handle = context == nullptr ? nullptr : context->handle;
  return CUDA_SUCCESS;
}

const void* const* ThreadTable() {
  static const void* const table[3] = {SizeWord<3>(), Slot(NotSupported), Slot(CurrentContextHandle)};
  return table;
}

// CONTEXT_LOCAL_STORAGE

ContextRef StorageOwner(CUcontext handle) {
  return handle == nullptr ? CurrentContext() : FindContext(handle);
}

CUresult PutStorage(CUcontext handle, void* key, void* value, StorageEntry::Destructor destructor) {
  ContextRef context = StorageOwner(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(context->storage_mutex);
  for (const StorageEntry& entry : context->storage) {
    if (entry.key == key) return CUDA_ERROR_INVALID_HANDLE;
  }
  context->storage.push_back({key, value, destructor});
  return CUDA_SUCCESS;
}

CUresult DeleteStorage(CUcontext handle, void* key) {
  ContextRef context = StorageOwner(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(context->storage_mutex);
  size_t erased =
      std::erase_if(context->storage, [&](const StorageEntry& entry) { return entry.key == key; });
  return erased == 0 ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult GetStorage(void** value, CUcontext handle, void* key) {
  ContextRef context = StorageOwner(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(context->storage_mutex);
  for (const StorageEntry& entry : context->storage) {
    if (entry.key != key) continue;
    *value = entry.value;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_HANDLE;
}

const void* const* StorageTable() {
  static const void* const table[4] = {Slot(PutStorage), Slot(DeleteStorage), Slot(GetStorage), nullptr};
  return table;
}

// CONTEXT_CHECKS: every context is an ordinary one.

CUresult CheckContext(CUcontext, int* flag, CUcontext*) {
  *flag = 0;
  return CUDA_SUCCESS;
}

constexpr size_t kCheckSlots = 15;

const void* const* ChecksTable() {
  static const void* const table[kCheckSlots] = {
      SizeWord<kCheckSlots>(), Slot(NotSupported), Slot(CheckContext), Slot(Succeed),
      Slot(NotSupported),      Slot(NotSupported), Slot(NotSupported), Slot(NotSupported),
      Slot(NotSupported),      Slot(NotSupported), Slot(NotSupported), Slot(NotSupported),
      Slot(NotSupported),      Slot(NotSupported), Slot(NotSupported)};
  return table;
}

// INTEGRITY_CHECK

const void* const* IntegrityTable();

CUresult AnswerIntegrity(unsigned version, unsigned long long time, void* answer) {
  if (!IsInitialised() || IsForkedChild()) return CUDA_ERROR_NOT_INITIALIZED;
  const void* const* table = IntegrityTable();
  IntegrityAnswer(version, time, RuntimeTable(), table, table[1], static_cast<uint8_t*>(answer));
  return CUDA_SUCCESS;
}

const void* const* IntegrityTable() {
  static const void* const table[3] = {SizeWord<3>(), Slot(AnswerIntegrity), Slot(NotSupported)};
  return table;
}

struct NamedTable {
  uint8_t uuid[16];
  const void* const* (*table)();
};

constexpr NamedTable kTables[] = {
    {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9},
     RuntimeTable},
    {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66},
     HooksTable},
    {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc},
     ThreadTable},
    {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93},
     StorageTable},
    {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e},
     ChecksTable},
    {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2},
     IntegrityTable},
    {{0xda, 0x91, 0x51, 0xd3, 0x3a, 0xe6, 0xcc, 0x41, 0xa5, 0xc0, 0x4f, 0x26, 0xd5, 0x33, 0xe3, 0x28},
     CompileCacheTable},
};

}  // namespace
}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" CUresult cuGetExportTable(const void** ppExportTable, const CUuuid* pExportTableId) {
  return Always(__func__, [&]() -> CUresult {
    if (ppExportTable == nullptr || pExportTableId == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (const NamedTable& named : kTables) {
      if (std::memcmp(named.uuid, pExportTableId->bytes, sizeof named.uuid) != 0) continue;
      *ppExportTable = named.table();
      return CUDA_SUCCESS;
    }
    *ppExportTable = nullptr;
    return CUDA_ERROR_INVALID_VALUE;
  });
}
