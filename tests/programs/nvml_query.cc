// SPDX-License-Identifier: Apache-2.0
// What a monitoring tool asks of NVML, by dlopen as such tools do, and that it speaks of the driver's
// devices. Prints only what does not change from one run to the next.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace {

void* library;
void* driver;
int failures;

template <class... P>
uint32_t Call(const char* name, P... p) {
  auto* function = reinterpret_cast<uint32_t (*)(P...)>(dlsym(library, name));
  return function != nullptr ? function(p...) : 9999;
}

void Text(const char* name, void* device) {
  char text[96] = "";
  const uint32_t result = Call(name, device, +text, 96u);
  std::printf("%s: %u %s\n", name, result, text);
}

void Device(uint32_t index) {
  void* device = nullptr;
  std::printf("device %u: %u\n", index, Call("nvmlDeviceGetHandleByIndex_v2", index, &device));
  Text("nvmlDeviceGetName", device);
  Text("nvmlDeviceGetUUID", device);
  uint64_t memory[3] = {};
  const uint32_t result = Call("nvmlDeviceGetMemoryInfo", device, +memory);
  std::printf("memory: %u, %llu bytes, %s\n", result, static_cast<unsigned long long>(memory[0]),
              memory[1] + memory[2] <= memory[0] ? "adds up" : "does not add up");
  int major = 0, minor = 0;
  std::printf("capability: %u", Call("nvmlDeviceGetCudaComputeCapability", device, &major, &minor));
  std::printf(" %d.%d\n", major, minor);
  uint32_t degrees = 0;
  std::printf("temperature: %u", Call("nvmlDeviceGetTemperature", device, 0u, &degrees));
  std::printf(" %s\n", degrees > 0 && degrees < 120 ? "plausible" : "odd");
  std::printf("a null pointer: %u\n",
              Call("nvmlDeviceGetPowerUsage", device, static_cast<uint32_t*>(nullptr)));
}

// The device that CUDA calls the first is among NVML's.
void CompareWithCuda() {
  auto* init = reinterpret_cast<decltype(&cuInit)>(dlsym(driver, "cuInit"));
  auto* bus_id = reinterpret_cast<decltype(&cuDeviceGetPCIBusId)>(dlsym(driver, "cuDeviceGetPCIBusId"));
  char bus[32] = "";
  void* device = nullptr;
  if (init(0) != CUDA_SUCCESS || bus_id(bus, sizeof bus, 0) != CUDA_SUCCESS) {
    std::printf("CUDA does not start\n");
    ++failures;
    return;
  }
  std::printf("CUDA's device at %s: %u\n", bus, Call("nvmlDeviceGetHandleByPciBusId_v2", +bus, &device));
}

}  // namespace

int main() {
  library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr || driver == nullptr) {
    std::printf("%s\n", dlerror());
    return 1;
  }
  uint32_t count = 0;
  std::printf("before init: %u\n", Call("nvmlDeviceGetCount_v2", &count));
  const uint32_t result = Call("nvmlInit_v2");
  std::printf("init: %u\n", result);
  if (result != 0) return 1;
  std::printf("devices: %u", Call("nvmlDeviceGetCount_v2", &count));
  std::printf(" %u\n", count);
  for (uint32_t i = 0; i < count; ++i) Device(i);
  CompareWithCuda();
  std::printf("shutdown: %u\n", Call("nvmlShutdown"));
  std::printf("after: %u\n", Call("nvmlDeviceGetCount_v2", &count));
  return failures;
}
