// SPDX-License-Identifier: Apache-2.0
// What this VM uses of a device: memory and processes. Those of others are not told.
#include <string.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "guest_lib/nvml/nvml.h"

#define NVML_EXPORT extern "C" __attribute__((visibility("default")))

NVML_EXPORT uint32_t nvmlSystemGetProcessName(uint32_t pid, char* name, uint32_t bytes);

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

Return Utilization(DeviceHandle device, nvml::ProcessSample* samples, uint32_t* count, uint64_t since_us) {
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

uint32_t NamedComputeProcesses(DeviceHandle device, uint32_t* count, NamedProcess* list) {
  return static_cast<uint32_t>(List(device, ProcessMode::kCompute, count, list));
}
uint32_t NamedGraphicsProcesses(DeviceHandle device, uint32_t* count, NamedProcess* list) {
  return static_cast<uint32_t>(List(device, ProcessMode::kGraphics, count, list));
}
uint32_t NamedMpsProcesses(DeviceHandle device, uint32_t* count, NamedProcess* list) {
  return static_cast<uint32_t>(List(device, ProcessMode::kMps, count, list));
}

// The private functions of NVIDIA's own tools: a size in bytes, then slots, the same in drivers 535 to 580.
// nvidia-smi takes its process list and a few values from here; to all else the answer is that it is not
// supported, whatever the arguments.
uint32_t PrivateFunction() {
  return static_cast<uint32_t>(Return::kNotSupported);
}

// Those that read one value of a device.
Return AskPrivate(uint32_t slot, DeviceHandle device, NvmlCall& call) {
  call.PutDevice(device);
  call.writer().Put(slot);
  return call.Finish();
}
template <uint32_t slot>
uint32_t PrivateNumber(DeviceHandle device, uint32_t* value) {
  NvmlCall call(Op::kPrivate);
  if (value == nullptr) return static_cast<uint32_t>(Return::kInvalidArgument);
  const Return result = AskPrivate(slot, device, call);
  if (result == Return::kSuccess) *value = call.reader().Get<uint32_t>();
  return static_cast<uint32_t>(result);
}
template <uint32_t slot>
uint32_t PrivateText(DeviceHandle device, char* text, uint32_t bytes) {
  NvmlCall call(Op::kPrivate);
  if (text == nullptr) return static_cast<uint32_t>(Return::kInvalidArgument);
  const Return result = AskPrivate(slot, device, call);
  if (result != Return::kSuccess) return static_cast<uint32_t>(result);
  const auto length = call.reader().Get<uint32_t>();
  const std::byte* from = call.reader().Take(length);
  if (from == nullptr) return static_cast<uint32_t>(Return::kUnknown);
  if (length > bytes) return static_cast<uint32_t>(Return::kInsufficientSize);
  memcpy(text, from, length);
  return 0;
}

struct PrivateTable {
  static constexpr size_t kSlots = 320;  // more than any of these drivers has
  static constexpr size_t kProcesses = 213;
  uint64_t bytes = sizeof(PrivateTable);
  const void* slot[kSlots - 1];

  PrivateTable() {
    for (const void*& each : slot) each = reinterpret_cast<const void*>(&PrivateFunction);
    slot[kProcesses - 1] = reinterpret_cast<const void*>(&NamedComputeProcesses);
    slot[kProcesses] = reinterpret_cast<const void*>(&NamedGraphicsProcesses);
    slot[230 - 1] = reinterpret_cast<const void*>(&PrivateNumber<230>);
    slot[231 - 1] = reinterpret_cast<const void*>(&PrivateText<231>);
    slot[232 - 1] = reinterpret_cast<const void*>(&PrivateNumber<232>);
    slot[237 - 1] = reinterpret_cast<const void*>(&PrivateText<237>);
    slot[249 - 1] = reinterpret_cast<const void*>(&PrivateNumber<249>);
    slot[kProcesses + 1] = reinterpret_cast<const void*>(&NamedMpsProcesses);
  }
};
static_assert(sizeof(PrivateTable) == 8 * PrivateTable::kSlots);

}  // namespace
}  // namespace causeway::guest

