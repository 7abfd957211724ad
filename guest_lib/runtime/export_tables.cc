// SPDX-License-Identifier: Apache-2.0
// The tables and slots that the CUDA runtime 11.8 to 13.0, cuBLAS, cuFFT and NVRTC call.
//
// A table is an array of function addresses whose first slot holds its size in bytes; the sizes are those of
// the 580 driver, because callers compare them before they use a late slot. Slots that are not named here
// answer CUDA_ERROR_NOT_SUPPORTED. A UUID that is not here is unknown to the caller, which then does without.
#include "guest_lib/runtime/export_tables.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "guest_lib/device/context_storage.h"
#include "guest_lib/runtime/compile_cache.h"
#include "guest_lib/runtime/export_table_slots.h"
#include "guest_lib/runtime/integrity.h"
#include "guest_lib/session/guest_state.h"

namespace causeway::guest {
namespace {

struct Slot {
  size_t index;
  void* function;
};

template <typename Function>
Slot At(size_t index, Function* function) {
  return {index, reinterpret_cast<void*>(function)};
}

template <size_t kSlots>
using Table = std::array<void*, kSlots>;

template <size_t kSlots>
Table<kSlots> MakeTable(std::initializer_list<Slot> named_slots) {
  Table<kSlots> table;
  table.fill(reinterpret_cast<void*>(&slots::NotSupported));
  table[0] = reinterpret_cast<void*>(kSlots * sizeof(void*));
  for (const Slot& slot : named_slots) table.at(slot.index) = slot.function;
  return table;
}

// Every CUDA runtime. Slots 1 and 6 to 8 load and unload modules of runtimes before 12.0; 12 loads compilers.
const auto runtime_interface = MakeTable<13>({
    At(1, &slots::LoadWrapper),
    At(2, &slots::PrimaryContext),
    At(6, &slots::LoadWrapperWithSymbols),
    At(7, &slots::UnloadModule),
    At(8, &slots::LoadFatbin),
    At(12, &slots::Ignore),
});

// Every CUDA runtime, for profilers. With no flag set the runtime calls none of the other slots.
const auto runtime_callback_hooks = MakeTable<7>({
    At(1, &slots::Ignore),
    At(2, &slots::CallbackFlags),
    At(3, &slots::Ignore),
    At(4, &slots::Ignore),
    At(5, &slots::Ignore),
    At(6, &slots::ResourceFlags),
});

const auto tools_thread_state = MakeTable<3>({At(2, &slots::ThreadContext)});

// The one table without a size.
const Table<3> context_local_storage = {
    reinterpret_cast<void*>(&ContextStoragePut),
    reinterpret_cast<void*>(&ContextStorageDelete),
    reinterpret_cast<void*>(&ContextStorageGet),
};

const auto context_checks = MakeTable<15>({At(2, &slots::ContextCheck), At(3, &slots::Ignore)});

// Its value contains the addresses of two of the tables, so the function stands here.
CUresult Integrity(uint32_t version, uint64_t time_s, uint8_t value[16]);
const auto integrity_check = MakeTable<3>({At(1, &Integrity)});

CUresult Integrity(uint32_t version, uint64_t time_s, uint8_t value[16]) {
  if (const CUresult result = SessionOrError(); result != CUDA_SUCCESS) return result;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<DeviceIdentity> devices;
  for (int device = 0; device < DeviceCount(); ++device) devices.push_back(Identity(device));
  const IntegrityInput input = {
      .driver_version = static_cast<uint32_t>(DriverVersion()),
      .version = version,
      .process_id = static_cast<uint32_t>(getpid()),
      .thread_low = static_cast<uint32_t>(pthread_self()),
      .runtime_table = reinterpret_cast<uintptr_t>(runtime_interface.data()),
      .integrity_table = reinterpret_cast<uintptr_t>(integrity_check.data()),
      .integrity_function = reinterpret_cast<uintptr_t>(integrity_check[1]),
      .time_s = time_s,
  };
  const Md2Digest digest = IntegrityValue(input, devices);
  std::copy(digest.begin(), digest.end(), value);
  return CUDA_SUCCESS;
}

// The runtime's own messages: cuLogs callbacks get the driver's only.
const auto runtime_log_sink = MakeTable<3>({At(1, &slots::Ignore), At(2, &slots::Ignore)});

// cuBLAS, cuBLASLt, cuFFT.
const auto identities = MakeTable<93>({
    At(4, &slots::ContextIdentity),
    At(39, &slots::StreamObjectIdentity),
    At(51, &slots::StreamObject),
});

// cuFFT.
const auto module_functions = MakeTable<99>({At(7, &slots::ForEachFunction)});

// NVRTC, nvJitLink: what they compiled before.
const auto compile_cache = MakeTable<7>({
    At(1, &slots::MakeCompileKey),
    At(2, &slots::DestroyCompileKey),
    At(3, &slots::FindCompiled),
    At(4, &slots::KeepCompiled),
    At(6, &slots::FreeCompiled),
});

// cuBLASLt takes "not supported" from slot 4 for an answer, but does not check whether there is a table at
// all. Compilers that do not know slot 6 of the table above free with slot 13.
const auto cluster_queries = MakeTable<17>({At(13, &slots::FreeCompiled)});

// Clients of OptiX's kind.
const auto device_extended = MakeTable<31>({
    At(5, &slots::ExtendedDeviceAttribute),
    At(13, &slots::ExtendedDeviceFlag),
});
const auto context_creation = MakeTable<2>({At(1, &slots::CreateContext)});

// Causeway's own, for tests and benchmarks.
const auto figures = MakeTable<2>({At(1, &slots::RepliesAwaited)});

struct ExportTable {
  uint8_t uuid[16];
  const void* table;
};

const ExportTable kExportTables[] = {
    {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9},
     &runtime_interface},
    {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66},
     &runtime_callback_hooks},
    {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc},
     &tools_thread_state},
    {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93},
     &context_local_storage},
    {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e},
     &context_checks},
    {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2},
     &integrity_check},
    {{0xf8, 0xcf, 0xf9, 0x51, 0x21, 0x46, 0x8b, 0x4e, 0xb9, 0xe2, 0xfb, 0x46, 0x9e, 0x7c, 0x0d, 0xd9},
     &runtime_log_sink},
    {{0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8, 0xf2},
     &identities},
    {{0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99, 0x1e},
     &module_functions},
    {{0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca},
     &cluster_queries},
    {{0xda, 0x91, 0x51, 0xd3, 0x3a, 0xe6, 0xcc, 0x41, 0xa5, 0xc0, 0x4f, 0x26, 0xd5, 0x33, 0xe3, 0x28},
     &compile_cache},
    {{0xb1, 0x05, 0x41, 0xe1, 0xf7, 0xc7, 0xc7, 0x4a, 0x9f, 0x64, 0xf2, 0x23, 0xbe, 0x99, 0xf1, 0xe2},
     &device_extended},
    {{0x0c, 0xa5, 0x0b, 0x8c, 0x10, 0x04, 0x92, 0x9a, 0x89, 0xa7, 0xd0, 0xdf, 0x10, 0xe7, 0x72, 0x86},
     &context_creation},
    {{'C', 'a', 'u', 's', 'e', 'w', 'a', 'y', ' ', 'f', 'i', 'g', 'u', 'r', 'e', 's'}, &figures},
};

}  // namespace

const void* FindExportTable(const CUuuid& uuid) {
  for (const ExportTable& known : kExportTables) {
    if (std::memcmp(known.uuid, &uuid, sizeof(known.uuid)) == 0) return known.table;
  }
  return nullptr;
}

}  // namespace causeway::guest

extern "C" CUresult cuGetExportTable(const void** ppExportTable, const CUuuid* pExportTableId) {
  if (ppExportTable == nullptr || pExportTableId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *ppExportTable = causeway::guest::FindExportTable(*pExportTableId);
  return *ppExportTable == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
