// SPDX-License-Identifier: Apache-2.0
// Fixed work in many small steps, meant to be started twice at the same time; an argument changes the
// numbers.
#include <vector>

#include "tests/programs/check.h"

constexpr int kCount = 2048, kSteps = 300;

__global__ void Mix(unsigned int* values, int count, unsigned int round) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] = (values[i] ^ round) * 2654435761u + 12345u;
}

int main(int argc, char** argv) {
  const unsigned int seed = argc > 1 ? unsigned(std::atoi(argv[1])) : 1;
  std::vector<unsigned int> expected(kCount), result(kCount);
  for (int i = 0; i < kCount; ++i) expected[i] = i * 7919u + seed;
  unsigned int* device;
  CHECK(cudaMalloc(&device, kCount * sizeof(unsigned int)));
  CHECK(cudaMemcpy(device, expected.data(), kCount * sizeof(unsigned int), cudaMemcpyHostToDevice));
  for (int step = 0; step < kSteps; ++step) {
    Mix<<<kCount / 256, 256>>>(device, kCount, unsigned(step) + seed);
    CHECK(cudaGetLastError());
    for (unsigned int& value : expected) value = (value ^ (unsigned(step) + seed)) * 2654435761u + 12345u;
    if (step % 10 != 9) continue;
    CHECK(cudaMemcpy(result.data(), device, kCount * sizeof(unsigned int), cudaMemcpyDeviceToHost));
    check::Equal(result.data(), expected.data(), kCount, "values");
  }
  CHECK(cudaFree(device));
  std::printf("two_at_once: seed %u, %d steps, checksum %016llx\n", seed, kSteps,
              (unsigned long long)check::Checksum(result.data(), kCount * sizeof(unsigned int)));
  return 0;
}
