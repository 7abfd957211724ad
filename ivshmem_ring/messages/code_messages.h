// SPDX-License-Identifier: Apache-2.0
// Bodies of the calls about device code that are written by hand: images, the compiler's options, the linker,
// functions, launches. Flat structs, packed as they stand.
#pragma once
#include <cstdint>

#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/protocol/flat.h"
#include "ivshmem_ring/protocol/handle.h"

namespace causeway {

// A module image on the wire (in a blob): this, then part_count u64 sizes, then each part at the next
// multiple of kImageAlign. Several parts: a linked fatbin wrapper (version 2), its data first, then its array
// in order.
struct ImageHeader {
  uint32_t magic;
  uint32_t part_count;
};
inline constexpr uint32_t kImageMagic = 0x31474d49;
inline constexpr uint64_t kImageAlign = 64;
constexpr uint64_t ImageAligned(uint64_t bytes) {
  return (bytes + kImageAlign - 1) & ~(kImageAlign - 1);
}
inline constexpr uint32_t kMaxImageParts = 4096;

// The compiler's and linker's options as they travel, at the start of a blob: JitOption in the caller's
// order. The value is a plain number; for a log buffer 1 or 0, whether there is one; for a list of names or
// addresses the number of its entries, which then follow: names as {u32 bytes, text without an ending zero},
// addresses as u64.
struct JitOption {
  uint32_t option;
  uint32_t reserved;
  uint64_t value;
};
inline constexpr uint32_t kMaxJitOptions = 64;
inline constexpr uint32_t kMaxJitListEntries = 1u << 16;
// A caller's log buffer may be larger: the compiler then sees one of this size.
inline constexpr uint32_t kMaxLogBytes = 1u << 20;

// What a call changed behind its options: this, then JitChange for the values, then {u32 option, u32 bytes,
// text} for each log buffer that it wrote.
struct JitOutputs {
  uint32_t value_count;
  uint32_t log_count;
};
struct JitChange {
  uint32_t index;  // of the option
  uint32_t reserved;
  uint64_t value;
};

// Op::cuModuleLoadDataEx, cuLibraryLoadData. The blob holds option_bytes of options, then, at the next
// multiple of kImageAlign, the image; or, if known_bytes is not 0, nothing: the host is asked for the image
// of that size and hash (ivshmem_ring/messages/image_hash.h). Reply, also when the load failed: LoadReply.
struct LoadBody {
  WireHandle handle;  // of the new module or library
  uint32_t option_count;
  uint32_t reserved;
  uint64_t option_bytes;
  uint64_t known_bytes;
  uint8_t known_hash[32];
};
static_assert(sizeof(LoadBody) == 64);
enum class ImageAnswer : uint32_t {
  kLoaded,   // or refused by the driver
  kUnknown,  // nothing was loaded: send it
  kNotKept,  // the same, and it is no use to ask again
};
struct LoadReply {
  uint64_t output_bytes;  // of JitOutputs to be fetched
  ImageAnswer answer;
  uint32_t reserved;
};

// Op::cuLinkCreate_v2, cuLinkAddData_v2, cuLinkComplete, cuLinkDestroy. Blob of the first: options; of the
// second: options, at the next multiple of kImageAlign the name, ended by a zero, and after it, aligned
// again, the data. Reply, also of a failed call: LinkReply; to be fetched are the JitOutputs of the call's
// own options, then those of the link's, then the cubin.
struct LinkBody {
  WireHandle link;
  uint32_t option_count;
  uint32_t input_type;
  uint64_t option_bytes;
  uint64_t name_bytes;  // 0: no name
  uint64_t data_bytes;
};
struct LinkReply {
  uint64_t call_bytes, link_bytes, cubin_bytes;
};

// What the guest caches of a function; reply of cuModuleGetFunction, cuLibraryGetKernel and the like,
// followed by the layouts of the first parameters, as many as a record holds.
inline constexpr uint32_t kFunctionAttributes = 16;
struct FunctionDescription {
  int32_t attribute[kFunctionAttributes];
  uint16_t attribute_result[kFunctionAttributes];
  uint32_t parameter_count;
  uint32_t parameter_bytes;
  uint32_t first_parameter;  // that this reply describes
  uint32_t here;             // how many it describes
};
struct ParameterLayout {
  uint32_t offset;
  uint32_t bytes;
};

// Mangled names may be longer than a record: those beyond this are blobs.
inline constexpr uint32_t kMaxInlineNameBytes = 512;

// Op::cuModuleGetFunction, cuLibraryGetKernel: this, then the name with its ending zero, or the name as the
// channel's blob; cuKernelGetFunction: this alone. Reply: the function's wire handle, FunctionDescription,
// layouts.
struct GetFunctionBody {
  WireHandle owner;  // module, library or kernel
  WireHandle fresh;  // becomes the function's handle if it has none yet
  uint64_t name_bytes;
};

// Op::kDescribeFunction. Reply: the handle, FunctionDescription, layouts, then {u64 bytes, text} of the name
// without an ending zero, or its bytes alone and the text to be fetched.
struct DescribeFunctionBody {
  WireHandle function;
  uint32_t is_kernel;
  uint32_t first_parameter;
};

// Op::cuModuleEnumerateFunctions, cuLibraryEnumerateKernels: this, then `here` fresh handles. The driver is
// asked for `count`, and the reply holds the handles of those from `first` on.
struct EnumerateBody {
  WireHandle owner;
  uint32_t count;
  uint32_t first;
  uint32_t here;
  uint32_t reserved;
};
inline constexpr uint32_t kMaxEnumerated = 1u << 20;

// Op::cuLaunchKernel, posted, and cuLaunchKernelEx, which waits for the driver's answer: this, then
// attribute_count CUlaunchAttribute (handles inside replaced by wire handles), then parameter_bytes in kernel
// layout. Where the parameters of a waiting launch do not fit the record, they are in its bulk buffer. Reply
// of a waiting launch: u64 device node for each attribute that asks for one.
struct LaunchBody {
  WireHandle function;
  WireHandle stream;
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_bytes;
  uint32_t parameter_bytes;
  uint32_t attribute_count;
  uint32_t form;  // LaunchForm
};
static_assert(sizeof(LaunchBody) == 56);
enum LaunchForm : uint32_t { kPlainLaunch, kCooperativeLaunch, kAttributeLaunch };
inline constexpr uint32_t kMaxLaunchParameterBytes = 32764;
inline constexpr uint32_t kMaxLaunchAttributes = 32;

// Op::cuLaunchCooperativeKernelMultiDevice: launch_count u32 and flags u32 in front, then one after another
// LaunchBody and parameters, all in the channel's blob.
inline constexpr uint32_t kMaxDeviceLaunches = 64;

}  // namespace causeway
