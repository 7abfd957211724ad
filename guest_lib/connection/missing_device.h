// SPDX-License-Identifier: Apache-2.0
// Why a VM has no device of the kernel module.
#pragma once
#include <string>

namespace causeway::guest {

// What is missing and what mends it, as the kernel tells below `sys`: the device that the host gives to a VM, the module, a region
// that it can use, or only the node.
std::string WhyNoDevice(const std::string& sys = "/sys");

}  // namespace causeway::guest
