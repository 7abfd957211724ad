// SPDX-License-Identifier: Apache-2.0
// Ordinary kernels: vector addition, shared memory, divergence, 3D indices, vectors, locals, switches.
#include <cstdint>

extern "C" {

__global__ void VectorAdd(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

__global__ void TiledMatmul(const float* a, const float* b, float* c, int n) {
  __shared__ float as[16][16], bs[16][16];
  const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int tile = 0; tile < n / 16; ++tile) {
    as[threadIdx.y][threadIdx.x] = a[row * n + tile * 16 + threadIdx.x];
    bs[threadIdx.y][threadIdx.x] = b[(tile * 16 + threadIdx.y) * n + column];
    __syncthreads();
    for (int k = 0; k < 16; ++k) sum += as[threadIdx.y][k] * bs[k][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}

// Every thread writes what it is: 3D blocks and grids.
__global__ void WhoAmI(uint32_t* out) {
  const uint32_t block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const uint32_t thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const uint32_t threads = blockDim.x * blockDim.y * blockDim.z;
  uint32_t* mine = out + (block * threads + thread) * 8;
  uint32_t lane, lower;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(lower));
  mine[0] = threadIdx.x, mine[1] = threadIdx.y, mine[2] = threadIdx.z;
  mine[3] = blockIdx.x, mine[4] = blockIdx.y, mine[5] = blockIdx.z;
  mine[6] = lane, mine[7] = lower;
}

__global__ void SharedReduction(const int* in, int* out, int n) {
  extern __shared__ int partial[];
  int sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}

__global__ void StaticAndDynamicShared(int* out) {
  __shared__ double fixed[5];
  __shared__ char bytes[3];
  extern __shared__ int dynamic[];
  dynamic[threadIdx.x] = threadIdx.x * 3;
  if (threadIdx.x < 5) fixed[threadIdx.x] = threadIdx.x + 0.5;
  if (threadIdx.x < 3) bytes[threadIdx.x] = threadIdx.x + 40;
  __syncthreads();
  const int other = blockDim.x - 1 - threadIdx.x;
  out[threadIdx.x] = dynamic[other] + int(fixed[threadIdx.x % 5] * 2) + bytes[threadIdx.x % 3];
}

__global__ void Divergence(const int* in, int* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int x = in[i], steps = 0;
  while (x != 1 && steps < 1000) {
    x = x % 2 == 0 ? x / 2 : 3 * x + 1;
    ++steps;
  }
  switch (steps % 8) {
    case 0:
      steps += 1000;
      break;
    case 1:
      steps ^= 77;
      break;
    case 2:
      steps *= 3;
      break;
    case 3:
      steps -= 5;
      break;
    case 4:
      steps = -steps;
      break;
    case 5:
      steps <<= 2;
      break;
    case 6:
      steps += i;
      break;
    default:
      steps = 42;
      break;
  }
  out[i] = steps;
}

__global__ void LocalArray(const int* in, int* out, int n) {
  int values[16];
  for (int k = 0; k < 16; ++k) values[k] = in[(threadIdx.x + k) % n];
  for (int a = 1; a < 16; ++a) {  // insertion sort keeps the array in local memory
    const int key = values[a];
    int b = a - 1;
    while (b >= 0 && values[b] > key) {
      values[b + 1] = values[b];
      --b;
    }
    values[b + 1] = key;
  }
  out[threadIdx.x] = values[in[threadIdx.x] & 15];
}

__global__ void Vectors(const float4* in, float4* out, const uchar4* bytes, short2* shorts,
                        double2* doubles) {
  const int i = threadIdx.x;
  const float4 v = in[i];
  out[i] = make_float4(v.w, v.z, v.y, v.x);
  const uchar4 b = bytes[i];
  shorts[i] = make_short2(short(b.x - b.y), short(b.z * -b.w));
  doubles[i] = make_double2(v.x * 2.0, b.x / 3.0);
}

struct Parameters {
  char tag;
  double scale;
  int values[5];
  short tail;
};

__global__ void StructParameter(int8_t small, Parameters p, int64_t large, double* out) {
  const int i = threadIdx.x;
  out[i] = p.scale * p.values[i % 5] + p.tail + small + double(large) + p.tag;
}

__global__ void Memory64(uint64_t* out, uint64_t a, uint64_t b) {
  out[0] = a + b;
  out[1] = a * b;
  out[2] = a / b;
  out[3] = a % b;
  out[4] = __umul64hi(a, b);
  out[5] = int64_t(a) / int64_t(b);
  out[6] = int64_t(a) % int64_t(b);
  out[7] = __mul64hi(int64_t(a), int64_t(b));
}

}  // extern "C"
