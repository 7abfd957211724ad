// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/xen/grant_memory.h"

#include <fcntl.h>
#include <linux/types.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <xen/gntalloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <mutex>
#include <vector>

#include "host_backend/daemon/xen/departing_pages.h"

namespace causeway::daemon {
namespace {

constexpr const char* kDevice = "/dev/xen/gntalloc";
constexpr const char* kLimit = "/sys/module/xen_gntalloc/parameters/limit";
constexpr const char* kUsers = "/sys/module/xen_gntalloc/refcnt";
constexpr const char* kGivenBack = "/sys/module/grant_table/parameters/free_per_iteration";
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kReferencesPerPage = kPageBytes / sizeof(uint32_t);
constexpr uint64_t kGrantsPerFrame = 512;    // of version 1, which Linux uses below 16 TiB of memory
constexpr uint64_t kUsualFrames = 64;        // gnttab_max_frames without an option
constexpr uint64_t kMappingsPerFrame = 256;  // of maptrack
constexpr uint32_t kPagesPerRequest = 512;   // the kernel keeps a list of each request in one piece of memory
constexpr uint64_t kGivenBackPerSecond =
    1000;  // where only root may read it, as vm_configs/causeway-xen.service sets it

using Steady = std::chrono::steady_clock;

uint64_t NumberIn(const char* file, uint64_t otherwise) {
  uint64_t number = 0;
  return std::ifstream(file) >> number ? number : otherwise;
}

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

// Keeps what a full table does from growing. Then xen-gntalloc (seen in Linux 6.1.192) loses a page and counts one page too few
// from then on; once nothing is granted its count is below zero, and it grants nothing any more until the module is loaded
// anew. So one page is held for each such refusal, and one for the next, and a request that was refused is not repeated
// each second. And while pages depart (departing_pages.h) nothing is requested that has no room beside them, because that would
// be such a refusal. Shared by all VMs: one lock, held while pages are allocated.
class Refusals {
 public:
  static Refusals& Get() {
    static Refusals& refusals = *new Refusals;  // a thread of its own may outlive main
    return refusals;
  }
  std::mutex lock;
  // Set by any thread, without the lock, which is held for seconds.
  std::atomic<bool> given_back{false};
  DepartingPages departing;

  // The sentence of the last refusal while it is too early for the next try; else empty.
  std::string TooEarly(uint64_t bytes) const {
    return Steady::now() < next_try_ && bytes >= refused_bytes_ ? sentence_ : std::string();
  }
  // Before a region is allocated. 0, or errno.
  int HoldPage() {
    if (!held_) held_.reset(open(kDevice, O_RDWR | O_CLOEXEC));
    if (!held_) return errno;
    for (; pages_ <= count_; ++pages_) {
      ioctl_gntalloc_alloc_gref request{};  // with room for one reference
      request.count = 1;
      if (ioctl(held_.get(), IOCTL_GNTALLOC_ALLOC_GREF, &request) != 0) {
        const int problem = errno;
        if (pages_ == 0) held_.reset();  // so that the module can be loaded anew
        return problem;
      }
    }
    return 0;
  }
  // Whether pages that depart leave no room. The allocator's limit= stands for the size of Xen's table, which only root may ask.
  bool IsFull(uint64_t pages, Steady::time_point now) const {
    const uint64_t left = departing.Left(now);
    return left != 0 && left + pages + 1 + count_ > NumberIn(kLimit, 0);
  }
  // Whether the kernel came as far as Xen's table with the request that it refused: only then are the descriptor's offsets
  // ahead of its pages, as the next page shows. One page is given back for it: of the descriptor, or what is held here.
  bool WasTableFull(int fd, const std::vector<uint32_t>& references) {
    ioctl_gntalloc_dealloc_gref first{};
    first.count = 1;
    if (references.empty()) {
      held_.reset();
      pages_ = 0;
    } else if (ioctl(fd, IOCTL_GNTALLOC_DEALLOC_GREF, &first) != 0) {
      return true;
    }
    ioctl_gntalloc_alloc_gref next{};
    next.count = 1;
    return ioctl(fd, IOCTL_GNTALLOC_ALLOC_GREF, &next) != 0 || next.index != references.size() * kPageBytes;
  }
  void Note(uint64_t bytes, const std::string& sentence) {
    ++count_;
    pause_ = std::clamp<std::chrono::seconds>(2 * pause_, kFirstPause, kLastPause);
    next_try_ = Steady::now() + pause_;
    refused_bytes_ = bytes;
    sentence_ = sentence;
  }
  void Forget() {
    pause_ = {};
    next_try_ = {};
  }

