// SPDX-License-Identifier: Apache-2.0
// Bodies of messages about what processes share (IPC handles, shareable handles), about device resources, and
// of the calls about core dumps, checkpoints and contexts.
//
// What a guest process hands to another one is a token: sixteen random bytes, under which causewayd keeps the
// driver's own handle for the processes of that scope alone (a VM; without one a user; over TCP a peer). So a
// guest never holds the driver's bytes and cannot make some up for the driver to read, and a token that
// leaves its scope opens nothing.
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

// Op::cuIpcGetMemHandle, cuMemPoolExportPointer: the reply is a SharedToken. Op::cuMemRetainAllocationHandle:
// `fresh` becomes the allocation's wire handle if it has none yet; the reply is the wire handle that it has.
struct ShareAddressBody {
  uint64_t address;
  WireHandle fresh;
};

// Op::cuIpcOpenMemHandle_v2: the reply is an OpenedMemory. Op::cuMemPoolImportPointer: `object` is the pool;
// the reply is an OpenedMemory. Op::cuIpcOpenEventHandle: `object` is fresh, the new event's; there is no
// reply body.
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

// Op::cuMemExportToShareableHandle, cuMemPoolExportToShareableHandle: the reply is a SharedToken.
// Op::cuMemImportFromShareableHandle, cuMemPoolImportFromShareableHandle: `object` is fresh; the reply is the
// wire handle that the imported object has.
struct ShareableBody {
  WireHandle object;
  uint32_t type;  // CUmemAllocationHandleType
  uint32_t reserved;
  uint64_t flags;
  SharedToken token;  // of the imports
};
static_assert(sizeof(ShareableBody) == 40);

// Op::kDropShared, posted: no process holds the shareable descriptor of that token any more.
struct DropSharedBody {
  SharedToken token;
  uint32_t is_pool;
  uint32_t reserved;
};

// What stands in a guest's CUdevResource in place of the driver's own words: the number of the worker's copy
// of the resource. The visible fields stay where CUDA puts them.
struct DevResourceName {
  uint64_t magic;
  uint64_t number;
};
inline constexpr uint64_t kDevResourceMagic = 0x4352534543525543;
static_assert(sizeof(CUdevResource) == 144 && offsetof(CUdevResource, sm) == 96);

// Op::cuDeviceGetDevResource, cuCtxGetDevResource, cuGreenCtxGetDevResource: the reply is a DevResourceReply.
struct GetDevResourceBody {
  WireHandle object;  // the context or green context
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

// Op::cuDevSmResourceSplitByCount. The reply: the number of groups as u32, then as many DevResourceReply if
// the groups are wanted, then one more if the rest is wanted.
struct SplitResourceBody {
  uint64_t input;
  uint32_t groups;
  uint32_t wants_groups;
  uint32_t wants_rest;
  uint32_t flags;
  uint32_t minimum;
  uint32_t reserved;
};
// One message holds so many groups. A GPU gives no more groups than it has multiprocessors anyway.
inline constexpr uint32_t kMaxResourceGroups = 64;

// Op::cuDevResourceGenerateDesc: this, then `count` u64 numbers.
struct GenerateDescriptionBody {
  WireHandle description;
  uint32_t count;
  uint32_t reserved;
};

// Op::cuCoredumpGetAttribute, cuCoredumpGetAttributeGlobal and the Set forms. `size` is the caller's, in
// bytes. Set: so many bytes follow. The reply of Get: the size as the driver left it, as u64, then so many
// bytes (at most what was asked for) if wants_value.
struct CoredumpBody {
  uint32_t attribute;
  uint32_t wants_value;
  uint64_t size;
};
inline constexpr uint64_t kMaxCoredumpValueBytes = 1024;

// Op::cuCheckpointProcess*. Lock states a time limit. Restore: `pairs` CUcheckpointGpuPair follow. The reply
// of GetState: the state as u32.
struct CheckpointBody {
  int32_t guest_pid;  // the process id in the guest
  uint32_t timeout_ms;
  uint32_t pairs;
  uint32_t has_arguments;  // 0: the program passed a null pointer for them
};
inline constexpr uint32_t kMaxCheckpointPairs = 64;

// Op::cuCtxCreate_v2, for all its forms: this, then `affinities` CUexecAffinityParam.
struct CreateContextBody {
  WireHandle context;  // fresh
  uint32_t flags;
  int32_t device;
  uint32_t affinities;
  uint32_t form;  // 2, 3 or 4: which cuCtxCreate the program called
};
inline constexpr uint32_t kMaxExecAffinities = 8;

}  // namespace causeway
