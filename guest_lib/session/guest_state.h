// SPDX-License-Identifier: Apache-2.0
// What the parts that send no messages (export tables, context storage, integrity value) need to know about
// the process, its devices and the calling thread. Any thread may call these functions.
#pragma once

#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>

namespace causeway::guest {

// Exactly what cuDeviceGetUuid (first version) and the PCI attributes report for the device.
struct DeviceIdentity {
  CUuuid uuid;
  int pci_domain;
  int pci_bus;
  int pci_device;
};

// How many replies of the host the calling thread has waited for. Tests and benchmarks ask.
uint64_t RepliesAwaited();

// CUDA_SUCCESS while there is a session: CUDA_ERROR_NOT_INITIALIZED before cuInit and in a forked child,
// CUDA_ERROR_DEINITIALIZED once the process ends. One load, because it is called on hot paths.
CUresult SessionOrError();
// The same, but CUDA_ERROR_NOT_PERMITTED within a callback of the program in which CUDA forbids its calls.
CUresult InitialisedOrError();

// Number of visible devices, and identity of one (0 <= device < DeviceCount()). Only after cuInit.
int DeviceCount();
DeviceIdentity Identity(int device);

// The version that cuDriverGetVersion reports, such as 13000.
int DriverVersion();

// The calling thread's current context, or null. Never fails, never sends a message.
CUcontext CurrentContext();

// The handle that the device's primary context has now or will have once it is active; null when there is no
// such device. It neither activates nor retains the context.
CUcontext PrimaryContextHandle(int device);

// True while the handle names a live context or the primary context of a device, active or not.
bool IsContext(CUcontext context);

// As cuCtxGetId: unique among all contexts. A primary context gets a new one at each activation.
CUresult ContextId(CUcontext context, uint64_t* id);

// Replaces the top of the thread's context stack and returns what was there; null: an empty stack, both ways.
CUcontext SwapCurrentContext(CUcontext context);

// The object that stands for CU_STREAM_PER_THREAD of the calling thread in its current context. It is a
// stream handle that StreamId accepts.
CUstream PerThreadStream();

// The same answers as cuStreamGetId; accepts the special handles 0, 1 and 2 for the current context.
CUresult StreamId(CUstream stream, uint64_t* id);

}  // namespace causeway::guest
