// SPDX-License-Identifier: Apache-2.0
// An NVML call as a message, derived from its row in nvml_calls.def. A guest process that uses NVML has a
// session for it, apart from CUDA's: that session's worker opens the host's management library and makes no
// context. All requests use channel 0, one at a time, and nothing is posted.
#pragma once
#include "ivshmem_ring/protocol/nvml_directions.h"

namespace causeway::nvml {

// The opcodes, none of which is one of the driver's (ivshmem_ring/protocol/operation.h). `A -> B`: the
// request's body is an A, the reply's a B.
enum class Op : uint16_t {
  kDescribe = 0x4000,  // reply: DescribeReply
  kMemory,             // u32 device, u32 0 -> MemoryV2: the memory that the VM uses of a device
  kProcesses,    // u32 device, ProcessMode -> u32 count, a ProcessV1 each: the VM's own processes on a device
  kUtilization,  // UtilizationBody -> u32 count, a ProcessSample each: how they use the device
  kPrivate,      // PrivateBody -> u32, or u32 length and text: values that only nvidia-smi asks for
  kFirstRow = 0x4010,
  kBeforeRows = kFirstRow - 1,
#define NVML_CALL(fn, ...) fn,
#define NVML_GUEST(fn, ...) fn,
#include "ivshmem_ring/nvml_calls.def"
  kEnd
};
inline constexpr size_t kRows = static_cast<size_t>(Op::kEnd) - static_cast<size_t>(Op::kFirstRow);

struct DescribeReply {
  uint32_t device_count;
  uint32_t reserved;
};
enum class ProcessMode : uint32_t { kCompute = 0, kGraphics = 1, kMps = 2 };
inline constexpr uint32_t kMaxProcesses = 200;
struct UtilizationBody {
  uint32_t device;
  uint32_t reserved;
  uint64_t since_us;
};
inline constexpr uint32_t kMaxSamples = 100;

// Slots of the private table of NVIDIA's tools (guest_lib/nvml/nvml_memory.cc) that read a value of a device:
// a number, or a text.
struct PrivateBody {
  uint32_t device;
  uint32_t slot;
};
constexpr bool IsPrivateNumber(uint32_t slot) {
  return slot == 230 || slot == 232 || slot == 249;  // host's PCIe generation, deferred clock, sparse mode
}
constexpr bool IsPrivateText(uint32_t slot) {
  return slot == 231 || slot == 237;  // part numbers of the GPU and of the replaceable unit
}

// The shape follows from the directions, which state the types of the parameters.
template <class... D>
using Shape = causeway::Shape<Return (*)(typename D::P...), D...>;

// The shape of a row: RowShape<Op::nvmlDeviceGetName>.
template <Op op>
struct RowOf;
#define NVML_CALL(fn, ...)           \
  template <>                        \
  struct RowOf<Op::fn> {             \
    using Type = Shape<__VA_ARGS__>; \
  };
#define NVML_GUEST NVML_CALL
#include "ivshmem_ring/nvml_calls.def"
template <Op op>
using RowShape = typename RowOf<op>::Type;

}  // namespace causeway::nvml
