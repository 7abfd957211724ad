// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/protocol/op_name.h"

#include "ivshmem_ring/protocol/call.h"
#include "ivshmem_ring/protocol/nvml_call.h"

namespace causeway {
namespace {

constexpr const char* kRows[] = {
#define CALL(fn, ...) #fn,
#define POST CALL
#define GUEST CALL
#define CUSTOM CALL
#include "ivshmem_ring/calls.def"
};
constexpr const char* kNvmlRows[] = {
#define NVML_CALL(fn, ...) #fn,
#define NVML_GUEST NVML_CALL
#include "ivshmem_ring/nvml_calls.def"
};
constexpr auto kFirst = static_cast<size_t>(Op::kFirstRow) + 1;
constexpr auto kFirstNvml = static_cast<size_t>(nvml::Op::kFirstRow);
static_assert(std::size(kRows) == static_cast<size_t>(Op::kCount) - kFirst);
static_assert(std::size(kNvmlRows) == nvml::kRows);

const char* SessionOpName(Op op) {
  switch (op) {
    case Op::kOpen:
      return "open the session";
    case Op::kOpenChannel:
      return "open a channel";
    case Op::kAgreeOnAddresses:
      return "agree on address windows";
    case Op::kAddArena:
      return "add region memory";
    case Op::kDropArena:
      return "drop region memory";
    case Op::kBeginBlob:
    case Op::kAppendBlob:
      return "send a large argument";
    case Op::kFetchBlob:
      return "fetch a large answer";
    case Op::kFetchOutput:
      return "fetch printed text";
    case Op::kCopyToDevice:
      return "copy to the device";
    case Op::kCopyToHost:
      return "copy to the host";
    case Op::kQueuedCopy:
      return "queue pieces of a copy";
    case Op::kRegisterHost:
      return "register memory";
    case Op::kUnregisterHost:
      return "unregister memory";
    case Op::kDescribeFunction:
      return "describe a function";
    case Op::kDrainDevice:
      return "wait for the device";
    case Op::kAwaitCallback:
      return "wait for a callback";
    default:
      return "a message of the session";
  }
}

}  // namespace

const char* OpName(uint16_t op) {
  if (op >= kFirstNvml && op - kFirstNvml < std::size(kNvmlRows)) return kNvmlRows[op - kFirstNvml];
  if (op >= kFirst && op - kFirst < std::size(kRows)) return kRows[op - kFirst];
  return SessionOpName(static_cast<Op>(op));
}

}  // namespace causeway
