// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/host_register/page_reserve.h"

#include <sys/mman.h>

#include <string>

#include "guest_lib/host_register/page_exchange.h"
#include "guest_lib/process/log.h"
#include "ivshmem_ring/messages/registration.h"

namespace causeway::guest {
namespace {

bool Leave(Mapping mapping) {
  mapping.begin -= mapping.begin % mapping.page_bytes;
  mapping.end = (mapping.end + mapping.page_bytes - 1) / mapping.page_bytes * mapping.page_bytes;
  const uint64_t bytes = mapping.end - mapping.begin;
  std::byte* fresh = FreshLike(mapping.begin, bytes);
  if (fresh == nullptr) return false;
  madvise(fresh, bytes, MADV_HUGEPAGE);
  uint64_t done = 0;
  const bool all = ExchangePages(
      mapping, Replacements{.pages = fresh, .zeroed = true, .source = PageSource::kMade}, &done);
  if (done < bytes) munmap(fresh + done, bytes - done);
  return all;
}

}  // namespace

CUresult LeaveReservedPages(const std::vector<Mapping>& mappings, bool* changed) {
  *changed = false;
  for (const Mapping& mapping : mappings) {
    if (mapping.page_bytes <= kPageBytes) continue;
    if (mapping.shared) {
      Complain("shared memory in reserved huge pages (hugetlbfs) cannot be registered from a guest");
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    *changed = true;
    if (Leave(mapping)) continue;
    Complain("reserved huge pages at " + std::to_string(mapping.begin) +
             " cannot be replaced: they stay unregistered");
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  return CUDA_SUCCESS;
}

}  // namespace causeway::guest
