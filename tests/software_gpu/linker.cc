// SPDX-License-Identifier: Apache-2.0
// The run-time linker. What it links are texts: PTX after PTX, as the parser reads them. The "cubin" is that
// text.
#include <fstream>
#include <iterator>
#include <list>

#include "tests/software_gpu/fatbin.h"
#include "tests/software_gpu/handles.h"
#include "tests/software_gpu/interpreter.h"
#include "tests/software_gpu/jit_log.h"

namespace causeway::software_gpu {
namespace {

struct Link {
  std::mutex mutex;
  JitLog log;
  std::string text;
  std::list<std::string> images;  // one for each cuLinkComplete
};

Registry<CUlinkState, Link>& Links() {
  static auto* links = new Registry<CUlinkState, Link>(true);
  return *links;
}

// Compiles one input, as NVIDIA's driver does when it is added. What it leaves to others may be missing.
bool Compiles(const std::string& ptx, std::string* error) {
  if (Program::Parse(ptx, error) != nullptr) return true;
  const size_t quote = error->find('\''), end = error->find('\'', quote + 1);
  if (end == error->npos) return false;
  const std::string missing = error->substr(quote + 1, end - quote - 1);
  for (size_t at = 0; (at = ptx.find(".extern", at)) != ptx.npos; ++at) {
    if (ptx.substr(at, ptx.find(';', at) - at).find(missing) != ptx.npos) return true;
  }
  return false;
}

CUresult Add(CUlinkState state, CUjitInputType type, const void* data, size_t bytes, unsigned count,
             CUjit_option* options, void** values) {
  auto link = Links().Find(state);
  if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (data == nullptr || type < 0 || type >= CU_JIT_NUM_INPUT_TYPES) return CUDA_ERROR_INVALID_VALUE;
  JitLog own(options, values, count);
  if (own.Check() != CUDA_SUCCESS) return own.Check();
  const std::lock_guard lock(link->mutex);
  const std::string input(static_cast<const char*>(data), bytes);  // ends in a zero, like text
  std::string ptx, error;
  CUresult result = ExtractPtx(input.c_str(), false, &ptx, &error);
  if (result == CUDA_SUCCESS && type != CU_JIT_INPUT_PTX && type != CU_JIT_INPUT_FATBINARY) {
    error = "the software GPU links PTX and fatbins only";
    result = CUDA_ERROR_INVALID_IMAGE;
  }
  if (result != CUDA_SUCCESS && (type == CU_JIT_INPUT_OBJECT || type == CU_JIT_INPUT_LIBRARY))
    result = CUDA_ERROR_UNKNOWN;  // as NVIDIA's driver
  if (result == CUDA_SUCCESS && !Compiles(ptx, &error)) result = CUDA_ERROR_INVALID_PTX;
  if (result == CUDA_SUCCESS) {
    link->text += ptx + "\n";
  } else {
    link->log.Error(error + "\n");
    own.Error(error + "\n");
  }
  return result;
}

}  // namespace
}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option* options, void** optionValues,
                         CUlinkState* stateOut) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (stateOut == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto link = std::make_shared<Link>();
    link->log = JitLog(options, optionValues, numOptions);
    if (link->log.Check() == CUDA_SUCCESS) *stateOut = Links().Add(link);
    return link->log.Check();
  });
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t size, const char*,
                          unsigned int numOptions, CUjit_option* options, void** optionValues) {
  return InContext(__func__, [&](const ContextRef&) {
    return Add(state, type, data, size, numOptions, options, optionValues);
  });
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path, unsigned int numOptions,
                          CUjit_option* options, void** optionValues) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (Links().Find(state) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    std::ifstream file(path, std::ios::binary);
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    const std::string data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    return Add(state, type, data.c_str(), data.size(), numOptions, options, optionValues);
  });
}

CUresult cuLinkComplete(CUlinkState state, void** cubinOut, size_t* sizeOut) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    auto link = Links().Find(state);
    if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (cubinOut == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(link->mutex);
    std::string error;
    if (Program::Parse(link->text, &error) == nullptr) {
      link->log.Error(error + "\n");
      return CUDA_ERROR_INVALID_PTX;
    }
    link->log.Info("software GPU: linked\n");
    link->images.push_back(link->text);
    *cubinOut = link->images.back().data();
    if (sizeOut != nullptr) *sizeOut = link->images.back().size() + 1;
    return CUDA_SUCCESS;
  });
}

CUresult cuLinkDestroy(CUlinkState state) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    return Links().Remove(state) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

}  // extern "C"
