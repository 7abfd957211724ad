// SPDX-License-Identifier: Apache-2.0
// The tenant's share of a device: NVML's figures of its workers, under the pids of its processes.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "host_backend/worker/nvml/nvml.h"
#include "ivshmem_ring/system/gpu_uuid.h"

namespace causeway::host {

using nvml::ProcessMode;
using nvml::Return;

std::string NvmlLibrary::UuidOf(nvml::DeviceHandle device) const {
  char text[96] = "";
  const bool answered =
      nvmlDeviceGetUUID != nullptr && nvmlDeviceGetUUID(device, text, sizeof text) == Return::kSuccess;
  return answered ? text : "";
}

std::vector<nvml::ProcessV2> NvmlLibrary::ProcessesOf(nvml::DeviceHandle device, ProcessMode mode) const {
  auto* const list = processes[static_cast<size_t>(mode)];
  if (list == nullptr) return {};
  std::vector<nvml::ProcessV2> all(256);
  for (int tries = 0; tries < 4; ++tries) {
    auto count = static_cast<uint32_t>(all.size());
    const auto result = static_cast<Return>(list(device, &count, all.data()));
    if (result == Return::kInsufficientSize && count < 65'536) {
      all.resize(count + 64);
      continue;
    }
    all.resize(result == Return::kSuccess ? std::min<size_t>(count, all.size()) : 0);
    return all;
  }
  return {};
}

std::vector<nvml::ProcessV1> NvmlHost::TenantsProcesses(nvml::DeviceHandle device, ProcessMode mode) {
  const std::vector<nvml::ProcessV2> all = library_.ProcessesOf(device, mode);
  std::vector<nvml::ProcessV1> own;
  for (const WorkerPeer& peer : peers_()) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const nvml::ProcessV2& process) {
      return process.pid == peer.worker_pid;
    });
    if (found != all.end()) own.push_back({peer.guest_pid, found->used_bytes});
  }
  return own;
}

// Under a limit the tenant sees a device of that size, as cuMemGetInfo and cuDeviceTotalMem show it.
void NvmlHost::LimitMemory(nvml::DeviceHandle device, nvml::MemoryV2* memory) {
  const uint64_t limit = account_ != nullptr ? account_->limit_bytes() : 0;
  const DeviceUuid uuid = UuidOf(library_.UuidOf(device));
  if (limit == 0 || uuid == DeviceUuid{}) return;
  const uint64_t held = account_->OnDevice(reinterpret_cast<const char*>(uuid.data()));
  memory->total = std::min<uint64_t>(memory->total, limit);
  memory->reserved = 0;
  memory->free = std::min<uint64_t>(memory->free, held < memory->total ? memory->total - held : 0);
  memory->used = held;
}

Return NvmlHost::ServeMemory(Reader& in, Writer& out) {
  const nvml::DeviceHandle device = DeviceAt(in.Get<uint32_t>());
  if (!in.ok() || device == nullptr) return Return::kInvalidArgument;
  nvml::MemoryV2 memory{};
  memory.version = nvml::V(2, sizeof memory);
  Return result = library_.memory_v2 != nullptr ? static_cast<Return>(library_.memory_v2(device, &memory))
                                                : Return::kFunctionNotFound;
  if (result != Return::kSuccess) {
    nvml::Memory old{};
    result = static_cast<Return>(library_.memory(device, &old));
    if (result != Return::kSuccess) return result;
    memory.total = old.total;
    memory.free = old.free;
  }
  // What is free on the device is free for this tenant too; what others use is not told.
  memory.used = 0;
  for (const nvml::ProcessV1& process : TenantsProcesses(device, ProcessMode::kCompute)) {
    if (process.used_bytes != nvml::kNotAvailable) memory.used += process.used_bytes;
  }
  LimitMemory(device, &memory);
  out.Put(memory);
  return out.ok() ? Return::kSuccess : Return::kUnknown;
}

Return NvmlHost::ServeProcesses(Reader& in, Writer& out) {
  const nvml::DeviceHandle device = DeviceAt(in.Get<uint32_t>());
  const auto mode = in.Get<ProcessMode>();
  if (!in.ok() || device == nullptr || mode > ProcessMode::kMps) return Return::kInvalidArgument;
  std::vector<nvml::ProcessV1> own = TenantsProcesses(device, mode);
  own.resize(std::min<size_t>(own.size(), nvml::kMaxProcesses));
  out.Put(static_cast<uint32_t>(own.size()));
  for (const nvml::ProcessV1& process : own) out.Put(process);
  return out.ok() ? Return::kSuccess : Return::kUnknown;
}

Return NvmlHost::ServeUtilization(Reader& in, Writer& out) {
  const auto body = in.Get<nvml::UtilizationBody>();
  const nvml::DeviceHandle device = DeviceAt(body.device);
  if (!in.ok() || device == nullptr) return Return::kInvalidArgument;
  if (library_.utilization == nullptr) return Return::kFunctionNotFound;
  std::vector<nvml::ProcessSample> all(1024);
  auto count = static_cast<uint32_t>(all.size());
  const auto result = static_cast<Return>(library_.utilization(device, all.data(), &count, body.since_us));
  if (result != Return::kSuccess) return result;
  all.resize(std::min<size_t>(count, all.size()));
  std::vector<nvml::ProcessSample> own;
  for (const WorkerPeer& peer : peers_()) {
    for (nvml::ProcessSample sample : all) {
      if (sample.pid != peer.worker_pid || own.size() == nvml::kMaxSamples) continue;
      sample.pid = peer.guest_pid;
      own.push_back(sample);
    }
  }
  if (own.empty()) return Return::kNotFound;  // as NVML says when nothing is newer
  out.Put(static_cast<uint32_t>(own.size()));
  for (const nvml::ProcessSample& sample : own) out.Put(sample);
  return out.ok() ? Return::kSuccess : Return::kUnknown;
}

}  // namespace causeway::host
