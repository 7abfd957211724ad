// SPDX-License-Identifier: Apache-2.0
// cuFFT: forward and inverse transforms, compared with a direct sum on the CPU within a rounding bound.
#include <cufft.h>

#include <cmath>
#include <complex>
#include <vector>

#include "tests/programs/check.h"

#define CHECK_FFT(call) REQUIRE((call) == CUFFT_SUCCESS)

static void Transform(int length, int batch) {
  const size_t count = size_t(length) * batch, bytes = count * sizeof(cufftComplex);
  std::vector<cufftComplex> input(count), spectrum(count), back(count);
  uint32_t seed = 9;
  for (cufftComplex& value : input) {
    value.x = float(int(check::Next(seed) % 201) - 100);
    value.y = float(int(check::Next(seed) % 201) - 100);
  }
  cufftComplex* device;
  cufftHandle plan;
  CHECK(cudaMalloc(&device, bytes));
  CHECK(cudaMemcpy(device, input.data(), bytes, cudaMemcpyHostToDevice));
  CHECK_FFT(cufftPlan1d(&plan, length, CUFFT_C2C, batch));
  CHECK_FFT(cufftExecC2C(plan, device, device, CUFFT_FORWARD));
  CHECK(cudaMemcpy(spectrum.data(), device, bytes, cudaMemcpyDeviceToHost));
  CHECK_FFT(cufftExecC2C(plan, device, device, CUFFT_INVERSE));
  CHECK(cudaMemcpy(back.data(), device, bytes, cudaMemcpyDeviceToHost));
  const double pi = 3.14159265358979323846, bound = 1e-3 * std::sqrt(double(length)) * 10;
  for (int row = 0; row < batch; ++row) {
    const cufftComplex* from = &input[size_t(row) * length];
    // Eight frequencies of each row are enough to tell a wrong transform from a right one.
    for (int probe = 0; probe < 8; ++probe) {
      int frequency = int((size_t(probe) * 37 + row) % length);
      std::complex<double> sum = 0;
      for (int i = 0; i < length; ++i) {
        double angle = -2 * pi * double((long long)i * frequency % length) / length;
        sum += std::complex<double>(from[i].x, from[i].y) * std::polar(1.0, angle);
      }
      cufftComplex got = spectrum[size_t(row) * length + frequency];
      REQUIRE(std::fabs(got.x - sum.real()) < bound && std::fabs(got.y - sum.imag()) < bound);
    }
  }
  for (size_t i = 0; i < count; ++i) {
    REQUIRE(std::fabs(back[i].x / length - input[i].x) < 1e-3 &&
            std::fabs(back[i].y / length - input[i].y) < 1e-3);
  }
  CHECK_FFT(cufftDestroy(plan));
  CHECK(cudaFree(device));
  std::printf("fft_cufft: length %d, batch %d, first %.0f %.0f\n", length, batch,
              std::round(double(spectrum[0].x)), std::round(double(spectrum[0].y)));
}

int main() {
  Transform(256, 4);
  Transform(1000, 3);
  Transform(4096, 2);
  return 0;
}
