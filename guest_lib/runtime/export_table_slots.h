// SPDX-License-Identifier: Apache-2.0
// The functions in the driver's private tables, with the parameters that their callers pass. Which slot of
// which table each one fills stands in export_tables.cc.
//
// Nothing here is declared by any CUDA header: the parameters and answers were found by observing the CUDA
// runtime, cuBLAS and cuFFT against the 580 driver.
#pragma once

#include "ivshmem_ring/protocol/driver_api.h"

#include <cstddef>
#include <cstdint>

namespace causeway::guest::slots {

// For slots that no known caller uses: CUDA_ERROR_NOT_SUPPORTED, whatever the arguments.
CUresult NotSupported();
// For notifications that need no action: CUDA_SUCCESS, whatever the arguments.
CUresult Ignore();

// Runtime interface.
CUresult LoadWrapper(CUmodule* module, const void* wrapper);
CUresult LoadWrapperWithSymbols(CUmodule* module, const void* wrapper, const char** names, void** addresses,
                                uint32_t symbol_count);
CUresult LoadFatbin(const void* fatbin, CUmodule* module, const char** names, void** addresses,
                    uint32_t symbol_count);
CUresult UnloadModule(CUmodule module);
// The primary context's handle, which is not activated by asking.
CUresult PrimaryContext(CUcontext* context, CUdevice device);

// Arrays of enable flags, one for each callback or resource kind of the runtime; a tool that is not there has
// none enabled.
CUresult CallbackFlags(int** flags, size_t* count);
CUresult ResourceFlags(int** flags, size_t* count);

// The calling thread's current context; null, with success, when there is none.
CUresult ThreadContext(CUcontext* context);

// *redirected = 0: no context stands for another one (*other is left alone).
CUresult ContextCheck(CUcontext context, int* redirected, CUcontext* other);

// Identities that cuBLAS and cuBLASLt use as keys of per-context and per-stream caches. A null context means
// the current one. StreamObject turns the handles 0, 1 and 2 into the objects that they stand for.
CUresult ContextIdentity(CUcontext context, uint64_t* id);
CUresult StreamObject(CUcontext context, CUstream stream, void** object, int zero_is_per_thread);
CUresult StreamObjectIdentity(CUcontext context, void* object, uint64_t* id);

// Calls visit(user, function, module) for each function of the module. Returns 1 on success and 0 on failure.
using FunctionVisitor = void (*)(void* user, CUfunction function, void* owner);
int ForEachFunction(CUcontext context, CUmodule module, FunctionVisitor visit, void* user);

// Forwarders to cuDeviceGetAttribute and cuCtxCreate_v2, and a flag that is always 0.
CUresult ExtendedDeviceAttribute(CUdevice device, CUdevice_attribute attribute, int unused, size_t value[2]);
CUresult ExtendedDeviceFlag(uint8_t* flag, CUdevice device);
CUresult CreateContext(CUcontext* context, unsigned flags, CUdevice device);

// Causeway's own: replies of the host that the calling thread has waited for.
CUresult RepliesAwaited(uint64_t* count);

}  // namespace causeway::guest::slots
