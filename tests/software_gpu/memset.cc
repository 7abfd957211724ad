// SPDX-License-Identifier: Apache-2.0
// Memsets. On device memory all return at once, the synchronous forms too; those wait where they fill host
// memory.
#include <cstring>

#include "tests/software_gpu/device_access.h"
#include "tests/software_gpu/graph.h"
#include "tests/software_gpu/kept_mapped.h"
#include "tests/software_gpu/memory.h"
#include "tests/software_gpu/memset_node.h"
#include "tests/software_gpu/stream.h"
#include "tests/software_gpu/stream_handles.h"

namespace causeway::software_gpu {
namespace {

template <typename Element>
void FillRows(const CUDA_MEMSET_NODE_PARAMS& fill) {
  for (size_t row = 0; row < fill.height; ++row) {
    auto* to = reinterpret_cast<std::byte*>(fill.dst + row * fill.pitch);
    Element value = static_cast<Element>(fill.value);
    if constexpr (sizeof(Element) == 1) {
      std::memset(to, value, fill.width);
    } else {
      for (size_t i = 0; i < fill.width; ++i) std::memcpy(to + i * sizeof value, &value, sizeof value);
    }
  }
}

void RunFill(const CUDA_MEMSET_NODE_PARAMS& fill) {
  const ScopedDeviceAccess access;
  switch (fill.elementSize) {
    case 1:
      return FillRows<uint8_t>(fill);
    case 2:
      return FillRows<uint16_t>(fill);
    default:
      return FillRows<uint32_t>(fill);
  }
}

CUresult Fill(const ContextRef& context, CUstream handle, const CUDA_MEMSET_NODE_PARAMS& fill) {
  StreamRef stream = FindStream(context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (fill.width == 0 || fill.height == 0) {
    // Nothing to do, unless a capture forbids to do anything.
    return stream->kind == Stream::Kind::kLegacy ? RefuseInCapture(stream) : CUDA_SUCCESS;
  }
  Operation operation;
  CUresult result = MakeMemsetOperation(fill, &operation);
  if (result != CUDA_SUCCESS) {  // that the stream's capture has ended is said first
    std::lock_guard lock(GraphLock());
    const bool ended = stream->capture != nullptr && stream->capture->invalidated;
    return ended ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : result;
  }
  return Submit(stream, std::move(operation));
}

CUresult FillSync(const ContextRef& context, const CUDA_MEMSET_NODE_PARAMS& fill) {
  CUresult result = Fill(context, nullptr, fill);
  bool waits = result == CUDA_SUCCESS && ClassifyRange(fill.dst, 1) == RangeClass::kPinned;
  return waits ? SynchronizeStream(FindStream(context, nullptr)) : result;
}

CUDA_MEMSET_NODE_PARAMS Linear(CUdeviceptr to, unsigned value, unsigned element_bytes, size_t count) {
  return {to, count * element_bytes, value, element_bytes, count, 1};
}

CUDA_MEMSET_NODE_PARAMS Rows(CUdeviceptr to, size_t pitch, unsigned value, unsigned element_bytes,
                             size_t width, size_t height) {
  return {to, pitch, value, element_bytes, width, height};
}

}  // namespace

CUresult MakeMemsetOperation(const CUDA_MEMSET_NODE_PARAMS& fill, Operation* operation) {
  unsigned element = fill.elementSize;
  if ((element != 1 && element != 2 && element != 4) || fill.dst == 0) return CUDA_ERROR_INVALID_VALUE;
  if (fill.dst % element != 0 || (fill.height > 1 && fill.pitch % element != 0))
    return CUDA_ERROR_INVALID_VALUE;
  size_t row_bytes = 0;
  size_t total_bytes = 0;
  bool overflow = __builtin_mul_overflow(fill.width, size_t{element}, &row_bytes) ||
                  (fill.height > 1 && __builtin_mul_overflow(fill.pitch, fill.height - 1, &total_bytes)) ||
                  __builtin_add_overflow(total_bytes, row_bytes, &total_bytes);
  if (overflow || (fill.height > 1 && fill.pitch < row_bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (!IsAddressable(fill.dst, total_bytes)) return CUDA_ERROR_INVALID_VALUE;
  operation->type = CU_GRAPH_NODE_TYPE_MEMSET;
  operation->run = [fill, total_bytes] { Touch({{fill.dst, total_bytes, true}}, [&] { RunFill(fill); }); };
  operation->parameters = std::make_shared<CUDA_MEMSET_NODE_PARAMS>(fill);
  return CUDA_SUCCESS;
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N) {
  return InContext(__func__,
                   [&](const ContextRef& context) { return FillSync(context, Linear(dstDevice, uc, 1, N)); });
}

CUresult cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, size_t N) {
  return InContext(__func__,
                   [&](const ContextRef& context) { return FillSync(context, Linear(dstDevice, us, 2, N)); });
}

CUresult cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N) {
  return InContext(__func__,
                   [&](const ContextRef& context) { return FillSync(context, Linear(dstDevice, ui, 4, N)); });
}

CUresult cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream) {
  return InContextOfStream(__func__, hStream, [&](const ContextRef& context) {
    return Fill(context, hStream, Linear(dstDevice, uc, 1, N));
  });
}

CUresult cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream) {
  return InContextOfStream(__func__, hStream, [&](const ContextRef& context) {
    return Fill(context, hStream, Linear(dstDevice, us, 2, N));
  });
}

CUresult cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream) {
  return InContextOfStream(__func__, hStream, [&](const ContextRef& context) {
    return Fill(context, hStream, Linear(dstDevice, ui, 4, N));
  });
}

CUresult cuMemsetD2D8_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                         size_t Height) {
  return InContext(__func__, [&](const ContextRef& context) {
    return FillSync(context, Rows(dstDevice, dstPitch, uc, 1, Width, Height));
  });
}

CUresult cuMemsetD2D16_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                          size_t Height) {
  return InContext(__func__, [&](const ContextRef& context) {
    return FillSync(context, Rows(dstDevice, dstPitch, us, 2, Width, Height));
  });
}

CUresult cuMemsetD2D32_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                          size_t Height) {
  return InContext(__func__, [&](const ContextRef& context) {
    return FillSync(context, Rows(dstDevice, dstPitch, ui, 4, Width, Height));
  });
}

CUresult cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
                           size_t Height, CUstream hStream) {
  return InContextOfStream(__func__, hStream, [&](const ContextRef& context) {
    return Fill(context, hStream, Rows(dstDevice, dstPitch, uc, 1, Width, Height));
  });
}

CUresult cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
                            size_t Height, CUstream hStream) {
  return InContextOfStream(__func__, hStream, [&](const ContextRef& context) {
    return Fill(context, hStream, Rows(dstDevice, dstPitch, us, 2, Width, Height));
  });
}

CUresult cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
                            size_t Height, CUstream hStream) {
  return InContextOfStream(__func__, hStream, [&](const ContextRef& context) {
    return Fill(context, hStream, Rows(dstDevice, dstPitch, ui, 4, Width, Height));
  });
}

}  // extern "C"
