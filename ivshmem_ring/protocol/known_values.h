// SPDX-License-Identifier: Apache-2.0
// Which values of an enum, and which bits of a word of flags, may reach the driver: those that cuda.h of CUDA
// 13.0 names. A driver may do anything with a value that it does not know, and one that a later driver adds
// may mean that an address is given. A row, a struct or a handler that takes an enum from the guest compiles
// only if the enum has a list here. tests/unit/known_values_test.py compares the lists with the header.
#pragma once
#include <cstdint>
#include <type_traits>

#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway {

// KnownValues<E>::kAll is the list of an enum.
template <class E>
struct KnownValues;

#define KNOWN_VALUES(type, ...)                   \
  template <>                                     \
  struct KnownValues<type> {                      \
    static constexpr type kAll[] = {__VA_ARGS__}; \
  };

#include "ivshmem_ring/known_values.def"
#undef KNOWN_VALUES

template <class E>
constexpr bool IsKnown(E value) {
  for (const E known : KnownValues<E>::kAll) {
    if (static_cast<int64_t>(known) == static_cast<int64_t>(value)) return true;
  }
  return false;
}

// What the driver answers for a value of that enum that it does not know (seen on 580.159).
template <class E>
inline constexpr CUresult kUnknownValue = CUDA_ERROR_INVALID_VALUE;
template <>
inline constexpr CUresult kUnknownValue<CUexecAffinityType> = CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
template <>
inline constexpr CUresult kUnknownValue<CUdevResourceType> = CUDA_ERROR_INVALID_RESOURCE_TYPE;

// Turns a message's number into the enum's value, for handlers written by hand. Sets *value on success alone.
template <class E>
CUresult TakeKnown(uint32_t number, E* value) {
  for (const E known : KnownValues<E>::kAll) {
    if (static_cast<uint32_t>(known) != number) continue;
    *value = known;
    return CUDA_SUCCESS;
  }
  return kUnknownValue<E>;
}

// The known bits of flags, named after the calls that take them. A word that must be 0 has kNoFlags.
inline constexpr uint64_t kNoFlags = 0;
inline constexpr uint64_t kStreamFlags = CU_STREAM_NON_BLOCKING;
inline constexpr uint64_t kEventFlags =
    CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
inline constexpr uint64_t kEventRecordFlags = CU_EVENT_RECORD_EXTERNAL;
inline constexpr uint64_t kEventWaitFlags = CU_EVENT_WAIT_EXTERNAL;
inline constexpr uint64_t kWaitValueFlags = CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH;
inline constexpr uint64_t kWriteValueFlags = CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;
inline constexpr uint64_t kBarrierFlags = CU_STREAM_MEMORY_BARRIER_TYPE_GPU;
inline constexpr uint64_t kCaptureDependencyFlags = CU_STREAM_SET_CAPTURE_DEPENDENCIES;
inline constexpr uint64_t kConditionalFlags = CU_GRAPH_COND_ASSIGN_DEFAULT;
inline constexpr uint64_t kRetainFlags = CU_GRAPH_USER_OBJECT_MOVE;
inline constexpr uint64_t kUserObjectFlags = CU_USER_OBJECT_NO_DESTRUCTOR_SYNC;
inline constexpr uint64_t kContextFlags = CU_CTX_FLAGS_MASK;
inline constexpr uint64_t kGreenContextFlags = CU_GREEN_CTX_DEFAULT_STREAM;
inline constexpr uint64_t kAttachFlags = CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST | CU_MEM_ATTACH_SINGLE;
inline constexpr uint64_t kOccupancyFlags = CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE;
inline constexpr uint64_t kTextureArrayFlags = CU_TRSA_OVERRIDE_FORMAT;
inline constexpr uint64_t kTextureFlags = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES |
                                          CU_TRSF_SRGB | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION |
                                          CU_TRSF_SEAMLESS_CUBEMAP;
// Of a texture reference the driver (580) ignores one bit that has no name.
inline constexpr uint64_t kTextureReferenceFlags = kTextureFlags | 0x4;
inline constexpr uint64_t kArrayFlags =
    CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER |
    CUDA_ARRAY3D_DEPTH_TEXTURE | CUDA_ARRAY3D_COLOR_ATTACHMENT | CUDA_ARRAY3D_SPARSE |
    CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_VIDEO_ENCODE_DECODE;
inline constexpr uint64_t kInstantiateFlags =
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
    CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
inline constexpr uint64_t kDotFlags = (uint64_t{CU_GRAPH_DEBUG_DOT_FLAGS_CONDITIONAL_NODE_PARAMS} << 1) - 1;
inline constexpr uint64_t kSplitFlags =
    CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING | CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
inline constexpr uint64_t kMultiDeviceFlags = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC |
                                              CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
inline constexpr uint64_t kOpenMemoryFlags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
inline constexpr uint64_t kHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_WIN32 |
                                         CU_MEM_HANDLE_TYPE_WIN32_KMT | CU_MEM_HANDLE_TYPE_FABRIC;
inline constexpr uint64_t kMemoryUsage = CU_MEM_CREATE_USAGE_TILE_POOL | CU_MEM_CREATE_USAGE_HW_DECOMPRESS;

// Whether `value` has no bits but those in `known`.
template <class T>
constexpr bool OnlyFlags(T value, uint64_t known) {
  return (static_cast<uint64_t>(static_cast<std::make_unsigned_t<T>>(value)) & ~known) == 0;
}

}  // namespace causeway
