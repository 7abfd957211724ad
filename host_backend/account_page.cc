// SPDX-License-Identifier: Apache-2.0
// Reserving, adding, summing.
#include "host_backend/account_page.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace causeway {

int AccountPage::PlaceOf(const char uuid[16]) {
  uint64_t hash = 0xcbf29ce484222325;
  for (int i = 0; i < 16; ++i) hash = (hash ^ static_cast<unsigned char>(uuid[i])) * 0x100000001b3;
  hash |= 1;  // never 0
  for (uint32_t place = 0; place < kAccountDevices; ++place) {
    uint64_t there = 0;
    // One word says it all: a worker that dies here leaves the place free or taken, never half.
    if (places_[place].compare_exchange_strong(there, hash) || there == hash) return static_cast<int>(place);
  }
  return kNoDevice;
}

// Bounded: the holder is between two loads and a store, or stopped, and then its VM alone waits for it.
bool AccountPage::BeginReserving(uint32_t cell) {
  constexpr uint32_t kSpins = 100, kYields = 10'000, kSleeps = 20'000;
  for (uint32_t tries = 0; tries < kSleeps; ++tries) {
    uint32_t nobody = 0;
    // Partner: the release in Take, and Close for a worker that died.
    if (reserving_.compare_exchange_weak(nobody, cell + 1, std::memory_order_acquire)) return true;
    if (tries > kYields) {
      usleep(100);
    } else if (tries > kSpins) {
      sched_yield();
    }
  }
  return false;
}

bool AccountPage::Take(uint32_t cell, MemoryKind kind, int place, uint64_t bytes) {
  const uint64_t limit = limit_bytes();
  if (limit != 0 && place != kNoDevice) {
    if (!BeginReserving(cell)) return false;
    // Others can only return meanwhile.
    const uint64_t held = OnDevice(place);
    const bool fits = held <= limit && bytes <= limit - held;
    if (fits) Add(cell, kind, place, bytes);
    reserving_.store(0, std::memory_order_release);  // partner: BeginReserving
    return fits;
  }
  Add(cell, kind, place, bytes);
  return true;
}

void AccountPage::Add(uint32_t cell, MemoryKind kind, int place, uint64_t bytes) {
  if (place != kNoDevice) cells_[cell].on_device[place].fetch_add(bytes);
  cells_[cell].by_kind[static_cast<uint32_t>(kind)].fetch_add(bytes);
}

void AccountPage::Return(uint32_t cell, MemoryKind kind, int place, uint64_t bytes) {
  if (place != kNoDevice) cells_[cell].on_device[place].fetch_sub(bytes);
  cells_[cell].by_kind[static_cast<uint32_t>(kind)].fetch_sub(bytes);
}

uint64_t AccountPage::OnDevice(int place) const {
  if (place == kNoDevice) return 0;
  uint64_t sum = 0;
  const uint32_t count = std::min(cell_count_.load(), kAccountCells);
  for (uint32_t i = 0; i < count; ++i) sum += cells_[i].on_device[place].load();
  return sum;
}

uint64_t AccountPage::OfKind(MemoryKind kind) const {
  uint64_t sum = 0;
  const uint32_t count = std::min(cell_count_.load(), kAccountCells);
  for (uint32_t i = 0; i < count; ++i) sum += cells_[i].by_kind[static_cast<uint32_t>(kind)].load();
  return sum;
}

void AccountPage::Open(uint32_t cell) {
  if (cell_count_.load() <= cell) cell_count_.store(cell + 1);
}

void AccountPage::Close(uint32_t cell) {
  uint32_t dead = cell + 1;
  reserving_.compare_exchange_strong(dead, 0);
  for (auto& bytes : cells_[cell].on_device) bytes.store(0);
  for (auto& bytes : cells_[cell].by_kind) bytes.store(0);
  cells_[cell].refused.store(0);
}

AccountPage* MapAccountPage(int descriptor, std::string* error) {
  struct stat info {};
  void* mapped = MAP_FAILED;
  if (fstat(descriptor, &info) == 0 && info.st_size >= static_cast<off_t>(sizeof(AccountPage)))
    mapped = mmap(nullptr, sizeof(AccountPage), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) {
    *error = std::string("the page of what the VM holds cannot be mapped: ") + strerror(errno);
    return nullptr;
  }
  return static_cast<AccountPage*>(mapped);
}

}  // namespace causeway
