// SPDX-License-Identifier: Apache-2.0
// The functions in the driver's private tables, with the parameters that their callers pass. Such a table is
// an array of function addresses that a library of NVIDIA's gets by UUID from cuGetExportTable. In these
// files "slot" means an index of such a table, not a slot of the region. Which function is in which slot of
// which table stands in export_tables.cc.
//
// Nothing here is declared by any CUDA header: the parameters and answers were found by observing the CUDA
// runtime, cuBLAS and cuFFT against the 580 driver. Any thread may call these functions, without a lock of
// this library's held. Where a comment does not say otherwise, a null pointer for a result is answered with
// CUDA_ERROR_INVALID_VALUE, an unknown context with CUDA_ERROR_INVALID_CONTEXT, and a missing session
// with the error that says why there is none; a result is written on success alone.
#pragma once

#include "ivshmem_ring/protocol/driver_api.h"

#include <cstddef>
#include <cstdint>

namespace causeway::guest::slots {

// For slots that no known caller uses: CUDA_ERROR_NOT_SUPPORTED, whatever the arguments.
CUresult NotSupported();
// For notifications that need no action: CUDA_SUCCESS, whatever the arguments.
CUresult Ignore();

// Modules, for CUDA runtimes before 12.0. `wrapper` is the struct that nvcc puts around a fatbin (a file of
// device code for several GPUs). `names` and `addresses` are arrays of symbol_count symbols of the program
// that device code refers to. All of it stays the caller's and is read during the call.
// CUDA_ERROR_INVALID_IMAGE: it is no wrapper, or no fatbin. The caller ends a loaded module by UnloadModule.
CUresult LoadWrapper(CUmodule* module, const void* wrapper);
CUresult LoadWrapperWithSymbols(CUmodule* module, const void* wrapper, const char** names, void** addresses,
                                uint32_t symbol_count);
CUresult LoadFatbin(const void* fatbin, CUmodule* module, const char** names, void** addresses,
                    uint32_t symbol_count);
CUresult UnloadModule(CUmodule module);
// The handle of the device's primary context. The call does not activate the context.
// CUDA_ERROR_INVALID_DEVICE: there is no such device.
CUresult PrimaryContext(CUcontext* context, CUdevice device);

// An array of flags, and how many there are: whether a profiler wants to hear of each call, or each kind of
// resource, of the runtime. Guests have no profiler, so all flags are 0. The arrays are this library's and
// live as long as the process; nobody sets a flag.
CUresult CallbackFlags(int** flags, size_t* count);
CUresult ResourceFlags(int** flags, size_t* count);

// The calling thread's current context; null, with success, when there is none.
CUresult ThreadContext(CUcontext* context);

// Whether another context stands for this one. Here none does: *redirected becomes 0, *other is left alone.
CUresult ContextCheck(CUcontext context, int* redirected, CUcontext* other);

// Numbers that cuBLAS and cuBLASLt use as keys of per-context and per-stream caches. A null context means the
// current one. StreamObject returns the stream for which StreamObjectIdentity gives the number: it turns
// CU_STREAM_PER_THREAD, and a null stream where zero_is_per_thread is not 0, into the thread's own stream,
// and any other null stream into CU_STREAM_LEGACY. CUDA_ERROR_INVALID_HANDLE: there is no such stream.
CUresult ContextIdentity(CUcontext context, uint64_t* id);
CUresult StreamObject(CUcontext context, CUstream stream, void** object, int zero_is_per_thread);
CUresult StreamObjectIdentity(CUcontext context, void* object, uint64_t* id);

// Calls visit(user, function, module) for each function of the module, in the calling thread, with the
// context current; a null context means the current one. Returns 1 on success and 0 on failure.
using FunctionVisitor = void (*)(void* user, CUfunction function, void* owner);
int ForEachFunction(CUcontext context, CUmodule module, FunctionVisitor visit, void* user);

// ExtendedDeviceAttribute answers as cuDeviceGetAttribute, in value[0]; value[1] becomes 0.
// ExtendedDeviceFlag always answers 0, whatever the device. CreateContext is cuCtxCreate_v2.
CUresult ExtendedDeviceAttribute(CUdevice device, CUdevice_attribute attribute, int unused, size_t value[2]);
CUresult ExtendedDeviceFlag(uint8_t* flag, CUdevice device);
CUresult CreateContext(CUcontext* context, unsigned flags, CUdevice device);

// Causeway's own, for tests and benchmarks: how many replies the thread has waited for; `count` is not null.
CUresult RepliesAwaited(uint64_t* count);

}  // namespace causeway::guest::slots
