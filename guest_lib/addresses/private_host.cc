// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/addresses/private_host.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>

#include "guest_lib/process/lock_order.h"
#include "guest_lib/session/context.h"
#include "guest_lib/session/device_reach.h"
#include "guest_lib/session/handles.h"

namespace causeway::guest {
namespace {

Mutex<Lock::kPrivateHost> mutex;
ConditionVariable& returned = *new ConditionVariable;  // notified when a PrivateHostLoan ends
auto& blocks = *new std::map<uint64_t, PrivateHost>;   // by address; never destroyed
int file = -1;  // holds the pages of all blocks, each in a part of its own
uint64_t file_end = 0;
struct TakenPart {
  uint64_t bytes;
  uint64_t left;  // that are not given back yet
};
// Parts of the file for registered memory; never destroyed.
auto& taken_parts = *new std::map<uint64_t, TakenPart>;     // by offset
auto& free_parts = *new std::multimap<uint64_t, uint64_t>;  // bytes -> offset

// The child makes a new file for what it allocates, because it shares the old one with its parent. Its parent's copies, which may
// have had loans, do not run in it.
void InForkedChild() {
  if (file >= 0) close(file);
  file = -1;
  file_end = 0;
  taken_parts.clear();
  free_parts.clear();
  unreached_blocks.store(0);
  std::erase_if(blocks, [](const auto& entry) { return entry.second.host.kind == HostKind::kRegistered; });
  for (auto& [address, block] : blocks) {
    block.file = -1;
    block.lent = 0;
    block.reached = true;
  }
  mutex.unlock();
}

// Registers the handlers when the library is loaded, before its other parts do. The handler that was registered last is called first,
// and the other handlers take locks that come before this mutex in the order of locks.
[[gnu::constructor]] void WatchForks() {
  pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, InForkedChild);
}

// Makes room for so many bytes at the file's end. False: there can be no file, or its new size would end the process by SIGXFSZ. The
// caller holds the mutex.
bool GrowFile(uint64_t bytes) {
  rlimit most{};
  if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < file_end + bytes) return false;
  if (file < 0) file = memfd_create("causeway-pinned", MFD_CLOEXEC);
  return file >= 0 && ftruncate(file, static_cast<off_t>(file_end + bytes)) == 0;
}

uint64_t GranuleCeiling(uint64_t address) {
  return (address + kPrivateHostGranule - 1) & ~(kPrivateHostGranule - 1);
}

// Maps block->reserved bytes at a granule's address, and notes where in the file they lie, if they do. The caller holds the mutex.
void* MapBlock(PrivateHost* block) {
  constexpr int kAccess = PROT_READ | PROT_WRITE;
  const uint64_t room = block->reserved + kPrivateHostGranule;
  void* reserved = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return reserved;
  const auto begin = reinterpret_cast<uint64_t>(reserved);
  const uint64_t at = GranuleCeiling(begin);
  const auto unmap = [](uint64_t from, uint64_t to) {
    if (from < to) munmap(reinterpret_cast<void*>(from), to - from);
  };
  unmap(begin, at);
  unmap(at + block->reserved, begin + room);
  void* mapped = MAP_FAILED;
  if (GrowFile(block->reserved)) {
    mapped = mmap(reinterpret_cast<void*>(at), block->reserved, kAccess, MAP_SHARED | MAP_FIXED, file,
                  static_cast<off_t>(file_end));
  }
  if (mapped != MAP_FAILED) {
    block->file = file;
    block->offset = file_end;
    file_end += block->reserved;
  } else {
    mapped = mmap(reinterpret_cast<void*>(at), block->reserved, kAccess,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  }
  if (mapped == MAP_FAILED) unmap(at, at + block->reserved);
  return mapped;
}

// The caller holds the mutex. Null: none.
PrivateHost* Find(uint64_t address, bool at_end = false) {
  auto next = blocks.upper_bound(address);
  if (next == blocks.begin()) return nullptr;
  PrivateHost& block = std::prev(next)->second;
  return address - block.host.address < block.host.bytes + (at_end ? 1 : 0) ? &block : nullptr;
}

// The file's memory is freed and its length kept, because no other block is ever given this part.
void FreePart(int of, uint64_t offset, uint64_t bytes) {
  fallocate(of, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
}

void NoteReached(PrivateHost* block) {
  if (!block->reached) unreached_blocks.fetch_sub(1, std::memory_order_release);
  block->reached = true;
}

// The caller holds the mutex.
void AddBlock(PrivateHost block) {
  block.reached = block.host.device_address == 0;
  if (!block.reached) unreached_blocks.fetch_add(1, std::memory_order_relaxed);
  private_begin.store(std::min(private_begin.load(), block.host.address));
  private_end.store(std::max(private_end.load(), block.host.address + block.host.bytes));
  // What the program has unmapped without unregistering it may be in the new block's place.
  if (const auto old = blocks.find(block.host.address); old != blocks.end()) NoteReached(&old->second);
  blocks[block.host.address] = block;
}

class FileOfBlocks final : public PageFile {
 public:
  bool MapPages(std::byte* at, uint64_t offset, uint64_t bytes) override {
    return mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
                static_cast<off_t>(offset)) == at;
  }
  bool FileIdentity(uint64_t* device, uint64_t* inode) override {
    struct stat info;
    if (fstat(file, &info) != 0) return false;
    *device = info.st_dev;
    *inode = info.st_ino;
    return true;
  }
};

}  // namespace

