// SPDX-License-Identifier: Apache-2.0
// What Causeway needs to know of NVML's binary interface: the results that it gives or tests, and the few
// structs that its code reads or fills. All other parameters are described by the rows alone
// (ivshmem_ring/nvml_calls.def). NVML's own header is in no package that the build needs; where it is found,
// tests/nvml/abi_test.cc compares it with this file.
#pragma once
#include <cstdint>

namespace causeway::nvml {

enum class Return : uint32_t {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNoPermission = 4,
  kNotFound = 6,
  kInsufficientSize = 7,
  kDriverNotLoaded = 9,
  kTimeout = 10,
  kFunctionNotFound = 13,
  kVersionMismatch = 25,
  kUnknown = 999,
};

// nvmlDevice_t: a pointer that the library alone follows.
struct OpaqueDevice;
using DeviceHandle = OpaqueDevice*;

// nvmlMemory_t
struct Memory {
  uint64_t total, free, used;
};
// nvmlMemory_v2_t
struct MemoryV2 {
  uint32_t version;
  uint64_t total, reserved, free, used;
};
static_assert(sizeof(Memory) == 24 && sizeof(MemoryV2) == 40);

// nvmlProcessInfo_v1_t and nvmlProcessInfo_v2_t, which nvmlProcessInfo_t names now
struct ProcessV1 {
  uint32_t pid;
  uint64_t used_bytes;
};
struct ProcessV2 {
  uint32_t pid;
  uint64_t used_bytes;
  uint32_t gpu_instance, compute_instance;
};
static_assert(sizeof(ProcessV1) == 16 && sizeof(ProcessV2) == 24);
inline constexpr uint32_t kNoInstance = 0xffffffff;
inline constexpr uint64_t kNotAvailable = ~uint64_t{0};

// nvmlProcessDetailList_v1_t and its elements
struct ProcessDetail {
  uint32_t pid;
  uint64_t used_bytes;
  uint32_t gpu_instance, compute_instance;
  uint64_t protected_bytes;
};
struct ProcessDetailList {
  uint32_t version;
  uint32_t mode;  // 0 compute, 1 graphics, 2 MPS
  uint32_t count;
  ProcessDetail* processes;
};
static_assert(sizeof(ProcessDetail) == 32 && sizeof(ProcessDetailList) == 24);

// nvmlProcessUtilizationSample_t
struct ProcessSample {
  uint32_t pid;
  uint64_t timestamp_us;
  uint32_t sm, memory, encoder, decoder;  // percent
};
static_assert(sizeof(ProcessSample) == 32);

// nvmlPciInfo_t as nvmlDeviceGetPciInfo_v3 fills it
struct PciInfo {
  char legacy_bus_id[16];
  uint32_t domain, bus, device;
  uint32_t device_id, subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68);

// nvmlUUID_v1_t
struct Uuid {
  uint32_t version;
  uint32_t type;  // 1: text, 2: the 16 bytes
  char value[44];
};
static_assert(sizeof(Uuid) == 52);

// nvmlFieldValue_t
struct FieldValue {
  uint32_t field, scope;
  int64_t timestamp, latency_us;  // timestamp: microseconds since 1970
  uint32_t type, result;
  uint64_t value;
};
static_assert(sizeof(FieldValue) == 40);

// The same as NVML_STRUCT_VERSION: the first word of a versioned struct holds its size and its version.
constexpr uint32_t V(uint32_t version, uint32_t bytes) {
  return bytes | version << 24;
}

inline constexpr uint32_t kMaxDevices = 64;

}  // namespace causeway::nvml
