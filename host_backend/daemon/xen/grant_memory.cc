// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/xen/grant_memory.h"

#include <fcntl.h>
#include <linux/types.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <xen/gntalloc.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <vector>

namespace causeway::daemon {
namespace {

constexpr const char* kDevice = "/dev/xen/gntalloc";
constexpr const char* kLimit = "/sys/module/xen_gntalloc/parameters/limit";
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kReferencesPerPage = kPageBytes / sizeof(uint32_t);
constexpr uint64_t kGrantsPerFrame = 512;    // of version 1, which Linux uses below 16 TiB of memory
constexpr uint64_t kUsualFrames = 64;        // gnttab_max_frames without an option
constexpr uint64_t kMappingsPerFrame = 256;  // of maptrack
constexpr uint32_t kPagesPerRequest = 512;   // the kernel keeps a list of each request in one piece of memory

uint64_t RoundUp(uint64_t number, uint64_t unit) {
  return (number + unit - 1) / unit;
}

// Adds `count` pages behind those that the descriptor has, and their references to `references`. 0, or errno.
int Allocate(int fd, uint16_t domain, uint64_t count, bool writable, std::vector<uint32_t>& references) {
  while (count != 0) {
    const auto part = uint32_t(std::min<uint64_t>(count, kPagesPerRequest));
    std::vector<uint32_t> room(sizeof(ioctl_gntalloc_alloc_gref) / sizeof(uint32_t) + part);
    auto* request = reinterpret_cast<ioctl_gntalloc_alloc_gref*>(room.data());
    request->domid = domain;
    request->flags = writable ? GNTALLOC_FLAG_WRITABLE : 0;
    request->count = part;
    if (ioctl(fd, IOCTL_GNTALLOC_ALLOC_GREF, request) != 0) return errno;
    // Offsets of a descriptor follow each other.
    if (request->index != references.size() * kPageBytes) return EPROTO;
    const uint32_t* given = room.data() + offsetof(ioctl_gntalloc_alloc_gref, gref_ids) / sizeof(uint32_t);
    references.insert(references.end(), given, given + part);
    count -= part;
  }
  return 0;
}

std::string WhyNotAllocated(int problem, uint64_t bytes) {
  const GrantNeeds needs = NeedsOf(bytes);
  const std::string intro = "A region of " + std::to_string(bytes >> 20) + " MiB cannot be granted: ";
  uint64_t limit = 0;
  std::ifstream(kLimit) >> limit;
  if (problem == ENOSPC && limit < needs.pages) {
    return intro + "the module xen-gntalloc grants " + std::to_string(limit) +
           " pages in all, and this takes " + std::to_string(needs.pages) + "; write a larger number to " +
           kLimit + " and \"options xen-gntalloc limit=262144\" into /etc/modprobe.d/causeway-xen.conf.";
  }
  if (problem == ENOSPC) {
    return intro + "domain 0 has no grants left in Xen's table, or other regions have xen-gntalloc's " +
           std::to_string(limit) +
           " pages; boot Xen with gnttab_max_frames=" + std::to_string(kUsualFrames + 2 * needs.frames) +
           " or more, or choose a smaller region_mib.";
  }
  return intro + ErrnoText(problem) + ".";
}

// Each root entry names a page of entries; those name the region's pages.
bool WriteDirectory(int fd, uint64_t region_pages, const std::vector<uint32_t>& references) {
  const uint64_t pages = references.size() - region_pages;
  void* mapped = mmap(nullptr, pages * kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                      off_t(region_pages * kPageBytes));
  if (mapped == MAP_FAILED) return false;
  auto* words = static_cast<uint32_t*>(mapped);
  std::copy(references.begin() + int64_t(region_pages) + 1, references.end(), words);
  std::copy(references.begin(), references.begin() + int64_t(region_pages), words + kReferencesPerPage);
  munmap(mapped, pages * kPageBytes);
  return true;
}

}  // namespace

GrantNeeds NeedsOf(uint64_t bytes) {
  const uint64_t pages = bytes / kPageBytes;
  const uint64_t all = pages + RoundUp(pages, kReferencesPerPage) + 1;
  return {all, RoundUp(all, kGrantsPerFrame), RoundUp(all, kMappingsPerFrame)};
}

Result<GrantMemory> MakeGrantMemory(uint16_t domain, uint64_t bytes) {
  GrantMemory memory;
  memory.fd.reset(open(kDevice, O_RDWR | O_CLOEXEC));
  if (!memory.fd) {
    return Error{std::string(kDevice) + " cannot be opened: " + ErrnoText() +
                 "; load the module xen-gntalloc in domain 0, and let causewayd's user open the device."};
  }
  const uint64_t pages = bytes / kPageBytes, entries = RoundUp(pages, kReferencesPerPage);
  if (entries > kReferencesPerPage) return Error{"A region of more than 4 GiB cannot be granted."};
  std::vector<uint32_t> references;
  references.reserve(pages + entries + 1);
  int problem = Allocate(memory.fd.get(), domain, pages, true, references);
  if (problem == 0) problem = Allocate(memory.fd.get(), domain, 1 + entries, false, references);
  if (problem != 0) return Error{WhyNotAllocated(problem, bytes)};
  if (!WriteDirectory(memory.fd.get(), pages, references))
    return Error{"Granted pages cannot be mapped: " + ErrnoText() + "."};
  memory.directory = references[pages];
  return memory;
}

}  // namespace causeway::daemon
