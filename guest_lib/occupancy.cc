// SPDX-License-Identifier: Apache-2.0
// Occupancy questions whose search calls a function of the program, which runs here.
#include <algorithm>

#include "guest_lib/remote.h"

namespace causeway::guest {
namespace {

// The driver's own search (cuda_occupancy.h shows it): from the largest block down in steps of a warp, the
// first of those with the most threads on a multiprocessor.
CUresult Search(int* min_grid, int* block, CUfunction function, CUoccupancyB2DSize shared_of_block, int limit,
                unsigned flags) {
  if (min_grid == nullptr || block == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CurrentContextObject() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const CUdevice device = ContextOf(CurrentContextObject()).device;
  int warp = 0, of_device = 0, processors = 0, most_threads = 0, of_function = 0;
  for (const auto& [value, attribute] :
       {std::pair{&warp, CU_DEVICE_ATTRIBUTE_WARP_SIZE},
        std::pair{&of_device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
        std::pair{&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
        std::pair{&most_threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR}}) {
    if (const CUresult result = cuDeviceGetAttribute(value, attribute, device)) return result;
  }
  if (const CUresult result =
          cuFuncGetAttribute(&of_function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function)) {
    return result;
  }
  if (warp <= 0) return CUDA_ERROR_UNKNOWN;
  int largest = std::min(of_device, of_function);
  if (limit > 0) largest = std::min(largest, limit);
  int best_block = 0, best_blocks = 0;
  for (int threads = largest; threads > 0; threads = (threads - 1) / warp * warp) {
    int blocks = 0;
    const CUresult result = cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        &blocks, function, threads, shared_of_block(threads), flags);
    if (result != CUDA_SUCCESS) return result;
    if (threads * blocks <= best_block * best_blocks) continue;
    best_block = threads;
    best_blocks = blocks;
    if (best_block * best_blocks == most_threads) break;
  }
  *min_grid = best_blocks * processors;
  *block = best_block;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuOccupancyMaxPotentialBlockSize(int* min_grid, int* block, CUfunction function,
                                          CUoccupancyB2DSize shared_of_block, size_t shared_bytes,
                                          int limit) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (shared_of_block != nullptr) {
    return Search(min_grid, block, function, shared_of_block, limit, CU_OCCUPANCY_DEFAULT);
  }
  return Wait<Op::cuOccupancyMaxPotentialBlockSize>(min_grid, block, function, shared_of_block, shared_bytes,
                                                    limit);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* min_grid, int* block, CUfunction function,
                                                   CUoccupancyB2DSize shared_of_block, size_t shared_bytes,
                                                   int limit, unsigned int flags) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (shared_of_block != nullptr) return Search(min_grid, block, function, shared_of_block, limit, flags);
  return Wait<Op::cuOccupancyMaxPotentialBlockSizeWithFlags>(min_grid, block, function, shared_of_block,
                                                             shared_bytes, limit, flags);
}

}  // extern "C"
