// SPDX-License-Identifier: Apache-2.0
// Options of the compiler and the linker as the driver takes them. From the guest come numbers and texts;
// the driver gets options that are made anew from the checked ones. An option that has a buffer is passed once, and
// buffer and size come from one number, so that the driver never writes past a buffer's end.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ivshmem_ring/messages/code_messages.h"
#include "ivshmem_ring/protocol/wire.h"

namespace causeway::host {

class JitOptions {
 public:
  JitOptions() = default;
  JitOptions(const JitOptions&) = delete;  // the driver has addresses of what is inside
  JitOptions& operator=(const JitOptions&) = delete;

  // Reads `count` options (code_messages.h). An error of the reader's is a breach of the protocol, another
  // result is what the program's call is refused with.
  CUresult Take(Reader& in, uint32_t count);

  unsigned count() const { return static_cast<unsigned>(options_.size()); }
  CUjit_option* options() { return options_.data(); }
  void** values() { return values_.data(); }
  // Whether the driver may write to it after the call that it was given to.
  bool is_written_to() const { return !logs_.empty(); }

  // Around a driver call that may write to values and logs: remembers what is there; appends what it changed.
  void Mark();
  void AppendOutputs(std::vector<std::byte>* to) const;

 private:
  struct Given {  // an option as it arrived
    bool is_given = false;
    uint32_t index = 0;  // among the guest's options
    uint64_t value = 0;
  };
  struct Log {
    CUjit_option option;
    std::vector<char> text, before;
  };
  struct List {
    CUjit_option option;
    std::vector<std::string> names;
    std::vector<const char*> pointers;
    std::vector<void*> addresses;
  };
  static constexpr uint32_t kNoIndex = ~uint32_t{0};

  CUresult TakeOption(Reader& in, uint32_t index, Given* all);
  CUresult TakeList(Reader& in, CUjit_option option, uint64_t entries);
  CUresult MakeLog(CUjit_option buffer, CUjit_option size, const Given* all);
  CUresult MakeLists(CUjit_option count, std::initializer_list<CUjit_option> lists, const Given* all);
  void Append(CUjit_option option, void* value, uint32_t index);

  // As the driver gets them; indices_[i]: which of the guest's an option is, or kNoIndex.
  std::vector<CUjit_option> options_;
  std::vector<void*> values_, before_;
  std::vector<uint32_t> indices_;
  std::vector<std::unique_ptr<Log>> logs_;
  std::vector<std::unique_ptr<List>> lists_;
};

}  // namespace causeway::host
