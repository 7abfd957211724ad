// SPDX-License-Identifier: Apache-2.0
#include "host_backend/common/shares/account_page.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mutex>

namespace causeway {
namespace {

uint64_t HashOf(const char uuid[16]) {
  return DeviceHash(reinterpret_cast<const unsigned char*>(uuid));
}

// Whatever another process has written there.
uint64_t Bounded(const std::atomic<uint64_t>& bytes) {
  return std::min(bytes.load(), kMostOfCell);
}

// The cell's place of that device.
int Find(const AccountCell& cell, uint64_t device) {
  for (uint32_t place = 0; place < kAccountDevices; ++place) {
    if (cell.device[place].load(std::memory_order_relaxed) == device) return static_cast<int>(place);
  }
  return kNoDevice;
}

// Threads of one worker take one after the other.
std::mutex& ThreadsOf(uint32_t cell) {
  static std::mutex mutexes[16];
  return mutexes[cell % 16];
}

void Pause(uint32_t tries) {
  constexpr uint32_t kSpins = 100, kYields = 10'000;
  if (tries > kYields) {
    usleep(100);
  } else if (tries > kSpins) {
    sched_yield();
  }
}

}  // namespace

uint64_t DeviceHash(const unsigned char uuid[16]) {
  uint64_t hash = 0xcbf29ce484222325;
  for (int i = 0; i < 16; ++i) hash = (hash ^ uuid[i]) * 0x100000001b3;
  return hash | 1;
}

int AccountPage::PlaceOf(uint32_t cell, const char uuid[16]) {
  const uint64_t hash = HashOf(uuid);
  for (uint32_t place = 0; place < kAccountDevices; ++place) {
    uint64_t there = 0;
    if (cells_[cell].device[place].compare_exchange_strong(there, hash) || there == hash)
      return static_cast<int>(place);
  }
  return kNoDevice;
}

// Of each cell what it asks for comes first: what is taken meanwhile is seen as asked for, as held, or both.
AccountPage::Claims AccountPage::ClaimsOn(uint64_t device, uint32_t cell) const {
  Claims claims;
  for (uint32_t i = 0; i < cell_count(); ++i) {
    const int place = Find(cells_[i], device);
    if (place == kNoDevice) continue;
    const uint64_t asked = i == cell ? 0 : Bounded(cells_[i].asked[place]);
    claims.asked += asked;
    if (i < cell) claims.asked_before += asked;
    claims.held += Bounded(cells_[i].on_device[place]);
  }
  return claims;
}

// Bounded: another is between two stores, or stopped, or lies, and then its VM alone waits for it.
bool AccountPage::Take(uint32_t cell, MemoryKind kind, int place, uint64_t bytes) {
  const uint64_t limit = limit_bytes();
  if (limit == 0 || place == kNoDevice) {
    Add(cell, kind, place, bytes);
    return true;
  }
  if (bytes > limit) return false;
  constexpr uint32_t kMostTries = 20'000;
  const std::lock_guard alone(ThreadsOf(cell));
  std::atomic<uint64_t>& asked = cells_[cell].asked[place];
  const uint64_t device = cells_[cell].device[place].load();
  bool taken = false, others_first = false;
  for (uint32_t tries = 0; tries < kMostTries; ++tries) {
    if (others_first && ClaimsOn(device, cell).asked_before != 0) {
      Pause(tries);
      continue;
    }
    // Before the look at the others, in all threads' one order: of two that ask, one sees the other.
    asked.store(bytes);
    const Claims claims = ClaimsOn(device, cell);
    if (claims.held > limit - bytes) break;
    if (claims.asked <= limit - bytes - claims.held) {
      Add(cell, kind, place, bytes);
      taken = true;
      break;
    }
    // Higher cells see this one, and give way or have taken.
    others_first = claims.asked_before != 0;
    if (others_first) asked.store(0);
    Pause(tries);
  }
  asked.store(0);
  return taken;
}

void AccountPage::Add(uint32_t cell, MemoryKind kind, int place, uint64_t bytes) {
  if (place != kNoDevice) cells_[cell].on_device[place].fetch_add(bytes);
  cells_[cell].by_kind[static_cast<uint32_t>(kind)].fetch_add(bytes);
}

void AccountPage::Return(uint32_t cell, MemoryKind kind, int place, uint64_t bytes) {
  if (place != kNoDevice) cells_[cell].on_device[place].fetch_sub(bytes);
  cells_[cell].by_kind[static_cast<uint32_t>(kind)].fetch_sub(bytes);
}

uint64_t AccountPage::OnDevice(uint32_t cell, int place) const {
  return place == kNoDevice ? 0 : ClaimsOn(cells_[cell].device[place].load(), cell).held;
}

uint64_t AccountPage::OnDevice(const char uuid[16]) const {
  return ClaimsOn(HashOf(uuid), kAccountCells).held;
}

uint64_t AccountPage::OfKind(MemoryKind kind) const {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < cell_count(); ++i) sum += OfCell(i, kind);
  return sum;
}

