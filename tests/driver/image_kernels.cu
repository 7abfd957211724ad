// SPDX-License-Identifier: Apache-2.0
// What images.h holds in every form that nvcc makes.
extern "C" __global__ void add(unsigned* data, unsigned n, unsigned value) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] += value;
}
__device__ unsigned counter = 5;
