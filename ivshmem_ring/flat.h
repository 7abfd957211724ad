// SPDX-License-Identifier: Apache-2.0
// Which types may cross as bytes. A struct is listed only when someone has read its declaration in cuda.h and
// found neither a pointer nor a handle inside; the two exceptions carry a pointer for Windows, which Admit
// clears.
#pragma once
#include <type_traits>

#include "ivshmem_ring/driver_api.h"

namespace causeway {

template <class T>
inline constexpr bool kFlat = std::is_arithmetic_v<T> || std::is_enum_v<T>;

template <>
inline constexpr bool kFlat<CUuuid> = true;
template <>
inline constexpr bool kFlat<CUexecAffinityParam> = true;
template <>
inline constexpr bool kFlat<CUDA_ARRAY_DESCRIPTOR> = true;
template <>
inline constexpr bool kFlat<CUDA_ARRAY3D_DESCRIPTOR> = true;
template <>
inline constexpr bool kFlat<CUDA_ARRAY_MEMORY_REQUIREMENTS> = true;
template <>
inline constexpr bool kFlat<CUDA_ARRAY_SPARSE_PROPERTIES> = true;
template <>
inline constexpr bool kFlat<CUDA_TEXTURE_DESC> = true;
template <>
inline constexpr bool kFlat<CUDA_RESOURCE_VIEW_DESC> = true;
template <>
inline constexpr bool kFlat<CUDA_MEMSET_NODE_PARAMS> = true;
template <>
inline constexpr bool kFlat<CUgraphEdgeData> = true;
template <>
inline constexpr bool kFlat<CUstreamBatchMemOpParams> = true;
template <>
inline constexpr bool kFlat<CUmemLocation> = true;
template <>
inline constexpr bool kFlat<CUmemAccessDesc> = true;
template <>
inline constexpr bool kFlat<CUmulticastObjectProp> = true;
template <>
inline constexpr bool kFlat<CUmemAllocationProp> = true;  // win32HandleMetaData
template <>
inline constexpr bool kFlat<CUmemPoolProps> = true;  // win32SecurityAttributes

// The host's look at a value that came from the guest, before the driver sees it: it may change the value or
// say why it is refused. Most values need none. Memory that the CPU shares with the GPU is refused because
// the guest could not touch it at the address that the driver returns.
template <class T>
CUresult Admit(T&) {
  return CUDA_SUCCESS;
}
inline CUresult Admit(CUmemAllocationType& type) {
  return type == CU_MEM_ALLOCATION_TYPE_MANAGED ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}
inline CUresult Admit(CUmemLocation& location) {
  const bool on_host = location.type == CU_MEM_LOCATION_TYPE_HOST ||
                       location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                       location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
  return on_host ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}
inline CUresult Admit(CUmemAllocationProp& prop) {
  prop.win32HandleMetaData = nullptr;
  const CUresult type = Admit(prop.type);
  return type == CUDA_SUCCESS ? Admit(prop.location) : type;
}
inline CUresult Admit(CUmemPoolProps& props) {
  props.win32SecurityAttributes = nullptr;
  const CUresult type = Admit(props.allocType);
  return type == CUDA_SUCCESS ? Admit(props.location) : type;
}

}  // namespace causeway
