// SPDX-License-Identifier: Apache-2.0
// A module image as the program gives it to a call: a bare pointer. Its size follows from the bytes
// themselves. An object points into the program's image, which outlives it, and belongs to one thread.
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
  // Entries of fatbins that none of these devices can use are left out; without devices all entries are sent.
  explicit Image(std::vector<Capability> devices = {}) : devices_(std::move(devices)) {}
  // Finds out what the image is: an ELF cubin, a fatbin or PTX text; with `wrapper_allowed` (for libraries)
  // also nvcc's fatbin wrapper; with `any_text` every string, even one that cannot be PTX, which is the
  // driver's to refuse. CUDA_ERROR_INVALID_IMAGE for anything else.
  CUresult Find(const void* image, bool wrapper_allowed, bool any_text = false);
  // The same for the bytes of a file, of which the size is known. It appends zeros to *bytes, so that text
  // ends in one; *bytes must outlive the object.
  CUresult TakeFile(std::vector<std::byte>* bytes);

  // The image as it travels (ivshmem_ring/messages/code_messages.h, ImageHeader), after Find or TakeFile: its
  // size, its bytes [at, at + to.size()), and its hash.
  uint64_t wire_bytes() const { return wire_bytes_; }
  void Copy(uint64_t at, std::span<std::byte> to) const;
  ImageHash Hash() const;
  // Whether its kernels may call printf; true in doubt.
  bool MayPrint() const;

 private:
  struct Part {
    std::vector<std::span<const std::byte>> runs;  // they travel one after another
    uint64_t size;
    uint64_t wire_offset;
  };
  CUresult AddPart(const void* image, bool any_text = false);
  CUresult AddBytes(const std::byte* bytes, uint64_t size, bool is_fatbin);
  void Lay();
  // Calls visit(begin, bytes) for all bytes that travel, in order.
  template <class Visit>
  void Walk(Visit visit) const;

  std::vector<Capability> devices_;
  std::vector<Part> parts_;
  std::deque<FatbinHeader> fatbin_headers_;  // of fatbins of which entries are left out; runs point to them
  std::vector<std::byte> header_;
  uint64_t wire_bytes_ = 0;
};

}  // namespace causeway::guest
