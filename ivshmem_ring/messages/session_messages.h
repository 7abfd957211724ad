// SPDX-License-Identifier: Apache-2.0
// Bodies of the session's own messages (the first values of Op), and of a few calls that are written by hand
// on both sides. They are flat structs, packed as they stand. Sizes and offsets are in bytes, offsets from
// the begin of the region.
#pragma once
#include <cstdint>

#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/protocol/flat.h"
#include "ivshmem_ring/protocol/handle.h"

namespace causeway {

inline constexpr uint32_t kMaxDevices = 16;
inline constexpr uint32_t kMaxAttributes = 192;

// Op::kOpen. The reply lies in the request's staging buffer: an OpenReply, then device_count
// DeviceDescription.
struct OpenReply {
  uint32_t init_result;  // the CUresult of the driver's cuInit; the rest is valid only if it is 0
  int32_t driver_version;
  uint32_t device_count;
  uint32_t worker_pid;
  uint32_t loading_mode;    // what cuModuleGetLoadingMode gave
  uint32_t loading_result;  // its CUresult
};
static_assert(sizeof(OpenReply) == 24);

struct DeviceDescription {
  char name[256];
  CUuuid uuid;     // cuDeviceGetUuid
  CUuuid uuid_v2;  // cuDeviceGetUuid_v2
  uint64_t total_bytes;
  char luid[8];
  uint32_t luid_mask;
  uint32_t luid_result;
  char pci_bus_id[32];
  int32_t attribute[kMaxAttributes];
  uint16_t attribute_result[kMaxAttributes];  // the CUresult of the query for each
};
static_assert(sizeof(DeviceDescription) == 344 + 6 * kMaxAttributes);

// Op::kOpenChannel, posted: the host serves that channel from now on.
struct OpenChannelBody {
  uint32_t channel;
  uint32_t reserved;
};

// Op::kAddArena, kDropArena: a run of the session's slices. The host maps it at window_address + offset and
// registers it with the driver, and undoes both.
enum class ArenaUse : uint32_t { kPinned = 0, kManaged, kStaging };
struct ArenaBody {
  uint64_t offset;
  uint64_t bytes;
  ArenaUse use;  // the kind of memory as which it is counted
  uint32_t reserved;
};

// Op::kAgreeOnAddresses, before anything is mapped by both sides: this, then `count` TakenRange. The worker
// keeps the region's size from window_address on free for slices, or answers CUDA_ERROR_MAP_FAILED and is
// asked again with another address; the address is 0 where no memory is shared. The ranges are parts of the
// device windows that the guest process uses itself, where the driver must place nothing.
struct AddressBody {
  uint64_t window_address;
  uint32_t count;
  uint32_t reserved;
};
struct TakenRange {
  uint64_t begin, end;
};
inline constexpr uint32_t kMaxTakenRanges = 32;

// Op::kRegisterHost: the memory [address, address + bytes) of the guest process. Those of its pages that no
// other registration has (ivshmem_ring/messages/registration.h) are region pages from `offset` on, and the
// host maps them at the guest's own address. Where no memory is shared the host maps pages of its own there, which
// are zero, and `offset` means nothing. The reply: the device's address of the range, u64.
// Op::kUnregisterHost uses `address` alone.
struct RegisterBody {
  uint64_t address;
  uint64_t bytes;
  uint64_t offset;
  uint32_t flags;     // CU_MEMHOSTREGISTER_*
  uint32_t writable;  // 0: the guest has mapped the memory for reading only
};
static_assert(sizeof(RegisterBody) == 32);

// A call that takes a blob takes its own bulk buffer for it, if it has one. One that is larger is sent
// before, on the same channel. Op::kBeginBlob: the announced size; kAppendBlob: pieces in bulk buffers.
struct BlobBody {
  uint64_t bytes;
};
inline constexpr uint64_t kMaxBlobBytes = 4ull << 30;

// Op::kFetchBlob: a piece of what the channel's last call left to be fetched, into the bulk buffer.
struct FetchBlobBody {
  uint64_t offset;
};

// Op::kMark, posted: once all work of the stream before it is done, the GPU writes the record's sequence plus
// one into the word at that offset in the region. If it cannot, nothing happens.
struct MarkBody {
  WireHandle stream;
  uint64_t offset;
};
static_assert(sizeof(MarkBody) == 16);

// Op::cuTensorMapEncodeTiled, cuTensorMapEncodeIm2col, cuTensorMapEncodeIm2colWide; reply: CUtensorMap.
struct TensorMapBody {
  uint32_t data_type, rank;
  uint64_t address;
  uint64_t dimensions[5];
  uint64_t strides[5];
  uint32_t box[5];
  uint32_t element_strides[5];
  int32_t lower_corner[5];
  int32_t upper_corner[5];
  uint32_t channels_per_pixel, pixels_per_column;
  uint32_t interleave, swizzle, promotion, fill;
  uint32_t wide_mode, reserved;
};
static_assert(sizeof(TensorMapBody) == 208);

// Op::cuTensorMapReplaceAddress; reply: CUtensorMap.
struct TensorMapAddressBody {
  cuuint64_t map[16];
  uint64_t address;
};
static_assert(sizeof(TensorMapAddressBody) == sizeof(CUtensorMap) + 8);

// Op::cuMemBatchDecompressAsync: this, then `count` CUmemDecompressParams. Reply, also of a failed call: the
// index that the driver names, u64.
struct DecompressBody {
  WireHandle stream;
  uint32_t flags;
  uint32_t count;
};
inline constexpr uint32_t kMaxDecompressions = 32;  // what fits a channel record

}  // namespace causeway
