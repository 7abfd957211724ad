// SPDX-License-Identifier: Apache-2.0
// The compiler's options: from the wire to the driver, and what the driver wrote back to the wire.
#include "host_backend/jit_options.h"

#include <algorithm>
#include <cstring>

namespace causeway::host {
namespace {

// Fills log buffers, so that it shows how far the driver wrote; no text ends in it.
constexpr char kUntouched = '\xa5';

bool IsLog(CUjit_option option) {
  return option == CU_JIT_INFO_LOG_BUFFER || option == CU_JIT_ERROR_LOG_BUFFER;
}

bool IsList(CUjit_option option) {
  return option == CU_JIT_GLOBAL_SYMBOL_NAMES || option == CU_JIT_GLOBAL_SYMBOL_ADDRESSES ||
         option == CU_JIT_REFERENCED_KERNEL_NAMES || option == CU_JIT_REFERENCED_VARIABLE_NAMES;
}

CUjit_option CountOf(CUjit_option list) {
  if (list == CU_JIT_REFERENCED_KERNEL_NAMES) return CU_JIT_REFERENCED_KERNEL_COUNT;
  if (list == CU_JIT_REFERENCED_VARIABLE_NAMES) return CU_JIT_REFERENCED_VARIABLE_COUNT;
  return CU_JIT_GLOBAL_SYMBOL_COUNT;
}

size_t Written(const std::vector<char>& text) {
  size_t bytes = text.size();
  while (bytes > 0 && text[bytes - 1] == kUntouched) --bytes;
  return bytes;
}

template <class T>
void Append(std::vector<std::byte>* to, const T& value) {
  const auto* from = reinterpret_cast<const std::byte*>(&value);
  to->insert(to->end(), from, from + sizeof value);
}

}  // namespace

CUresult JitOptions::TakeList(Reader& in, CUjit_option option, uint64_t entries) {
  if (entries > kMaxJitListEntries) return CUDA_ERROR_INVALID_VALUE;
  auto list = std::make_unique<List>();
  for (uint64_t i = 0; i < entries && in.ok(); ++i) {
    if (option == CU_JIT_GLOBAL_SYMBOL_ADDRESSES) {
      list->addresses.push_back(reinterpret_cast<void*>(in.Get<uint64_t>()));
      continue;
    }
    const auto bytes = in.Get<uint32_t>();
    const auto* text = reinterpret_cast<const char*>(in.Take(bytes));
    if (text != nullptr) list->names.emplace_back(text, bytes);
  }
  for (const std::string& name : list->names) list->pointers.push_back(name.c_str());
  values_.push_back(option == CU_JIT_GLOBAL_SYMBOL_ADDRESSES ? static_cast<void*>(list->addresses.data())
                                                             : static_cast<void*>(list->pointers.data()));
  lists_.push_back(std::move(list));
  return in.error();
}

size_t JitOptions::RoomFor(CUjit_option log) const {
  const auto size =
      log == CU_JIT_INFO_LOG_BUFFER ? CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES : CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
  for (size_t i = 0; i < options_.size(); ++i) {
    if (options_[i] == size) return reinterpret_cast<uintptr_t>(values_[i]);
  }
  return 0;
}

CUresult JitOptions::Take(Reader& in, uint32_t count) {
  if (count > kMaxJitOptions) return CUDA_ERROR_INVALID_VALUE;
  std::vector<uint64_t> entries;  // of each option: what the wire says
  for (uint32_t i = 0; i < count; ++i) {
    const auto wire = in.Get<JitOption>();
    const auto option = static_cast<CUjit_option>(wire.option);
    // Later options may point somewhere: only those that are known travel.
    if (!in.ok() || wire.option >= CU_JIT_NUM_OPTIONS) return CUDA_ERROR_INVALID_VALUE;
    options_.push_back(option);
    entries.push_back(wire.value);
    if (IsList(option)) {
      if (const CUresult result = TakeList(in, option, wire.value)) return result;
    } else if (option == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES || option == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
      values_.push_back(
          reinterpret_cast<void*>(std::min<uint64_t>(static_cast<uint32_t>(wire.value), kMaxLogBytes)));
    } else {
      values_.push_back(reinterpret_cast<void*>(wire.value));
    }
  }
  for (size_t i = 0; i < options_.size(); ++i) {
    if (IsLog(options_[i]) && values_[i] != nullptr) {
      logs_.push_back(
          std::make_unique<Log>(Log{i, std::vector<char>(RoomFor(options_[i]) + 1, kUntouched), {}}));
      values_[i] = logs_.back()->text.data();
    }
    // A list that its count does not agree with would be read past its end.
    for (size_t at = 0; IsList(options_[i]) && at < options_.size(); ++at) {
      if (options_[at] == CountOf(options_[i]) && static_cast<uint32_t>(entries[at]) > entries[i])
        return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

void JitOptions::Mark() {
  before_ = values_;
  for (const auto& log : logs_) log->before = log->text;
}

void JitOptions::AppendOutputs(std::vector<std::byte>* to) const {
  JitOutputs head{};
  for (size_t i = 0; i < values_.size(); ++i)
    head.value_count += values_[i] != before_[i] && !IsLog(options_[i]) && !IsList(options_[i]);
  for (const auto& log : logs_) head.log_count += log->text != log->before;
  if (head.value_count == 0 && head.log_count == 0) return;
  Append(to, head);
  for (size_t i = 0; i < values_.size(); ++i) {
    if (values_[i] == before_[i] || IsLog(options_[i]) || IsList(options_[i])) continue;
    Append(to, JitChange{static_cast<uint32_t>(i), 0, reinterpret_cast<uintptr_t>(values_[i])});
  }
  for (const auto& log : logs_) {
    if (log->text == log->before) continue;
    const size_t bytes = std::min(Written(log->text), log->text.size() - 1);
    Append(to, static_cast<uint32_t>(options_[log->index]));
    Append(to, static_cast<uint32_t>(bytes));
    const auto* from = reinterpret_cast<const std::byte*>(log->text.data());
    to->insert(to->end(), from, from + bytes);
  }
}

}  // namespace causeway::host
