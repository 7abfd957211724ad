// SPDX-License-Identifier: Apache-2.0
// Host allocations over a transport that shares no memory: kernels cannot reach them, copies can.
#include <sys/mman.h>

#include <map>
#include <mutex>

#include "guest_lib/memory.h"

namespace causeway::guest {
namespace {

std::mutex mutex;
auto& blocks = *new std::map<void*, uint64_t>;  // never destroyed

}  // namespace

CUresult AllocatePrivateHost(void** address, uint64_t bytes) {
  void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard lock(mutex);
  blocks[block] = bytes;
  *address = block;
  return CUDA_SUCCESS;
}

CUresult FreePrivateHost(void* address) {
  const std::lock_guard lock(mutex);
  const auto found = blocks.find(address);
  if (found == blocks.end()) return CUDA_ERROR_INVALID_VALUE;
  munmap(address, found->second);
  blocks.erase(found);
  return CUDA_SUCCESS;
}

}  // namespace causeway::guest
