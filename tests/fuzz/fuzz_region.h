// SPDX-License-Identifier: Apache-2.0
// The region of the worker's fuzzers, as the daemon makes one: slot 0 owns all slices but a few at the end.
#pragma once
#include "host_backend/worker/addresses/region_view.h"
#include "ivshmem_ring/messages/callback_messages.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::fuzz {

inline constexpr uint64_t kFuzzWindow = 0x200000000000;      // as record_corpus.py has it
inline constexpr uint64_t kFuzzRegionBytes = 256u << 20;     // as recorded
inline constexpr uint64_t kFuzzHostMemory = 0x400000000000;  // where registered memory of the guest lies

class FuzzRegion {
 public:
  FuzzRegion();
  const host::RegionView& view() const { return view_; }
  // Takes back what the end of a session has written. Addresses stay the guest's for good
  // (guest_addresses.h).
  void EndInput();

 private:
  host::RegionView view_;
};

FuzzRegion& TheRegion();

}  // namespace causeway::fuzz
