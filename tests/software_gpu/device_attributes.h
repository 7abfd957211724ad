// SPDX-License-Identifier: Apache-2.0
// Attribute values that all devices share.
#pragma once

#include "tests/software_gpu/driver.h"

namespace causeway::software_gpu {

// False when the attribute is unknown or belongs to one device (PCI address).
bool FindDeviceAttribute(CUdevice_attribute attribute, int* value);

}  // namespace causeway::software_gpu
