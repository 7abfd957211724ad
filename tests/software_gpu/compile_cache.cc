// SPDX-License-Identifier: Apache-2.0
// Compiled code, kept in memory until the process ends.
#include "tests/software_gpu/compile_cache.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "tests/software_gpu/driver.h"

namespace causeway::software_gpu {
namespace {

struct Kept {
  std::mutex mutex;
  std::map<std::string, std::string> code;  // by everything that the key was made of
};

Kept& KeptCode() {
  static auto* kept = new Kept;
  return *kept;
}

CUresult MakeKey(std::string** key, int kind, const char* source, uint32_t source_bytes, const char* options,
                 const char* host, const char* compiler, uint32_t architecture, uint32_t flag) {
  *key = new std::string(source, source_bytes);
  for (const char* text : {options, host, compiler}) **key += std::string(1, '\0') + text;
  for (const uint32_t number : {static_cast<uint32_t>(kind), architecture, flag})
    **key += "\n" + std::to_string(number);
  return CUDA_SUCCESS;
}

CUresult DestroyKey(std::string* key) {
  delete key;
  return CUDA_SUCCESS;
}

CUresult Find(const std::string* key, void*, void** code, uint32_t* bytes) {
  const std::lock_guard lock(KeptCode().mutex);
  const auto found = KeptCode().code.find(*key);
  if (found == KeptCode().code.end()) return CUDA_ERROR_NOT_FOUND;
  *bytes = static_cast<uint32_t>(found->second.size());
  *code = std::malloc(*bytes + 1);
  std::memcpy(*code, found->second.c_str(), *bytes + 1);
  return CUDA_SUCCESS;
}

CUresult Keep(const std::string* key, void*, const char* code, uint32_t bytes) {
  const std::lock_guard lock(KeptCode().mutex);
  KeptCode().code[*key].assign(code, bytes);
  return CUDA_SUCCESS;
}

CUresult NotSupported() {
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult Free(void* code) {
  std::free(code);
  return CUDA_SUCCESS;
}

template <class Function>
const void* Slot(Function* function) {
  return reinterpret_cast<const void*>(function);
}

}  // namespace

const void* const* CompileCacheTable() {
  static const void* const table[7] = {reinterpret_cast<const void*>(sizeof table),
                                       Slot(MakeKey),
                                       Slot(DestroyKey),
                                       Slot(Find),
                                       Slot(Keep),
                                       Slot(NotSupported),
                                       Slot(Free)};
  return table;
}

}  // namespace causeway::software_gpu
