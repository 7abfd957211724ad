// SPDX-License-Identifier: Apache-2.0
// Which types may cross as bytes. A struct is listed only when someone has read its declaration in cuda.h and
// found neither a pointer nor a handle inside; the two exceptions carry a pointer for Windows, which Admit
// and Conceal clear.
#pragma once
#include <type_traits>

#include "ivshmem_ring/protocol/driver_api.h"

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

// A pointer that only Windows uses comes back as null: what a driver leaves there would be an address of the
// worker's.
template <class T>
void Conceal(T&) {}
inline void Conceal(CUmemAllocationProp& prop) {
  prop.win32HandleMetaData = nullptr;
}
inline void Conceal(CUmemPoolProps& props) {
  props.win32SecurityAttributes = nullptr;
}

}  // namespace causeway
