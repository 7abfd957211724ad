// SPDX-License-Identifier: Apache-2.0
// What this process has mapped where.
#pragma once
#include <cstdint>
#include <vector>

namespace causeway::guest {

// One mapping of this process, cut to the range that was asked for.
struct Mapping {
  uint64_t begin, end;
  int protection;  // PROT_*
  bool shared;
  uint64_t offset;  // of `begin` in its file
  uint64_t device, inode;
  uint64_t page_bytes = 4096;  // more: of the machine's reserve of huge pages
};

// What is mapped of [begin, end), in order. False if a page of it is not.
bool ReadMappings(uint64_t begin, uint64_t end, std::vector<Mapping>* mappings);

// The mappings as far as they lie in [begin, end).
std::vector<Mapping> CutMappings(const std::vector<Mapping>& mappings, uint64_t begin, uint64_t end);
bool AllWritable(const std::vector<Mapping>& mappings);
// Whether the program will not have it swapped (mlock).
bool IsLocked(const Mapping& mapping);

}  // namespace causeway::guest
