// SPDX-License-Identifier: Apache-2.0
// What stands in xenstore, as values. A guest may have written it, so it can be anything.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace causeway::daemon {

inline constexpr uint16_t kLastXenDomain = 0x7fef;  // DOMID_FIRST_RESERVED - 1

// Decimal digits alone, without a sign, spaces or a leading zero; none if it is anything else or not in [least, most].
std::optional<uint64_t> ReadXenNumber(std::string_view text, uint64_t least, uint64_t most);

// enum xenbus_state, of which a guest writes its own.
enum class XenbusState {
  kUnknown = 0,
  kInitialising = 1,
  kInitWait = 2,
  kInitialised = 3,
  kConnected = 4,
  kClosing = 5,
  kClosed = 6,
};

// Anything that is none of these reads as kUnknown, as does a missing key.
XenbusState ReadXenbusState(std::optional<std::string_view> text);

}  // namespace causeway::daemon
