// SPDX-License-Identifier: Apache-2.0
// A CUresult that there may be: std::optional<CUresult> in one word. GCC puts the optional together in memory, byte by
// byte, and loads it as one word; the processor can do that load only after all earlier stores have reached the cache,
// those to a ring, which lies in the other side's cache, among them. Behind a posted copy of 4 bytes that was a third of
// the call (docs/gpu_results.md).
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
