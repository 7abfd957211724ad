// SPDX-License-Identifier: Apache-2.0
// Addresses of this process that its guest has chosen: the window of the region's slices, and what the guest
// has registered of its own memory. An address that once was the guest's is never given back to the process.
// Where the guest's pages are taken away, pages of one small file of zeros take their place. So whatever
// holds such an address, a request under way, a posted or queued copy, a graph, a callback or the driver,
// finds the guest's bytes there or that file's: never memory of the worker, and never a hole. Nothing has to
// be pinned for as long as it is used: no users are counted or waited for, and a copy takes no lock for it.
//
// A guest that uses what it gave up reads and writes those common pages; they are at most kRetiredBytes
// however much it gave up. Of the process, as the addresses are: one object. Any thread; its mutex is taken
// after those of Session and before no other.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>

#include "ivshmem_ring/messages/address_windows.h"

namespace causeway::host {

class GuestAddresses {
 public:
  // Whole pages. kTaken: this process has something else there. kFull: there are too many ranges already.
  enum class Claimed { kYes, kTaken, kFull };
  // Makes the range the guest's for good; parts may be so already. Until it is mapped nothing can be read.
  Claimed Claim(Window range);
  // Maps pages of a file there. False: it is not the guest's, or the kernel refuses; nothing is mapped.
  bool Map(Window range, int protection, int file, uint64_t offset);
  // Takes out what was mapped. Ends the process if the kernel refuses: else the promise would break.
  void Retire(Window range);

  static constexpr uint64_t kRetiredBytes = 64u << 20;

 private:
  bool Owns(Window range) const;
  void Add(Window range);

  static constexpr size_t kMostRanges = 1u << 15;  // the kernel allows a process 65,530 mappings
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> owned_;  // from the first byte to the end; no two adjoin
  int retired_file_ = -1;
};

GuestAddresses& TheGuestAddresses();

// From now on cuMemAddressReserve grants no wish outside of the device windows (vmm.cc).
struct Driver;
void KeepWishesInWindows(Driver& driver);

}  // namespace causeway::host
