// SPDX-License-Identifier: Apache-2.0
// cuRAND's host API: four generators, four distributions, seeded; checksums, and means within what chance
// allows.
#include <curand.h>

#include <cmath>
#include <vector>

#include "tests/programs/check.h"

#define CHECK_RANDOM(call) REQUIRE((call) == CURAND_STATUS_SUCCESS)

constexpr size_t kCount = 1 << 16;

int main() {
  const struct {
    curandRngType_t type;
    const char* name;
  } kinds[] = {{CURAND_RNG_PSEUDO_XORWOW, "xorwow"},
               {CURAND_RNG_PSEUDO_PHILOX4_32_10, "philox"},
               {CURAND_RNG_PSEUDO_MRG32K3A, "mrg32k3a"},
               {CURAND_RNG_QUASI_SOBOL32, "sobol"}};
  float* numbers = nullptr;
  CHECK(cudaMalloc(&numbers, kCount * sizeof(float)));
  std::vector<float> host(kCount);
  for (const auto& kind : kinds) {
    curandGenerator_t generator;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    CHECK_RANDOM(curandCreateGenerator(&generator, kind.type));
    CHECK_RANDOM(curandSetStream(generator, stream));
    const bool quasi = kind.type == CURAND_RNG_QUASI_SOBOL32;
    if (!quasi) CHECK_RANDOM(curandSetPseudoRandomGeneratorSeed(generator, 15));
    for (int turn = 0; turn < 4; ++turn) {
      double mean = 0.5;
      if (turn == 0) CHECK_RANDOM(curandGenerateUniform(generator, numbers, kCount));
      if (turn == 1) CHECK_RANDOM(curandGenerateNormal(generator, numbers, kCount, 2.0f, 1.0f)), mean = 2;
      if (turn == 2)
        CHECK_RANDOM(curandGenerateLogNormal(generator, numbers, kCount, 0.0f, 0.5f)), mean = std::exp(0.125);
      if (turn == 3) CHECK_RANDOM(curandGenerateUniform(generator, numbers, kCount));
      CHECK(cudaMemcpyAsync(host.data(), numbers, kCount * sizeof(float), cudaMemcpyDeviceToHost, stream));
      CHECK(cudaStreamSynchronize(stream));
      double sum = 0;
      for (const float value : host) sum += value;
      REQUIRE(std::fabs(sum / kCount - mean) < 0.02);
      std::printf("curand_host: %s %d mean %.6f checksum %016llx\n", kind.name, turn, sum / kCount,
                  static_cast<unsigned long long>(check::Checksum(host.data(), kCount * sizeof(float))));
    }
    CHECK_RANDOM(curandDestroyGenerator(generator));
    CHECK(cudaStreamDestroy(stream));
  }
  CHECK(cudaFree(numbers));
  return 0;
}
