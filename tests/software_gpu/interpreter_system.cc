// SPDX-License-Identifier: Apache-2.0
// Functions that PTX declares and the system provides: vprintf, __assertfail, malloc, free.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/software_gpu/interpreter_lower.h"

namespace causeway::software_gpu {
namespace {

constexpr size_t kMaxStringBytes = 1 << 20;
constexpr int kMaxFieldWidth = 1 << 16;

template <class T>
T Argument(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// A zero-terminated string of device memory; false after a fault.
bool ReadString(Thread& thread, const Op& op, uint64_t address, std::string* text) {
  while (text->size() < kMaxStringBytes) {
    const std::byte* byte = GenericMemory(thread, op, address++, 1, Access::kRead);
    if (byte == nullptr) return false;
    if (*byte == std::byte{0}) return true;
    text->push_back(static_cast<char>(*byte));
  }
  return true;
}

// Formats like the host's printf. Arguments lie in a buffer, each aligned to its size.
class Formatter {
 public:
  Formatter(Thread& thread, const Op& op, const std::string& format, uint64_t arguments)
      : thread_(thread), op_(op), format_(format), next_(arguments) {}

  // False after a fault.
  bool Run() {
    while (position_ < format_.size()) {
      if (format_[position_] != '%') {
        text_.push_back(format_[position_++]);
      } else if (!Conversion()) {
        return false;
      }
    }
    return true;
  }

  const std::string& text() const { return text_; }
  int count() const { return count_; }

 private:
  char Peek() const { return position_ < format_.size() ? format_[position_] : '\0'; }

  template <class T>
  bool Next(T* value) {
    next_ = (next_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    const std::byte* from = GenericMemory(thread_, op_, next_, sizeof(T), Access::kRead);
    if (from == nullptr) return false;
    std::memcpy(value, from, sizeof(T));
    next_ += sizeof(T);
    ++count_;
    return true;
  }

  // Reads a number or '*'; false after a fault.
  bool Number(int* value) {
    if (Peek() == '*') {
      ++position_;
      if (!Next(value)) return false;
    } else {
      int64_t number = 0;
      for (; Peek() >= '0' && Peek() <= '9'; ++position_) {
        number = std::min<int64_t>(number * 10 + (Peek() - '0'), kMaxFieldWidth);
      }
      *value = static_cast<int>(number);
    }
    *value = std::clamp(*value, -kMaxFieldWidth, kMaxFieldWidth);
    return true;
  }

  bool Conversion() {
    const size_t start = position_++;
    std::string spec = "%";
    while (Peek() != '\0' && std::string_view("-+ #0").find(Peek()) != std::string_view::npos) {
      spec.push_back(format_[position_++]);
    }
    int width = 0;
    int precision = -1;
    if (!Number(&width)) return false;
    if (width < 0) {
      spec.push_back('-');
      width = -width;
    }
    if (Peek() == '.') {
      ++position_;
      if (!Number(&precision)) return false;
    }
    int longs = 0;
    for (; Peek() != '\0' && std::string_view("hlzjtL").find(Peek()) != std::string_view::npos; ++position_) {
      if (Peek() == 'h') --longs;
      if (Peek() != 'h' && Peek() != 'L') ++longs;
    }
    const char kind = Peek();
    if (kind != '\0') ++position_;
    if (width != 0) spec += std::to_string(width);
    if (precision >= 0) spec += "." + std::to_string(precision);
    return Value(kind, spec, longs, start);
  }

  bool Value(char kind, const std::string& spec, int longs, size_t start) {
    switch (kind) {
      case '%':
        text_.push_back('%');
        return true;
      case 'd':
      case 'i':
        return Integer<int32_t, int64_t>(spec, longs, kind);
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        return Integer<uint32_t, uint64_t>(spec, longs, kind);
      case 'c': {
        int32_t value = 0;
        if (!Next(&value)) return false;
        Print(spec + "c", value);
        return true;
      }
      case 'p': {
        uint64_t value = 0;
        if (!Next(&value)) return false;
        Print(spec + "p", reinterpret_cast<void*>(value));
        return true;
      }
      case 's':
        return String(spec);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
      case 'a':
      case 'A': {
        double value = 0;
        if (!Next(&value)) return false;
        Print(spec + kind, value);
        return true;
      }
      default:  // not a conversion: the text itself
        text_ += format_.substr(start, position_ - start);
        return true;
    }
  }

  template <class Narrow, class Wide>
  bool Integer(const std::string& spec, int longs, char kind) {
    if (longs > 0) {
      Wide value = 0;
      if (!Next(&value)) return false;
      Print(spec + "ll" + kind, static_cast<long long>(value));
      return true;
    }
    Narrow value = 0;
    if (!Next(&value)) return false;
    Print(spec + (longs == -1 ? "h" : longs < -1 ? "hh" : "") + kind, value);
    return true;
  }

  bool String(const std::string& spec) {
    uint64_t address = 0;
    std::string value;
    if (!Next(&address)) return false;
    if (address == 0) {
      value = "(null)";
    } else if (!ReadString(thread_, op_, address, &value)) {
      return false;
    }
    Print(spec + "s", value.c_str());
    return true;
  }

  template <class T>
  void Print(const std::string& spec, T value) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
    const int length = std::snprintf(nullptr, 0, spec.c_str(), value);
    if (length <= 0) return;
    std::string text(static_cast<size_t>(length) + 1, '\0');
    std::snprintf(text.data(), text.size(), spec.c_str(), value);
#pragma GCC diagnostic pop
    text.pop_back();
    text_ += text;
  }

  Thread& thread_;
  const Op& op_;
  const std::string& format_;
  uint64_t next_;
  size_t position_ = 0;
  std::string text_;
  int count_ = 0;
};

void Emit(Thread& thread, bool is_stderr, const std::string& text) {
  const auto& print = *thread.block->launch->print;
  if (print) print(is_stderr, text);
}

void Return32(std::byte* result, int32_t value) {
  if (result != nullptr) std::memcpy(result, &value, sizeof value);
}

Step WrongArguments(Thread& thread, const Op& op) {
  return RaiseFault(thread, op, 718, "a system function was called with other arguments than it has");
}

// int vprintf(const char* format, void* arguments): the number of arguments used, -1 without a format.
Step PrintFormatted(Thread& thread, const Op& op, const std::vector<std::byte*>& arguments,
                    std::byte* result) {
  if (arguments.size() != 2) return WrongArguments(thread, op);
  const auto format_address = Argument<uint64_t>(arguments[0]);
  if (format_address == 0) {
    Return32(result, -1);
    return Step::kNext;
  }
  std::string format;
  if (!ReadString(thread, op, format_address, &format)) return Step::kFault;
  Formatter formatter(thread, op, format, Argument<uint64_t>(arguments[1]));
  if (!formatter.Run()) return Step::kFault;
  Emit(thread, false, formatter.text());
  Return32(result, formatter.count());
  return Step::kNext;
}

// void __assertfail(message, file, line, function, character size)
Step AssertFailed(Thread& thread, const Op& op, const std::vector<std::byte*>& arguments, std::byte*) {
  if (arguments.size() != 5) return WrongArguments(thread, op);
  std::string message, file, function;
  if (!ReadString(thread, op, Argument<uint64_t>(arguments[0]), &message) ||
      !ReadString(thread, op, Argument<uint64_t>(arguments[1]), &file) ||
      !ReadString(thread, op, Argument<uint64_t>(arguments[3]), &function)) {
    return Step::kFault;
  }
  const Dim3& block = thread.block->index;
  const Dim3& index = thread.index;
  char where[200];
  std::snprintf(where, sizeof where, ": block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `", block.x, block.y,
                block.z, index.x, index.y, index.z);
  const std::string line = std::to_string(Argument<uint32_t>(arguments[2]));
  Emit(thread, true, file + ":" + line + ": " + function + where + message + "` failed.\n");
  return RaiseFault(thread, op, 710, "an assertion failed");
}

Step Allocate(Thread& thread, const Op& op, const std::vector<std::byte*>& arguments, std::byte* result) {
  if (arguments.size() != 1 || result == nullptr) return WrongArguments(thread, op);
  const void* memory = thread.block->launch->heap->Allocate(Argument<uint64_t>(arguments[0]));
  std::memcpy(result, &memory, sizeof memory);
  return Step::kNext;
}

Step Free(Thread& thread, const Op& op, const std::vector<std::byte*>& arguments, std::byte*) {
  if (arguments.size() != 1) return WrongArguments(thread, op);
  const auto address = Argument<uint64_t>(arguments[0]);
  if (address != 0 && !thread.block->launch->heap->Free(address)) {
    return RaiseFault(thread, op, 700, "free() got a pointer that malloc() did not return");
  }
  return Step::kNext;
}

}  // namespace

void* DeviceHeap::Allocate(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > kBytes - used_) return nullptr;
  std::vector<std::byte> memory(std::max<uint64_t>(bytes, 16));
  void* address = memory.data();
  used_ += memory.size();
  blocks_[reinterpret_cast<uintptr_t>(address)] = std::move(memory);
  return address;
}

bool DeviceHeap::Free(uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(address);
  if (block == blocks_.end()) return false;
  used_ -= block->second.size();
  blocks_.erase(block);
  return true;
}

bool DeviceHeap::Contains(uint64_t address, uint32_t bytes) {
  const std::lock_guard lock(mutex_);
  auto block = blocks_.upper_bound(address);
  if (block == blocks_.begin()) return false;
  --block;
  const uint64_t offset = address - block->first;
  return offset < block->second.size() && bytes <= block->second.size() - offset;
}

SystemCall FindSystemCall(std::string_view name) {
  if (name == "vprintf") return PrintFormatted;
  if (name == "__assertfail") return AssertFailed;
  if (name == "malloc") return Allocate;
  if (name == "free") return Free;
  return nullptr;
}

}  // namespace causeway::software_gpu
