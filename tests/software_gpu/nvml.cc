// SPDX-License-Identifier: Apache-2.0
// The software GPU's management library: what NVML would say of such a device. It asks the driver library in
// its own folder for name, memory and address, so that both tell the same. Its values are fixed, and of those
// that tests change (clocks, limits) it keeps none.
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "ivshmem_ring/nvml/nvml_api.h"
#include "tests/software_gpu/shared_names.h"

#define NVML extern "C" __attribute__((visibility("default"))) uint32_t

// Tells the host's side whose profile of the sandbox is meant (host_backend/sandbox/profile.h).
extern "C" __attribute__((visibility("default"), used)) const char causeway_software_gpu[] = "nvml";

namespace {

using causeway::nvml::DeviceHandle;
using causeway::nvml::Return;

constexpr uint32_t kOk = 0;
constexpr uint32_t kUninitialized = static_cast<uint32_t>(Return::kUninitialized);
constexpr uint32_t kInvalid = static_cast<uint32_t>(Return::kInvalidArgument);
constexpr uint32_t kNotSupported = static_cast<uint32_t>(Return::kNotSupported);
constexpr uint32_t kShort = static_cast<uint32_t>(Return::kInsufficientSize);
constexpr uint64_t kProcessBytes = 64u << 20;  // what one process that uses the device is said to hold

struct Gpu {
  std::string name, bus_id, uuid;
  uint64_t bytes = 0;
  int major = 0, minor = 0;
};

std::atomic<int> references{0};
std::vector<Gpu> gpus;
std::string driver_path;  // of the software GPU's libcuda.so.1, links resolved

template <class... P>
int Ask(void* driver, const char* name, P... p) {
  auto* function = reinterpret_cast<int (*)(P...)>(dlsym(driver, name));
  return function != nullptr ? function(p...) : -1;
}

Gpu Describe(void* driver, int index) {
  Gpu gpu;
  char text[256] = "";
  unsigned char id[16] = {};
  size_t bytes = 0;
  Ask(driver, "cuDeviceGetName", text, int{sizeof text}, index);
  gpu.name = text;
  Ask(driver, "cuDeviceGetPCIBusId", text, int{sizeof text}, index);
  gpu.bus_id = text;
  Ask(driver, "cuDeviceGetUuid", id, index);
  gpu.uuid = "GPU-";
  for (int i = 0; i < 16; ++i) {
    std::snprintf(text, sizeof text, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id[i]);
    gpu.uuid += text;
  }
  Ask(driver, "cuDeviceTotalMem_v2", &bytes, index);
  gpu.bytes = bytes;
  Ask(driver, "cuDeviceComputeCapability", &gpu.major, &gpu.minor, index);
  return gpu;
}

bool FindGpus() {
  Dl_info self;
  char resolved[PATH_MAX];
  if (dladdr(reinterpret_cast<void*>(&FindGpus), &self) == 0) return false;
  const std::string own = self.dli_fname;
  driver_path = own.substr(0, own.rfind('/') + 1) + "libcuda.so.1";
  if (realpath(driver_path.c_str(), resolved) != nullptr) driver_path = resolved;
  void* driver = dlopen(driver_path.c_str(), RTLD_NOW | RTLD_LOCAL);
  int count = 0;
  if (driver == nullptr || Ask(driver, "cuInit", 0u) != 0 || Ask(driver, "cuDeviceGetCount", &count) != 0)
    return false;
  if (count == 0) return false;
  // NVIDIA's NVML ignores CUDA_VISIBLE_DEVICES. As long as that leaves a device, what it hides is like it, but for the last byte of the
  // UUID (config.cc) and the number of the PCI device (device.cc).
  const Gpu one = Describe(driver, 0);
  const char* text = getenv("SOFTWARE_GPU_DEVICES");
  for (int i = 0; i < (text != nullptr ? atoi(text) : 1); ++i) {
    char number[4];
    gpus.push_back(one);
    std::snprintf(number, sizeof number, "%02x", static_cast<uint8_t>(i));
    gpus.back().uuid.replace(one.uuid.size() - 2, 2, number);
    std::snprintf(number, sizeof number, "%02x", static_cast<uint8_t>(i + 1));
    gpus.back().bus_id.replace(one.bus_id.rfind(':') + 1, 2, number);
  }
  return true;
}

// Handles are addresses in here.
char handles[causeway::nvml::kMaxDevices];

// Null, and the reason in *why.
const Gpu* Find(DeviceHandle device, uint32_t* why) {
  const auto index = reinterpret_cast<uintptr_t>(device) - reinterpret_cast<uintptr_t>(handles);
  *why = references == 0 ? kUninitialized : kInvalid;
  return references != 0 && index < gpus.size() ? &gpus[index] : nullptr;
}

// What most getters are: a valid device and places for numbers.
template <class... T>
uint32_t Tell(DeviceHandle device, std::pair<T*, T>... values) {
  uint32_t why = 0;
  if (Find(device, &why) == nullptr) return why;
  if (((values.first == nullptr) || ... || false)) return kInvalid;
  ((*values.first = values.second), ...);
  return kOk;
}

uint32_t Text(const std::string& text, char* to, uint32_t bytes) {
  if (to == nullptr) return kInvalid;
  if (text.size() + 1 > bytes) return kShort;
  memcpy(to, text.c_str(), text.size() + 1);
  return kOk;
}

uint32_t DeviceText(DeviceHandle device, std::string Gpu::*text, char* to, uint32_t bytes) {
  uint32_t why = 0;
  const Gpu* gpu = Find(device, &why);
  return gpu != nullptr ? Text(gpu->*text, to, bytes) : why;
}

// Those that have memory of it, by its names (shared_names.h): the only way where /proc is closed.
std::vector<uint32_t> ConfinedUsers() {
  std::vector<uint32_t> users;
  DIR* folder = opendir(causeway::software_gpu::kSharedFolder);
  const std::string prefix = causeway::software_gpu::kSharedPrefix;
  while (const dirent* entry = folder != nullptr ? readdir(folder) : nullptr) {
    if (prefix.compare(0, prefix.size(), entry->d_name, prefix.size()) != 0) continue;
    const auto pid = static_cast<uint32_t>(strtoul(entry->d_name + prefix.size(), nullptr, 10));
    if (std::find(users.begin(), users.end(), pid) == users.end()) users.push_back(pid);
  }
  if (folder != nullptr) closedir(folder);
  return users;
}

// Processes that have the software GPU's library loaded.
std::vector<uint32_t> Users() {
  std::vector<uint32_t> users = ConfinedUsers();
  DIR* folder = opendir("/proc");
  if (folder == nullptr) return users;
  while (const dirent* entry = readdir(folder)) {
    const uint32_t pid = static_cast<uint32_t>(strtoul(entry->d_name, nullptr, 10));
    std::ifstream maps(pid != 0 ? "/proc/" + std::string(entry->d_name) + "/maps" : "");
    for (std::string line; std::getline(maps, line);) {
      if (line.size() < driver_path.size() ||
          line.compare(line.size() - driver_path.size(), std::string::npos, driver_path) != 0)
        continue;
      if (std::find(users.begin(), users.end(), pid) == users.end()) users.push_back(pid);
      break;
    }
  }
  closedir(folder);
  return users;
}

// What SOFTWARE_GPU_NVML asks for (README.md). Another word ends the process, as in config.cc.
bool IsToldTo(const char* what) {
  static const std::string told = getenv("SOFTWARE_GPU_NVML") != nullptr ? getenv("SOFTWARE_GPU_NVML") : "";
  if (!told.empty() && told != "other_pids" && told != "one_sample") {
    std::fprintf(stderr, "software GPU: SOFTWARE_GPU_NVML=%s is neither other_pids nor one_sample\n",
                 told.c_str());
    _exit(1);
  }
  return told == what;
}

// The numbers that processes are listed by.
std::vector<uint32_t> ListedUsers() {
  constexpr uint32_t kMorePids = 1 << 22;  // no pid of Linux is as large
  std::vector<uint32_t> users = Users();
  if (IsToldTo("other_pids")) {
    for (uint32_t& pid : users) pid += kMorePids;
  }
  return users;
}

// What a test says that the driver has taken for that process by itself: SOFTWARE_GPU_TAKEN/PID holds the
// bytes.
uint64_t TakenBy(uint32_t pid) {
  const char* folder = getenv("SOFTWARE_GPU_TAKEN");
  if (folder == nullptr) return 0;
  uint64_t bytes = 0;
  std::ifstream(std::string(folder) + "/" + std::to_string(pid)) >> bytes;
  return bytes;
}

template <class Process>
uint32_t Processes(DeviceHandle device, uint32_t* count, Process* list) {
  uint32_t why = 0;
  if (Find(device, &why) == nullptr) return why;
  if (count == nullptr || (list == nullptr && *count != 0)) return kInvalid;
  const std::vector<uint32_t> users = ListedUsers();
  const uint32_t room = *count;
  *count = static_cast<uint32_t>(users.size());
  if (room < users.size()) return kShort;
  for (size_t i = 0; i < users.size(); ++i) {
    list[i] = {};
    list[i].pid = users[i];
    list[i].used_bytes = kProcessBytes + TakenBy(users[i]);
  }
  return kOk;
}

}  // namespace