CUresult AllocatePrivateHost(void** address, uint64_t bytes, Object* context, uint32_t flags, HostKind kind) {
  if (bytes > UINT64_MAX - kPrivateHostGranule) return CUDA_ERROR_OUT_OF_MEMORY;
  PrivateHost block;
  block.reserved = GranuleCeiling(bytes);
  const std::lock_guard lock(mutex);
  void* mapped = MapBlock(&block);
  if (mapped == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  block.host = {.address = reinterpret_cast<uint64_t>(mapped), .bytes = bytes, .kind = kind, .flags = flags};
  block.host.context = context;
  block.host.id = NextId();
  block.host.device_address = block.file >= 0 ? block.host.address : 0;
  AddBlock(block);
  *address = mapped;
  return CUDA_SUCCESS;
}

CUresult FreePrivateHost(void* address) {
  const std::lock_guard lock(mutex);
  const auto found = blocks.find(reinterpret_cast<uint64_t>(address));
  if (found == blocks.end() || found->second.host.kind == HostKind::kRegistered)
    return CUDA_ERROR_INVALID_VALUE;
  PrivateHost& block = found->second;
  NoteReached(&block);
  munmap(address, block.reserved);
  if (block.file >= 0) FreePart(block.file, block.offset, block.reserved);
  blocks.erase(found);
  return CUDA_SUCCESS;
}

void AddPrivateRegistered(const HostAllocation& host) {
  PrivateHost block;
  block.host = host;
  const std::lock_guard lock(mutex);
  AddBlock(block);
}

void RemovePrivateRegistered(uint64_t address) {
  const std::lock_guard lock(mutex);
  const auto found = blocks.find(address);
  if (found == blocks.end() || found->second.host.kind != HostKind::kRegistered) return;
  NoteReached(&found->second);
  blocks.erase(found);
}

PageFile& PrivatePages() {
  static FileOfBlocks& pages = *new FileOfBlocks;  // never destroyed
  return pages;
}

bool AllocatePrivatePages(uint64_t bytes, int* of, uint64_t* offset) {
  const std::lock_guard lock(mutex);
  uint64_t room = GranuleCeiling(bytes);
  if (const auto free = free_parts.lower_bound(room); free != free_parts.end()) {
    room = free->first;
    *offset = free->second;
    free_parts.erase(free);
  } else {
    if (!GrowFile(room)) return false;
    *offset = file_end;
    file_end += room;
  }
  *of = file;
  taken_parts[*offset] = {room, bytes};
  return true;
}

void FreePrivatePages(uint64_t offset, uint64_t bytes) {
  const std::lock_guard lock(mutex);
  auto part = taken_parts.upper_bound(offset);
  if (file < 0 || part == taken_parts.begin()) return;
  --part;
  FreePart(file, offset, bytes);
  part->second.left -= bytes;
  if (part->second.left != 0) return;
  free_parts.emplace(part->second.bytes, part->first);
  taken_parts.erase(part);
}

bool FindPrivateHost(uint64_t address, PrivateHost* block, bool at_end) {
  const std::lock_guard lock(mutex);
  const PrivateHost* found = Find(address, at_end);
  if (found != nullptr) *block = *found;
  return found != nullptr;
}

bool FindPrivateHost(uint64_t address, HostAllocation* allocation) {
  PrivateHost block;
  if (!FindPrivateHost(address, &block)) return false;
  *allocation = block.host;
  return true;
}

bool SetPrivateHostSyncMemops(uint64_t address, bool value) {
  const std::lock_guard lock(mutex);
  PrivateHost* found = Find(address);
  if (found != nullptr) found->host.sync_memops = value;
  return found != nullptr;
}

void NotePrivateHostReached(uint64_t address, uint64_t device_address, Object* context) {
  const std::lock_guard lock(mutex);
  PrivateHost* found = Find(address);
  if (found == nullptr) return;
  found->host.device_address = device_address;
  found->reached_in = context;
  NoteReached(found);
}

void RenewPrivateHost(uint64_t address, uint64_t id) {
  const std::lock_guard lock(mutex);
  PrivateHost* found = Find(address);
  if (found == nullptr) return;
  found->host.id = id;
  found->host.sync_memops = false;
}

bool IsPrivateHostReached(uint64_t address) {
  const std::lock_guard lock(mutex);
  const PrivateHost* found = Find(address);
  return found != nullptr && found->reached && found->host.device_address != 0;
}

void NotePrivateHostLeft(uint64_t address, uint64_t id) {
  const std::lock_guard lock(mutex);
  PrivateHost* found = Find(address);
  if (found == nullptr || found->host.id != id || !found->reached) return;
  found->host.device_address = found->host.address;
  found->reached_in = nullptr;
  found->reached = found->closed = false;
  unreached_blocks.fetch_add(1, std::memory_order_relaxed);
}

namespace {

template <class Match>
std::vector<PrivateHost> BlocksThat(Match match) {
  std::vector<PrivateHost> all;
  const std::lock_guard lock(mutex);
  for (const auto& [address, block] : blocks) {
    if (block.host.kind != HostKind::kRegistered && match(block)) all.push_back(block);
  }
  return all;
}

}  // namespace

std::vector<PrivateHost> PrivateHostOf(const Object* context) {
  return BlocksThat([context](const PrivateHost& block) { return block.host.context == context; });
}

std::vector<PrivateHost> PrivateHostReachedIn(const Object* context) {
  return BlocksThat([context](const PrivateHost& block) { return block.reached_in == context; });
}

bool AwaitPrivateHostLoans(uint64_t address) {
  constexpr std::chrono::seconds kMost{10};
  std::unique_lock lock(mutex);
  PrivateHost* block = Find(address);
  if (block == nullptr) return true;
  block->closed = true;
  const uint64_t begin = block->host.address;
  return returned.wait_for(lock, kMost, [&] {
    block = Find(begin);
    return block == nullptr || block->lent == 0;
  });
}

PrivateHostLoan::PrivateHostLoan(const void* first, uint64_t bytes) {
  const std::lock_guard lock(mutex);
  const auto begin = reinterpret_cast<uint64_t>(first);
  for (auto next = blocks.lower_bound(begin + bytes); next != blocks.begin();) {
    PrivateHost& block = (--next)->second;
    if (block.host.address + block.host.bytes <= begin) break;
    if (block.closed) given_ = false;
    blocks_.push_back(block.host.address);
  }
  if (!given_) blocks_.clear();
  for (const uint64_t address : blocks_) ++blocks.at(address).lent;
}

PrivateHostLoan::~PrivateHostLoan() {
  if (blocks_.empty()) return;
  {
    const std::lock_guard lock(mutex);
    for (const uint64_t address : blocks_) {
      // The program may have freed a block meanwhile, and have got another one there, or have forked.
      const auto block = blocks.find(address);
      if (block != blocks.end() && block->second.lent > 0) --block->second.lent;
    }
  }
  returned.notify_all();
}

}  // namespace causeway::guest
