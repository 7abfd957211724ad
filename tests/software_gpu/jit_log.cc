// SPDX-License-Identifier: Apache-2.0
// Options that the compiler writes to.
#include "tests/software_gpu/jit_log.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace causeway::software_gpu {

JitLog::JitLog(const CUjit_option* options, void** values, unsigned count) {
  if (count == 0) return;
  if (options == nullptr || values == nullptr) {
    result_ = CUDA_ERROR_INVALID_VALUE;
    return;
  }
  for (unsigned i = 0; i < count; ++i) {
    const auto number = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(values[i]));
    switch (options[i]) {
      case CU_JIT_INFO_LOG_BUFFER:
        info_.text = static_cast<char*>(values[i]);
        break;
      case CU_JIT_ERROR_LOG_BUFFER:
        error_.text = static_cast<char*>(values[i]);
        break;
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        info_.room = number;
        info_.size = &values[i];
        break;
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        error_.room = number;
        error_.size = &values[i];
        break;
      case CU_JIT_MAX_REGISTERS:
        if (values[i] == nullptr) result_ = CUDA_ERROR_INVALID_VALUE;
        break;
      case CU_JIT_WALL_TIME:
        wall_time_ = &values[i];
        break;
      default:
        if (options[i] < 0 || options[i] >= CU_JIT_NUM_OPTIONS) result_ = CUDA_ERROR_INVALID_VALUE;
    }
  }
}

void JitLog::Append(Buffer* buffer, const std::string& sentence) {
  if (buffer->text != nullptr && buffer->room > buffer->used) {
    const size_t bytes = std::min(sentence.size(), buffer->room - buffer->used - 1);
    std::memcpy(buffer->text + buffer->used, sentence.data(), bytes);
    buffer->used += bytes;
    buffer->text[buffer->used] = '\0';
  }
  for (const Buffer* each : {&info_, &error_}) {
    if (each->size != nullptr) *each->size = reinterpret_cast<void*>(each->used);
  }
  const float milliseconds = 1;
  if (wall_time_ != nullptr) std::memcpy(wall_time_, &milliseconds, sizeof milliseconds);
}

}  // namespace causeway::software_gpu
