// SPDX-License-Identifier: Apache-2.0
// Options of the compiler and the linker as the driver takes them. Whatever one of them points to is made
// here; from the guest come numbers and texts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ivshmem_ring/code_messages.h"
#include "ivshmem_ring/wire.h"

namespace causeway::host {

class JitOptions {
 public:
  JitOptions() = default;
  JitOptions(const JitOptions&) = delete;  // the driver has addresses of what is inside
  JitOptions& operator=(const JitOptions&) = delete;

  // Reads `count` options (code_messages.h). An error of the reader's is a breach of the protocol.
  CUresult Take(Reader& in, uint32_t count);

  unsigned count() const { return static_cast<unsigned>(options_.size()); }
  CUjit_option* options() { return options_.data(); }
  void** values() { return values_.data(); }

  // Around a driver call that may write to values and logs: remembers what is there; appends what it changed.
  void Mark();
  void AppendOutputs(std::vector<std::byte>* to) const;

 private:
  struct Log {
    size_t index;  // of its option
    std::vector<char> text, before;
  };
  struct List {
    std::vector<std::string> names;
    std::vector<const char*> pointers;
    std::vector<void*> addresses;
  };
  CUresult TakeList(Reader& in, CUjit_option option, uint64_t entries);
  size_t RoomFor(CUjit_option log) const;

  std::vector<CUjit_option> options_;
  std::vector<void*> values_, before_;
  std::vector<std::unique_ptr<Log>> logs_;
  std::vector<std::unique_ptr<List>> lists_;
};

}  // namespace causeway::host
