// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/code/jit_options.h"

#include <cstring>

#include "ivshmem_ring/messages/code_messages.h"
#include "ivshmem_ring/protocol/wire.h"

namespace causeway::guest {

void JitOptions::AppendBytes(const void* bytes, size_t count) {
  const auto* from = static_cast<const std::byte*>(bytes);
  wire_.insert(wire_.end(), from, from + count);
}

// A list says its length in an option of its own.
uint64_t JitOptions::EntriesOf(CUjit_option count_option) const {
  for (size_t i = 0; i < options_.size(); ++i) {
    if (options_[i] == count_option) return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(values_[i]));
  }
  return 0;
}

CUresult JitOptions::Append(CUjit_option option, void* value) {
  JitOption plain{static_cast<uint32_t>(option), 0, reinterpret_cast<uintptr_t>(value)};
  CUjit_option counted_by = CU_JIT_NUM_OPTIONS;
  switch (option) {
    case CU_JIT_INFO_LOG_BUFFER:
    case CU_JIT_ERROR_LOG_BUFFER:
      plain.value = value != nullptr;
      break;
    case CU_JIT_GLOBAL_SYMBOL_NAMES:
    case CU_JIT_GLOBAL_SYMBOL_ADDRESSES:
      counted_by = CU_JIT_GLOBAL_SYMBOL_COUNT;
      break;
    case CU_JIT_REFERENCED_KERNEL_NAMES:
      counted_by = CU_JIT_REFERENCED_KERNEL_COUNT;
      break;
    case CU_JIT_REFERENCED_VARIABLE_NAMES:
      counted_by = CU_JIT_REFERENCED_VARIABLE_COUNT;
      break;
    default:
      break;
  }
  const uint64_t entries = counted_by != CU_JIT_NUM_OPTIONS ? EntriesOf(counted_by) : 0;
  if (counted_by != CU_JIT_NUM_OPTIONS) plain.value = entries;
  if (entries > kMaxJitListEntries || (entries != 0 && value == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  AppendBytes(&plain, sizeof plain);
  for (uint64_t i = 0; i < entries; ++i) {
    const void* entry = static_cast<void**>(value)[i];
    if (option == CU_JIT_GLOBAL_SYMBOL_ADDRESSES) {
      AppendBytes(&entry, sizeof entry);
      continue;
    }
    if (entry == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto bytes = static_cast<uint32_t>(std::strlen(static_cast<const char*>(entry)));
    AppendBytes(&bytes, sizeof bytes);
    AppendBytes(entry, bytes);
  }
  return CUDA_SUCCESS;
}

CUresult JitOptions::Take(unsigned count, const CUjit_option* options, void** values) {
  if (count == 0) return CUDA_SUCCESS;
  if (options == nullptr || values == nullptr || count > kMaxJitOptions) return CUDA_ERROR_INVALID_VALUE;
  options_.assign(options, options + count);
  values_ = values;
  for (unsigned i = 0; i < count; ++i) {
    if (!IsJitOption(options[i])) return CUDA_ERROR_INVALID_VALUE;
    if (options[i] == CU_JIT_MAX_REGISTERS && values[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = Append(options[i], values[i])) return result;
  }
  return CUDA_SUCCESS;
}

void JitOptions::Return(std::span<const std::byte> outputs) {
  if (outputs.empty()) return;
  Reader in(outputs);
  const auto head = in.Get<JitOutputs>();
  for (uint32_t i = 0; i < head.value_count && in.ok(); ++i) {
    const auto change = in.Get<JitChange>();
    if (in.ok() && change.index < options_.size())
      values_[change.index] = reinterpret_cast<void*>(change.value);
  }
  for (uint32_t i = 0; i < head.log_count && in.ok(); ++i) {
    const auto option = static_cast<CUjit_option>(in.Get<uint32_t>());
    const auto bytes = in.Get<uint32_t>();
    const std::byte* text = in.Take(bytes);
    for (size_t at = 0; text != nullptr && at < options_.size(); ++at) {
      if (options_[at] == option && values_[at] != nullptr) std::memcpy(values_[at], text, bytes);
    }
  }
}

}  // namespace causeway::guest
