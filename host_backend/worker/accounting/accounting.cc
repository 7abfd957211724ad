// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/accounting/accounting.h"

#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <iterator>

#include <algorithm>
#include <cstdlib>

#include "host_backend/worker/process/output.h"

namespace causeway::host {
namespace {

AccountPage* MapOwnPage() {
  void* mapped = mmap(nullptr, sizeof(AccountPage), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) std::abort();
  return static_cast<AccountPage*>(mapped);
}

}  // namespace

void Accounting::Unmap::operator()(AccountPage* page) const {
  munmap(page, sizeof *page);
}

bool Holding::Has(const ChargeRef& wanted) const {
  return charge == wanted || std::any_of(others.begin(), others.end(),
                                         [&](const Holding& other) { return other.charge == wanted; });
}

void Holding::Join(Holding more) {
  if (charge == nullptr) {
    *this = std::move(more);
  } else if (more.charge != nullptr) {
    std::move(more.others.begin(), more.others.end(), std::back_inserter(others));
    more.others.clear();
    others.push_back(std::move(more));
  }
}

Accounting::Accounting() : Accounting(MapOwnPage()) {
  own_page_.reset(page_);
}

Accounting::Accounting(AccountPage* page) : page_(page) {
  page_->Open(0);
  for (uint32_t device = 0; device < kAccountDevices; ++device) places_[device] = static_cast<int>(device);
}

void Accounting::Attach(AccountPage* page, uint32_t cell) {
  const Driver& driver = TheDriver();
  int count = 0;
  driver.cuDeviceGetCount(&count);
  std::fill(std::begin(places_), std::end(places_), kNoDevice);
  for (int device = 0; device < std::min<int>(count, kAccountDevices); ++device) {
    CUuuid uuid{};
    const auto ask = Has(driver.cuDeviceGetUuid_v2) ? driver.cuDeviceGetUuid_v2 : driver.cuDeviceGetUuid;
    if (ask(&uuid, device) != CUDA_SUCCESS) uuid.bytes[0] = static_cast<char>(1 + device);
    places_[device] = page->PlaceOf(cell, uuid.bytes);
  }
  page_ = page;
  cell_ = cell;
}

std::array<int, kAccountDevices> Accounting::places() const {
  std::array<int, kAccountDevices> all{};
  std::copy(std::begin(places_), std::end(places_), all.begin());
  return all;
}

int Accounting::Place(int device) const {
  return device < 0 || device >= static_cast<int>(kAccountDevices) ? kNoDevice : places_[device];
}

bool Accounting::TakeBytes(MemoryKind kind, int device, uint64_t bytes) {
  return page_->Take(cell_, kind, Place(device), bytes);
}

ChargeRef Accounting::Reserve(MemoryKind kind, int device, uint64_t bytes) {
  if (!TakeBytes(kind, device, bytes)) {
    const std::lock_guard lock(reservoirs_mutex_);
    if (!TakeOrTrim(kind, device, bytes)) return nullptr;
  }
  return std::make_shared<const Charge>(page_, cell_, kind, Place(device), bytes);
}

// The bytes are added before the sum is compared, so that of two workers which take at the same time at least one sees both amounts.
bool Accounting::TakePinned(uint64_t bytes, uint64_t most) {
  page_->Add(cell_, MemoryKind::kPinned, kNoDevice, bytes);
  if (page_->OfKind(MemoryKind::kPinned) <= most) return true;
  page_->Return(cell_, MemoryKind::kPinned, kNoDevice, bytes);
  page_->CountRefusal(cell_);
  return false;
}

// At most a line every 5 s: a program may try for ever.
void Accounting::Refuse(int device, uint64_t bytes) {
  page_->CountRefusal(cell_);
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  int64_t before = said_at_s_.load();
  if (now.tv_sec - before < 5 || !said_at_s_.compare_exchange_strong(before, now.tv_sec)) return;
  dprintf(
      Output::LogFd(),
      "causeway-worker[%d]: %llu bytes more on GPU %d would be more than the %llu MiB of device_memory_mib "
      "(%llu MiB are held): the call gets CUDA_ERROR_OUT_OF_MEMORY; raise it in causewayd's configuration\n",
      getpid(), static_cast<unsigned long long>(bytes), device,
      static_cast<unsigned long long>(limit_bytes() >> 20),
      static_cast<unsigned long long>(page_->OnDevice(cell_, Place(device)) >> 20));
}

void Accounting::Hold(ChargeSpace space, uint64_t key, ChargeRef charge, bool in_context) {
  Holding holding{.charge = std::move(charge)};
  CUcontext current = nullptr;
  CUdevice device = kNoDevice;
  if (in_context && TheDriver().cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != nullptr &&
      TheDriver().cuCtxGetDevice(&device) == CUDA_SUCCESS) {
    holding.device = device;
  }
  {
    const std::lock_guard lock(mutex_);
    if (contexts_.count(current) != 0) holding.context = current;
  }
  Hold(space, key, std::move(holding));
}

void Accounting::Hold(ChargeSpace space, uint64_t key, Holding holding) {
  const std::lock_guard lock(mutex_);
  holdings_[{space, key}].Join(std::move(holding));
}

bool Accounting::HoldAgain(ChargeSpace space, uint64_t key) {
  const std::lock_guard lock(mutex_);
  const auto found = holdings_.find({space, key});
  if (found == holdings_.end()) return false;
  ++found->second.references;
  return true;
}

Holding Accounting::Find(ChargeSpace space, uint64_t key) const {
  const std::lock_guard lock(mutex_);
  const auto found = holdings_.find({space, key});
  if (found == holdings_.end()) return {};
  Holding copy = found->second;
  copy.references = 1;
  return copy;
}

Holding Accounting::FindAround(ChargeSpace space, uint64_t address) const {
  const std::lock_guard lock(mutex_);
  const auto after = holdings_.upper_bound({space, address});
  if (after == holdings_.begin()) return {};
  const auto& [key, holding] = *std::prev(after);
  const uint64_t bytes = holding.Most([](const Charge& charge) { return charge.bytes(); });
  if (key.first != space || address - key.second >= bytes) return {};
  Holding copy = holding;
  copy.references = 1;
  return copy;
}

Holding Accounting::Take(ChargeSpace space, uint64_t key) {
  const std::lock_guard lock(mutex_);
  const auto found = holdings_.find({space, key});
  if (found == holdings_.end()) return {};
  Holding taken = found->second;
  taken.references = 1;
  if (--found->second.references == 0) holdings_.erase(found);
  return taken;
}

void Accounting::PutBack(ChargeSpace space, uint64_t key, Holding holding) {
  if (holding.charge == nullptr) return;
  const std::lock_guard lock(mutex_);
  Holding& held = holdings_[{space, key}];
  if (held.Has(holding.charge)) {
    ++held.references;
  } else {
    held.Join(std::move(holding));
  }
}

void Accounting::Drop(ChargeSpace space, uint64_t key, const ChargeRef& charge) {
  const std::lock_guard lock(mutex_);
  const auto found = holdings_.find({space, key});
  if (found == holdings_.end()) return;
  if (EndPart(found->second, [&](const Holding& holding) { return holding.charge == charge; }))
    holdings_.erase(found);
}

std::vector<std::pair<uint64_t, Holding>> Accounting::TakeRange(ChargeSpace space, uint64_t first,
                                                                uint64_t count) {
  std::vector<std::pair<uint64_t, Holding>> taken;
  const std::lock_guard lock(mutex_);
  const auto begin = holdings_.lower_bound({space, first});
  auto end = begin;
  for (; end != holdings_.end() && end->first.first == space && end->first.second - first < count; ++end)
    taken.emplace_back(end->first.second, std::move(end->second));
  holdings_.erase(begin, end);
  return taken;
}

uint64_t Accounting::OwnOnDevice(int device) const {
  const int place = Place(device);
  return page_->OfCell(cell_, place);
}

void Accounting::ContextBegins(CUcontext context) {
  const std::lock_guard lock(mutex_);
  contexts_.insert(context);
}

// Whether nothing of it is left.
bool Accounting::EndPart(Holding& holding, const std::function<bool(const Holding&)>& ends) {
  std::erase_if(holding.others, ends);
  if (!ends(holding)) return false;
  if (holding.others.empty()) return true;
  Holding left = std::move(holding.others.back());
  holding.others.pop_back();
  left.references = holding.references;
  left.others = std::move(holding.others);
  holding = std::move(left);
  return false;
}

void Accounting::EndWhere(const std::function<bool(const Holding&)>& ends) {
  {
    const std::lock_guard lock(mutex_);
    for (auto next = holdings_.begin(); next != holdings_.end();) {
      const auto each = next++;
      if (EndPart(each->second, ends)) holdings_.erase(each);
    }
  }
  Refresh();
}

void Accounting::ContextEnds(CUcontext context) {
  EndWhere([context](const Holding& holding) { return holding.context == context; });
  const std::lock_guard lock(mutex_);
  contexts_.erase(context);
}

void Accounting::PrimaryEnds(CUdevice device) {
  EndWhere(
      [device](const Holding& holding) { return holding.device == device && holding.context == nullptr; });
}

void Accounting::LimitInfo(CUdevice device, size_t* free, size_t* total) {
  const uint64_t limit = limit_bytes();
  if (limit == 0) return;
  Refresh();
  const uint64_t held = page_->OnDevice(cell_, Place(device));
  if (free != nullptr) *free = std::min<uint64_t>(*free, held < limit ? limit - held : 0);
  if (total != nullptr) *total = TotalBytes(*total);
}

uint64_t Accounting::TotalBytes(uint64_t bytes) const {
  const uint64_t limit = limit_bytes();
  return limit == 0 ? bytes : std::min(bytes, limit);
}

Accounting& TheAccounting() {
  static auto& accounting = *new Accounting;  // threads use it to the end
  return accounting;
}

}  // namespace causeway::host
