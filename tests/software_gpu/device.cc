// SPDX-License-Identifier: Apache-2.0
// Initialisation and devices.
#include "tests/software_gpu/device.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "tests/software_gpu/checkpoint.h"
#include "tests/software_gpu/config.h"
#include "tests/software_gpu/context.h"
#include "tests/software_gpu/device_attributes.h"
#include "tests/software_gpu/faults.h"

namespace causeway::software_gpu {
namespace {

constexpr char kDeviceName[] = "Causeway Software GPU";
constexpr int kFirstPciDevice = 1;  // 0000:53:01.0, 0000:53:02.0, ...
constexpr int kPciBus = 0x53;

CUresult GetUuid(CUuuid* uuid, CUdevice device) {
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *uuid = DeviceUuid(device);
  return CUDA_SUCCESS;
}

}  // namespace

CUuuid DeviceUuid(CUdevice device) {
  return UuidOf(GetConfig().devices[static_cast<size_t>(device)]);
}

PciAddress DevicePciAddress(CUdevice device) {
  return {0, kPciBus, kFirstPciDevice + GetConfig().devices[static_cast<size_t>(device)]};
}

namespace {

std::atomic<int> interrupts{-1};  // the event thread's

// NVIDIA's driver has one too, which nothing ends.
void StartEventThread() {
  static std::once_flag once;
  std::call_once(once, [] {
    interrupts.store(eventfd(0, EFD_CLOEXEC));
    std::thread([] {
      pthread_setname_np(pthread_self(), "cuda-EvtHandlr");
      for (pollfd news{interrupts.load(), POLLIN, 0};;) {
        uint64_t count = 0;
        if (poll(&news, 1, 100) > 0 && read(news.fd, &count, sizeof count) < 0) return;
      }
    }).detach();
  });
}

// Starting NVIDIA's driver takes a process a tenth of a second and more, part of which its kernel module spends
// under a lock that all processes share (SOFTWARE_GPU_START_MS, SOFTWARE_GPU_START_TURNS). The lock is on this
// library's own file, because that is what every process that loads it may open, confined or not.
void TakeTimeToStart() {
  const Config& config = GetConfig();
  if (config.start_ms == 0) return;
  static std::once_flag once;
  std::call_once(once, [&config] {
    Dl_info self{};
    int lock = -1;
    if (config.start_turns) {
      if (dladdr(reinterpret_cast<void*>(&TakeTimeToStart), &self) != 0)
        lock = open(self.dli_fname, O_RDONLY | O_CLOEXEC);
      if (lock < 0 || flock(lock, LOCK_EX) != 0) {
        std::fprintf(stderr,
                     "software GPU: SOFTWARE_GPU_START_TURNS needs to lock this library's file %s: %s.\n",
                     self.dli_fname, std::strerror(errno));
        std::abort();
      }
    }
    // What a kernel module waits for comes when it comes, whatever timer slack the caller has.
    const int slack = prctl(PR_GET_TIMERSLACK);
    prctl(PR_SET_TIMERSLACK, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(config.start_ms));
    prctl(PR_SET_TIMERSLACK, slack);
    if (lock >= 0) close(lock);
  });
}

}  // namespace

void Interrupt() {
  const uint64_t one = 1;
  const int news = interrupts.load();
  [[maybe_unused]] const ssize_t put = news >= 0 ? write(news, &one, sizeof one) : 0;
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuInit(unsigned int Flags) {
  return Always(__func__, [&]() -> CUresult {
    if (IsForkedChild()) return CUDA_ERROR_NOT_INITIALIZED;
    if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (GetConfig().device_count == 0) return CUDA_ERROR_NO_DEVICE;
    if (const uint64_t at = GetConfig().map_at_gib << 30; at != 0) {
      mmap(reinterpret_cast<void*>(at), 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
           -1, 0);
    }
    TakeTimeToStart();
    if (GetConfig().event_thread) StartEventThread();
    ListenForCheckpoints();
    MarkInitialised();
    return CUDA_SUCCESS;
  });
}

CUresult cuDriverGetVersion(int* driverVersion) {
  return Always(__func__, [&]() -> CUresult {
    if (driverVersion == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *driverVersion = kDriverVersion;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return Initialised(__func__, [&]() -> CUresult {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!IsDevice(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetCount(int* count) {
  return Initialised(__func__, [&]() -> CUresult {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = GetConfig().device_count;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetName(char* name, int len, CUdevice dev) {
  return Initialised(__func__, [&]() -> CUresult {
    if (name == nullptr || len <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (!IsDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
    std::snprintf(name, static_cast<size_t>(len), "%s", kDeviceName);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) {
  return Initialised(__func__, [&] { return GetUuid(uuid, dev); });
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) {
  return Initialised(__func__, [&] { return GetUuid(uuid, dev); });
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
  return Initialised(__func__, [&]() -> CUresult {
    if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!IsDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = GetConfig().device_memory_bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
  return Initialised(__func__, [&]() -> CUresult {
    if (pi == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!IsDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
    PciAddress pci = DevicePciAddress(dev);
    switch (attrib) {
      case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
        *pi = pci.domain;
        return CUDA_SUCCESS;
      case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *pi = pci.bus;
        return CUDA_SUCCESS;
      case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
        *pi = pci.device;
        return CUDA_SUCCESS;
      default:
        return FindDeviceAttribute(attrib, pi) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) {
  return Initialised(__func__, [&]() -> CUresult {
    if (pciBusId == nullptr || len < 13) return CUDA_ERROR_INVALID_VALUE;
    if (!IsDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
    PciAddress pci = DevicePciAddress(dev);
    std::snprintf(pciBusId, static_cast<size_t>(len), "%04X:%02X:%02X.0", pci.domain, pci.bus, pci.device);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetByPCIBusId(CUdevice* dev, const char* pciBusId) {
  return Initialised(__func__, [&]() -> CUresult {
    if (dev == nullptr || pciBusId == nullptr) return CUDA_ERROR_INVALID_VALUE;
    int domain = 0;
    int bus = 0;
    int slot = 0;
    if (std::sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &slot) != 3) {
      domain = 0;
      if (std::sscanf(pciBusId, "%x:%x", &bus, &slot) != 2) return CUDA_ERROR_INVALID_VALUE;
    }
    int device = slot - kFirstPciDevice;
    if (domain != 0 || bus != kPciBus || !IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
    *dev = device;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice dev) {
  return Initialised(__func__, [&]() -> CUresult {
    if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!IsDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
    *major = 9;
    *minor = 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetLuid(char*, unsigned int*, CUdevice) {
  return Initialised(__func__, [] { return CUDA_ERROR_NOT_SUPPORTED; });
}

CUresult cuDeviceGetExecAffinitySupport(int* pi, CUexecAffinityType type, CUdevice dev) {
  return Initialised(__func__, [&]() -> CUresult {
    if (pi == nullptr || type < 0 || type >= CU_EXEC_AFFINITY_TYPE_MAX) return CUDA_ERROR_INVALID_VALUE;
    if (!IsDevice(dev)) return CUDA_ERROR_INVALID_DEVICE;
    *pi = 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceCanAccessPeer(int* canAccessPeer, CUdevice dev, CUdevice peerDev) {
  return Initialised(__func__, [&]() -> CUresult {
    if (canAccessPeer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!IsDevice(dev) || !IsDevice(peerDev)) return CUDA_ERROR_INVALID_DEVICE;
    *canAccessPeer = dev != peerDev ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attrib, CUdevice srcDevice,
                                 CUdevice dstDevice) {
  return Initialised(__func__, [&]() -> CUresult {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!IsDevice(srcDevice) || !IsDevice(dstDevice) || srcDevice == dstDevice)
      return CUDA_ERROR_INVALID_DEVICE;
    switch (attrib) {
      case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
      case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
        *value = 1;
        return CUDA_SUCCESS;
      case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
      case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
        *value = 0;
        return CUDA_SUCCESS;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

}  // extern "C"

// Tells the host's side whose profile of the sandbox is meant (host_backend/sandbox/profile.h).
extern "C" __attribute__((visibility("default"), used)) const char causeway_software_gpu[] = "cuda";
