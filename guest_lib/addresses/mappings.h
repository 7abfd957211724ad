// SPDX-License-Identifier: Apache-2.0
// What this process has mapped, read from the kernel. Addresses and offsets are in bytes. Any thread may call
// these functions, also with locks held: they take none. Another thread may outdate the answer.
#pragma once
#include <cstdint>
#include <vector>

#include "ivshmem_ring/messages/registration.h"

namespace causeway::guest {

// The part of one mapping that lies in the range that was asked for.
struct Mapping {
  uint64_t begin, end;
  int protection;              // PROT_*
  bool shared;                 // MAP_SHARED
  uint64_t offset;             // where `begin` lies in the file
  uint64_t device, inode;      // of the file (dev_t, inode number); 0 for private memory without one
  uint64_t page_bytes = 4096;  // of hugetlbfs more; before Linux 6.11 only of hugetlbfs without a file
};

// Replaces *mappings by the mappings of [begin, end), in order of address. False: a page of the range is not
// mapped, or the kernel did not answer; *mappings then has those that were found.
bool ReadMappings(uint64_t begin, uint64_t end, std::vector<Mapping>* mappings);

// The same for several ranges in order of address that do not overlap: one list for all, and true if each is mapped whole.
bool ReadMappings(const std::vector<PageRange>& ranges, std::vector<Mapping>* mappings);

// The parts of the mappings that lie in [begin, end), with offsets to match. Asks the kernel nothing.
std::vector<Mapping> CutMappings(const std::vector<Mapping>& mappings, uint64_t begin, uint64_t end);
// The parts of the mappings that show bytes [offset, offset + bytes) of the file with that device and inode. Asks the kernel nothing.
std::vector<Mapping> MappingsOfFile(const std::vector<Mapping>& mappings, uint64_t device, uint64_t inode,
                                    uint64_t offset, uint64_t bytes);
// Whether each of the mappings has PROT_WRITE.
bool AllWritable(const std::vector<Mapping>& mappings);
// Whether the program has locked some page of the mapping (mlock). Asks the kernel, and changes nothing.
bool IsLocked(const Mapping& mapping);

}  // namespace causeway::guest
