// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/device/device.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "host_backend/worker/accounting/accounting.h"
#include "host_backend/worker/session/session.h"

namespace causeway::host {
namespace {

void Describe(CUdevice device, DeviceDescription* description) {
  const Driver& driver = TheDriver();
  driver.cuDeviceGetName(description->name, sizeof description->name, device);
  driver.cuDeviceGetUuid(&description->uuid, device);
  driver.cuDeviceGetUuid_v2(&description->uuid_v2, device);
  size_t total = 0;
  driver.cuDeviceTotalMem_v2(&total, device);
  description->total_bytes = total;
  description->luid_result = driver.cuDeviceGetLuid(description->luid, &description->luid_mask, device);
  driver.cuDeviceGetPCIBusId(description->pci_bus_id, sizeof description->pci_bus_id, device);
  for (uint32_t i = 0; i < kMaxAttributes; ++i) {
    description->attribute_result[i] = static_cast<uint16_t>(
        driver.cuDeviceGetAttribute(&description->attribute[i], static_cast<CUdevice_attribute>(i), device));
  }
}

}  // namespace

const std::vector<DeviceDescription>& Descriptions() {
  static const std::vector<DeviceDescription> all = [] {
    const Driver& driver = TheDriver();
    int count = 0;
    if (driver.cuDeviceGetCount(&count) != CUDA_SUCCESS) count = 0;
    std::vector<DeviceDescription> described(static_cast<size_t>(std::clamp<int>(count, 0, kMaxDevices)));
    for (size_t i = 0; i < described.size(); ++i) {
      CUdevice device = 0;
      if (driver.cuDeviceGet(&device, static_cast<int>(i)) == CUDA_SUCCESS) Describe(device, &described[i]);
    }
    return described;
  }();
  return all;
}

CUresult Serve_kOpen(Session&, Request& request) {
  const Driver& driver = TheDriver();
  OpenReply reply{};
  reply.worker_pid = static_cast<uint32_t>(getpid());
  reply.init_result = driver.cuInit(0);
  if (reply.init_result == CUDA_SUCCESS) driver.cuDriverGetVersion(&reply.driver_version);
  static const std::vector<DeviceDescription> kNone;
  const auto& devices = reply.init_result == CUDA_SUCCESS ? Descriptions() : kNone;
  reply.device_count = static_cast<uint32_t>(devices.size());
  CUmoduleLoadingMode mode{};
  reply.loading_result = driver.cuModuleGetLoadingMode(&mode);
  reply.loading_mode = mode;
  Writer w(request.bulk);
  w.Put(reply);
  for (DeviceDescription description : devices) {
    static_assert(std::is_trivially_copyable_v<DeviceDescription>);
    description.total_bytes = TheAccounting().TotalBytes(description.total_bytes);
    w.Put(description);
  }
  request.bulk_written = static_cast<uint32_t>(w.size());
  return w.error();
}

}  // namespace causeway::host
