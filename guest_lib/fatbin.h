// SPDX-License-Identifier: Apache-2.0
// Fatbins: which of their entries the devices here can use. A library holds code for every generation of GPU;
// what none of ours can use need not travel. Whatever is not understood travels whole.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace causeway::guest {

inline constexpr uint32_t kFatbinMagic = 0xBA55ED50;

struct FatbinHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t entries_bytes;
};
static_assert(sizeof(FatbinHeader) == 16);

// In front of each entry's payload.
struct FatbinEntry {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;   // with what follows this struct: a name, options
  uint64_t payload_bytes;  // padded, compressed if it is
  uint8_t not_needed[12];
  uint32_t architecture;  // 90: compute capability 9.0
  uint8_t name[8];
  uint64_t flags;
  uint8_t sizes[16];
};
static_assert(sizeof(FatbinEntry) == 64);

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
