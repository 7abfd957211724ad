// SPDX-License-Identifier: Apache-2.0
// Occupancy: a plain model of an sm_90 multiprocessor.
#include "tests/software_gpu/occupancy.h"

#include <algorithm>

namespace causeway::software_gpu {
namespace {

constexpr int kWarpThreads = 32;
constexpr int kThreadsPerMultiprocessor = 2048;
constexpr int kBlocksPerMultiprocessor = 32;
constexpr size_t kSharedPerMultiprocessor = 233472;
constexpr size_t kSharedReservedPerBlock = 1024;

CUresult MaxActiveBlocks(const ContextRef& context, int* blocks, CUfunction hfunc, int block_threads,
                         size_t dynamic_shared_bytes) {
  if (blocks == nullptr || block_threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  FunctionRef function;
  CUresult result = ResolveFunction(context, hfunc, &function);
  if (result != CUDA_SUCCESS) return result;
  bool fits = block_threads <= static_cast<int>(function->kernel->max_threads_per_block);
  *blocks = fits ? BlocksPerMultiprocessor(*function, block_threads, dynamic_shared_bytes) : 0;
  return CUDA_SUCCESS;
}

CUresult MaxPotentialBlockSize(const ContextRef& context, int* min_grid, int* block, CUfunction hfunc,
                               CUoccupancyB2DSize shared_of_block, size_t shared_bytes, int limit) {
  if (min_grid == nullptr || block == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FunctionRef function;
  CUresult result = ResolveFunction(context, hfunc, &function);
  if (result != CUDA_SUCCESS) return result;
  int largest = std::min<int>(kMaxThreadsPerBlock, static_cast<int>(function->kernel->max_threads_per_block));
  if (limit > 0) largest = std::min(largest, limit);
  int best_threads = 0;
  *min_grid = 0;
  *block = 0;
  for (int threads = largest; threads > 0;) {
    size_t shared = shared_of_block != nullptr ? shared_of_block(threads) : shared_bytes;
    int blocks = BlocksPerMultiprocessor(*function, threads, shared);
    if (blocks * threads > best_threads) {
      best_threads = blocks * threads;
      *block = threads;
      *min_grid = blocks * kMultiprocessors;
    }
    threads = (threads - 1) / kWarpThreads * kWarpThreads;
  }
  return CUDA_SUCCESS;
}

}  // namespace

int BlocksPerMultiprocessor(const Function& function, int block_threads, size_t dynamic_shared_bytes) {
  int warps = (block_threads + kWarpThreads - 1) / kWarpThreads;
  size_t shared = function.kernel->static_shared_bytes + dynamic_shared_bytes + kSharedReservedPerBlock;
  int by_threads = kThreadsPerMultiprocessor / (warps * kWarpThreads);
  int by_shared = static_cast<int>(kSharedPerMultiprocessor / shared);
  return std::min({by_threads, by_shared, kBlocksPerMultiprocessor});
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, CUfunction func, int blockSize,
                                                     size_t dynamicSMemSize) {
  return InContext(__func__, [&](const ContextRef& context) {
    return MaxActiveBlocks(context, numBlocks, func, blockSize, dynamicSMemSize);
  });
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* numBlocks, CUfunction func, int blockSize,
                                                              size_t dynamicSMemSize, unsigned int flags) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) return CUDA_ERROR_INVALID_VALUE;
    return MaxActiveBlocks(context, numBlocks, func, blockSize, dynamicSMemSize);
  });
}

CUresult cuOccupancyMaxPotentialBlockSize(int* minGridSize, int* blockSize, CUfunction func,
                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                          size_t dynamicSMemSize, int blockSizeLimit) {
  return InContext(__func__, [&](const ContextRef& context) {
    return MaxPotentialBlockSize(context, minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                                 dynamicSMemSize, blockSizeLimit);
  });
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* minGridSize, int* blockSize, CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit,
                                                   unsigned int flags) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) return CUDA_ERROR_INVALID_VALUE;
    return MaxPotentialBlockSize(context, minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                                 dynamicSMemSize, blockSizeLimit);
  });
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* dynamicSmemSize, CUfunction func, int numBlocks,
                                                 int blockSize) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (dynamicSmemSize == nullptr || numBlocks <= 0 || blockSize <= 0) return CUDA_ERROR_INVALID_VALUE;
    FunctionRef function;
    CUresult result = ResolveFunction(context, func, &function);
    if (result != CUDA_SUCCESS) return result;
    size_t per_block = kSharedPerMultiprocessor / static_cast<size_t>(numBlocks);
    size_t taken = kSharedReservedPerBlock + function->kernel->static_shared_bytes;
    *dynamicSmemSize = per_block > taken ? per_block - taken : 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuOccupancyMaxPotentialClusterSize(int* clusterSize, CUfunction func, const CUlaunchConfig* config) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (clusterSize == nullptr || config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    FunctionRef function;
    CUresult result = ResolveFunction(context, func, &function);
    if (result == CUDA_SUCCESS) *clusterSize = 1;
    return result;
  });
}

CUresult cuOccupancyMaxActiveClusters(int* numClusters, CUfunction func, const CUlaunchConfig* config) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (numClusters == nullptr || config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    unsigned threads = config->blockDimX * config->blockDimY * config->blockDimZ;
    if (threads == 0 || threads > kMaxThreadsPerBlock) return CUDA_ERROR_INVALID_VALUE;
    int blocks = 0;
    CUresult result =
        MaxActiveBlocks(context, &blocks, func, static_cast<int>(threads), config->sharedMemBytes);
    if (result == CUDA_SUCCESS) *numClusters = blocks * kMultiprocessors;
    return result;
  });
}

}  // extern "C"
