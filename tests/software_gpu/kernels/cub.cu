// SPDX-License-Identifier: Apache-2.0
// Library code of realistic size: block-wide primitives, and all device-wide kernels of three algorithms.
#include <cub/cub.cuh>

extern "C" __global__ void BlockPrimitives(const int* in, int* sums, int* scans, unsigned* keys) {
  using Reduce = cub::BlockReduce<int, 128>;
  using Scan = cub::BlockScan<int, 128>;
  using Sort = cub::BlockRadixSort<unsigned, 128, 4>;
  __shared__ union {
    typename Reduce::TempStorage reduce;
    typename Scan::TempStorage scan;
    typename Sort::TempStorage sort;
  } storage;
  const int i = blockIdx.x * 128 + threadIdx.x, x = in[i];
  const int sum = Reduce(storage.reduce).Sum(x);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
  __syncthreads();
  int scanned;
  Scan(storage.scan).ExclusiveSum(x, scanned);
  scans[i] = scanned;
  __syncthreads();
  unsigned mine[4];
  for (int k = 0; k < 4; ++k) mine[k] = keys[i * 4 + k];
  Sort(storage.sort).Sort(mine);
  for (int k = 0; k < 4; ++k) keys[i * 4 + k] = mine[k];
}

void Instantiate(void* t, size_t n, float* a, float* b, int m, unsigned* k) {
  cub::DeviceReduce::Sum(t, n, a, b, m);
  cub::DeviceScan::ExclusiveSum(t, n, a, b, m);
  cub::DeviceRadixSort::SortKeys(t, n, k, k, m);
}
