// SPDX-License-Identifier: Apache-2.0
// cuGetErrorName and cuGetErrorString, from error_names.def.
#include "ivshmem_ring/protocol/driver_api.h"

namespace {

struct ErrorText {
  const char* name;
  const char* text;
};

// The switch has no default, so that a result which cuda.h adds does not compile until it has a row.
ErrorText Describe(CUresult error) {
  switch (error) {
#define ERROR_TEXT(result, text) \
  case result:                   \
    return {#result, text};
#include "guest_lib/api/error_names.def"
#undef ERROR_TEXT
  }
  return {nullptr, nullptr};
}

CUresult Answer(const char* text, const char** out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = text;
  return text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuGetErrorName(CUresult error, const char** pStr) {
  return Answer(Describe(error).name, pStr);
}

CUresult cuGetErrorString(CUresult error, const char** pStr) {
  return Answer(Describe(error).text, pStr);
}

}  // extern "C"
