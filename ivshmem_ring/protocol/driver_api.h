// SPDX-License-Identifier: Apache-2.0
// The driver's declarations under their exported names. Include this instead of cuda.h, which by itself turns
// cuMemAlloc into cuMemAlloc_v2 by a macro and hides the older forms.
#pragma once
#ifndef __CUDA_API_VERSION_INTERNAL
#ifdef CUDA_VERSION
#error "cuda.h was included before ivshmem_ring/protocol/driver_api.h: its names have been changed already"
#endif
#define __CUDA_API_VERSION_INTERNAL
#endif
// The guest library exports these functions and hides everything else.
#pragma GCC visibility push(default)
#include <cuda.h>
#include <cudaProfiler.h>
#pragma GCC visibility pop
