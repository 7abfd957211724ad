// SPDX-License-Identifier: Apache-2.0
// A module image as the program hands it over: a bare pointer, whose size follows from what it points to.
#pragma once
#include "ivshmem_ring/driver_api.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace causeway::guest {

class Image {
 public:
  // ELF cubin, fatbin, PTX text; with `wrapper_allowed` (libraries) also nvcc's fatbin wrapper. 200 for
  // anything else.
  CUresult Find(const void* image, bool wrapper_allowed, bool any_text = false);
  // The same for what a file holds, whose size is known. Adds an end to text; the bytes must outlive this.
  CUresult TakeFile(std::vector<std::byte>* bytes);

  // As it travels (ivshmem_ring/session_messages.h, ImageHeader): size, and bytes [at, at + to.size()).
  uint64_t wire_bytes() const { return wire_bytes_; }
  void Copy(uint64_t at, std::span<std::byte> to) const;

 private:
  struct Part {
    const std::byte* bytes;
    uint64_t size;
    uint64_t wire_offset;
  };
  CUresult AddPart(const void* image, bool any_text = false);
  void Lay();

  std::vector<Part> parts_;
  std::vector<std::byte> header_;
  uint64_t wire_bytes_ = 0;
};

}  // namespace causeway::guest
