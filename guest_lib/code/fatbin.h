// SPDX-License-Identifier: Apache-2.0
// Fatbins: which of their entries the devices of this session can use. A library holds code for every
// generation of GPU, and the other entries need not travel. A fatbin that is not understood travels whole.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "ivshmem_ring/messages/fatbin_format.h"

namespace causeway::guest {

struct Capability {
  int major, minor;
};

// The runs of a fatbin's bytes, without its header, that hold the entries which at least one of the devices
// can use. Empty: all of the fatbin is to be sent, because all entries can be used, none can, or its format
// is not known. The spans point into `fatbin`.
std::vector<std::span<const std::byte>> UsableEntries(const std::byte* fatbin,
                                                      std::span<const Capability> devices);

// Whether kernels in these bytes, an image or a part of one, may call printf: code that does contains the
// name. In doubt, for example for compressed code, the answer is true. If there is a cubin for the one
// device, only that counts, because the driver takes it.
bool MayPrint(std::span<const std::byte> image, std::span<const Capability> devices);

}  // namespace causeway::guest
