// SPDX-License-Identifier: Apache-2.0
// Options of the compiler and the linker (CUjit_option) as a program gives them: numbers, lists of symbols,
// and places for logs and figures. What the host's driver writes there is written here as well.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace causeway::guest {

class JitOptions {
 public:
  // `values` is kept: the driver writes sizes, times and counts over the caller's values.
  CUresult Take(unsigned count, const CUjit_option* options, void** values);

  uint32_t count() const { return static_cast<uint32_t>(options_.size()); }
  // As they travel (ivshmem_ring/messages/code_messages.h, JitOption).
  std::span<const std::byte> wire() const { return wire_; }
  // JitOutputs of a call that worked with these options.
  void Return(std::span<const std::byte> outputs);

 private:
  uint64_t EntriesOf(CUjit_option count_option) const;
  CUresult Append(CUjit_option option, void* value);
  void AppendBytes(const void* bytes, size_t count);

  std::vector<CUjit_option> options_;
  void** values_ = nullptr;
  std::vector<std::byte> wire_;
};

}  // namespace causeway::guest
