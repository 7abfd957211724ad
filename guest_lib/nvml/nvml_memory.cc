// SPDX-License-Identifier: Apache-2.0
// What this VM uses of a device: memory and processes. Those of others are not told.
#include <string.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "guest_lib/nvml/nvml.h"

namespace causeway::guest {
namespace {

using nvml::DeviceHandle;
using nvml::Op;
using nvml::ProcessMode;
using nvml::Return;

Return AskMemory(DeviceHandle device, nvml::MemoryV2* memory) {
  NvmlCall call(Op::kMemory);
  call.PutDevice(device);
  call.writer().Put(uint32_t{0});
  const Return result = call.Finish();
  if (result != Return::kSuccess) return result;
  *memory = call.reader().Get<nvml::MemoryV2>();
  return call.reader().ok() ? Return::kSuccess : Return::kUnknown;
}

Return AskProcesses(DeviceHandle device, ProcessMode mode, std::vector<nvml::ProcessV1>* processes) {
  NvmlCall call(Op::kProcesses);
  call.PutDevice(device);
  call.writer().Put(mode);
  const Return result = call.Finish();
  if (result != Return::kSuccess) return result;
  const auto count = call.reader().Get<uint32_t>();
  for (uint32_t i = 0; i < count && call.reader().ok(); ++i) {
    processes->push_back(call.reader().Get<nvml::ProcessV1>());
  }
  return call.reader().ok() ? Return::kSuccess : Return::kUnknown;
}

void Fill(const nvml::ProcessV1& from, nvml::ProcessV1* to) {
  *to = from;
}
void Fill(const nvml::ProcessV1& from, nvml::ProcessV2* to) {
  *to = {from.pid, from.used_bytes, nvml::kNoInstance, nvml::kNoInstance};
}
void Fill(const nvml::ProcessV1& from, nvml::ProcessDetail* to) {
  *to = {from.pid, from.used_bytes, nvml::kNoInstance, nvml::kNoInstance, 0};
}

// The list of nvidia-smi's private table: with the program's name.
struct NamedProcess {
  uint32_t pid;
  uint64_t used_bytes;
  uint32_t gpu_instance, compute_instance;
  uint64_t protected_bytes;
  char name[4096];
};
static_assert(sizeof(NamedProcess) == 0x1020);
void Fill(const nvml::ProcessV1& from, NamedProcess* to) {
  *to = {};
  to->pid = from.pid;
  to->used_bytes = from.used_bytes;
  to->gpu_instance = to->compute_instance = nvml::kNoInstance;
  nvmlSystemGetProcessName(from.pid, to->name, sizeof to->name);
}

// *count is the room on the way in and the number of processes on the way out.
template <class Process>
Return List(DeviceHandle device, ProcessMode mode, uint32_t* count, Process* list) {
  std::vector<nvml::ProcessV1> processes;
  const Return result = AskProcesses(device, mode, &processes);
  if (result != Return::kSuccess) return result;
  if (count == nullptr || (list == nullptr && *count != 0)) return Return::kInvalidArgument;
  const uint32_t room = *count;
  *count = static_cast<uint32_t>(processes.size());
  if (room < processes.size()) return Return::kInsufficientSize;
  for (size_t i = 0; i < processes.size(); ++i) Fill(processes[i], &list[i]);
  return Return::kSuccess;
}

template <ProcessMode mode>
Return NamedProcesses(DeviceHandle device, uint32_t* count, NamedProcess* list) {
  return List(device, mode, count, list);
}

// The private functions of NVIDIA's own tools: a size in bytes, then slots, the same in drivers 535 to 580.
// nvidia-smi takes its process list and a few values from here; to all else the answer is that it is not
// supported, whatever the arguments.
Return PrivateFunction() {
  return Return::kNotSupported;
}

// Those that read one value of a device.
Return AskPrivate(uint32_t slot, DeviceHandle device, NvmlCall& call) {
  call.PutDevice(device);
  call.writer().Put(slot);
  return call.Finish();
}
template <uint32_t slot>
Return PrivateNumber(DeviceHandle device, uint32_t* value) {
  NvmlCall call(Op::kPrivate);
  if (value == nullptr) return Return::kInvalidArgument;
  const Return result = AskPrivate(slot, device, call);
  if (result == Return::kSuccess) *value = call.reader().Get<uint32_t>();
  return result;
}
template <uint32_t slot>
Return PrivateText(DeviceHandle device, char* text, uint32_t bytes) {
  NvmlCall call(Op::kPrivate);
  if (text == nullptr) return Return::kInvalidArgument;
  const Return result = AskPrivate(slot, device, call);
  if (result != Return::kSuccess) return result;
  const auto length = call.reader().Get<uint32_t>();
  const std::byte* from = call.reader().Take(length);
  if (from == nullptr) return Return::kUnknown;
  if (length > bytes) return Return::kInsufficientSize;
  memcpy(text, from, length);
  return Return::kSuccess;
}

// How two GPUs reach each other, by their bus ids. `nvidia-smi topo` asks for it where there are several. Of what it counts one value was
// seen on a host: 2, for GPUs on one host bridge, which is 30 of the public call's 10 to 50.
Return PathBetween(const char* first, const char* second, uint32_t* path) {
  constexpr uint32_t kStep = 10;
  DeviceHandle one{}, other{};
  uint32_t level = 0;
  if (path == nullptr) return Return::kInvalidArgument;
  if (const Return found = nvmlDeviceGetHandleByPciBusId_v2(first, &one); found != Return::kSuccess)
    return found;
  if (const Return found = nvmlDeviceGetHandleByPciBusId_v2(second, &other); found != Return::kSuccess)
    return found;
  const Return result = NvmlWait<Op::nvmlDeviceGetTopologyCommonAncestor>(one, other, &level);
  if (result == Return::kSuccess) *path = std::max(level / kStep, 1u) - 1;
  return result;
}

struct PrivateTable {
  static constexpr size_t kSlots = 320;  // more than any of these drivers has
  static constexpr size_t kProcesses = 213;
  uint64_t bytes = sizeof(PrivateTable);
  const void* slot[kSlots - 1];

