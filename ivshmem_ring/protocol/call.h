// SPDX-License-Identifier: Apache-2.0
// A driver call as a message, derived from its declaration in cuda.h and its row in calls.def.
#pragma once
#include <cstdint>
#include <string_view>

#include "ivshmem_ring/protocol/operation.h"
#include "ivshmem_ring/protocol/shape.h"
#include "ivshmem_ring/protocol/struct_directions.h"

namespace causeway {

constexpr uint64_t Fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// Both sides state this before they talk, so that a guest is served by a worker of its own rows alone.
// The number in front counts changes of the bodies of the session's own messages.
#define OPERATION(name, text, ...) "S" #name #__VA_ARGS__
#define CALL(...) "C" #__VA_ARGS__
#define GUEST(...) "G" #__VA_ARGS__
#define CUSTOM(...) "X" #__VA_ARGS__
inline constexpr uint64_t kApiHash = Fnv1a("13"
#include "ivshmem_ring/calls.def"
#include "ivshmem_ring/operations.def"
                                           ) ^
                                     CUDA_VERSION;

// The shape of a row that has directions: RowShape<Op::cuMemAlloc_v2>.
template <Op op>
struct RowOf;
#define CALL(fn, meaning, ...)                                      \
  template <>                                                       \
  struct RowOf<Op::fn> {                                            \
    using Type = Shape<decltype(&::fn) __VA_OPT__(, ) __VA_ARGS__>; \
  };
#define GUEST CALL
#include "ivshmem_ring/calls.def"
template <Op op>
using RowShape = typename RowOf<op>::Type;

}  // namespace causeway
