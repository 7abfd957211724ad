// SPDX-License-Identifier: Apache-2.0
// Fatbins: which of their entries the devices here can use. A library holds code for every generation of GPU;
// what none of ours can use need not travel. Whatever is not understood travels whole.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ivshmem_ring/messages/fatbin_format.h"

namespace causeway::guest {

struct Capability {
  int major, minor;
};

// The runs of a fatbin's bytes, without its header, that hold every entry which one of the devices can use.
// Empty: take all of it, because all can be used, none can, or it is not as we know fatbins.
std::vector<std::span<const std::byte>> UsableEntries(const std::byte* fatbin,
                                                      std::span<const Capability> devices);

// Whether kernels in these bytes, an image or part of one, may call printf: its name stands in all code that
// does. True in doubt, as of compressed code, unless there is a cubin for the device, which the driver
// prefers.
bool MayPrint(std::span<const std::byte> image, std::span<const Capability> devices);

}  // namespace causeway::guest
