// SPDX-License-Identifier: Apache-2.0
// Census category occupancy: how much of a kernel fits. (The two searches with a callback: callback_test.cc.)
#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

using OccupancyTest = DriverTest;

TEST_F(OccupancyTest, ActiveBlocks) {
  const CUfunction add = Kernel("add");
  for (const int threads : {1, 32, 100, 256, 1024}) {
    for (const size_t shared : {size_t{0}, size_t{10'000}, size_t{48'000}}) {
      int blocks = 0, same = 0;
      EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, threads, shared), CUDA_SUCCESS);
      EXPECT_GT(blocks, 0);
      EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&same, add, threads, shared,
                                                                     CU_OCCUPANCY_DEFAULT),
                CUDA_SUCCESS);
      EXPECT_EQ(same, blocks);
      EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&same, add, threads, shared,
                                                                     CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE),
                CUDA_SUCCESS);
      Say(std::to_string(threads) + " threads, " + std::to_string(shared) + " bytes", blocks);
    }
  }
  int blocks = -1;
  EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(nullptr, add, 32, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, -1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nullptr, 32, 0), CUDA_ERROR_INVALID_HANDLE);
  Say("5000 threads", cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 5000, 0));
  Say("5000 threads fit", blocks);
  Say("a megabyte", cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 32, 1 << 20));
  Say("a megabyte fits", blocks);
  Say("flags of 99", cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, add, 32, 0, 99));
}

TEST_F(OccupancyTest, AskedOnce) {
  const CUfunction add = Kernel("add");
  int first = 0, again = 0, blocks = 0;
  size_t bytes = 0;
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&first, add, 256, 20'000));
  OK(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, add, 2, 128));
  uint64_t before = RepliesAwaited();
  for (int i = 0; i < 3; ++i) {
    size_t same = 0;
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&again, add, 256, 20'000));
    OK(cuOccupancyAvailableDynamicSMemPerBlock(&same, add, 2, 128));
    EXPECT_EQ(again, first);
    EXPECT_EQ(same, bytes);
  }
  EXPECT_EQ(RepliesAwaited(), before);
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&again, add, 1024, 20'000));
  Say("another question", again);
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&again, add, 256, 20'000,
                                                          CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE));
  // What may change the answer makes it be asked for again.
  OK(cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 10));
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 256, 20'000));
  Say("little shared memory", blocks);
  OK(cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100));
  OK(cuFuncSetCacheConfig(add, CU_FUNC_CACHE_PREFER_SHARED));
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 256, 20'000));
  Say("much shared memory", blocks);
  EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(nullptr, add, 256, 20'000), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  Say("without a context", cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 256, 20'000));
  EXPECT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
}

// The context is looked for before the place for the answer.
TEST_F(OccupancyTest, WithoutAContext) {
  const CUfunction add = Kernel("add");
  CUcontext before = nullptr;
  int blocks = 0, grid = 0;
  OK(cuCtxPopCurrent(&before));
  EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(nullptr, add, 32, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 32, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuOccupancyMaxPotentialBlockSize(&grid, &blocks, add, nullptr, 0, 0), CUDA_ERROR_INVALID_CONTEXT);
  OK(cuCtxPushCurrent(before));
}

TEST_F(OccupancyTest, AvailableSharedMemory) {
  const CUfunction add = Kernel("add");
  for (const int blocks : {1, 2, 8}) {
    size_t bytes = 0;
    const CUresult result = cuOccupancyAvailableDynamicSMemPerBlock(&bytes, add, blocks, 128);
    EXPECT_EQ(result, CUDA_SUCCESS);
    Say(std::to_string(blocks) + " blocks", bytes);
  }
  size_t bytes = 0;  // without room for the answer or a function NVIDIA's library crashes
  EXPECT_EQ(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, add, 0, 128), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, add, 1, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(OccupancyTest, Clusters) {
  const CUfunction add = Kernel("add");
  CUlaunchConfig config{};
  config.gridDimX = 16;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 128;
  config.blockDimY = config.blockDimZ = 1;
  int size = 0;
  EXPECT_EQ(cuOccupancyMaxPotentialClusterSize(&size, add, &config), CUDA_SUCCESS);
  Say("largest cluster", size);
  EXPECT_EQ(cuOccupancyMaxPotentialClusterSize(nullptr, add, &config), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuOccupancyMaxPotentialClusterSize(&size, add, nullptr), CUDA_ERROR_INVALID_VALUE);
  int clusters = 0;
  EXPECT_EQ(cuOccupancyMaxActiveClusters(nullptr, add, &config), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuOccupancyMaxActiveClusters(&clusters, add, nullptr), CUDA_ERROR_INVALID_VALUE);
  Say("without an attribute", cuOccupancyMaxActiveClusters(&clusters, add, &config));
  Say("null function", cuOccupancyMaxActiveClusters(&clusters, nullptr, &config));
}

TEST_F(OccupancyTest, ActiveClusters) {
  NEEDS_HARDWARE("thread block clusters");
  const CUfunction add = Kernel("add");
  for (const unsigned width : {1u, 2u, 4u, 8u, 16u, 3u, 0u}) {
    CUlaunchAttribute attribute{};
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim = {width, 1, 1};
    CUlaunchConfig config{};
    config.gridDimX = 16;
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = 128;
    config.blockDimY = config.blockDimZ = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = -1;
    const CUresult result = cuOccupancyMaxActiveClusters(&clusters, add, &config);
    Say("clusters of " + std::to_string(width), std::to_string(result) + " " + std::to_string(clusters));
  }
}

}  // namespace
}  // namespace causeway::driver_test
