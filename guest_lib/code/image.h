// SPDX-License-Identifier: Apache-2.0
// A module image as the program hands it over: a bare pointer, whose size follows from what it points to.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "guest_lib/code/fatbin.h"
#include "ivshmem_ring/messages/image_hash.h"

namespace causeway::guest {

class Image {
 public:
  // Of fatbins, what none of the devices can use is left out; without devices all is sent.
  explicit Image(std::vector<Capability> devices = {}) : devices_(std::move(devices)) {}
  // ELF cubin, fatbin, PTX text; with `wrapper_allowed` (libraries) also nvcc's fatbin wrapper. 200 for
  // anything else.
  CUresult Find(const void* image, bool wrapper_allowed, bool any_text = false);
  // The same for what a file holds, whose size is known. Adds an end to text; the bytes must outlive this.
  CUresult TakeFile(std::vector<std::byte>* bytes);

  // As it travels (ivshmem_ring/messages/session_messages.h, ImageHeader): size, and bytes [at, at +
  // to.size()).
  uint64_t wire_bytes() const { return wire_bytes_; }
  void Copy(uint64_t at, std::span<std::byte> to) const;
  ImageHash Hash() const;
  // Whether kernels of it may call printf. True in doubt.
  bool MayPrint() const;

 private:
  struct Part {
    std::vector<std::span<const std::byte>> runs;  // one after another
    uint64_t size;
    uint64_t wire_offset;
  };
  CUresult AddPart(const void* image, bool any_text = false);
  CUresult AddBytes(const std::byte* bytes, uint64_t size, bool is_fatbin);
  void Lay();
  // All of it in order: visit(begin, bytes).
  template <class Visit>
  void Walk(Visit visit) const;

  std::vector<Capability> devices_;
  std::vector<Part> parts_;
  std::deque<FatbinHeader> fatbin_headers_;  // of those that lack entries; runs point to them
  std::vector<std::byte> header_;
  uint64_t wire_bytes_ = 0;
};

}  // namespace causeway::guest
