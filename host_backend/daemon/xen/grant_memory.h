// SPDX-License-Identifier: Apache-2.0
// Memory of this domain that one other domain may map: Linux's grant allocator (xen-gntalloc).
#pragma once
#include <cstdint>

#include "host_backend/common/result.h"
#include "host_backend/common/unique_fd.h"

namespace causeway::daemon {

struct GrantMemory {
  // mmap of it at offset x is the region's byte x. The pages live as long as this descriptor, or one that was made of
  // it, is open; the kernel does not use a page again while the domain still has it mapped.
  UniqueFd fd;
  uint32_t directory = 0;  // reference of the directory's root page (kernel_module/causeway_xen_grants.c)
};

// Zeroed memory of `bytes`, a multiple of a granule, for domain `domain`, with its directory. It may take a second
// for each GiB. Errors are sentences that say which limit is to be raised. After Xen's table was
// too small the kernel is not asked at once for as much again: the same error comes for a second, and longer each time, up to
// ten minutes. Any thread.
Result<GrantMemory> MakeGrantMemory(uint16_t domain, uint64_t bytes);
// The domain has let go now of a region of that size whose causewayd had ended before: Linux gives its pages back over the next
// seconds, and until then MakeGrantMemory asks for none that have no room beside them. Any thread; it waits for MakeGrantMemory.
void NoteGrantsDepart(uint64_t bytes);
// A region's descriptor is closed or about to be, so that the next MakeGrantMemory may succeed. Any thread; it does not wait.
void NoteGrantsGivenBack();

// What a region of that size needs, for messages; docs/xen.md has the table, whose last column is `maptracks`.
struct GrantNeeds {
  uint64_t pages = 0;   // with the directory; causewayd holds one more for itself
  uint64_t frames = 0;  // of domain 0's grant table, beside what its devices use
  uint64_t maptracks =
      0;  // of the guest's, each of 256 mappings; twice as many for paravirtual guests' processes
};
GrantNeeds NeedsOf(uint64_t bytes);

}  // namespace causeway::daemon
