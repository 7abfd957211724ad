// SPDX-License-Identifier: Apache-2.0
// By what large module images are known: SHA-256 of the image as it travels (ImageHeader). The guest states
// it to find out whether the host has the image; the host keeps images under what it computed itself, each
// VM's apart.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace causeway {

using ImageHash = std::array<uint8_t, 32>;

// Smaller ones are sent each time: asking would cost as much.
inline constexpr uint64_t kLeastKeptImageBytes = 256u << 10;

class ImageHasher {
 public:
  ImageHasher();
  void Add(const void* bytes, size_t size);
  ImageHash Finish();

 private:
  alignas(8) std::byte state_[112];
};

}  // namespace causeway
