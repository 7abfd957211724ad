// SPDX-License-Identifier: Apache-2.0
// The MD2 digest (RFC 1319) and HMAC over it (RFC 2104). The CUDA runtime's integrity check is built on them;
// nothing here relies on them for security.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace causeway::guest {

inline constexpr size_t kMd2Bytes = 16;  // digest size and block size alike
using Md2Digest = std::array<uint8_t, kMd2Bytes>;

// The digest of a message that arrives in pieces.
class Md2 {
 public:
  void Update(std::span<const uint8_t> bytes);

  // Pads and returns the digest. The object must not be used afterwards.
  Md2Digest Finish();

 private:
  using Block = std::array<uint8_t, kMd2Bytes>;
  void Compress(const Block& block);
  void AddToChecksum(const Block& block);

  std::array<uint8_t, 3 * kMd2Bytes> state_{};
  Block checksum_{};
  Block pending_{};
  size_t pending_bytes_ = 0;  // always below kMd2Bytes between calls
};

// Keys longer than a block are digested first, as RFC 2104 has it.
Md2Digest HmacMd2(std::span<const uint8_t> key, std::span<const uint8_t> message);

}  // namespace causeway::guest
