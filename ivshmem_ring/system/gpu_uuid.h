// SPDX-License-Identifier: Apache-2.0
// The UUID of a GPU: sixteen bytes, or the text that nvidia-smi -L shows.
#pragma once
#include <array>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace causeway {

using DeviceUuid = std::array<uint8_t, 16>;

// Of GPU-... and MIG-..., as the configuration names them; all zeros where the text is no whole one.
inline DeviceUuid UuidOf(const std::string& name) {
  DeviceUuid uuid{};
  size_t digits = 0;
  for (size_t at = name.find('-'); at < name.size(); ++at) {
    const char c = char(std::tolower(static_cast<unsigned char>(name[at])));
    if (c == '-') continue;
    const bool letter = c >= 'a' && c <= 'f';
    if ((!letter && (c < '0' || c > '9')) || digits == 2 * uuid.size()) return {};
    uuid[digits / 2] = uint8_t(uuid[digits / 2] << 4 | (letter ? c - 'a' + 10 : c - '0'));
    ++digits;
  }
  return digits == 2 * uuid.size() ? uuid : DeviceUuid{};
}

// As nvidia-smi -L shows that of a whole GPU.
inline std::string UuidText(const DeviceUuid& uuid) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "GPU";
  for (size_t at = 0; at < uuid.size(); ++at) {
    if (at == 0 || at == 4 || at == 6 || at == 8 || at == 10) text += '-';
    text += {kDigits[uuid[at] >> 4], kDigits[uuid[at] & 15]};
  }
  return text;
}

}  // namespace causeway