  PrivateTable() {
    for (const void*& each : slot) each = reinterpret_cast<const void*>(&PrivateFunction);
    slot[23 - 1] = reinterpret_cast<const void*>(&PathBetween);
    slot[kProcesses - 1] = reinterpret_cast<const void*>(&NamedProcesses<ProcessMode::kCompute>);
    slot[kProcesses] = reinterpret_cast<const void*>(&NamedProcesses<ProcessMode::kGraphics>);
    slot[230 - 1] = reinterpret_cast<const void*>(&PrivateNumber<230>);
    slot[231 - 1] = reinterpret_cast<const void*>(&PrivateText<231>);
    slot[232 - 1] = reinterpret_cast<const void*>(&PrivateNumber<232>);
    slot[237 - 1] = reinterpret_cast<const void*>(&PrivateText<237>);
    slot[249 - 1] = reinterpret_cast<const void*>(&PrivateNumber<249>);
    slot[kProcesses + 1] = reinterpret_cast<const void*>(&NamedProcesses<ProcessMode::kMps>);
  }
};
static_assert(sizeof(PrivateTable) == 8 * PrivateTable::kSlots);

}  // namespace

NVML_EXPORT Return nvmlInternalGetExportTable(const void** table, const void* id) {
  // c4fe3e6cc98f6c4ea327ee696e12f7c4
  constexpr unsigned char kTools[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                        0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
  if (table == nullptr || id == nullptr) return Return::kInvalidArgument;
  constexpr static uint64_t kNothing[64] = {sizeof(uint64_t)};
  static const PrivateTable private_table;
  *table = memcmp(id, kTools, sizeof kTools) == 0 ? static_cast<const void*>(&private_table) : kNothing;
  return Return::kSuccess;
}

NVML_EXPORT Return nvmlDeviceGetMemoryInfo(DeviceHandle device, nvml::Memory* memory) {
  nvml::MemoryV2 full{};
  const Return result = AskMemory(device, &full);
  if (result != Return::kSuccess) return result;
  if (memory == nullptr) return Return::kInvalidArgument;
  *memory = {full.total, full.free, full.used};
  return Return::kSuccess;
}

NVML_EXPORT Return nvmlDeviceGetMemoryInfo_v2(DeviceHandle device, nvml::MemoryV2* memory) {
  nvml::MemoryV2 full{};
  const Return result = AskMemory(device, &full);
  if (result != Return::kSuccess) return result;
  if (memory == nullptr) return Return::kInvalidArgument;
  // What NVML answers here, unlike elsewhere.
  if (memory->version != nvml::V(2, sizeof full)) return Return::kFunctionNotFound;
  full.version = memory->version;
  *memory = full;
  return Return::kSuccess;
}

#define PROCESS_LIST(fn, mode, type)                                        \
  NVML_EXPORT Return fn(DeviceHandle device, uint32_t* count, type* list) { \
    return List(device, nvml::ProcessMode::mode, count, list);              \
  }
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, kCompute, nvml::ProcessV1)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, kCompute, nvml::ProcessV2)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, kCompute, nvml::ProcessV2)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, kGraphics, nvml::ProcessV1)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, kGraphics, nvml::ProcessV2)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, kGraphics, nvml::ProcessV2)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, kMps, nvml::ProcessV1)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, kMps, nvml::ProcessV2)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, kMps, nvml::ProcessV2)

NVML_EXPORT Return nvmlDeviceGetRunningProcessDetailList(DeviceHandle device, nvml::ProcessDetailList* list) {
  if (!NvmlSession::Get().initialised()) return Return::kUninitialized;
  if (list == nullptr || list->mode > static_cast<uint32_t>(ProcessMode::kMps))
    return Return::kInvalidArgument;
  if (list->version != nvml::V(1, sizeof *list)) return Return::kVersionMismatch;
  return List(device, static_cast<ProcessMode>(list->mode), &list->count, list->processes);
}

NVML_EXPORT Return nvmlDeviceGetProcessUtilization(DeviceHandle device, nvml::ProcessSample* samples,
                                                   uint32_t* count, unsigned long long since_us) {
  NvmlCall call(Op::kUtilization);
  call.PutDevice(device);
  call.writer().Put(uint32_t{0});
  call.writer().Put(since_us);
  if (count == nullptr) call.writer().Fail(nvml::AsFailure(Return::kInvalidArgument));
  const Return result = call.Finish();
  if (result != Return::kSuccess) return result;
  const auto there = call.reader().Get<uint32_t>();
  const uint32_t room = samples != nullptr ? *count : 0;
  *count = there;
  if (room < there) return Return::kInsufficientSize;
  for (uint32_t i = 0; i < there; ++i) samples[i] = call.reader().Get<nvml::ProcessSample>();
  return call.reader().ok() ? Return::kSuccess : Return::kUnknown;
}

}  // namespace causeway::guest