uint64_t AccountPage::OnAllDevices() const {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < cell_count(); ++i) {
    for (const auto& bytes : cells_[i].on_device) sum += Bounded(bytes);
  }
  return sum;
}

uint64_t AccountPage::Refused() const {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < cell_count(); ++i) sum += Bounded(cells_[i].refused);
  return sum;
}

uint64_t AccountPage::OfCell(uint32_t cell, const char uuid[16]) const {
  return OfCell(cell, Find(cells_[cell], HashOf(uuid)));
}

uint64_t AccountPage::OfCell(uint32_t cell, MemoryKind kind) const {
  return Bounded(cells_[cell].by_kind[static_cast<uint32_t>(kind)]);
}

uint64_t AccountPage::OfCell(uint32_t cell, int place) const {
  return place == kNoDevice ? 0 : Bounded(cells_[cell].on_device[place]);
}

void AccountPage::Open(uint32_t cell) {
  if (cell_count_.load() <= cell) cell_count_.store(cell + 1);
}

void AccountPage::Close(uint32_t cell) {
  AccountCell& dead = cells_[cell];
  for (auto& bytes : dead.asked) bytes.store(0);
  for (auto& bytes : dead.on_device) bytes.store(0);
  for (auto& device : dead.device) device.store(0);
  for (auto& bytes : dead.by_kind) bytes.store(0);
  dead.refused.store(0);
  TurnCell& of = turns_[cell];
  for (auto& waits : of.waits) waits.store(0);
  for (TurnWords& turns : of.turns) {
    turns.submitted.store(0);
    turns.waiting.store(0);
    turns.unmarked.store(0);
    turns.slice_us.store(0);
    for (auto& sent : turns.sent) sent.store(0);
    for (auto& done : turns.done) done.store(0);
  }
  for (LinkWords& link : of.links) {
    for (auto& copied : link.copied) copied.store(0);
    for (auto& waiting : link.waiting) waiting.store(0);
    for (auto& direction : link.done) {
      for (auto& done : direction) done.store(0);
    }
  }
}

const GrantWords* AccountPage::GrantOn(uint64_t device) const {
  for (uint32_t place = 0; place < kAccountDevices; ++place) {
    if (granted_[place].load(std::memory_order_acquire) == device) return &grants_[place];
  }
  return nullptr;
}

GrantWords* AccountPage::MakeGrantOn(uint64_t device) {
  for (uint32_t place = 0; place < kAccountDevices; ++place) {
    uint64_t there = 0;
    if (granted_[place].compare_exchange_strong(there, device) || there == device) return &grants_[place];
  }
  return nullptr;
}

AccountPage* MapAccountPage(int descriptor, std::string* error) {
  struct stat info {};
  // A daemon of an earlier release made its pages without turn cells. This daemon may take such pages over, and makes them longer
  // because it writes to turn cells.
  const bool is_whole =
      fstat(descriptor, &info) == 0 && (info.st_size >= static_cast<off_t>(sizeof(AccountPage)) ||
                                        ftruncate(descriptor, sizeof(AccountPage)) == 0);
  void* mapped = is_whole ? mmap(nullptr, sizeof(AccountPage), PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_NORESERVE, descriptor, 0)
                          : MAP_FAILED;
  if (mapped != MAP_FAILED) return static_cast<AccountPage*>(mapped);
  *error = std::string("the page of what the VM holds cannot be mapped: ") + strerror(errno);
  return nullptr;
}

AccountPage* MapAccountPage(int descriptor, int reading, uint32_t cell, std::string* error) {
  struct stat info {};
  if (cell >= kAccountCells || fstat(descriptor, &info) != 0 ||
      info.st_size < static_cast<off_t>(kFirstAccountBytes)) {
    *error = "the session was assigned an impossible cell of what its VM holds";
    return nullptr;
  }
  const size_t there = std::min(static_cast<size_t>(info.st_size), sizeof(AccountPage));
  // What a daemon of an earlier release has not made is memory of this process, which nobody else reads: there are no turns then.
  void* all =
      mmap(nullptr, sizeof(AccountPage), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const auto own = [&](size_t page) {
    const size_t offset = page * kAccountPageBytes;
    const bool is_there = offset + kAccountPageBytes <= there;
    return mmap(static_cast<char*>(all) + offset, kAccountPageBytes, PROT_READ | PROT_WRITE,
                (is_there ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS) | MAP_FIXED, is_there ? descriptor : -1,
                is_there ? static_cast<off_t>(offset) : 0) != MAP_FAILED;
  };
  if (all != MAP_FAILED && mmap(all, there, PROT_READ, MAP_SHARED | MAP_FIXED, reading, 0) != MAP_FAILED &&
      own(1 + cell) && own(1 + kAccountCells + cell))
    return static_cast<AccountPage*>(all);
  *error = std::string("the page of what the VM holds cannot be mapped: ") + strerror(errno);
  return nullptr;
}

}  // namespace causeway
