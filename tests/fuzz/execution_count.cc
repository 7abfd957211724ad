// SPDX-License-Identifier: Apache-2.0
// Counts executions where a run that is cut loses nothing: CAUSEWAY_FUZZ_COUNT names a file whose eight bytes
// are the number of inputs that this process has executed, mapped and so kept however the process ends.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/fuzz_input.h"

namespace causeway::fuzz {
namespace {

uint64_t* MapCount() {
  static uint64_t kept_by_nobody;
  const char* path = getenv("CAUSEWAY_FUZZ_COUNT");
  if (path == nullptr) return &kept_by_nobody;
  const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  Require(file >= 0 && ftruncate(file, sizeof(uint64_t)) == 0);
  void* mapped = mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  Require(mapped != MAP_FAILED);
  close(file);
  return static_cast<uint64_t*>(mapped);
}

}  // namespace
}  // namespace causeway::fuzz

// In place of the fuzzer's own function, for whoever calls it (the linker's --wrap, CMakeLists.txt).
extern "C" int __real_LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int __wrap_LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int __wrap_LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static uint64_t* const count = causeway::fuzz::MapCount();
  const int result = __real_LLVMFuzzerTestOneInput(data, size);
  ++*count;
  return result;
}
