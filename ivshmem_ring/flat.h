// SPDX-License-Identifier: Apache-2.0
// Which types may cross as bytes. A struct is listed only when someone has read its declaration in cuda.h and
// found neither a pointer nor a handle inside.
#pragma once
#define __CUDA_API_VERSION_INTERNAL  // declare every exported name; no cuX -> cuX_v2 renaming
#include <cuda.h>

#include <type_traits>

namespace causeway {

template <class T>
inline constexpr bool kFlat = std::is_arithmetic_v<T> || std::is_enum_v<T>;

template <>
inline constexpr bool kFlat<CUuuid> = true;
template <>
inline constexpr bool kFlat<CUDA_ARRAY_DESCRIPTOR> = true;
template <>
inline constexpr bool kFlat<CUDA_ARRAY3D_DESCRIPTOR> = true;

}  // namespace causeway