 private:
  static constexpr std::chrono::seconds kFirstPause{1}, kLastPause{600};
  UniqueFd held_;
  uint64_t pages_ = 0, count_ = 0;  // that held_ has, and of refusals
  std::chrono::seconds pause_{0};
  Steady::time_point next_try_;
  uint64_t refused_bytes_ = 0;
  std::string sentence_;
};

enum class Refusal { kLimitReached, kTableFull, kNotOnePage, kCountWrong };

std::string WhyNotAllocated(int problem, Refusal refusal, uint64_t bytes) {
  const GrantNeeds needs = NeedsOf(bytes);
  const std::string intro = "A region of " + std::to_string(bytes >> 20) + " MiB cannot be granted: ";
  if (problem != ENOSPC) return intro + ErrnoText(problem) + ".";
  const uint64_t limit = NumberIn(kLimit, 0);
  const std::string granted = "the module xen-gntalloc grants " + std::to_string(limit) + " pages in all";
  if (refusal == Refusal::kLimitReached || limit <= needs.pages) {
    return intro + granted + ", and this takes " + std::to_string(needs.pages + 1) +
           " that no other region has; write a larger number to " + kLimit +
           " and as limit= of xen-gntalloc into /etc/modprobe.d/causeway-xen.conf, but not more than " +
           std::to_string(kGrantsPerFrame) + " for each frame of Xen's gnttab_max_frames= (" +
           std::to_string(kUsualFrames) + " without that option).";
  }
  if (refusal == Refusal::kCountWrong) {
    return intro + granted +
           " and gives nobody one, because its count has been wrong since Xen's table of grants was full: "
           "rmmod xen-gntalloc && modprobe xen-gntalloc; causewayd may go on meanwhile.";
  }
  if (refusal == Refusal::kNotOnePage) {
    return intro + granted +
           ", and not one more now: other regions have them, or its count has been wrong since Xen's table "
           "of grants was full: detach all regions, then rmmod xen-gntalloc && modprobe xen-gntalloc.";
  }
  return intro + "domain 0 has no grants left in Xen's table; boot Xen with gnttab_max_frames=" +
         std::to_string(kUsualFrames + 2 * needs.frames) + " or more, or choose a smaller region_mib.";
}

std::string WhyNotYet(uint64_t bytes) {
  return "A region of " + std::to_string(bytes >> 20) +
         " MiB cannot be granted yet: Linux still gives back the pages of a region whose causewayd ended "
         "while its domain had them mapped, as many each second as " +
         kGivenBack + " says; causewayd asks again each second.";
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
  Refusals& refusals = Refusals::Get();
  const std::lock_guard lock(refusals.lock);
  if (refusals.IsFull(NeedsOf(bytes).pages, Steady::now())) return Error{WhyNotYet(bytes)};
  GrantMemory memory;
  memory.fd.reset(open(kDevice, O_RDWR | O_CLOEXEC));
  if (!memory.fd) {
    return Error{std::string(kDevice) + " cannot be opened: " + ErrnoText() +
                 "; load the module xen-gntalloc in domain 0, and let causewayd's user open the device."};
  }
  const uint64_t pages = bytes / kPageBytes, entries = RoundUp(pages, kReferencesPerPage);
  if (entries > kReferencesPerPage) return Error{"A region of more than 4 GiB cannot be granted."};
  if (refusals.given_back.exchange(false)) refusals.Forget();
  if (std::string sentence = refusals.TooEarly(bytes); !sentence.empty()) return Error{std::move(sentence)};
  std::vector<uint32_t> references;
  references.reserve(pages + entries + 1);
  auto refusal = Refusal::kNotOnePage;
  int problem = refusals.HoldPage();
  if (problem == 0) {
    problem = Allocate(memory.fd.get(), domain, pages, true, references);
    if (problem == 0) problem = Allocate(memory.fd.get(), domain, 1 + entries, false, references);
    if (problem == ENOSPC)
      refusal =
          refusals.WasTableFull(memory.fd.get(), references) ? Refusal::kTableFull : Refusal::kLimitReached;
  }
  if (problem != 0) {
    memory.fd.reset();
    // With nobody's descriptor open the allocator has given no page to anyone.
    if (problem == ENOSPC && refusal == Refusal::kNotOnePage && NumberIn(kUsers, 1) == 0)
      refusal = Refusal::kCountWrong;
    std::string sentence = WhyNotAllocated(problem, refusal, bytes);
    // The page that is held itself may have met a full table, but not while the count is wrong: then the limit refuses it.
    if (problem == ENOSPC && (refusal == Refusal::kTableFull || refusal == Refusal::kNotOnePage))
      refusals.Note(bytes, sentence);
    return Error{std::move(sentence)};
  }
  refusals.Forget();
  if (!WriteDirectory(memory.fd.get(), pages, references))
    return Error{"Granted pages cannot be mapped: " + ErrnoText() + "."};
  memory.directory = references[pages];
  return memory;
}

void NoteGrantsDepart(uint64_t bytes) {
  Refusals& refusals = Refusals::Get();
  const std::lock_guard lock(refusals.lock);
  refusals.departing.Add(NeedsOf(bytes).pages, NumberIn(kGivenBack, kGivenBackPerSecond), Steady::now());
}

void NoteGrantsGivenBack() {
  Refusals::Get().given_back.store(true);
}

}  // namespace causeway::daemon
