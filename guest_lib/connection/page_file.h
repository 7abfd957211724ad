// SPDX-License-Identifier: Apache-2.0
// A file whose pages can replace pages of the program's own (guest_lib/host_register/replaced_pages.h): the region where memory is
// shared (Connection), and else a memory file of this process (guest_lib/addresses/private_host.h). Any thread may call these functions.
#pragma once
#include <cstddef>
#include <cstdint>

namespace causeway::guest {

class PageFile {
 public:
  // Maps the file's pages from `offset` on over the reservation at `at`. They stay there. A forked child inherits them where the file
  // allows it. False: it failed, or the file has none.
  virtual bool MapPages(std::byte* /*at*/, uint64_t /*offset*/, uint64_t /*bytes*/) { return false; }
  // Whether the kernel merges two mappings that lie side by side both in memory and in the file, and can move their pages elsewhere
  // (MREMAP_DONTUNMAP).
  virtual bool HasOrdinaryPages() const { return true; }
  // The file's device and inode, as /proc/self/maps has them. False: there is no such file.
  virtual bool FileIdentity(uint64_t* /*device*/, uint64_t* /*inode*/) { return false; }

 protected:
  ~PageFile() = default;
};

}  // namespace causeway::guest
