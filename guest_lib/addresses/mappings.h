// SPDX-License-Identifier: Apache-2.0
// What this process has mapped, read from the kernel. Any thread may call these functions; the answer may be
// out of date as soon as another thread maps something.
#pragma once
#include <cstdint>
#include <vector>

namespace causeway::guest {

// One mapping, cut to the range that was asked for.
struct Mapping {
  uint64_t begin, end;
  int protection;  // PROT_*
  bool shared;
  uint64_t offset;  // where `begin` lies in the file
  uint64_t device, inode;
  uint64_t page_bytes = 4096;  // more if it is from the machine's reserve of huge pages
};

// Reads the mappings of [begin, end), in order. False: a page of the range is not mapped.
bool ReadMappings(uint64_t begin, uint64_t end, std::vector<Mapping>* mappings);

// The parts of the mappings that lie in [begin, end).
std::vector<Mapping> CutMappings(const std::vector<Mapping>& mappings, uint64_t begin, uint64_t end);
bool AllWritable(const std::vector<Mapping>& mappings);
// Whether the program has locked the memory (mlock).
bool IsLocked(const Mapping& mapping);

}  // namespace causeway::guest
