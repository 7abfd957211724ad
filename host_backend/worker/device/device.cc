// SPDX-License-Identifier: Apache-2.0
// Opening of a session: what the guest caches of host and devices, blobs, printed text.
#include "host_backend/worker/device/device.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "host_backend/worker/accounting/accounting.h"
#include "host_backend/worker/session/session.h"

namespace causeway::host {
namespace {

void Describe(CUdevice device, DeviceDescription* description) {
  Driver& driver = TheDriver();
  if (driver.cuDeviceGetName != nullptr)
    driver.cuDeviceGetName(description->name, sizeof description->name, device);
  if (driver.cuDeviceGetUuid != nullptr) driver.cuDeviceGetUuid(&description->uuid, device);
  if (driver.cuDeviceGetUuid_v2 != nullptr) driver.cuDeviceGetUuid_v2(&description->uuid_v2, device);
  size_t total = 0;
  if (driver.cuDeviceTotalMem_v2 != nullptr) driver.cuDeviceTotalMem_v2(&total, device);
  description->total_bytes = total;
  description->luid_result = CUDA_ERROR_NOT_SUPPORTED;
  if (driver.cuDeviceGetLuid != nullptr) {
    description->luid_result = driver.cuDeviceGetLuid(description->luid, &description->luid_mask, device);
  }
  if (driver.cuDeviceGetPCIBusId != nullptr) {
    driver.cuDeviceGetPCIBusId(description->pci_bus_id, sizeof description->pci_bus_id, device);
  }
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
  Driver& driver = TheDriver();
  OpenReply reply{};
  reply.worker_pid = static_cast<uint32_t>(getpid());
  reply.init_result = driver.cuInit(0);
  if (reply.init_result == CUDA_SUCCESS) driver.cuDriverGetVersion(&reply.driver_version);
  static const std::vector<DeviceDescription> kNone;
  const auto& devices = reply.init_result == CUDA_SUCCESS ? Descriptions() : kNone;
  reply.device_count = static_cast<uint32_t>(devices.size());
  CUmoduleLoadingMode mode{};
  reply.loading_result = driver.cuModuleGetLoadingMode != nullptr ? driver.cuModuleGetLoadingMode(&mode)
                                                                  : CUDA_ERROR_NOT_SUPPORTED;
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

CUresult Serve_kOpenChannel(Session& session, Request& request) {
  const auto body = request.in.Get<OpenChannelBody>();
  if (!request.in.ok() || body.channel >= kChannelCount) return CUDA_ERROR_INVALID_VALUE;
  session.OpenChannel(body.channel);
  return CUDA_SUCCESS;
}

CUresult Serve_kBeginBlob(Session& session, Request& request) {
  const auto body = request.in.Get<BlobBody>();
  if (!request.in.ok() || request.channel >= kChannelCount || body.bytes > kMaxBlobBytes)
    return CUDA_ERROR_INVALID_VALUE;
  auto& blob = session.blob(request.channel);
  session.ReturnBlobRoom(blob.size());
  blob = {};
  // Grown by what arrives, not by what is announced.
  blob.reserve(std::min<uint64_t>(body.bytes + kBlobEnd, 64u << 20));
  return CUDA_SUCCESS;
}

CUresult Serve_kAppendBlob(Session& session, Request& request) {
  if (request.channel >= kChannelCount || request.bulk.empty()) return CUDA_ERROR_INVALID_VALUE;
  auto& blob = session.blob(request.channel);
  if (!session.TakeBlobRoom(request.bulk.size())) return CUDA_ERROR_OUT_OF_MEMORY;
  blob.insert(blob.end(), request.bulk.begin(), request.bulk.end());
  return CUDA_SUCCESS;
}

CUresult Serve_kFetchBlob(Session& session, Request& request) {
  const auto body = request.in.Get<FetchBlobBody>();
  if (!request.in.ok() || request.channel >= kChannelCount) return CUDA_ERROR_INVALID_VALUE;
  auto& left = session.left_blob(request.channel);
  if (body.offset > left.size() || request.bulk.size() > left.size() - body.offset) {
    return session.Breach("a result is fetched beyond its end");
  }
  std::copy_n(left.begin() + static_cast<ptrdiff_t>(body.offset), request.bulk.size(), request.bulk.begin());
  request.bulk_written = static_cast<uint32_t>(request.bulk.size());
  if (body.offset + request.bulk.size() == left.size()) left = {};
  return CUDA_SUCCESS;
}

CUresult Serve_kFetchOutput(Session& session, Request& request) {
  std::byte text[2048];
  size_t bytes = session.logs().Take(text);
  if (bytes == 0) bytes = session.output().Take(text);
  request.out.PutBytes(text, bytes);
  return request.out.error();
}

}  // namespace causeway::host
