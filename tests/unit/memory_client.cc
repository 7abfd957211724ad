// SPDX-License-Identifier: Apache-2.0
// A guest process that takes and gives back memory of every kind at random, in many threads, under whatever
// limits there are: running out is an answer like another, everything else is a failure.
// Usage: memory_client work|reset|forever THREADS OPERATIONS SEED
//   work: at the end frees everything by itself; reset: leaves to the context's end what ends with it;
//   forever: until killed.
// Usage: memory_client devices: what it is told of its GPUs and their memory, by CUDA and by NVML.
// Says "started" once it has memory, then for work and reset "idle BYTES_FREE OUT_OF_MEMORY_ANSWERS" with
// nothing held any more, and ends with its standard input.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/driver/kernels.h"

namespace {

std::atomic<uint64_t> refusals{0};

// True: done. False: no memory left.
bool Try(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return true;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return refusals.fetch_add(1), false;
  const char* name = "?";
  cuGetErrorName(result, &name);
  std::printf("%s: %s\n", call, name);
  std::fflush(stdout);
  std::_Exit(3);
}
#define TRY(call) Try(call, #call)
#define NEED(call) \
  if (!Try(call, #call)) std::printf("%s: out of memory\n", #call), std::fflush(stdout), std::_Exit(3)

using Free = std::function<void()>;
using Random = std::mt19937;

size_t Size(Random& random) {
  const unsigned bits = random() % 24;
  return 1 + (random() & ((1u << bits) - 1));
}

std::optional<Free> Linear(Random& random) {
  CUdeviceptr address = 0;
  if (!TRY(cuMemAlloc(&address, Size(random)))) return {};
  return [address] { NEED(cuMemFree(address)); };
}

std::optional<Free> Pitched(Random& random) {
  CUdeviceptr address = 0;
  size_t pitch = 0;
  if (!TRY(cuMemAllocPitch(&address, &pitch, 1 + random() % 5000, 1 + random() % 500, 4))) return {};
  return [address] { NEED(cuMemFree(address)); };
}

std::optional<Free> Array(Random& random) {
  CUDA_ARRAY3D_DESCRIPTOR description{};
  description.Width = 1 + random() % 500;
  description.Height = random() % 200;
  description.Format = CU_AD_FORMAT_FLOAT;
  description.NumChannels = random() % 2 + 1;
  CUarray array = nullptr;
  if (!TRY(cuArray3DCreate(&array, &description))) return {};
  return [array] { NEED(cuArrayDestroy(array)); };
}

std::optional<Free> Mipmapped(Random& random) {
  CUDA_ARRAY3D_DESCRIPTOR description{};
  description.Width = 64u << (random() % 4);
  description.Height = 64;
  description.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  description.NumChannels = 4;
  CUmipmappedArray array = nullptr;
  if (!TRY(cuMipmappedArrayCreate(&array, &description, 4))) return {};
  return [array] { NEED(cuMipmappedArrayDestroy(array)); };
}

// Released while it is mapped, half of the time.
std::optional<Free> Physical(Random& random) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  size_t step = 0;
  if (!TRY(cuMemGetAllocationGranularity(&step, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM))) return {};
  const size_t bytes = step * (1 + random() % 3);
  CUmemGenericAllocationHandle memory = 0;
  if (!TRY(cuMemCreate(&memory, bytes, &properties, 0))) return {};
  CUdeviceptr address = 0;
  if (!TRY(cuMemAddressReserve(&address, bytes, 0, 0, 0))) {
    NEED(cuMemRelease(memory));
    return {};
  }
  NEED(cuMemMap(address, bytes, 0, memory, 0));
  const bool early = random() % 2 == 0;
  if (early) {
    NEED(cuMemRelease(memory));
  }
  return [=] {
    NEED(cuMemUnmap(address, bytes));
    NEED(cuMemAddressFree(address, bytes));
    if (!early) {
      NEED(cuMemRelease(memory));
    }
  };
}

std::optional<Free> Pooled(Random& random) {
  CUdeviceptr address = 0;
  if (!TRY(cuMemAllocAsync(&address, Size(random), nullptr))) return {};
  return [address] { NEED(cuMemFreeAsync(address, nullptr)); };
}

// What lives in a pool outlives it.
std::optional<Free> OwnPool(Random& random) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemoryPool pool = nullptr;
  if (!TRY(cuMemPoolCreate(&pool, &properties))) return {};
  CUdeviceptr address = 0;
  const bool made = TRY(cuMemAllocFromPoolAsync(&address, Size(random), pool, nullptr));
  NEED(cuMemPoolDestroy(pool));
  if (!made) return {};
  return [address] { NEED(cuMemFreeAsync(address, nullptr)); };
}

std::optional<Free> Pinned(Random& random) {
  void* address = nullptr;
  if (!TRY(cuMemHostAlloc(&address, Size(random), 0))) return {};
  std::memset(address, 1, 1);
  return [address] { NEED(cuMemFreeHost(address)); };
}

std::optional<Free> Managed(Random& random) {
  CUdeviceptr address = 0;
  if (!TRY(cuMemAllocManaged(&address, Size(random), CU_MEM_ATTACH_GLOBAL))) return {};
  return [address] { NEED(cuMemFree(address)); };
}

std::optional<Free> Registered(Random& random) {
  const size_t bytes = 4096 * (1 + random() % 64);
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (!TRY(cuMemHostRegister(address, bytes, 0))) return munmap(address, bytes), std::nullopt;
  return [=] {
    NEED(cuMemHostUnregister(address));
    munmap(address, bytes);
  };
}

std::optional<Free> Module(Random&) {
  CUmodule module = nullptr;
  if (!TRY(cuModuleLoadData(&module, causeway::driver_test::kKernels))) return {};
  return [module] { NEED(cuModuleUnload(module)); };
}

// Large enough to be kept by the daemon, by its content.
std::optional<Free> LargeModule(Random&) {
  static const std::string image = causeway::driver_test::kKernels + std::string(512 << 10, '\n');
  CUmodule module = nullptr;
  if (!TRY(cuModuleLoadData(&module, image.c_str()))) return {};
  return [module] { NEED(cuModuleUnload(module)); };
}

using Taker = std::optional<Free> (*)(Random&);
struct Held {
  Taker taker;
  Free free;
  bool outlasts_context() const { return taker == Physical || taker == Pooled || taker == OwnPool; }
};
constexpr Taker kTakers[] = {Linear, Linear,  Linear,  Pitched,    Array,  Mipmapped, Physical,   Pooled,
                             Pooled, OwnPool, Managed, Registered, Pinned, Module,    LargeModule};

void Work(CUcontext context, uint64_t operations, uint32_t seed, bool free_all, bool shared_memory) {
  cuCtxSetCurrent(context);
  Random random(seed);
  std::vector<Held> held;
  for (uint64_t i = 0; operations == 0 || i < operations; ++i) {
    if (held.size() < 40 && random() % 5 < 3) {
      const Taker taker = kTakers[random() % std::size(kTakers)];
      if (!shared_memory && (taker == Managed || taker == Registered)) continue;  // over TCP there is none
      if (auto free = taker(random)) held.push_back({taker, std::move(*free)});
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      held.back().free();
      held.pop_back();
    }
  }
  for (auto& one : held) {
    if (free_all || one.outlasts_context()) one.free();
  }
}

struct NvmlMemory {  // nvmlMemory_t
  unsigned long long total, free, used;
};

// "cuda INDEX LAST_BYTE_OF_UUID TOTAL_MIB FREE_MIB", with 10 MiB of each GPU taken; "nvml INDEX UUID
// TOTAL_MIB FREE_MIB USED_MIB".
int SayDevices() {
  int count = 0;
  NEED(cuInit(0));
  NEED(cuDeviceGetCount(&count));
  for (int device = 0; device < count; ++device) {
    CUuuid uuid{};
    CUcontext context = nullptr;
    CUdeviceptr memory = 0;
    size_t total = 0, free = 0, total_again = 0;
    NEED(cuDeviceGetUuid(&uuid, device));
    NEED(cuDeviceTotalMem(&total, device));
    NEED(cuDevicePrimaryCtxRetain(&context, device));
    NEED(cuCtxSetCurrent(context));
    NEED(cuMemAlloc(&memory, 10 << 20));
    NEED(cuMemGetInfo(&free, &total_again));
    if (total != total_again) return 5;
    std::printf("cuda %d %d %zu %zu\n", device, uuid.bytes[15], total >> 20, free >> 20);
  }
  void* nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (nvml == nullptr) return std::printf("%s\n", dlerror()), 6;
  const auto ask = [nvml]<class... P>(const char* name, P... p) {
    return reinterpret_cast<int (*)(P...)>(dlsym(nvml, name))(p...);
  };
  unsigned devices = 0;
  if (ask("nvmlInit_v2") != 0 || ask("nvmlDeviceGetCount_v2", &devices) != 0) return 7;
  for (unsigned device = 0; device < devices; ++device) {
    void* handle = nullptr;
    char uuid[96] = "";
    NvmlMemory memory{};
    if (ask("nvmlDeviceGetHandleByIndex_v2", device, &handle) != 0 ||
        ask("nvmlDeviceGetUUID", handle, &uuid[0], unsigned{sizeof uuid}) != 0 ||
        ask("nvmlDeviceGetMemoryInfo", handle, &memory) != 0) {
      return 7;
    }
    std::printf("nvml %u %s %llu %llu %llu\n", device, uuid, memory.total >> 20, memory.free >> 20,
                memory.used >> 20);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "devices") == 0) return SayDevices();
  if (argc < 5) return 8;
  const std::string mode = argv[1], way = getenv("CAUSEWAY") != nullptr ? getenv("CAUSEWAY") : "";
  const int threads = std::atoi(argv[2]);
  const uint64_t operations = mode == "forever" ? 0 : std::strtoull(argv[3], nullptr, 10);
  const auto seed = static_cast<uint32_t>(std::atoi(argv[4]));
  CUcontext context = nullptr;
  NEED(cuInit(0));
  NEED(cuDevicePrimaryCtxRetain(&context, 0));
  NEED(cuCtxSetCurrent(context));
  Random none;
  if (const auto free = LargeModule(none)) (*free)();  // from now on its image is kept
  std::puts("started");
  std::fflush(stdout);
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i)
    all.emplace_back(Work, context, operations, seed * 100 + i, mode == "work", way.rfind("tcp:", 0) != 0);
  for (auto& thread : all) thread.join();
  NEED(cuCtxSynchronize());
  if (mode == "reset") {
    NEED(cuDevicePrimaryCtxReset(0));
    NEED(cuDevicePrimaryCtxRetain(&context, 0));
    NEED(cuCtxSetCurrent(context));
  }
  size_t free_bytes = 0, total = 0;
  NEED(cuMemGetInfo(&free_bytes, &total));
  std::printf("idle %zu %llu\n", free_bytes, static_cast<unsigned long long>(refusals.load()));
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}
