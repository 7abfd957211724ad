// SPDX-License-Identifier: Apache-2.0
// Copies between this process and the device.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>

#include "ivshmem_ring/messages/copy_messages.h"

namespace causeway::guest {

// Either side may be anything: decided by address.
CUresult CopyUnified(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, CUstream stream, CopyForm form);

// Both sides on the device (or in memory that it shares); returns before the copy is done unless `form`
// waits.
CUresult CopyOnDevice(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, CUstream stream, CopyForm form);

// A copy of a box; the contexts are those of cuMemcpy3DPeer, null in all other copies.
CUresult CopyBox(CUDA_MEMCPY3D box, CUstream stream, CopyForm form, CUcontext source = nullptr,
                 CUcontext destination = nullptr);

}  // namespace causeway::guest
