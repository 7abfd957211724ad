// SPDX-License-Identifier: Apache-2.0
// Functions, variables with initialisers, printf, assert, heap, and kernels that fail.
#include <cassert>
#include <cstdint>
#include <cstdio>

struct Pair {
  int number;
  double weight;
  char name[5];
};

struct Shape {
  __device__ virtual int Area(int scale) const { return scale; }
};
struct Square : Shape {
  int side;
  __device__ explicit Square(int s) : side(s) {}
  __device__ int Area(int scale) const override { return side * side * scale; }
};
struct Line : Shape {
  __device__ int Area(int) const override { return 0; }
};

__device__ int Double(int x) {
  return 2 * x;
}
__device__ int Triple(int x) {
  return 3 * x;
}
typedef int (*Function)(int);

__device__ int counter = 7;
__device__ int* counter_pointer = &counter;
__device__ int numbers[4] = {10, 20, 30, 40};
__device__ int* second_number = &numbers[1];
__device__ Function function_table[2] = {Double, Triple};
__device__ Pair pair = {5, 2.5, "pair"};
__device__ const char* words[3] = {"alpha", "beta", "gamma"};
__constant__ float weights[3] = {0.5f, 0.25f, 2.0f};
__constant__ Pair constant_pair = {-1, 0.125, "con"};

__device__ __noinline__ int Fibonacci(int n) {
  return n < 2 ? n : Fibonacci(n - 1) + Fibonacci(n - 2);
}

__device__ __noinline__ Pair Change(Pair p, int i) {
  p.number += i;
  p.weight *= i;
  p.name[i % 5] = 'x';
  return p;
}

__device__ __noinline__ int SumDigits(int n, int* depth) {
  int digits[4] = {n % 10, 1, 2, 3};
  digits[n & 3] += 1;
  ++*depth;
  return n == 0 ? digits[0] : digits[0] + SumDigits(n / 10, depth) + digits[3];
}

extern "C" {

__global__ void Calls(int* out, double* weights_out, int n) {
  const int i = threadIdx.x;
  out[i] = Fibonacci(i % 12);
  const Pair changed = Change(pair, i);
  out[32 + i] = changed.number + changed.name[0] + changed.name[4];
  weights_out[i] = changed.weight;
  out[64 + i] = function_table[i % 2](i + n);
  Square square(i);
  Line line;
  const Shape* shapes[2] = {&square, &line};
  out[96 + i] = shapes[(i + n) & 1]->Area(3);
  int depth = 0;
  out[128 + i] = SumDigits(i * 1234, &depth) * 100 + depth;
}

__global__ void Globals(int* out, float* floats) {
  atomicAdd(counter_pointer, 1);
  __syncthreads();
  if (threadIdx.x != 0) return;
  out[0] = counter;
  out[1] = *second_number;
  out[2] = pair.number + pair.name[3];
  out[3] = words[2][0];
  out[4] = constant_pair.number + constant_pair.name[1];
  floats[0] = weights[0] + weights[1] * weights[2];
}

__global__ void Print(const char* text, int i, double d, long long l) {
  printf("plain %% text\n");
  printf("[%d|%5d|%-5d|%05d|%+d|%x|%#X|%o|%u]\n", i, i, i, i, i, i, i, i, i);
  printf("[%f|%.3f|%10.2e|%g|%-12.4g|%a]\n", d, d, d, d, d, d);
  printf("[%s|%10s|%-8s|%.2s|%c|%5c]\n", text, text, text, text, 'q', 'r');
  printf("[%lld|%llu|%llx|%ld|%*d|%.*f|%hd|%zu]\n", l, l, l, (long)l, 7, i, 2, d, (short)i, sizeof(int));
  const int count = printf("%p|%i\n", (void*)0x1234, i);
  printf("%d arguments, %s\n", count, (const char*)nullptr);
}

__global__ void PrintIndices() {
  printf("block %d thread %d\n", blockIdx.x, threadIdx.x);
}

__global__ void Assert(int limit) {
  assert(int(threadIdx.x) < limit && "too many threads");
}

__global__ void Trap(int which) {
  if (threadIdx.x == which) __trap();
}

__global__ void WriteTo(int* where, long long offset) {
  where[offset] = 1;
}
__global__ void WriteUnaligned(char* where) {
  *(int*)(where + 1) = 1;
}
__global__ void WriteShared(int index) {
  extern __shared__ int values[];
  values[index] = 1;
}
__global__ void CallNowhere(Function function, int* out) {
  *out = function(1);
}

__global__ void Heap(int* out) {
  int* memory = (int*)malloc(100 * sizeof(int));
  for (int i = 0; i < 100; ++i) memory[i] = i * threadIdx.x;
  int sum = 0;
  for (int i = 0; i < 100; ++i) sum += memory[i];
  free(memory);
  out[threadIdx.x] = sum;
}

__global__ void WaitForHost(volatile int* flag, int* out) {
  while (*flag == 0) {
  }
  *out = *flag + 1;
}

}  // extern "C"