NVML nvmlInit_v2() {
  static const bool found = FindGpus();
  if (!found) return static_cast<uint32_t>(Return::kDriverNotLoaded);
  ++references;
  return kOk;
}
NVML nvmlInitWithFlags(uint32_t) {
  return nvmlInit_v2();
}
NVML nvmlShutdown() {
  if (references == 0) return kUninitialized;
  --references;
  return kOk;
}
NVML nvmlSystemGetDriverVersion(char* text, uint32_t bytes) {
  return references == 0 ? kUninitialized : Text("580.0.0-software", text, bytes);
}
NVML nvmlSystemGetNVMLVersion(char* text, uint32_t bytes) {
  return references == 0 ? kUninitialized : Text("13.580.0-software", text, bytes);
}
NVML nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (version == nullptr) return kInvalid;
  *version = 13000;
  return kOk;
}
NVML nvmlDeviceGetCount_v2(uint32_t* count) {
  if (references == 0) return kUninitialized;
  if (count == nullptr) return kInvalid;
  *count = static_cast<uint32_t>(gpus.size());
  return kOk;
}
NVML nvmlDeviceGetHandleByIndex_v2(uint32_t index, DeviceHandle* device) {
  if (references == 0) return kUninitialized;
  if (device == nullptr || index >= gpus.size()) return kInvalid;
  *device = reinterpret_cast<DeviceHandle>(&handles[index]);
  return kOk;
}
NVML nvmlDeviceGetHandleByUUID(const char* uuid, DeviceHandle* device) {
  if (references == 0) return kUninitialized;
  if (uuid == nullptr || device == nullptr) return kInvalid;
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (gpus[i].uuid == uuid) return nvmlDeviceGetHandleByIndex_v2(static_cast<uint32_t>(i), device);
  }
  return static_cast<uint32_t>(Return::kNotFound);
}
NVML nvmlDeviceGetHandleByPciBusId_v2(const char* id, DeviceHandle* device) {
  if (references == 0) return kUninitialized;
  if (id == nullptr || device == nullptr) return kInvalid;
  for (size_t i = 0; i < gpus.size(); ++i) {
    const std::string text = id;
    // The domain may be written with eight digits.
    if (text == gpus[i].bus_id || (text.size() > 4 && text.substr(4) == gpus[i].bus_id))
      return nvmlDeviceGetHandleByIndex_v2(static_cast<uint32_t>(i), device);
  }
  return static_cast<uint32_t>(Return::kNotFound);
}
NVML nvmlDeviceGetIndex(DeviceHandle device, uint32_t* index) {
  const auto number = reinterpret_cast<char*>(device) - handles;
  return Tell(device, std::pair(index, static_cast<uint32_t>(number)));
}
NVML nvmlDeviceGetName(DeviceHandle device, char* text, uint32_t bytes) {
  return DeviceText(device, &Gpu::name, text, bytes);
}
NVML nvmlDeviceGetUUID(DeviceHandle device, char* text, uint32_t bytes) {
  return DeviceText(device, &Gpu::uuid, text, bytes);
}
NVML nvmlDeviceGetPciInfo_v3(DeviceHandle device, causeway::nvml::PciInfo* info) {
  uint32_t why = 0;
  const Gpu* gpu = Find(device, &why);
  if (gpu == nullptr) return why;
  if (info == nullptr) return kInvalid;
  *info = {};
  std::sscanf(gpu->bus_id.c_str(), "%x:%x:%x", &info->domain, &info->bus, &info->device);
  std::snprintf(info->legacy_bus_id, sizeof info->legacy_bus_id, "%s", gpu->bus_id.c_str());
  std::snprintf(info->bus_id, sizeof info->bus_id, "0000%s", gpu->bus_id.c_str());
  info->device_id = 0x10de;
  return kOk;
}
NVML nvmlDeviceGetMemoryInfo(DeviceHandle device, causeway::nvml::Memory* memory) {
  uint32_t why = 0;
  const Gpu* gpu = Find(device, &why);
  if (gpu == nullptr) return why;
  if (memory == nullptr) return kInvalid;
  const uint64_t used = std::min(Users().size() * kProcessBytes, gpu->bytes);
  *memory = {gpu->bytes, gpu->bytes - used, used};
  return kOk;
}
NVML nvmlDeviceGetMemoryInfo_v2(DeviceHandle device, causeway::nvml::MemoryV2* memory) {
  causeway::nvml::Memory old{};
  if (const uint32_t result = nvmlDeviceGetMemoryInfo(device, &old)) return result;
  if (memory == nullptr) return kInvalid;
  if (memory->version != causeway::nvml::V(2, sizeof *memory))
    return static_cast<uint32_t>(Return::kFunctionNotFound);
  *memory = {memory->version, old.total, 0, old.free, old.used};
  return kOk;
}
NVML nvmlDeviceGetComputeRunningProcesses_v2(DeviceHandle device, uint32_t* count,
                                             causeway::nvml::ProcessV2* list) {
  return Processes(device, count, list);
}
NVML nvmlDeviceGetComputeRunningProcesses_v3(DeviceHandle device, uint32_t* count,
                                             causeway::nvml::ProcessV2* list) {
  return Processes(device, count, list);
}
NVML nvmlDeviceGetCudaComputeCapability(DeviceHandle device, int* major, int* minor) {
  uint32_t why = 0;
  const Gpu* gpu = Find(device, &why);
  return gpu != nullptr ? Tell(device, std::pair(major, gpu->major), std::pair(minor, gpu->minor)) : why;
}
NVML nvmlDeviceGetTemperature(DeviceHandle device, uint32_t sensor, uint32_t* degrees) {
  return sensor == 0 ? Tell(device, std::pair(degrees, 41u)) : kInvalid;
}
NVML nvmlDeviceGetPowerUsage(DeviceHandle device, uint32_t* milliwatts) {
  return Tell(device, std::pair(milliwatts, 65'000u));
}
NVML nvmlDeviceGetEnforcedPowerLimit(DeviceHandle device, uint32_t* milliwatts) {
  return Tell(device, std::pair(milliwatts, 300'000u));
}
NVML nvmlDeviceGetUtilizationRates(DeviceHandle device, uint32_t* rates) {
  if (rates == nullptr) return kInvalid;
  return Tell(device, std::pair(rates, 7u), std::pair(rates + 1, 3u));
}
NVML nvmlDeviceGetClockInfo(DeviceHandle device, uint32_t clock, uint32_t* mhz) {
  return clock < 4 ? Tell(device, std::pair(mhz, 1000 + clock)) : kInvalid;
}
NVML nvmlDeviceGetMaxClockInfo(DeviceHandle device, uint32_t clock, uint32_t* mhz) {
  return clock < 4 ? Tell(device, std::pair(mhz, 2000 + clock)) : kInvalid;
}
NVML nvmlDeviceGetPerformanceState(DeviceHandle device, uint32_t* state) {
  return Tell(device, std::pair(state, 0u));
}
NVML nvmlDeviceGetPersistenceMode(DeviceHandle device, uint32_t* mode) {
  return Tell(device, std::pair(mode, 1u));
}
NVML nvmlDeviceGetComputeMode(DeviceHandle device, uint32_t* mode) {
  return Tell(device, std::pair(mode, 0u));
}
NVML nvmlDeviceGetUnrepairableMemoryFlag_v1(DeviceHandle device, uint32_t* flag) {
  return Tell(device, std::pair(flag, 0u));
}
NVML nvmlDeviceGetMinorNumber(DeviceHandle device, uint32_t* number) {
  return nvmlDeviceGetIndex(device, number);
}
NVML nvmlDeviceGetEccMode(DeviceHandle device, uint32_t* current, uint32_t* pending) {
  return Tell(device, std::pair(current, 1u), std::pair(pending, 1u));
}
NVML nvmlDeviceGetSupportedMemoryClocks(DeviceHandle device, uint32_t* count, uint32_t* clocks) {
  uint32_t why = 0;
  if (Find(device, &why) == nullptr) return why;
  if (count == nullptr || (clocks == nullptr && *count != 0)) return kInvalid;
  const uint32_t room = *count;
  *count = 2;
  if (room < 2) return kShort;
  clocks[0] = 2001;
  clocks[1] = 1001;
  return kOk;
}
NVML nvmlDeviceGetFieldValues(DeviceHandle device, int count, causeway::nvml::FieldValue* values) {
  uint32_t why = 0;
  if (Find(device, &why) == nullptr) return why;
  if (count <= 0 || values == nullptr) return kInvalid;
  for (int i = 0; i < count; ++i) {
    values[i].result = values[i].field == 1 ? kOk : kNotSupported;  // NVML_FI_DEV_ECC_CURRENT
    values[i].type = 1;
    values[i].value = values[i].field == 1 ? 1 : 0;
  }
  return kOk;
}
NVML nvmlDeviceGetNvLinkState(DeviceHandle device, uint32_t, uint32_t*) {
  uint32_t why = 0;
  return Find(device, &why) != nullptr ? kNotSupported : why;
}
NVML nvmlDeviceSetPersistenceMode(DeviceHandle device, uint32_t) {
  uint32_t why = 0;
  return Find(device, &why) != nullptr ? static_cast<uint32_t>(Return::kNoPermission) : why;
}
extern "C" __attribute__((visibility("default"))) const char* nvmlErrorString(uint32_t result) {
  return result == 0 ? "Success" : "an error of the software GPU's NVML";
}
NVML nvmlDeviceIsMigDeviceHandle(DeviceHandle device, uint32_t* is_one) {
  return Tell(device, std::pair(is_one, 0u));
}
NVML nvmlDeviceGetMaxMigDeviceCount(DeviceHandle device, uint32_t* count) {
  return Tell(device, std::pair(count, 0u));
}
NVML nvmlDeviceGetVirtualizationMode(DeviceHandle device, uint32_t* mode) {
  return Tell(device, std::pair(mode, 0u));
}

// Uses 256 KiB of stack, so that a caller on a thread with a small one is found here: programs that asked NVIDIA's library on threads of
// 100 KiB ended by signal 11.
static void UseStack() {
  constexpr size_t kBytes = 256 << 10, kPage = 4096;
  char bytes[kBytes];
  for (size_t at = 0; at < kBytes; at += kPage) *static_cast<volatile char*>(bytes + at) = 0;
}

// Each user of the device, as busy as the device. NVIDIA's has no sample where it took none since `newest_us`.
NVML nvmlDeviceGetProcessUtilization(DeviceHandle device, causeway::nvml::ProcessSample* samples,
                                     uint32_t* count, unsigned long long newest_us) {
  UseStack();
  uint32_t why = 0;
  if (Find(device, &why) == nullptr) return why;
  if (count == nullptr) return kInvalid;
  if (IsToldTo("one_sample") && newest_us != 0) return static_cast<uint32_t>(Return::kNotFound);
  const std::vector<uint32_t> users = ListedUsers();
  const uint32_t room = samples != nullptr ? *count : 0;
  *count = static_cast<uint32_t>(users.size());
  if (room < users.size()) return kShort;
  for (size_t i = 0; i < users.size(); ++i) samples[i] = {users[i], 1, 7, 3, 0, 0};
  return kOk;
}
NVML nvmlDeviceGetBrand(DeviceHandle device, uint32_t* brand) {
  return Tell(device, std::pair(brand, 14u));
}
NVML nvmlDeviceGetTemperatureV(DeviceHandle device, uint32_t* info) {
  if (info == nullptr) return kInvalid;
  if (info[0] != causeway::nvml::V(1, 12)) return static_cast<uint32_t>(Return::kVersionMismatch);
  return info[1] == 0 ? Tell(device, std::pair(info + 2, 41u)) : kInvalid;
}

// The private table of NVIDIA's tools: of its slots those that the worker forwards.
static uint32_t HostMaxGeneration(DeviceHandle device, uint32_t* generation) {
  return Tell(device, std::pair(generation, 5u));
}
static uint32_t PartNumber(DeviceHandle device, char* text, uint32_t bytes) {
  uint32_t why = 0;
  return Find(device, &why) != nullptr ? Text("SW-0001", text, bytes) : why;
}
NVML nvmlInternalGetExportTable(const void** table, const void*) {
  static const void* slots[256] = {reinterpret_cast<const void*>(sizeof slots)};
  slots[230] = reinterpret_cast<const void*>(&HostMaxGeneration);
  slots[231] = reinterpret_cast<const void*>(&PartNumber);
  *table = slots;
  return kOk;
}
