// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/runtime/md2.h"

#include <algorithm>

namespace causeway::guest {
namespace {

constexpr unsigned kRounds = 18;

// The permutation of 0..255 of RFC 1319: a Fisher-Yates shuffle whose random numbers are the digits of pi.
constexpr std::array<uint8_t, 256> kSubstitution = {
    41,  46,  67,  201, 162, 216, 124, 1,   61,  54,  84,  161, 236, 240, 6,   19,  98,  167, 5,   243,
    192, 199, 115, 140, 152, 147, 43,  217, 188, 76,  130, 202, 30,  155, 87,  60,  253, 212, 224, 22,
    103, 66,  111, 24,  138, 23,  229, 18,  190, 78,  196, 214, 218, 158, 222, 73,  160, 251, 245, 142,
    187, 47,  238, 122, 169, 104, 121, 145, 21,  178, 7,   63,  148, 194, 16,  137, 11,  34,  95,  33,
    128, 127, 93,  154, 90,  144, 50,  39,  53,  62,  204, 231, 191, 247, 151, 3,   255, 25,  48,  179,
    72,  165, 181, 209, 215, 94,  146, 42,  172, 86,  170, 198, 79,  184, 56,  210, 150, 164, 125, 182,
    118, 252, 107, 226, 156, 116, 4,   241, 69,  157, 112, 89,  100, 113, 135, 32,  134, 91,  207, 101,
    230, 45,  168, 2,   27,  96,  37,  173, 174, 176, 185, 246, 28,  70,  97,  105, 52,  64,  126, 15,
    85,  71,  163, 35,  221, 81,  175, 58,  195, 92,  249, 206, 186, 197, 234, 38,  44,  83,  13,  110,
    133, 40,  132, 9,   211, 223, 205, 244, 65,  129, 77,  82,  106, 220, 55,  200, 108, 193, 171, 250,
    36,  225, 123, 8,   12,  189, 177, 74,  120, 136, 149, 139, 227, 99,  232, 109, 233, 203, 213, 254,
    59,  0,   29,  57,  242, 239, 183, 14,  102, 88,  208, 228, 166, 119, 114, 248, 235, 117, 75,  10,
    49,  68,  80,  180, 143, 237, 31,  26,  219, 153, 141, 51,  159, 17,  131, 20,
};

}  // namespace

void Md2::Compress(const Block& block) {
  for (size_t i = 0; i < kMd2Bytes; ++i) {
    state_[kMd2Bytes + i] = block[i];
    state_[2 * kMd2Bytes + i] = static_cast<uint8_t>(state_[i] ^ block[i]);
  }
  unsigned carry = 0;
  for (unsigned round = 0; round < kRounds; ++round) {
    for (uint8_t& byte : state_) {
      byte = static_cast<uint8_t>(byte ^ kSubstitution[carry]);
      carry = byte;
    }
    carry = (carry + round) % 256;
  }
}

void Md2::AddToChecksum(const Block& block) {
  uint8_t last = checksum_[kMd2Bytes - 1];
  for (size_t i = 0; i < kMd2Bytes; ++i) {
    checksum_[i] = static_cast<uint8_t>(checksum_[i] ^ kSubstitution[block[i] ^ last]);
    last = checksum_[i];
  }
}

void Md2::Update(std::span<const uint8_t> bytes) {
  for (const uint8_t byte : bytes) {
    pending_[pending_bytes_++] = byte;
    if (pending_bytes_ < kMd2Bytes) continue;
    Compress(pending_);
    AddToChecksum(pending_);
    pending_bytes_ = 0;
  }
}

Md2Digest Md2::Finish() {
  const size_t padding_bytes = kMd2Bytes - pending_bytes_;  // a full block when the message ends on a block
  Block padding;
  padding.fill(static_cast<uint8_t>(padding_bytes));
  Update(std::span(padding).first(padding_bytes));
  const Block checksum = checksum_;
  Compress(checksum);
  Md2Digest digest;
  std::copy_n(state_.begin(), kMd2Bytes, digest.begin());
  return digest;
}

Md2Digest HmacMd2(std::span<const uint8_t> key, std::span<const uint8_t> message) {
  std::array<uint8_t, kMd2Bytes> block_key{};
  if (key.size() > kMd2Bytes) {
    Md2 key_digest;
    key_digest.Update(key);
    block_key = key_digest.Finish();
  } else {
    std::copy(key.begin(), key.end(), block_key.begin());
  }
  const auto padded = [&block_key](uint8_t pad) {
    std::array<uint8_t, kMd2Bytes> bytes = block_key;
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(byte ^ pad);
    return bytes;
  };

  Md2 inner;
  inner.Update(padded(0x36));
  inner.Update(message);
  const Md2Digest inner_digest = inner.Finish();
  Md2 outer;
  outer.Update(padded(0x5c));
  outer.Update(inner_digest);
  return outer.Finish();
}

}  // namespace causeway::guest
