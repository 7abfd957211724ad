// SPDX-License-Identifier: Apache-2.0
// Which types may travel as the bytes that they are. A struct is listed only after its declaration in cuda.h
// was read and neither a pointer nor a handle was found inside. The two exceptions have a pointer that only
// Windows uses; Admit (admit.h) clears it on the way to the host, and Conceal on the way back.
#pragma once
#include <type_traits>

#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway {

// Whether T may travel as bytes.
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

// Clears what must not leave the worker before a value travels to the guest: what a driver leaves in a
// pointer that only Windows uses would be an address of the worker's.
template <class T>
void Conceal(T&) {}
inline void Conceal(CUmemAllocationProp& prop) {
  prop.win32HandleMetaData = nullptr;
}
inline void Conceal(CUmemPoolProps& props) {
  props.win32SecurityAttributes = nullptr;
}

}  // namespace causeway
