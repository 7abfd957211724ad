// SPDX-License-Identifier: Apache-2.0
// Module loading through the runtime interface table, as CUDA runtimes before 12.0 do it: the image is the
// wrapper that nvcc puts around a fatbin, which cuModuleLoadData does not take. (cuCtxCreate_v2 is here for
// its old name.)
#define __CUDA_API_VERSION_INTERNAL  // declares every ABI of every function, without renaming any

#include <cstring>

#include "guest_lib/export_table_slots.h"

namespace causeway::guest::slots {
namespace {

constexpr uint32_t kWrapperMagic = 0x466243b1;
constexpr uint32_t kFatbinMagic = 0xba55ed50;
constexpr uint32_t kWrapperLinked = 2;  // the version of a wrapper of relocatable device code

struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const void* fatbin;
  // Version 1: a file name or null. kWrapperLinked: the fatbins that were linked, ended by a null.
  const void* const* inputs;
};
static_assert(sizeof(Wrapper) == 24);

struct FatbinHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t entries_bytes;
};
static_assert(sizeof(FatbinHeader) == 16);

// More linked fatbins than any program has; bounds the walk over a list without its end.
constexpr size_t kMaxLinkedFatbins = 65536;

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

// Links the inputs of a wrapper whose own fatbin is empty (a program built with PTX only) and loads the
// outcome.
CUresult LinkAndLoad(CUmodule* module, const void* const* inputs, SymbolOptions* symbols) {
  CUlinkState link = nullptr;
  CUresult result = cuLinkCreate_v2(symbols->count, symbols->options, symbols->values, &link);
  if (result != CUDA_SUCCESS) return result;
  for (size_t i = 0; inputs[i] != nullptr && result == CUDA_SUCCESS; ++i) {
    const FatbinHeader header = ReadHeader(inputs[i]);
    if (i == kMaxLinkedFatbins || header.magic != kFatbinMagic) {
      result = CUDA_ERROR_INVALID_IMAGE;
      break;
    }
    result =
        cuLinkAddData_v2(link, CU_JIT_INPUT_FATBINARY, const_cast<void*>(inputs[i]),
                         header.header_bytes + header.entries_bytes, "linked fatbin", 0, nullptr, nullptr);
  }
  void* cubin = nullptr;
  size_t cubin_bytes = 0;
  if (result == CUDA_SUCCESS) result = cuLinkComplete(link, &cubin, &cubin_bytes);
  if (result == CUDA_SUCCESS) result = cuModuleLoadData(module, cubin);
  cuLinkDestroy(link);  // owns the cubin; its own result would hide the one that matters
  return result;
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
  const bool is_linked = copy.version == kWrapperLinked;
  if (is_linked && copy.inputs != nullptr && ReadHeader(copy.fatbin).magic == kFatbinMagic &&
      ReadHeader(copy.fatbin).entries_bytes == 0) {
    return LinkAndLoad(module, copy.inputs, &symbols);
  }
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

CUresult CreateContext(CUcontext* context, unsigned flags, CUdevice device) {
  return cuCtxCreate_v2(context, flags, device);
}

}  // namespace causeway::guest::slots
