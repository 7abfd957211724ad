// SPDX-License-Identifier: Apache-2.0
// Function attributes, occupancy and device properties: what must hold on every device, and no figure of one
// device.
#include "tests/programs/check.h"

__global__ void __launch_bounds__(256) Sample(float* data, int count) {
  __shared__ float tile[512];
  extern __shared__ float more[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  tile[threadIdx.x] = i < count ? data[i] : 0.0f;
  more[threadIdx.x] = tile[threadIdx.x];
  __syncthreads();
  if (i < count) data[i] = more[blockDim.x - 1 - threadIdx.x];
}

__global__ void Plain(int* value) {
  *value = 1;
}

static int Attribute(cudaDeviceAttr attribute) {
  int value = 0;
  CHECK(cudaDeviceGetAttribute(&value, attribute, 0));
  return value;
}

static void FunctionAttributes() {
  cudaFuncAttributes sample, plain;
  CHECK(cudaFuncGetAttributes(&sample, Sample));
  CHECK(cudaFuncGetAttributes(&plain, Plain));
  REQUIRE(sample.sharedSizeBytes == 2048 && plain.sharedSizeBytes == 0);
  REQUIRE(sample.maxThreadsPerBlock == 256 && plain.maxThreadsPerBlock == 1024);
  REQUIRE(sample.localSizeBytes == 0 && sample.constSizeBytes == 0);
  REQUIRE(sample.numRegs > 0 && sample.numRegs <= 255 && plain.numRegs > 0);
  REQUIRE(sample.ptxVersion >= 75 && sample.binaryVersion >= sample.ptxVersion);
  std::printf("function attributes: shared %zu, threads %d and %d\n", sample.sharedSizeBytes,
              sample.maxThreadsPerBlock, plain.maxThreadsPerBlock);
}

static void Occupancy(const cudaDeviceProp& properties) {
  int small = 0, large = 0, limited = 0, grid = 0, block = 0;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&small, Sample, 64, 256));
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&large, Sample, 256, 1024));
  REQUIRE(small >= large && large >= 1);
  REQUIRE(large <= properties.maxThreadsPerMultiProcessor / 256);
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&limited, Sample, 256, 40000));
  REQUIRE(limited >= 1 && limited <= large);
  REQUIRE(size_t(limited) <= properties.sharedMemPerMultiprocessor / (40000 + 2048));
  CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, Sample, 1024, 0));
  REQUIRE(block > 0 && block <= 256 && block % properties.warpSize == 0);
  REQUIRE(grid >= properties.multiProcessorCount);
  size_t available = 0;
  CHECK(cudaOccupancyAvailableDynamicSMemPerBlock(&available, Sample, 1, 256));
  REQUIRE(available > 0 && available <= properties.sharedMemPerMultiprocessor);
  cudaError_t too_many = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&small, Sample, 0, 0);
  REQUIRE(cudaGetLastError() == too_many);
  std::printf("occupancy: consistent, block of 0 answers %s\n", cudaGetErrorName(too_many));
}

static void Properties(const cudaDeviceProp& properties) {
  REQUIRE(properties.warpSize == 32 && Attribute(cudaDevAttrWarpSize) == 32);
  REQUIRE(properties.maxThreadsPerBlock == Attribute(cudaDevAttrMaxThreadsPerBlock));
  REQUIRE(properties.maxThreadsPerBlock == 1024);
  REQUIRE(properties.multiProcessorCount == Attribute(cudaDevAttrMultiProcessorCount));
  REQUIRE(properties.major == Attribute(cudaDevAttrComputeCapabilityMajor));
  REQUIRE(properties.minor == Attribute(cudaDevAttrComputeCapabilityMinor));
  REQUIRE(properties.major * 10 + properties.minor >= 75);
  REQUIRE(int(properties.sharedMemPerBlock) == Attribute(cudaDevAttrMaxSharedMemoryPerBlock));
  REQUIRE(int(properties.sharedMemPerBlockOptin) == Attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
  REQUIRE(properties.sharedMemPerBlockOptin >= properties.sharedMemPerBlock);
  REQUIRE(properties.maxGridSize[0] == Attribute(cudaDevAttrMaxGridDimX));
  REQUIRE(properties.maxThreadsDim[2] == 64 && properties.regsPerBlock == 65536);
  REQUIRE(properties.unifiedAddressing == 1 && properties.name[0] != '\0');
  REQUIRE(properties.totalConstMem == 65536);
  char bus_id[32] = {};
  int by_bus_id = -1, count = 0, driver = 0, runtime = 0;
  CHECK(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), 0));
  CHECK(cudaDeviceGetByPCIBusId(&by_bus_id, bus_id));
  REQUIRE(by_bus_id == 0);
  CHECK(cudaGetDeviceCount(&count));
  CHECK(cudaDriverGetVersion(&driver));
  CHECK(cudaRuntimeGetVersion(&runtime));
  REQUIRE(count >= 1 && driver >= 13000 && runtime / 1000 == 13);
  int least = 0, greatest = 0;
  CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  REQUIRE(least >= greatest && least == 0);
  size_t stack = 0, heap = 0;
  CHECK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
  CHECK(cudaDeviceGetLimit(&heap, cudaLimitMallocHeapSize));
  REQUIRE(stack >= 1024 && heap >= size_t(1) << 20);
  std::printf("properties: warp %d, block %d, constant %zu\n", properties.warpSize,
              properties.maxThreadsPerBlock, properties.totalConstMem);
}

int main() {
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  Properties(properties);
  FunctionAttributes();
  Occupancy(properties);
  return 0;
}
