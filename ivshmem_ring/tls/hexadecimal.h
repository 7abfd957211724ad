// SPDX-License-Identifier: Apache-2.0
// Bytes as text: two hexadecimal digits each, in lower case, as keys of remote guests and the daemon's records
// have them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace causeway {

inline constexpr std::string_view kHexadecimalDigits = "0123456789abcdef";

inline std::string HexadecimalText(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) {
    text += kHexadecimalDigits[byte >> 4];
    text += kHexadecimalDigits[byte & 15];
  }
  return text;
}

// False, with anything in `bytes`: the text does not have exactly two digits for each of them.
inline bool ReadHexadecimal(std::string_view text, std::span<uint8_t> bytes) {
  if (text.size() != 2 * bytes.size()) return false;
  for (size_t at = 0; at < bytes.size(); ++at) {
    const size_t high = kHexadecimalDigits.find(text[2 * at]);
    const size_t low = kHexadecimalDigits.find(text[2 * at + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return false;
    bytes[at] = uint8_t(high << 4 | low);
  }
  return true;
}

}  // namespace causeway
