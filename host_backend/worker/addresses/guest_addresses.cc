// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/addresses/guest_addresses.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "host_backend/worker/process/output.h"

namespace causeway::host {
namespace {

void* At(uint64_t address) {
  return reinterpret_cast<void*>(address);
}

[[noreturn]] void EndProcess(const char* what) {
  dprintf(Output::LogFd(),
          "causeway-worker[%d]: %s: %s; the session ends, because addresses of the guest process could "
          "become the worker's\n",
          getpid(), what, strerror(errno));
  _exit(3);
}

// The file of zeros; -1 if it cannot be made.
int MakeRetiredFile() {
  const int file = memfd_create("causeway-retired", MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, static_cast<off_t>(GuestAddresses::kRetiredBytes)) == 0) return file;
  if (file >= 0) close(file);
  return -1;
}

}  // namespace

bool GuestAddresses::Owns(Window range) const {
  const auto next = owned_.upper_bound(range.begin);
  return next != owned_.begin() && std::prev(next)->second >= range.end;
}

void GuestAddresses::Add(Window range) {
  auto at = owned_.upper_bound(range.begin);
  if (at != owned_.begin() && std::prev(at)->second >= range.begin) --at;
  while (at != owned_.end() && at->first <= range.end) {
    range = {std::min(range.begin, at->first), std::max(range.end, at->second)};
    at = owned_.erase(at);
  }
  owned_[range.begin] = range.end;
}

GuestAddresses::Claimed GuestAddresses::Claim(Window range) {
  const std::lock_guard lock(mutex_);
  if (retired_file_ < 0) retired_file_ = MakeRetiredFile();
  if (retired_file_ < 0 || owned_.size() >= kMostRanges) return Claimed::kFull;
  std::vector<Window> gaps;
  auto next = owned_.upper_bound(range.begin);
  uint64_t at = next != owned_.begin() ? std::max(range.begin, std::prev(next)->second) : range.begin;
  while (at < range.end) {
    const uint64_t end = next != owned_.end() ? std::min(range.end, next->first) : range.end;
    if (at < end) gaps.push_back({at, end});
    at = next != owned_.end() ? next++->second : range.end;
  }
  for (size_t i = 0; i < gaps.size(); ++i) {
    if (ReserveAll(gaps[i])) continue;
    while (i-- > 0) munmap(At(gaps[i].begin), gaps[i].end - gaps[i].begin);  // nobody was told of them
    return Claimed::kTaken;
  }
  Add(range);
  return Claimed::kYes;
}

bool GuestAddresses::Map(Window range, int protection, int file, uint64_t offset) {
  {
    const std::lock_guard lock(mutex_);
    if (!Owns(range)) return false;
  }
  const void* mapped = mmap(At(range.begin), range.end - range.begin, protection, MAP_SHARED | MAP_FIXED,
                            file, static_cast<off_t>(offset));
  if (mapped == At(range.begin)) return true;
  Retire(range);  // the kernel may have taken away what was there before it refused
  return false;
}

void GuestAddresses::Retire(Window range) {
  // Equal offsets at equal addresses: neighbours become one mapping of the kernel's.
  for (uint64_t at = range.begin; at < range.end;) {
    const uint64_t offset = at % kRetiredBytes, bytes = std::min(range.end - at, kRetiredBytes - offset);
    const void* mapped = mmap(At(at), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                              retired_file_, static_cast<off_t>(offset));
    if (mapped != At(at)) EndProcess("memory of the guest process cannot be unmapped");
    at += bytes;
  }
}

GuestAddresses& TheGuestAddresses() {
  static GuestAddresses& addresses = *new GuestAddresses;  // threads use it to the end
  return addresses;
}

}  // namespace causeway::host
