// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/connection/region_connection.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "guest_lib/process/log.h"
#include "ivshmem_ring/hosts/dial.h"
#include "ivshmem_ring/release/build_stamp.h"
#include "ivshmem_ring/release/other_release.h"
#include "ivshmem_ring/system/huge_pages.h"
#include "ivshmem_ring/transport/ring_transport.h"
#include "ivshmem_ring/transport/waiter.h"

extern char** environ;

namespace causeway::guest {
namespace {

constexpr uint64_t kOpenTimeoutMs = 90'000;  // a worker may have to start the driver first

uint64_t NowMs() {
  return NowUs() / 1000;
}

// NAME=VALUE pairs of this process that NVIDIA's driver reads, NUL-terminated each, at most kOpenTextBytes.
std::string DriverEnvironment() {
  std::string result;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    const std::string_view entry(*at);
    // CUDA_INJECTION*, CUDA_MPS* name files and pipes of this machine.
    if (!entry.starts_with("CUDA_") || entry.starts_with("CUDA_INJECTION") || entry.starts_with("CUDA_MPS") ||
        entry.starts_with("CUDA_HOME=") || entry.starts_with("CUDA_PATH") ||
        entry.starts_with("CUDA_VERSION="))
      continue;
    if (result.size() + entry.size() + 1 <= kOpenTextBytes) result.append(entry).push_back('\0');
  }
  return result;
}

std::string Hex(uint64_t value) {
  char text[32];
  snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

constexpr uint64_t kWindowStep = 0x100'0000'0000;

// The candidates are measured to be free of driver, heap and stack mappings.
uint64_t ReserveWindow(uint64_t bytes, uint64_t first) {
  for (uint64_t at = first; at < 0x5000'0000'0000; at += kWindowStep) {
    auto* address = reinterpret_cast<void*>(at);
    void* got = mmap(address, bytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got == address) return at;
    if (got != MAP_FAILED) munmap(got, bytes);
  }
  return 0;
}

}  // namespace

RegionConnection::~RegionConnection() {
  transport.reset();
  if (granule0_ != nullptr) munmap(granule0_, kGranuleBytes);
  if (slot_base_ != nullptr) munmap(slot_base_, kGranuleBytes);
  if (window_address != 0) munmap(reinterpret_cast<void*>(window_address), region_bytes);
  if (fd_ >= 0) close(fd_);
}

void RegionConnection::Abandon() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

bool RegionConnection::Map(uint32_t slot, bool granule0_writable, std::string* error) {
  slot_ = slot;
  void* first = mmap(nullptr, kGranuleBytes, granule0_writable ? PROT_READ | PROT_WRITE : PROT_READ,
                     MAP_SHARED, fd_, 0);
  if (first == MAP_FAILED) {
    *error = std::string("cannot map the region: ") + strerror(errno);
    return false;
  }
  granule0_ = static_cast<std::byte*>(first);
  madvise(first, kGranuleBytes, MADV_DONTFORK);
  madvise(first, kGranuleBytes, MADV_NOHUGEPAGE);  // little of it is used
  const Superblock& block = superblock();
  if (block.magic != kRegionMagic || block.abi_major != kAbiMajor) {
    *error = "the region is not formatted by a causewayd of this version (magic " + Hex(block.magic) +
             ", ABI " + std::to_string(block.abi_major) + ", this library has ABI " +
             std::to_string(kAbiMajor) + "): start causewayd, or " + kSameReleaseNeeded;
    return false;
  }
  if (block.api_hash != kBuildStamp.api_hash && (block.features & kHostChoosesWorker) == 0) {
    *error =
        "the host's causewayd (version 1." + std::to_string(block.abi_minor) + " of the region, rows " +
        Hex(block.api_hash) + ") serves libraries of its own release alone, and this one is of release " +
        std::string(kBuildStamp.release) + " (rows " + Hex(kBuildStamp.api_hash) + "): " + kSameReleaseNeeded;
    return false;
  }
  epoch_ = block.host_epoch;
  region_bytes = block.region_bytes;
  void* rings = mmap(nullptr, kGranuleBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_,
                     static_cast<off_t>(SlotOffset(slot)));
  if (rings == MAP_FAILED) {
    *error = std::string("cannot map the slot: ") + strerror(errno);
    return false;
  }
  slot_base_ = static_cast<std::byte*>(rings);
  madvise(rings, kGranuleBytes, MADV_DONTFORK);
  madvise(rings, kGranuleBytes, MADV_NOHUGEPAGE);
  // Without those of graphs: the worker clears a pair before it uses it.
  memset(static_cast<void*>(callback_words()), 0, offsetof(CallbackWords, graph));
  const uint64_t preferred = block.window_address != 0 ? block.window_address : kDefaultWindowAddress;
  window_address = ReserveWindow(region_bytes, preferred);
  if (window_address == 0) {
    *error = "no room in this process's address space for a window of " + std::to_string(region_bytes >> 20) +
             " MiB: something has mapped all of the places from " + Hex(preferred) + " on";
    return false;
  }
  return true;
}

bool RegionConnection::MoveWindow() {
  const uint64_t moved = ReserveWindow(region_bytes, window_address + kWindowStep);
  if (moved == 0) return false;
  munmap(reinterpret_cast<void*>(window_address), region_bytes);
  window_address = moved;
  return true;
}

void FillOpenBlockFields(OpenBlock* block, SessionKind kind, uint64_t window) {
  // Management shows all of the VM's GPUs, whatever CUDA_VISIBLE_DEVICES says.
  const std::string environment = kind == SessionKind::kCuda ? DriverEnvironment() : "";
  StateOpening(block, kind);
  block->window_address = window;
  block->environment_bytes = static_cast<uint32_t>(environment.size());
  memcpy(block->environment, environment.data(), environment.size());
}

void RegionConnection::FillOpenBlock() {
  FillOpenBlockFields(&reinterpret_cast<GuestControl*>(slot_base_ + kGuestControlOffset)->open, kind_,
                      window_address);
}

bool RegionConnection::HostIsAway(HostSilence& silence) {
  const auto beat = [this] { return LoadAcquire(host_page().beat); };
  const auto ask = [this] { return AskForBeat(); };
  const bool stopped = host_page().state == HostState::kStopped;
  const HostSilence::Verdict verdict = silence.Look(NowMs, beat, ask, stopped);
  if (verdict == HostSilence::Verdict::kSay)
    Complain(
        "waits for the host's causewayd, which is silent; it may be being replaced, and is given up after " +
        std::to_string(BeatWatch::kTimeoutMs / 1000) + " s");
  return verdict == HostSilence::Verdict::kEnd;
}

bool RegionConnection::AwaitHost(std::string* error) {
  const auto* host = reinterpret_cast<const HostControl*>(slot_base_ + kHostControlOffset);
  const uint64_t begin = NowMs();
  HostSilence silence;
  while (NowMs() - begin < kOpenTimeoutMs) {
    const uint32_t word = LoadAcquire(host_page().slot[slot_]);
    if (SlotSession(word) == session_) {
      const auto state = static_cast<SlotHostState>(SlotState(word));
      if (state == SlotHostState::kServing) return true;
      if (state == SlotHostState::kRefused || state == SlotHostState::kFatal) {
        *error = "the host refused the session: " +
                 std::string(host->refusal, strnlen(host->refusal, sizeof host->refusal));
        return false;
      }
    }
    if (const std::string reason = LinkLoss(); !reason.empty()) {
      *error = reason;
      return false;
    }
    if (!LinkTellsAll() && HostIsAway(silence)) {
      *error = "the host is silent: is causewayd running? There `systemctl start causewayd` starts it";
      return false;
    }
    // A spare serves within a millisecond or two. One whose driver still starts takes a hundred and more, and
    // many processes may wait at once: each looks less often then, and is told at most 3 % late.
    constexpr uint64_t kLeastUs = 100, kMostUs = 2000, kPart = 32;
    usleep(static_cast<useconds_t>(std::clamp((NowMs() - begin) * 1000 / kPart, kLeastUs, kMostUs)));
  }
  *error = "the host did not answer within " + std::to_string(kOpenTimeoutMs / 1000) +
           " s, although causewayd runs: its log says why (journalctl -u causewayd)";
  return false;
}

std::string RegionConnection::Loss() {
  const uint32_t word = LoadAcquire(host_page().slot[slot_]);
  if (SlotSession(word) != session_ ||
      static_cast<SlotHostState>(SlotState(word)) != SlotHostState::kServing) {
    const auto* host = reinterpret_cast<const HostControl*>(slot_base_ + kHostControlOffset);
    const std::string why(host->refusal, strnlen(host->refusal, sizeof host->refusal));
    return why.empty() ? "the host ended the session" : why;
  }
  if (superblock().host_epoch != epoch_) return "causewayd was restarted";
  if (LinkTellsAll()) return LinkLoss();
  const auto beat = [this] { return LoadAcquire(host_page().beat); };
  if (beats_.IsMissing(NowMs, beat, [this] { return AskForBeat(); })) return "causewayd has stopped";
  return LinkLoss();
}

void RegionConnection::MakeTransport(bool futex, const Bell* bell) {
  if (!futex) PeerIsElsewhere();
  RingClientOptions options;
  options.slot = slot_base_;
  options.futex = futex;
  options.bell = bell;
  options.loss = [this] { return Loss(); };
  transport = std::make_unique<RingClient>(std::move(options));
}

std::byte* RegionConnection::MapSlices(uint64_t offset, uint64_t bytes) {
  auto* address = reinterpret_cast<void*>(window_address + offset);
  void* got =
      mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_, static_cast<off_t>(offset));
  if (got != address) return nullptr;
  if (!WantsHugePages(bytes)) madvise(got, bytes, MADV_NOHUGEPAGE);
  madvise(got, bytes, MADV_DONTFORK);
  return static_cast<std::byte*>(got);
}

bool RegionConnection::MapPages(std::byte* at, uint64_t offset, uint64_t bytes) {
  void* got =
      mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_, static_cast<off_t>(offset));
  if (got == at && !WantsHugePages(bytes)) madvise(at, bytes, MADV_NOHUGEPAGE);
  return got == at;
}

bool RegionConnection::FileIdentity(uint64_t* device, uint64_t* inode) {
  struct stat info;
  if (fstat(fd_, &info) != 0) return false;
  *device = info.st_dev;
  *inode = info.st_ino;
  return true;
}

void RegionConnection::UnmapSlices(uint64_t offset, uint64_t bytes) {
  mmap(reinterpret_cast<void*>(window_address + offset), bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

}  // namespace causeway::guest
