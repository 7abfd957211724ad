// SPDX-License-Identifier: Apache-2.0
// Bodies of the messages about what processes share: IPC handles, shareable handles, device resources, and
// the calls about processes and dumps.
//
// What a guest process hands to another is a token: sixteen random bytes under which causewayd keeps the
// driver's own handle for the processes of that VM (or, without a VM, of that user) alone. So a guest never
// holds the driver's bytes, cannot make some up for the driver to read, and a token that leaves the VM opens
// nothing.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/protocol/handle.h"

namespace causeway {

struct SharedToken {
  uint8_t bytes[16];
};

// The guest's form of CUipcMemHandle, CUipcEventHandle, CUmemFabricHandle and CUmemPoolPtrExportData.
struct SharedBlob {
  uint64_t magic;
  SharedToken token;
  uint8_t reserved[40];
};
static_assert(sizeof(SharedBlob) == 64 && sizeof(SharedBlob) == sizeof(CUipcMemHandle) &&
              sizeof(SharedBlob) == sizeof(CUipcEventHandle) &&
              sizeof(SharedBlob) == sizeof(CUmemFabricHandle) &&
              sizeof(SharedBlob) == sizeof(CUmemPoolPtrExportData));
inline constexpr uint64_t kSharedMagic = 0x4552414853534143;  // "CASSHARE"

// Op::cuIpcGetMemHandle, cuMemPoolExportPointer; reply: SharedToken. Op::cuMemRetainAllocationHandle: the
// allocation in `fresh`; reply: the handle that it has.
struct ShareAddressBody {
  uint64_t address;
  WireHandle fresh;
};

// Op::cuIpcOpenMemHandle_v2; reply: OpenedMemory. Op::cuMemPoolImportPointer: the pool in `object`; reply the
// same. Op::cuIpcOpenEventHandle: the new event in `object`.
struct OpenSharedBody {
  SharedToken token;
  WireHandle object;
  uint32_t flags;
  uint32_t reserved;
};
static_assert(sizeof(OpenSharedBody) == 32);
struct OpenedMemory {
  uint64_t address;
  uint64_t bytes;
};

// Op::cuMemExportToShareableHandle, cuMemPoolExportToShareableHandle; reply: SharedToken.
// Op::cuMemImportFromShareableHandle, cuMemPoolImportFromShareableHandle: `object` is new; reply: the handle
// that it has.
struct ShareableBody {
  WireHandle object;
  uint32_t type;  // CUmemAllocationHandleType
  uint32_t reserved;
  uint64_t flags;
  SharedToken token;  // import
};
static_assert(sizeof(ShareableBody) == 40);

// Op::kDropShared
struct DropSharedBody {
  SharedToken token;
  uint32_t is_pool;
  uint32_t reserved;
};

// A CUdevResource outside of the worker: the visible fields stand where CUDA puts them, the driver's own
// words are replaced by the number of the worker's copy.
struct DevResourceName {
  uint64_t magic;
  uint64_t number;
};
inline constexpr uint64_t kDevResourceMagic = 0x4352534543525543;
static_assert(sizeof(CUdevResource) == 144 && offsetof(CUdevResource, sm) == 96);

// Op::cuDeviceGetDevResource, cuCtxGetDevResource, cuGreenCtxGetDevResource; reply: DevResourceReply.
struct GetDevResourceBody {
  WireHandle object;  // context or green context
  int32_t device;
  uint32_t type;
};
struct DevResourceReply {
  uint64_t number;
  uint32_t type;
  uint32_t sm[12];  // the 48 bytes of the union
  uint32_t reserved;
};
static_assert(sizeof(DevResourceReply) == 64);

// Op::cuDevSmResourceSplitByCount. Reply: u32 groups, then that many DevResourceReply unless only counted,
// then one more if the rest is wanted.
struct SplitResourceBody {
  uint64_t input;
  uint32_t groups;
  uint32_t wants_groups;
  uint32_t wants_rest;
  uint32_t flags;
  uint32_t minimum;
  uint32_t reserved;
};
// One message holds so many; more groups than a GPU has multiprocessors cannot be had anyway.
inline constexpr uint32_t kMaxResourceGroups = 64;

// Op::cuDevResourceGenerateDesc: this, then `count` u64 numbers.
struct GenerateDescriptionBody {
  WireHandle description;
  uint32_t count;
  uint32_t reserved;
};

// Op::cuCoredumpGetAttribute, cuCoredumpGetAttributeGlobal, and the Set forms. `size` is what the caller has
// given; set: that many bytes follow. Reply of get: u64 size as the driver left it, then that many bytes (at
// most what was asked for) if `wants_value`.
struct CoredumpBody {
  uint32_t attribute;
  uint32_t wants_value;
  uint64_t size;
};
inline constexpr uint64_t kMaxCoredumpValueBytes = 1024;

// Op::cuCheckpointProcess*: the guest's number of the process. Lock: a time limit. Restore: `pairs`
// CUcheckpointGpuPair follow. Reply of GetState: u32 state.
struct CheckpointBody {
  int32_t guest_pid;
  uint32_t timeout_ms;
  uint32_t pairs;
  uint32_t has_arguments;
};
inline constexpr uint32_t kMaxCheckpointPairs = 64;

// Op::cuCtxCreate_v2
struct CreateContextBody {
  WireHandle context;
  uint32_t flags;
  int32_t device;
  uint32_t affinities;  // CUexecAffinityParam that follow
  uint32_t form;        // 2, 3 or 4: which cuCtxCreate the program called
};
inline constexpr uint32_t kMaxExecAffinities = 8;

}  // namespace causeway
