// SPDX-License-Identifier: Apache-2.0
// Copies between this process and the device. Sizes are in bytes. The results are what the program's call
// returns. Any thread may call these functions; they send messages.
#pragma once
#include "guest_lib/session/captures.h"
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>

#include "ivshmem_ring/messages/copy_messages.h"

namespace causeway::guest {

// Each side may be memory of any kind, which its address decides.
CUresult CopyUnified(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, CUstream stream, CopyForm form);

// Both sides are on the device, or in memory that it reaches. It waits for the copy if `form` does.
CUresult CopyOnDevice(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, CUstream stream, CopyForm form);

// Every 2D and 3D copy. The contexts are those of cuMemcpy3DPeer, and null in all other copies.
CUresult CopyBox(CUDA_MEMCPY3D box, CUstream stream, CopyForm form, CUcontext source = nullptr,
                 CUcontext destination = nullptr);

// Waits for a copy or a fill that returns when it is done: the driver allows those beside a capture in every mode, and
// a wait that the program has asked for in the relaxed mode alone. On the legacy stream they fail where it would have to wait
// for a stream that captures.
inline CUresult AwaitCopied(CUstream stream) {
  CUstreamCaptureStatus status;
  if (AnyCapture() && cuStreamIsCapturing(stream, &status) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  const RelaxedCaptures relaxed;
  return cuStreamSynchronize(stream);
}

}  // namespace causeway::guest
