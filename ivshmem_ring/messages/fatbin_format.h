// SPDX-License-Identifier: Apache-2.0
// The layout of a fatbin: a header, then entries, each with a header of its own before its payload. No manual
// states it; it is what nvcc 13.0 writes. The guest sends only entries that a device can use, and the worker
// checks what it received before the driver parses it.
#pragma once
#include <cstdint>

namespace causeway {

inline constexpr uint32_t kFatbinMagic = 0xBA55ED50;

struct FatbinHeader {
  uint32_t magic;
  uint16_t version;        // 1
  uint16_t header_bytes;   // 16
  uint64_t entries_bytes;  // of all entries with their headers
};
static_assert(sizeof(FatbinHeader) == 16);

// In front of each entry's payload.
struct FatbinEntry {
  uint16_t kind;  // 1: PTX, 2: ELF, 8: LTO IR
  uint16_t version;
  uint32_t header_bytes;   // of this struct and of what follows it: a name, options
  uint64_t payload_bytes;  // with padding; of the compressed bytes where the payload is compressed
  uint8_t not_needed[12];
  uint32_t architecture;  // ten times the compute capability: 90 is 9.0
  uint8_t name[8];
  uint64_t flags;
  uint8_t sizes[16];
};
static_assert(sizeof(FatbinEntry) == 64);

}  // namespace causeway
