// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/xen/xen_values.h"

#include <charconv>

namespace causeway::daemon {

std::optional<uint64_t> ReadXenNumber(std::string_view text, uint64_t least, uint64_t most) {
  if (text.empty() || (text.size() > 1 && text[0] == '0')) return {};
  uint64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc{} || end != text.data() + text.size() || number < least || number > most)
    return {};
  return number;
}

XenbusState ReadXenbusState(std::optional<std::string_view> text) {
  const auto number = text ? ReadXenNumber(*text, 0, uint64_t(XenbusState::kClosed)) : std::nullopt;
  return number ? XenbusState(*number) : XenbusState::kUnknown;
}

}  // namespace causeway::daemon
