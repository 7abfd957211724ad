// SPDX-License-Identifier: Apache-2.0
// The hash by which large module images are known: SHA-256 of the image as it travels (ImageHeader in
// code_messages.h). The guest states the hash to ask whether the host has the image. The host keeps images
// under the hash that it computed itself, and those of each VM apart: a guest that lies harms only itself.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace causeway {

using ImageHash = std::array<uint8_t, 32>;

// Smaller images are sent each time, because asking would cost as much.
inline constexpr uint64_t kLeastKeptImageBytes = 256u << 10;

// Computes the hash of bytes that come in pieces. Each hasher is for one image and one thread.
class ImageHasher {
 public:
  ImageHasher();
  void Add(const void* bytes, size_t size);
  ImageHash Finish();

 private:
  alignas(8) std::byte state_[112];
};

}  // namespace causeway
