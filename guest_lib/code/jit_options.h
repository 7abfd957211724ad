// SPDX-License-Identifier: Apache-2.0
// Options of the compiler and the linker (CUjit_option) as a program gives them: numbers, lists of symbols,
// and room for logs and figures. What the host's driver writes through them is written to the program's room
// here. An object belongs to one thread, and the program's arrays outlive it.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace causeway::guest {

// Whether cuda.h names the option.
constexpr bool IsJitOption(CUjit_option option) {
  return option >= 0 && option < CU_JIT_NUM_OPTIONS;
}

class JitOptions {
 public:
  // Takes the options of a call. `values` is kept: the driver writes sizes, times and counts there.
  CUresult Take(unsigned count, const CUjit_option* options, void** values);

  uint32_t count() const { return static_cast<uint32_t>(options_.size()); }
  // The options as they travel (ivshmem_ring/messages/code_messages.h, JitOption).
  std::span<const std::byte> wire() const { return wire_; }
  // Writes to the program what a call has changed: `outputs` is its JitOutputs.
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
