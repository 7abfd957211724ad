// SPDX-License-Identifier: Apache-2.0
// Which types may travel as the bytes that they are. A struct is listed only after its declaration in cuda.h
// was read and neither a pointer nor a handle was found inside. The two exceptions have a pointer that only
// Windows uses; Admit (admit.h) clears it on the way to the host, and Conceal on the way back.
#pragma once
#include <type_traits>

#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway {

template <class T, class... Listed>
inline constexpr bool kIsOneOf = (std::is_same_v<T, Listed> || ...);

// Whether T may travel as bytes.
template <class T>
inline constexpr bool kFlat = std::is_arithmetic_v<T> || std::is_enum_v<T> ||
                              kIsOneOf<T,                               //
                                       CUuuid,                          //
                                       CUexecAffinityParam,             //
                                       CUDA_ARRAY_DESCRIPTOR,           //
                                       CUDA_ARRAY3D_DESCRIPTOR,         //
                                       CUDA_ARRAY_MEMORY_REQUIREMENTS,  //
                                       CUDA_ARRAY_SPARSE_PROPERTIES,    //
                                       CUDA_TEXTURE_DESC,               //
                                       CUDA_RESOURCE_VIEW_DESC,         //
                                       CUDA_MEMSET_NODE_PARAMS,         //
                                       CUgraphEdgeData,                 //
                                       CUstreamBatchMemOpParams,        //
                                       CUmemLocation,                   //
                                       CUmemAccessDesc,                 //
                                       CUmulticastObjectProp,           //
                                       CUmemAllocationProp,             // win32HandleMetaData
                                       CUmemPoolProps>;                 // win32SecurityAttributes

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
