// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz_region.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "tests/fuzz/fuzz_input.h"

namespace causeway::fuzz {

namespace {
constexpr uint64_t kFirstMixedGranule = 108;
}

FuzzRegion::FuzzRegion() {
  view_.fd = memfd_create("fuzz", MFD_CLOEXEC);
  Require(view_.fd >= 0 && ftruncate(view_.fd, kFuzzRegionBytes) == 0);
  view_.bytes = kFuzzRegionBytes;
  view_.window_address = kFuzzWindow;
  // Granule 0 and the slot, whose callback words a session writes when it ends.
  void* base = mmap(nullptr, SlotOffset(1), PROT_READ | PROT_WRITE, MAP_SHARED, view_.fd, 0);
  Require(base != MAP_FAILED);
  view_.base = static_cast<std::byte*>(base);
  auto* owners = reinterpret_cast<uint16_t*>(view_.base + kOwnerTableOffset);
  for (uint64_t i = 0; i < kFuzzRegionBytes / kGranuleBytes; ++i) {
    // Clients have theirs in front (record_corpus.py); between those at the end lie another's.
    owners[i] = i >= kFirstMixedGranule && i % 4 == 3 ? 2 : 1;
  }
}

void FuzzRegion::EndInput() {
  std::memset(view_.base + SlotOffset(0) + kCallbackWordsOffset, 0, sizeof(CallbackWords));
}

FuzzRegion& TheRegion() {
  static auto& region = *new FuzzRegion;
  return region;
}

}  // namespace causeway::fuzz
