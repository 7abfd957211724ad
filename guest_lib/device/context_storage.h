// SPDX-License-Identifier: Apache-2.0
// Context-local storage: pointers that libraries hang on a context under a key of their own. The CUDA runtime
// keeps its per-context state here and reads it once per API call, so reading is the hot path.
//
// Any thread may call these functions, destructors too: they run without the storage lock, the innermost.
#pragma once

#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway::guest {

using ContextStorageDestructor = void (*)(CUcontext context, void* key, void* value);

// In all three, a null context means the calling thread's current one: CUDA_ERROR_INVALID_CONTEXT when it has
// none, CUDA_ERROR_NOT_INITIALIZED before cuInit.

// Stores a value. CUDA_ERROR_INVALID_HANDLE if the key has one (which stays), CUDA_ERROR_INVALID_CONTEXT for
// a context that does not exist or is being destroyed. `destructor` may be null.
CUresult ContextStoragePut(CUcontext context, void* key, void* value, ContextStorageDestructor destructor);

// Reads a value. CUDA_ERROR_INVALID_HANDLE, and *value untouched, if the key has none.
CUresult ContextStorageGet(void** value, CUcontext context, void* key);

// Forgets a value without running its destructor. CUDA_ERROR_INVALID_HANDLE if the key has none.
CUresult ContextStorageDelete(CUcontext context, void* key);

// Empties a context's storage: runs the destructors on the calling thread, newest value first, with the
// context current, and puts the thread's current context back. To be called while the context still works:
// first thing in cuCtxDestroy, in the last cuDevicePrimaryCtxRelease and in cuDevicePrimaryCtxReset.
void ContextStorageDestroy(CUcontext context);

}  // namespace causeway::guest
