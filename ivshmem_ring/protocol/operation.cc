// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/protocol/operation.h"

#include "ivshmem_ring/protocol/nvml_call.h"

namespace causeway {

const char* OpName(uint16_t op) {
  switch (op) {
#define NAMED(name, text)               \
  case static_cast<uint16_t>(Op::name): \
    return text;
#define OPERATION(name, text, ...) NAMED(name, text)
#include "ivshmem_ring/operations.def"
#define CALL(fn, ...) NAMED(fn, #fn)
#define GUEST CALL
#define CUSTOM CALL
#include "ivshmem_ring/calls.def"
#undef NAMED
#define NVML_CALL(fn, ...)                  \
  case static_cast<uint16_t>(nvml::Op::fn): \
    return #fn;
#define NVML_GUEST NVML_CALL
#include "ivshmem_ring/nvml_calls.def"
    default:
      return "a message of the session";
  }
}

}  // namespace causeway
