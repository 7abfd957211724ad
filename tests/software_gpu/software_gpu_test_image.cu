// SPDX-License-Identifier: Apache-2.0
// What the image tests load, in every compression mode. Long enough for the compressors to find something.
__device__ unsigned table[3];

extern "C" __global__ void scale(unsigned* data, unsigned factor) {
  data[threadIdx.x] *= factor;
}

extern "C" __global__ void fill(unsigned* data, unsigned count) {
#pragma unroll 8
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) data[i] = i * i + count + table[i % 3];
}
