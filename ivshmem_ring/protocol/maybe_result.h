// SPDX-License-Identifier: Apache-2.0
// A CUresult or none: std::optional<CUresult> in one word. GCC writes the optional byte by byte and loads it
// as one word, which the processor can do only after all earlier stores have reached the cache. Stores to a
// ring, whose lines lie in the other side's cache, take long: a third of a posted copy of 4 bytes.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway {

class MaybeResult {
 public:
  constexpr MaybeResult() = default;  // none
  constexpr MaybeResult(CUresult result) : value_(static_cast<int>(result)) {}
  constexpr bool has_value() const { return value_ != kNone; }
  constexpr explicit operator bool() const { return has_value(); }
  // The result; there must be one.
  constexpr CUresult operator*() const { return static_cast<CUresult>(value_); }

 private:
  static constexpr int kNone = -1;  // no result is negative
  int value_ = kNone;
};

}  // namespace causeway
