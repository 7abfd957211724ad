// SPDX-License-Identifier: Apache-2.0
// A difference to be found by planted_test.py: loaded in front of a driver library, cuStreamGetFlags adds a flag as soon as
// cuStreamCreateWithPriority has made a stream. The fuzzer looks functions up in the library itself, so that dlsym is what
// is replaced.
#include <dlfcn.h>

#include <atomic>
#include <cstring>

#include "ivshmem_ring/protocol/driver_api.h"

namespace {

using Lookup = void* (*)(void*, const char*);
std::atomic<bool> made{false};
decltype(&cuStreamGetFlags) get_flags = nullptr;
decltype(&cuStreamCreateWithPriority) create = nullptr;

Lookup RealLookup() {
  void* found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
  if (found == nullptr) found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  return reinterpret_cast<Lookup>(found);
}

CUresult GetFlags(CUstream stream, unsigned* flags) {
  const CUresult result = get_flags(stream, flags);
  if (result == CUDA_SUCCESS && made.load()) *flags |= 8;
  return result;
}
CUresult Create(CUstream* stream, unsigned flags, int priority) {
  const CUresult result = create(stream, flags, priority);
  if (result == CUDA_SUCCESS) made.store(true);
  return result;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void* dlsym(void* library, const char* name) {
  static const Lookup lookup = RealLookup();
  void* found = lookup(library, name);
  if (std::strcmp(name, "cuStreamGetFlags") == 0) {
    get_flags = reinterpret_cast<decltype(get_flags)>(found);
    return reinterpret_cast<void*>(&GetFlags);
  }
  if (std::strcmp(name, "cuStreamCreateWithPriority") == 0) {
    create = reinterpret_cast<decltype(create)>(found);
    return reinterpret_cast<void*>(&Create);
  }
  return found;
}
