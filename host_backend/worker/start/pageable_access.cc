// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/start/pageable_access.h"

#include "host_backend/worker/driver/driver.h"

namespace causeway::host {
namespace {

// A driver that does not answer is taken at its worst: it might know a way that it does not name.
bool Has(CUdevice_attribute attribute, CUdevice device) {
  int value = 0;
  const CUresult result = TheDriver().cuDeviceGetAttribute(&value, attribute, device);
  return result != CUDA_SUCCESS || value != 0;
}

}  // namespace

std::string PageableAccessRefusal(int count) {
  for (int i = 0; i < count; ++i) {
    CUdevice device = 0;
    if (TheDriver().cuDeviceGet(&device, i) != CUDA_SUCCESS) continue;
    const bool by_host_tables = Has(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, device);
    if (!by_host_tables && !Has(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, device)) continue;
    const std::string gpu = "GPU " + std::to_string(i) +
                            " can access pageable memory, so a guest's kernels " +
                            "could read and write all memory of their worker: ";
    if (by_host_tables)
      return gpu + "it uses the host's page tables (ATS), which cannot be switched off; where the workers' " +
             "sandbox is bound enough, set allow_pageable_access = true";
    return gpu + "put 'options nvidia_uvm uvm_disable_hmm=1' into /etc/modprobe.d/nvidia-uvm.conf and load " +
           "nvidia_uvm anew, or set allow_pageable_access = true where the workers' sandbox is bound enough";
  }
  return {};
}

}  // namespace causeway::host
