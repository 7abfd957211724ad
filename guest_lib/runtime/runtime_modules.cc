// SPDX-License-Identifier: Apache-2.0
// Module loading through the runtime interface table, as CUDA runtimes before 12.0 do it: the image is nvcc's
// wrapper around a fatbin, which cuModuleLoadData does not take. (cuCtxCreate_v2 is here for its old name.)
#define __CUDA_API_VERSION_INTERNAL  // declares every ABI of every function, without renaming any

#include <cstring>
#include <map>
#include <mutex>

#include "guest_lib/code/fatbin.h"
#include "guest_lib/code/function.h"
#include "guest_lib/process/lock_order.h"
#include "guest_lib/runtime/export_table_slots.h"

namespace causeway::guest::slots {
namespace {

constexpr uint32_t kWrapperMagic = 0x466243b1;
constexpr uint32_t kWrapperLinked = 2;  // the version of a wrapper of relocatable device code

struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const void* fatbin;
  // Version 1: a file name or null. kWrapperLinked: the fatbins that were linked, ended by a null.
  const void* const* inputs;
};
static_assert(sizeof(Wrapper) == 24);

// JIT options for symbols of the host program that device code refers to.
struct SymbolOptions {
  CUjit_option options[3] = {CU_JIT_GLOBAL_SYMBOL_NAMES, CU_JIT_GLOBAL_SYMBOL_ADDRESSES,
                             CU_JIT_GLOBAL_SYMBOL_COUNT};
  void* values[3];
  unsigned count;

  SymbolOptions(const char** names, void** addresses, uint32_t symbol_count)
      : values{names, addresses, reinterpret_cast<void*>(static_cast<uintptr_t>(symbol_count))},
        count(symbol_count == 0 ? 0 : 3) {}
};

FatbinHeader ReadHeader(const void* fatbin) {
  FatbinHeader header;
  std::memcpy(&header, fatbin, sizeof(header));
  return header;
}

// Libraries behind modules of linked wrappers, by module.
struct Linked {
  Mutex<Lock::kLinkedModules> mutex;
  std::map<CUmodule, CUlibrary> libraries;
};
Linked& linked = *new Linked;  // programs unload at exit

// Relocatable device code. Which of the linked result and the inputs fits the GPU, and whether it must be
// linked again, the driver knows: as a library it takes the wrapper as it is.
CUresult LoadLinked(CUmodule* module, const void* wrapper, SymbolOptions* symbols) {
  CUlibrary library = nullptr;
  if (const CUresult result = cuLibraryLoadData(&library, wrapper, symbols->options, symbols->values,
                                                symbols->count, nullptr, nullptr, 0)) {
    return result;
  }
  const CUresult result = ModuleOf(library, module);
  if (result != CUDA_SUCCESS) {
    cuLibraryUnload(library);
    return result;
  }
  const std::lock_guard lock(linked.mutex);
  linked.libraries[*module] = library;
  return CUDA_SUCCESS;
}

CUresult LoadImage(CUmodule* module, const void* image, SymbolOptions* symbols) {
  if (symbols->count == 0) return cuModuleLoadData(module, image);
  return cuModuleLoadDataEx(module, image, symbols->count, symbols->options, symbols->values);
}

}  // namespace

CUresult LoadWrapperWithSymbols(CUmodule* module, const void* wrapper, const char** names, void** addresses,
                                uint32_t symbol_count) {
  if (module == nullptr || wrapper == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Wrapper copy;
  std::memcpy(&copy, wrapper, sizeof(copy));
  if (copy.magic != kWrapperMagic || copy.fatbin == nullptr) return CUDA_ERROR_INVALID_IMAGE;
  SymbolOptions symbols(names, addresses, symbol_count);
  if (copy.version == kWrapperLinked) return LoadLinked(module, wrapper, &symbols);
  return LoadImage(module, copy.fatbin, &symbols);
}

CUresult LoadWrapper(CUmodule* module, const void* wrapper) {
  return LoadWrapperWithSymbols(module, wrapper, nullptr, nullptr, 0);
}

CUresult LoadFatbin(const void* fatbin, CUmodule* module, const char** names, void** addresses,
                    uint32_t symbol_count) {
  if (module == nullptr || fatbin == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (ReadHeader(fatbin).magic != kFatbinMagic) return CUDA_ERROR_INVALID_IMAGE;
  SymbolOptions symbols(names, addresses, symbol_count);
  return LoadImage(module, fatbin, &symbols);
}

CUresult UnloadModule(CUmodule module) {
  std::unique_lock lock(linked.mutex);
  const auto found = linked.libraries.find(module);
  if (found == linked.libraries.end()) {
    lock.unlock();
    return cuModuleUnload(module);
  }
  const CUlibrary library = found->second;
  linked.libraries.erase(found);
  lock.unlock();
  return cuLibraryUnload(library);
}

CUresult CreateContext(CUcontext* context, unsigned flags, CUdevice device) {
  return cuCtxCreate_v2(context, flags, device);
}

}  // namespace causeway::guest::slots
