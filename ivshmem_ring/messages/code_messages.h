// SPDX-License-Identifier: Apache-2.0
// Bodies of messages about device code, for calls that are written by hand on both sides: module images, the
// compiler's options, the linker, functions, launches. They are flat structs, packed as they stand. Where a
// comment says "this, then ...", the rest follows the struct in the message. A wire handle called fresh was
// made by the guest for an object that the call may create.
#pragma once
#include <cstdint>

#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/protocol/flat.h"
#include "ivshmem_ring/protocol/handle.h"

namespace causeway {

// A module image, in a blob: this, then part_count u64 sizes in bytes, then each part at the next multiple of
// kImageAlign. An image has several parts if it is a linked fatbin wrapper (version 2): its data comes first,
// then the entries of its array in order.
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

// The options of the compiler and the linker, at the start of a blob: a JitOption for each, in the caller's
// order. The value is a plain number; for a log buffer it is 1 if the caller gave one, else 0; for a list of
// names or addresses it is the number of entries, which then follow: names as {u32 bytes, text without an
// ending zero}, addresses as u64.
struct JitOption {
  uint32_t option;
  uint32_t reserved;
  uint64_t value;
};
inline constexpr uint32_t kMaxJitOptions = 64;
inline constexpr uint32_t kMaxJitListEntries = 1u << 16;
// A caller's log buffer may be larger; the compiler is then given one of this size.
inline constexpr uint32_t kMaxLogBytes = 1u << 20;

// What a call wrote through its options: this, then a JitChange for each changed value, then {u32 option, u32
// bytes, text} for each log buffer that was written.
struct JitOutputs {
  uint32_t value_count;
  uint32_t log_count;
};
struct JitChange {
  uint32_t index;  // the option's place in the caller's order
  uint32_t reserved;
  uint64_t value;
};

// Op::cuModuleLoadDataEx, cuLibraryLoadData. The blob holds option_bytes of options and then, at the next
// multiple of kImageAlign, the image. If known_bytes is not 0 there is no image: the host is to use the one
// that it keeps of that size and hash (image_hash.h). The reply is a LoadReply, also when the load failed.
struct LoadBody {
  WireHandle handle;  // fresh, of the new module or library
  uint32_t option_count;
  uint32_t reserved;
  uint64_t option_bytes;
  uint64_t known_bytes;
  uint8_t known_hash[32];
};
static_assert(sizeof(LoadBody) == 64);
enum class ImageAnswer : uint32_t {
  kLoaded,   // the driver was asked to load it, and may have refused
  kUnknown,  // nothing was loaded: the guest must send the image
  kNotKept,  // the same, and the host will not keep the image, so asking again is of no use
};
struct LoadReply {
  uint64_t output_bytes;  // size of the JitOutputs, which Op::kFetchBlob brings
  ImageAnswer answer;
  uint32_t reserved;
};

// Op::cuLinkCreate_v2, cuLinkAddData_v2, cuLinkComplete, cuLinkDestroy. The blob of the first holds options.
// The blob of the second holds options, then the name with its ending zero, then the data, each of these two
// at the next multiple of kImageAlign. The reply is a LinkReply, also of a failed call. Op::kFetchBlob then
// brings the JitOutputs of the call's own options, those of the link's options, and the cubin.
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

// What the guest keeps of a function, so that it can check launches itself. It is the reply of
// cuModuleGetFunction, cuLibraryGetKernel and the like, followed by the ParameterLayout of as many parameters
// as a record holds.
inline constexpr uint32_t kFunctionAttributes = 16;
struct FunctionDescription {
  int32_t attribute[kFunctionAttributes];
  uint16_t attribute_result[kFunctionAttributes];
  uint32_t parameter_count;
  uint32_t parameter_bytes;
  uint32_t first_parameter;  // the first parameter that this reply describes
  uint32_t here;             // how many parameters it describes
};
struct ParameterLayout {
  uint32_t offset;
  uint32_t bytes;
};

// Mangled names may be longer than a record: a name of more bytes travels as a blob.
inline constexpr uint32_t kMaxInlineNameBytes = 512;

// Op::cuModuleGetFunction, cuLibraryGetKernel: this, then the name with its ending zero, unless the name is
// in the channel's blob. cuKernelGetFunction: this alone. The reply: the function's wire handle, a
// FunctionDescription, the layouts.
struct GetFunctionBody {
  WireHandle owner;  // the module, library or kernel
  WireHandle fresh;  // becomes the function's handle if it has none yet
  uint64_t name_bytes;
};

// Op::kDescribeFunction. The reply: the wire handle, a FunctionDescription, the layouts, and the name as {u64
// bytes, text without an ending zero}. A name that does not fit has its bytes alone, and Op::kFetchBlob
// brings the text.
struct DescribeFunctionBody {
  WireHandle function;
  uint32_t is_kernel;
  uint32_t first_parameter;
};

// Op::cuModuleEnumerateFunctions, cuLibraryEnumerateKernels: this, then `here` fresh handles. The driver is
// asked for `count` functions, and the reply holds the wire handles of `here` of them, from `first` on.
struct EnumerateBody {
  WireHandle owner;
  uint32_t count;
  uint32_t first;
  uint32_t here;
  uint32_t reserved;
};
inline constexpr uint32_t kMaxEnumerated = 1u << 20;

// A launch. Op::cuLaunchKernel is asynchronous (posted); Op::cuLaunchKernelEx is synchronous and waits for
// the driver's answer. The message: this, then attribute_count CUlaunchAttribute, in which wire handles stand
// for handles, then parameter_bytes in the kernel's layout. The parameters of a synchronous launch that do
// not fit the record are in its staging buffer. The reply of a synchronous launch: the u64 device node for
// each attribute that asks for one.
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

// Op::cuLaunchCooperativeKernelMultiDevice. The channel's blob holds the number of launches as u32, the flags
// as u32, and then for each launch its LaunchBody and parameters.
inline constexpr uint32_t kMaxDeviceLaunches = 64;

}  // namespace causeway
