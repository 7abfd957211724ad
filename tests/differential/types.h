// SPDX-License-Identifier: Apache-2.0
// What the compiler knows of a parameter of a driver call, as data that the generator can walk.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ivshmem_ring/protocol/flat.h"
#include "ivshmem_ring/protocol/handle.h"
#include "ivshmem_ring/protocol/known_values.h"

namespace causeway::differential {

// What a parameter, or what it points to, is.
enum class Base : uint8_t { kNumber, kFloat, kEnum, kHandle, kStruct, kCharacter, kVoid, kFunction };

// Identifies a type: the address of a variable of its own.
using TypeTag = const char*;
template <class T>
inline constexpr char kTagOf = 0;

struct TypeInfo {
  Base base = Base::kVoid;
  uint8_t depth = 0;      // 0: a value, 1: T*, 2: T**
  bool constant = false;  // the outermost pointee may not be written
  bool flat = false;      // holds neither pointers nor handles
  HandleKind handle = HandleKind::kNone;
  uint16_t bytes = 0;        // of a value, or of what the (last) pointer points to; 0 of void
  uint16_t value_bytes = 0;  // of the parameter itself
  void (*clear_padding)(void*) =
      nullptr;            // of what the last pointer points to; null: it has none, or it is not known
  TypeTag tag = nullptr;  // of what the last pointer points to
  const int64_t* values = nullptr;  // of an enum: what cuda.h names
  uint16_t value_count = 0;
};

template <class E>
concept Listed = requires {
  KnownValues<E>::kAll;
};
template <class E>
struct ValuesOf {
  static constexpr size_t kCount = std::size(KnownValues<E>::kAll);
  struct List {
    int64_t at[kCount];
  };
  static constexpr List kList = [] {
    List list{};
    for (size_t i = 0; i < kCount; ++i) list.at[i] = static_cast<int64_t>(KnownValues<E>::kAll[i]);
    return list;
  }();
};

// What lies between the members of a struct means nothing.
template <class T>
void ClearPadding([[maybe_unused]] void* at) {
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(static_cast<T*>(at));
#endif
}

template <class T>
constexpr void DescribeBase(TypeInfo& info) {
  using Plain = std::remove_cv_t<T>;
  info.tag = &kTagOf<Plain>;
  if constexpr (std::is_void_v<Plain>) {
    info.base = Base::kVoid;
  } else if constexpr (std::is_function_v<Plain>) {
    info.base = Base::kFunction;
    info.bytes = sizeof(void*);
  } else {
    info.bytes = sizeof(Plain);
    info.flat = kFlat<Plain>;
    if constexpr (Handle<Plain>) {
      info.base = Base::kHandle;
      info.handle = kKindOf<Plain>;
    } else if constexpr (std::is_enum_v<Plain>) {
      info.base = Base::kEnum;
      if constexpr (Listed<Plain>) {
        info.values = ValuesOf<Plain>::kList.at;
        info.value_count = ValuesOf<Plain>::kCount;
      }
    } else if constexpr (std::is_same_v<Plain, char>) {
      info.base = Base::kCharacter;
    } else if constexpr (std::is_floating_point_v<Plain>) {
      info.base = Base::kFloat;
    } else if constexpr (std::is_integral_v<Plain> || std::is_pointer_v<Plain>) {
      info.base = Base::kNumber;  // also opaque handles that nothing here makes
    } else {
      info.base = Base::kStruct;
      info.clear_padding = &ClearPadding<Plain>;
    }
  }
}

// Some handle types have no kind of their own: opaque objects, which travel as numbers here.
template <class T>
inline constexpr bool kOpaque =
    std::is_same_v<T, CUgraphicsResource> || std::is_same_v<T, CUlogsCallbackHandle>;

template <class P>
constexpr TypeInfo Describe() {
  TypeInfo info;
  info.value_bytes = sizeof(P);
  if constexpr (Handle<P> || kOpaque<P> || !std::is_pointer_v<P>) {
    DescribeBase<P>(info);
  } else {
    using T = std::remove_pointer_t<P>;
    info.constant = std::is_const_v<T>;
    using Plain = std::remove_cv_t<T>;
    if constexpr (std::is_function_v<T>) {
      DescribeBase<T>(info);
    } else if constexpr (std::is_pointer_v<Plain> && !Handle<Plain> && !kOpaque<Plain>) {
      info.depth = 2;
      DescribeBase<std::remove_pointer_t<Plain>>(info);
    } else {
      info.depth = 1;
      DescribeBase<T>(info);
    }
  }
  return info;
}

}  // namespace causeway::differential
