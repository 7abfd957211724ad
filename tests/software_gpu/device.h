// SPDX-License-Identifier: Apache-2.0
// What identifies a device.
#pragma once

#include "tests/software_gpu/driver.h"

namespace causeway::software_gpu {

struct PciAddress {
  int domain;
  int bus;
  int device;
};

CUuuid DeviceUuid(CUdevice device);
PciAddress DevicePciAddress(CUdevice device);

// As the GPU does when a blocking event is done: wakes the driver's thread, where there is one.
void Interrupt();

}  // namespace causeway::software_gpu