using namespace causeway::guest;
using causeway::nvml::DeviceHandle;
using causeway::nvml::ProcessMode;
using causeway::nvml::Return;

NVML_EXPORT uint32_t nvmlInternalGetExportTable(const void** table, const void* id) {
  // c4fe3e6cc98f6c4ea327ee696e12f7c4
  constexpr unsigned char kTools[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                        0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
  if (table == nullptr || id == nullptr) return static_cast<uint32_t>(Return::kInvalidArgument);
  constexpr static uint64_t kNothing[64] = {sizeof(uint64_t)};
  static const PrivateTable private_table;
  *table = memcmp(id, kTools, sizeof kTools) == 0 ? static_cast<const void*>(&private_table) : kNothing;
  return 0;
}

NVML_EXPORT uint32_t nvmlDeviceGetMemoryInfo(DeviceHandle device, causeway::nvml::Memory* memory) {
  causeway::nvml::MemoryV2 full{};
  const Return result = AskMemory(device, &full);
  if (result != Return::kSuccess) return static_cast<uint32_t>(result);
  if (memory == nullptr) return static_cast<uint32_t>(Return::kInvalidArgument);
  *memory = {full.total, full.free, full.used};
  return 0;
}

NVML_EXPORT uint32_t nvmlDeviceGetMemoryInfo_v2(DeviceHandle device, causeway::nvml::MemoryV2* memory) {
  causeway::nvml::MemoryV2 full{};
  const Return result = AskMemory(device, &full);
  if (result != Return::kSuccess) return static_cast<uint32_t>(result);
  if (memory == nullptr) return static_cast<uint32_t>(Return::kInvalidArgument);
  // What NVML answers here, unlike elsewhere.
  if (memory->version != causeway::nvml::V(2, sizeof full))
    return static_cast<uint32_t>(Return::kFunctionNotFound);
  full.version = memory->version;
  *memory = full;
  return 0;
}

#define PROCESS_LIST(fn, mode, type)                                                            \
  NVML_EXPORT uint32_t fn(DeviceHandle device, uint32_t* count, type* list) {                   \
    return static_cast<uint32_t>(List(device, causeway::nvml::ProcessMode::mode, count, list)); \
  }
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, kCompute, causeway::nvml::ProcessV1)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, kCompute, causeway::nvml::ProcessV2)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, kCompute, causeway::nvml::ProcessV2)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, kGraphics, causeway::nvml::ProcessV1)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, kGraphics, causeway::nvml::ProcessV2)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, kGraphics, causeway::nvml::ProcessV2)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, kMps, causeway::nvml::ProcessV1)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, kMps, causeway::nvml::ProcessV2)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, kMps, causeway::nvml::ProcessV2)

NVML_EXPORT uint32_t nvmlDeviceGetRunningProcessDetailList(DeviceHandle device,
                                                           causeway::nvml::ProcessDetailList* list) {
  if (!NvmlSession::Get().initialised()) return static_cast<uint32_t>(Return::kUninitialized);
  if (list == nullptr || list->mode > static_cast<uint32_t>(ProcessMode::kMps))
    return static_cast<uint32_t>(Return::kInvalidArgument);
  if (list->version != causeway::nvml::V(1, sizeof *list))
    return static_cast<uint32_t>(Return::kVersionMismatch);
  return static_cast<uint32_t>(
      List(device, static_cast<ProcessMode>(list->mode), &list->count, list->processes));
}

NVML_EXPORT uint32_t nvmlDeviceGetProcessUtilization(DeviceHandle device,
                                                     causeway::nvml::ProcessSample* samples, uint32_t* count,
                                                     unsigned long long since_us) {
  return static_cast<uint32_t>(Utilization(device, samples, count, since_us));
}
