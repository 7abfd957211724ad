// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/top/gpu_times.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>

#include "ivshmem_ring/nvml/nvml_api.h"

namespace causeway::command {

struct GpuTimes::Library {
  using Device = void*;
  void* handle = nullptr;
  uint32_t (*init)() = nullptr;
  uint32_t (*shutdown)() = nullptr;
  uint32_t (*count)(uint32_t*) = nullptr;
  uint32_t (*device_at)(uint32_t, Device*) = nullptr;
  uint32_t (*utilization)(Device, nvml::ProcessSample*, uint32_t*, unsigned long long) = nullptr;
  uint32_t (*processes)(Device, uint32_t*, nvml::ProcessV2*) = nullptr;
  std::vector<Device> devices;

  template <class Function>
  bool Resolve(const char* name, Function** function) const {
    *function = reinterpret_cast<Function*>(dlsym(handle, name));
    return *function != nullptr;
  }
};

GpuTimes::GpuTimes(const std::string& driver) : library_(std::make_unique<Library>()) {
  const size_t slash = driver.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : driver.substr(0, slash + 1);
  library_->handle = dlopen((folder + "libnvidia-ml.so.1").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_->handle == nullptr) return;
  const bool known = library_->Resolve("nvmlInit_v2", &library_->init) &&
                     library_->Resolve("nvmlShutdown", &library_->shutdown) &&
                     library_->Resolve("nvmlDeviceGetCount_v2", &library_->count) &&
                     library_->Resolve("nvmlDeviceGetHandleByIndex_v2", &library_->device_at) &&
                     library_->Resolve("nvmlDeviceGetProcessUtilization", &library_->utilization);
  if (!known || library_->init() != 0) return;
  // Of the same struct; drivers before 510 have the older one alone.
  if (!library_->Resolve("nvmlDeviceGetComputeRunningProcesses_v3", &library_->processes))
    library_->Resolve("nvmlDeviceGetComputeRunningProcesses_v2", &library_->processes);
  uint32_t count = 0;
  library_->count(&count);
  for (uint32_t index = 0; index < count; ++index) {
    Library::Device device = nullptr;
    if (library_->device_at(index, &device) == 0) library_->devices.push_back(device);
  }
  readings_.resize(library_->devices.size());
}

// The library itself stays loaded: threads of NVML's may still end.
GpuTimes::~GpuTimes() {
  if (!library_->devices.empty()) library_->shutdown();
}

template <class Entry, class Ask>
std::optional<std::vector<Entry>> GpuTimes::List(uint32_t* result, const Ask& ask) {
  constexpr uint32_t kMostTries = 4;
  std::vector<Entry> entries(64);
  for (uint32_t tries = 0; tries < kMostTries; ++tries) {
    uint32_t count = uint32_t(entries.size());
    *result = ask(&count, entries.data());
    if (*result == uint32_t(nvml::Return::kSuccess)) {
      entries.resize(std::min<size_t>(count, entries.size()));
      return entries;
    }
    if (*result != uint32_t(nvml::Return::kInsufficientSize)) break;
    entries.resize(std::max<size_t>(count, entries.size()) * 2);
  }
  return std::nullopt;
}

bool GpuTimes::ReadShares(size_t device) {
  constexpr auto kKept = std::chrono::seconds(2);
  const auto now = std::chrono::steady_clock::now();
  Reading& reading = readings_[device];
  uint32_t result = 0;
  const auto samples = List<nvml::ProcessSample>(&result, [&](uint32_t* count, nvml::ProcessSample* list) {
    return library_->utilization(library_->devices[device], list, count, reading.newest_us);
  });
  if (!samples) {
    if (result != uint32_t(nvml::Return::kNotFound)) return false;
    // NVML has taken no sample since, which is sooner than it takes them, or nothing was busy.
    if (now - reading.read_at > kKept) reading.shares.clear();
    return true;
  }
  std::map<pid_t, std::pair<double, uint32_t>> sums;
  for (const nvml::ProcessSample& sample : *samples) {
    if (sample.timestamp_us == 0) continue;  // a place that NVML did not fill
    auto& [sum, times] = sums[pid_t(sample.pid)];
    sum += sample.sm / 100.0;
    ++times;
    reading.newest_us = std::max(reading.newest_us, sample.timestamp_us);
  }
  reading.read_at = now;
  reading.shares.clear();
  for (const auto& [pid, sum] : sums) reading.shares[pid] = sum.first / sum.second;
  return true;
}

std::set<pid_t> GpuTimes::ProcessesOn(size_t device) const {
  uint32_t result = 0;
  if (library_->processes == nullptr) return {};
  const auto listed = List<nvml::ProcessV2>(&result, [&](uint32_t* count, nvml::ProcessV2* list) {
    return library_->processes(library_->devices[device], count, list);
  });
  std::set<pid_t> pids;
  for (const nvml::ProcessV2& process : listed.value_or(std::vector<nvml::ProcessV2>()))
    pids.insert(pid_t(process.pid));
  return pids;
}

void GpuTimes::Fill(StatusFigures* figures) {
  for (size_t device = 0; device < library_->devices.size(); ++device) {
    if (!ReadShares(device)) continue;
    const std::map<pid_t, double>& shares = readings_[device].shares;
    std::optional<std::set<pid_t>> processes;  // asked for when a session needs it
    for (SessionFigures& session : figures->sessions) {
      if (session.worker_pid == 0) continue;
      const auto found = shares.find(session.worker_pid);
      if (found != shares.end()) {
        session.gpu = session.gpu.value_or(0) + found->second;
        continue;
      }
      // NVML has samples of processes that were busy. One that it knows and has none of was not; of another it cannot tell, as where
      // causewayd runs in a PID namespace.
      if (!processes) processes = ProcessesOn(device);
      if (processes->count(session.worker_pid) != 0) session.gpu = session.gpu.value_or(0);
    }
  }
}

}  // namespace causeway::command
