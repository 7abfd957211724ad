// SPDX-License-Identifier: Apache-2.0
// The daemon's loads and stores in shared memory: all of them are here.
#include "host_backend/daemon/region/region.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "host_backend/daemon/loop/worker_fd.h"
#include "ivshmem_ring/release/build_stamp.h"
#include "ivshmem_ring/system/futex.h"

namespace causeway::daemon {
namespace {

// Copies what another process may be writing. The barrier keeps the compiler from reading it again later.
void CopyOut(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  asm volatile("" ::: "memory");
}

// Partner: the store with release in the guest's kernel module (or library, where it owns the region).
template <typename T>
T LoadAcquire(T& word) {
  return std::atomic_ref<T>(word).load(std::memory_order_acquire);
}

// Partner: the load with acquire in the guest's kernel module and library.
template <typename T>
void StoreRelease(T& word, T value) {
  std::atomic_ref<T>(word).store(value, std::memory_order_release);
}

// A file system in memory that nobody else sees, whose files get pages of 2 MiB where the kernel has some at
// hand. -1 where this process may not mount.
int MountHugePages() {
  const UniqueFd made(fsopen("tmpfs", FSOPEN_CLOEXEC));
  if (!made || fsconfig(made.get(), FSCONFIG_SET_STRING, "huge", "always", 0) != 0 ||
      fsconfig(made.get(), FSCONFIG_SET_STRING, "size", "0", 0) != 0 ||  // no limit, as for memory files
      fsconfig(made.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) {
    return -1;
  }
  return fsmount(made.get(), FSMOUNT_CLOEXEC, 0);
}

int HugePages() {
  static const int mount = MountHugePages();
  return mount;
}

// It cannot be sealed. Whoever truncates it loses its own worker; the daemon's mapping is guarded.
UniqueFd HugePageFile(uint64_t bytes) {
  const int mount = HugePages();
  UniqueFd file(mount >= 0 ? openat(mount, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : -1);
  if (file && ftruncate(file.get(), off_t(bytes)) != 0) return {};
  return file;
}

UniqueFd SealedFile(uint64_t bytes) {
  UniqueFd file(memfd_create("causeway-region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file || ftruncate(file.get(), off_t(bytes)) != 0 ||
      fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
      // Its worker becomes another user, and cannot open it again by /proc.
      fchmod(file.get(), 0600) != 0) {
    return {};
  }
  return file;
}

bool IsDevice(int fd) {
  struct stat found {};
  return fstat(fd, &found) == 0 && S_ISCHR(found.st_mode);
}

bool AllZero(const std::byte* data, size_t bytes) {
  return std::all_of(data, data + bytes, [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

uint32_t Crc32(const void* data, size_t bytes) {
  uint32_t crc = ~uint32_t{0};
  const auto* at = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) {
    crc ^= at[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xedb88320u : 0u);
  }
  return ~crc;
}

uint64_t RandomWord() {
  uint64_t word = 0;
  if (getrandom(&word, sizeof(word), 0) != sizeof(word)) {
    std::perror("causewayd: getrandom");
    std::abort();
  }
  return word;
}

RegionIdentity NewIdentity() {
  RegionIdentity identity;
  do {
    identity.host_epoch = RandomWord();
  } while (identity.host_epoch == 0);
  const uint64_t words[2] = {RandomWord(), RandomWord()};
  std::memcpy(identity.uuid.data(), words, sizeof(words));
  return identity;
}

Region::Region(UniqueFd fd, uint64_t bytes, std::byte* base, size_t mapped_bytes)
    : fd_(std::move(fd)),
      bytes_(bytes),
      base_(base),
      mapped_bytes_(mapped_bytes),
      guard_(base, mapped_bytes),
      granted_(IsDevice(fd_.get())) {
  // Opened once more, a device of grants would be another one, without any memory.
  reading_fd_.reset(granted_
                        ? fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0)
                        : open(("/proc/self/fd/" + std::to_string(fd_.get())).c_str(), O_RDONLY | O_CLOEXEC));
}

Region::~Region() {
  // Before its file is closed, which frees the memory where nobody else has it: many GiB take a while.
  munmap(base_, mapped_bytes_);
  if (discard_at_end_) {
    DiscardAside(std::move(fd_), int64_t{kGranuleBytes});
  } else {
    CloseAside(std::move(fd_));
  }
  CloseAside(std::move(reading_fd_));
}

Result<std::unique_ptr<Region>> Region::Map(UniqueFd fd, uint64_t region_bytes, const std::string& name) {
  if (SlotCount(region_bytes) == 0)
    return Error{"The region " + name + " has no room for a slot: " + std::to_string(region_bytes) +
                 " bytes."};
  const size_t mapped = FirstSliceOffset(SlotCount(region_bytes));
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return Error{"The region " + name + " cannot be mapped: " + ErrnoText() + "."};
  madvise(base, mapped, MADV_NOHUGEPAGE);  // little of it is ever used
  return std::unique_ptr<Region>(
      new Region(std::move(fd), region_bytes, static_cast<std::byte*>(base), mapped));
}

bool Region::UseHugePages() {
  return HugePages() >= 0;
}

Result<std::unique_ptr<Region>> Region::Create(uint64_t region_bytes) {
  UniqueFd fd = HugePageFile(region_bytes);
  if (!fd) fd = SealedFile(region_bytes);
  if (!fd) {
    return Error{"A memory file of " + std::to_string(region_bytes >> 20) +
                 " MiB for a session cannot be made: " + ErrnoText() + "."};
  }
  return Map(std::move(fd), region_bytes, "of a local session");
}

HostPage& Region::host_page() const {
  return *reinterpret_cast<HostPage*>(base_ + kHostPageOffset);
}
GuestPage& Region::guest_page() const {
  return *reinterpret_cast<GuestPage*>(base_ + kGuestPageOffset);
}
HostControl& Region::host_control(uint32_t slot) const {
  return *reinterpret_cast<HostControl*>(base_ + SlotOffset(slot) + kHostControlOffset);
}

GuestControl& Region::guest_control(uint32_t slot) const {
  return *reinterpret_cast<GuestControl*>(base_ + SlotOffset(slot) + kGuestControlOffset);
}

bool Region::IsBlank() const {
  return AllZero(base_, kGuestPageOffset);
}

bool Region::HasMagic() const {
  Superblock block;
  CopyOut(&block, base_ + kSuperblockOffset, sizeof(block));
  return block.magic == kRegionMagic;
}

bool Region::IsOurs() const {
  Superblock block;
  CopyOut(&block, base_ + kSuperblockOffset, sizeof(block));
  return block.magic == kRegionMagic && block.abi_major == kAbiMajor && block.region_bytes == bytes_ &&
         block.crc32 == Crc32(&block, offsetof(Superblock, crc32));
}

Superblock Region::BlockOf(const RegionIdentity& identity) const {
  Superblock block{};
  block.magic = kRegionMagic;
  block.abi_major = kAbiMajor;
  block.abi_minor = kAbiMinor;
  block.header_bytes = sizeof(Superblock);
  block.region_bytes = bytes_;
  block.host_epoch = identity.host_epoch;
  block.features = kHostChoosesWorker;
  block.api_hash = kBuildStamp.api_hash;
  block.slot_count = slot_count();
  block.granule_bytes = kGranuleBytes;
  block.granule_count = granule_count();
  block.channel_count = kChannelCount;
  block.window_address = kDefaultWindowAddress;
  std::memcpy(block.uuid, identity.uuid.data(), sizeof(block.uuid));
  block.crc32 = Crc32(&block, offsetof(Superblock, crc32));
  return block;
}

void Region::Resume(const std::map<uint32_t, uint32_t>& words) {
  Superblock old;
  CopyOut(&old, base_ + kSuperblockOffset, sizeof(old));
  RegionIdentity identity{old.host_epoch, {}};
  std::copy(std::begin(old.uuid), std::end(old.uuid), identity.uuid.begin());
  const Superblock block = BlockOf(identity);
  for (uint32_t slot = 0; slot < kMaxSlots; ++slot) {
    const auto live = words.find(slot);
    const uint32_t there = LoadAcquire(host_page().slot[slot]);
    const bool closed = SlotState(there) == uint32_t(SlotHostState::kClosed);
    const auto ended = uint32_t(closed ? SlotHostState::kClosed : SlotHostState::kFatal);
    StoreHostWord(slot, live != words.end() ? live->second : SlotWord(SlotSession(there), ended));
  }
  beat_ = LoadAcquire(host_page().beat);
  if (std::memcmp(&old, &block, sizeof(block)) != 0)
    std::memcpy(base_ + kSuperblockOffset, &block, sizeof(block));
}

void Region::Format(const RegionIdentity& identity, bool keep_words) {
  const Superblock block = BlockOf(identity);
  HostPage& page = host_page();
  StoreRelease(page.state, HostState::kStarting);
  for (uint32_t slot = 0; slot < kMaxSlots; ++slot) {
    // A slot that was not closed stays so: its memory has not been zeroed, and CLOSED would give it away.
    const uint32_t old = keep_words ? LoadAcquire(page.slot[slot]) : 0;
    const bool closed = SlotState(old) == uint32_t(SlotHostState::kClosed);
    StoreHostWord(
        slot, SlotWord(SlotSession(old), uint32_t(closed ? SlotHostState::kClosed : SlotHostState::kFatal)));
  }
  StoreRelease(page.beat, uint64_t{0});
  StoreRelease(page.reset_acknowledged, uint64_t{0});
  page.doorbell = 0;
  std::memset(page.reserved1, 0, sizeof(page.reserved1));
  std::memcpy(base_ + kSuperblockOffset, &block, sizeof(block));
}

void Region::ClearGuestPart() {
  std::memset(base_ + kGuestPageOffset, 0, sizeof(GuestPage));
  std::memset(base_ + kOwnerTableOffset, 0, sizeof(uint16_t) * kMaxGranules);
}

void Region::SetState(HostState state) {
  StoreRelease(host_page().state, state);
}
void Region::SetDoorbell(bool rings) {
  StoreRelease(host_page().doorbell, uint32_t{rings});
}
void Region::Beat() {
  StoreRelease(host_page().beat, ++beat_);
}
uint64_t Region::LoadGuestEpoch() const {
  return LoadAcquire(guest_page().epoch);
}
uint64_t Region::LoadGuestFeatures() const {
  return LoadAcquire(guest_page().features);
}
void Region::StoreResetAcknowledged(uint64_t epoch) {
  StoreRelease(host_page().reset_acknowledged, epoch);
}
uint32_t Region::LoadGuestWord(uint32_t slot) const {
  return LoadAcquire(guest_page().slot[slot]);
}
uint64_t Region::QueuedBytes(uint32_t slot) const {
  const uint64_t head = LoadAcquire(host_control(slot).main_head.value);
  const uint64_t tail = LoadAcquire(guest_control(slot).main_tail.value);
  return tail <= head ? 0 : std::min(tail - head, kMainRingBytes);
}
uint32_t Region::LoadGuestPid(uint32_t slot) const {
  return LoadAcquire(guest_page().pid[slot]);
}
uint32_t Region::LoadGuestUid(uint32_t slot) const {
  return LoadAcquire(guest_page().uid[slot]);
}

void Region::StoreHostWord(uint32_t slot, uint32_t word) {
  host_words_[slot] = word;
  StoreRelease(host_page().slot[slot], word);
}

OpenBlock Region::CopyOpenBlock(uint32_t slot) const {
  OpenBlock block;
  CopyOut(&block, base_ + SlotOffset(slot) + kGuestControlOffset + offsetof(GuestControl, open),
          sizeof(block));
  return block;
}

std::string Region::CopyFlight(uint32_t slot) const {
  std::string bytes(sizeof(FlightImage), '\0');
  CopyOut(bytes.data(), base_ + SlotOffset(slot) + kGuestFlightOffset, bytes.size());
  return bytes;
}

void Region::ClearHostControl(uint32_t slot) {
  std::memset(&host_control(slot), 0, sizeof(HostControl));
}

void Region::SetSleepWord(uint32_t slot, std::shared_ptr<const SleepWord> word) {
  const std::lock_guard lock(sleep_mutex_);
  sleep_words_[slot] = std::move(word);
}

Region::Wakes Region::WakeSleepers(uint32_t slot) const {
  Wakes wakes;
  bool due = false;
  const auto wake = [&](HotWord& tail, HotWord& head, HotWord& waiting) {
    if (LoadAcquire(waiting.value) == 0 || LoadAcquire(tail.value) == LoadAcquire(head.value)) return;
    due = true;
    if (granted_) return;
    const bool any = FutexWake(&tail.value, 1, FutexOf::kAllProcesses) > 0;
    ++(any ? wakes.woken : wakes.vain);
  };
  GuestControl& guest = guest_control(slot);
  HostControl& host = host_control(slot);
  wake(guest.main_tail, host.main_head, host.main_waiting);
  for (uint64_t open = LoadAcquire(host.open_channels.value); open != 0; open &= open - 1) {
    const int i = std::countr_zero(open);
    wake(guest.channel[i].request_tail, host.channel[i].request_head, host.channel[i].waiting);
  }
  if (!due || !granted_) return wakes;
  std::shared_ptr<const SleepWord> word;
  {
    const std::lock_guard lock(sleep_mutex_);
    if (const auto found = sleep_words_.find(slot); found != sleep_words_.end()) word = found->second;
  }
  wakes.woken = word != nullptr ? word->Wake() : 0;
  wakes.vain = wakes.woken == 0 ? 1 : 0;
  return wakes;
}

void Region::WriteRefusal(uint32_t slot, std::string_view sentence) {
  char(&field)[sizeof(HostControl::refusal)] = host_control(slot).refusal;
  const size_t bytes = std::min(sentence.size(), sizeof(field) - 1);
  std::memcpy(field, sentence.data(), bytes);
  std::memset(field + bytes, 0, sizeof(field) - bytes);
}

void Region::WriteRefusalIfEmpty(uint32_t slot, std::string_view sentence) {
  if (LoadAcquire(host_control(slot).refusal[0]) == '\0') WriteRefusal(slot, sentence);
}

OwnerTable Region::CopyOwnerTable() const {
  OwnerTable owners(granule_count());
  CopyOut(owners.data(), base_ + kOwnerTableOffset, owners.size() * sizeof(owners[0]));
  return owners;
}

bool Region::IsLent(uint32_t slot, uint64_t offset, uint64_t bytes) const {
  if (bytes == 0 || offset < FirstSliceOffset(slot_count()) || offset > bytes_ || bytes > bytes_ - offset)
    return false;
  const uint64_t first = offset / kGranuleBytes;
  OwnerTable owners((offset + bytes + kGranuleBytes - 1) / kGranuleBytes - first);
  CopyOut(owners.data(), base_ + kOwnerTableOffset + first * sizeof(owners[0]),
          owners.size() * sizeof(owners[0]));
  return !broken() &&
         std::all_of(owners.begin(), owners.end(), [slot](uint16_t owner) { return owner == slot + 1; });
}

bool Region::ZeroGranules(uint32_t first, uint32_t count) {
  const uint64_t offset = uint64_t{first} * kGranuleBytes;
  const uint64_t bytes = uint64_t{count} * kGranuleBytes;
  if (granted_) {
    bool good = true;
    for (uint64_t done = 0; done < bytes; done += kGranuleBytes) good = WriteZeroes(offset + done) && good;
    return good;
  }
  if (fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(offset), off_t(bytes)) == 0)
    return true;
  // A file system without holes: zeroes are written instead.
  const std::vector<char> zeroes(kGranuleBytes);
  for (uint64_t done = 0; done < bytes; done += kGranuleBytes) {
    if (pwrite(fd_.get(), zeroes.data(), kGranuleBytes, off_t(offset + done)) != ssize_t(kGranuleBytes))
      return false;
  }
  return true;
}

bool Region::WriteZeroes(uint64_t offset) {
  void* granule = mmap(nullptr, kGranuleBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), off_t(offset));
  if (granule == MAP_FAILED) return false;
  std::memset(granule, 0, kGranuleBytes);
  munmap(granule, kGranuleBytes);
  return true;
}

std::vector<GranuleRange> Region::SlotMemory(uint32_t slot, const OwnerTable& owners) const {
  std::vector<GranuleRange> ranges{{1 + slot, 1}};
  const uint32_t first_slice = 1 + slot_count();
  for (uint32_t granule = first_slice; granule < owners.size();) {
    if (owners[granule] != slot + 1) {
      ++granule;
      continue;
    }
    uint32_t end = granule + 1;
    while (end < owners.size() && owners[end] == slot + 1) ++end;
    ranges.push_back({granule, end - granule});
    granule = end;
  }
  return ranges;
}

}  // namespace causeway::daemon
