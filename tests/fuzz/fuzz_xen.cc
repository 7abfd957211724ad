// SPDX-License-Identifier: Apache-2.0
// Values of xenstore, which a guest may have written: any bytes are a number within its bounds whose text they are, or
// none; and one of xenbus's states, or "unknown".
#include <string>
#include <string_view>

#include "host_backend/daemon/xen/xen_values.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace causeway::daemon;
  using causeway::fuzz::Require;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const uint64_t most : {uint64_t{kLastXenDomain}, ~uint64_t{0}}) {
    for (const uint64_t least : {uint64_t{0}, uint64_t{5}}) {
      const auto number = ReadXenNumber(text, least, most);
      if (number) Require(*number >= least && *number <= most && std::to_string(*number) == text);
    }
  }
  const XenbusState state = ReadXenbusState(text);
  Require(state == XenbusState::kUnknown || std::to_string(int(state)) == text);
  return 0;
}
