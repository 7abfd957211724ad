// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/top/gpu_times.h"

#include <dlfcn.h>

#include <algorithm>

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
  uint32_t count = 0;
  library_->count(&count);
  for (uint32_t index = 0; index < count; ++index) {
    Library::Device device = nullptr;
    if (library_->device_at(index, &device) == 0) library_->devices.push_back(device);
  }
  last_us_.resize(library_->devices.size());
}

// The library itself stays loaded: threads of NVML's may still end.
GpuTimes::~GpuTimes() {
  if (!library_->devices.empty()) library_->shutdown();
}

std::optional<std::map<pid_t, double>> GpuTimes::SharesOf(size_t device) {
  constexpr uint32_t kOk = 0, kNotFound = 6, kShort = 7, kMostTries = 4;
  std::vector<nvml::ProcessSample> samples(64);
  uint32_t result = kShort, count = 0;
  for (uint32_t tries = 0; tries < kMostTries && result == kShort; ++tries) {
    count = uint32_t(samples.size());
    result = library_->utilization(library_->devices[device], samples.data(), &count, last_us_[device]);
    if (result == kShort) samples.resize(std::max<size_t>(count, samples.size()) * 2);
  }
  // NVML lists processes that were busy, so one that it does not list was not.
  if (result == kNotFound) return std::map<pid_t, double>();
  if (result != kOk) return std::nullopt;
  std::map<pid_t, std::pair<double, uint32_t>> sums;
  for (uint32_t i = 0; i < std::min<size_t>(count, samples.size()); ++i) {
    const nvml::ProcessSample& sample = samples[i];
    if (sample.timestamp_us == 0) continue;  // a place that NVML did not fill
    auto& [sum, times] = sums[pid_t(sample.pid)];
    sum += sample.sm / 100.0;
    ++times;
    last_us_[device] = std::max(last_us_[device], sample.timestamp_us);
  }
  std::map<pid_t, double> shares;
  for (const auto& [pid, sum] : sums) shares[pid] = sum.first / sum.second;
  return shares;
}

void GpuTimes::Fill(StatusFigures* figures) {
  for (size_t device = 0; device < library_->devices.size(); ++device) {
    const auto shares = SharesOf(device);
    if (!shares) continue;
    for (SessionFigures& session : figures->sessions) {
      if (session.worker_pid == 0) continue;
      const auto found = shares->find(session.worker_pid);
      session.gpu = session.gpu.value_or(0) + (found != shares->end() ? found->second : 0);
    }
  }
}

}  // namespace causeway::command
