// SPDX-License-Identifier: Apache-2.0
// Attributes and settings that are kept or accepted although nothing here depends on them.
#include <cstring>

#include "tests/software_gpu/graph.h"
#include "tests/software_gpu/stream.h"

namespace causeway::software_gpu {
namespace {

CUresult GetStreamAttribute(const Stream& stream, CUstreamAttrID attribute, CUstreamAttrValue* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::memset(value, 0, sizeof *value);
  switch (attribute) {
    case CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      value->syncPolicy = static_cast<CUsynchronizationPolicy>(stream.sync_policy.load());
      return CUDA_SUCCESS;
    case CU_STREAM_ATTRIBUTE_PRIORITY:
      value->priority = stream.priority;
      return CUDA_SUCCESS;
    case CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

bool IsKnownStreamAttribute(CUstreamAttrID attribute) {
  return attribute == CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY ||
         attribute == CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW || attribute == CU_STREAM_ATTRIBUTE_PRIORITY ||
         attribute == CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP ||
         attribute == CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN;
}

}  // namespace
}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuStreamGetAttribute(CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue* value_out) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    StreamRef stream = FindStream(context, hStream);
    return stream == nullptr ? CUDA_ERROR_INVALID_HANDLE : GetStreamAttribute(*stream, attr, value_out);
  });
}

CUresult cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue* value) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    StreamRef stream = FindStream(context, hStream);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (value == nullptr || !IsKnownStreamAttribute(attr)) return CUDA_ERROR_INVALID_VALUE;
    if (attr == CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY) stream->sync_policy.store(value->syncPolicy);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamCopyAttributes(CUstream dst, CUstream src) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    StreamRef to = FindStream(context, dst), from = FindStream(context, src);
    if (to == nullptr || from == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    to->sync_policy.store(from->sync_policy.load());
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig* pConfig) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    if (pConfig == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pConfig = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
  return InContext(__func__, [&](const ContextRef&) -> CUresult {
    return config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}

CUresult cuProfilerStart(void) {
  return InContext(__func__, [](const ContextRef&) { return CUDA_SUCCESS; });
}

CUresult cuProfilerStop(void) {
  return InContext(__func__, [](const ContextRef&) { return CUDA_SUCCESS; });
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
  return OnDevice(__func__,
                  [&]() -> CUresult { return IsDevice(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE; });
}

}  // extern "C"
