// SPDX-License-Identifier: Apache-2.0
// Copies of 1 B to 33 MiB between pageable, pinned and device memory, at odd offsets; 2D copies, fills,
// pools, queries.
#include <algorithm>
#include <vector>

#include "tests/programs/check.h"

// Pinned buffers are smaller: in a VM both come out of a shared region that may have 64 MiB in all.
constexpr size_t kLargest = size_t(33) << 20, kSpace = kLargest + 64, kPinnedSpace = (size_t(9) << 20) + 64;

static void Fill(unsigned char* data, size_t bytes, uint32_t seed) {
  for (size_t i = 0; i < bytes; ++i) data[i] = (unsigned char)((seed + i) * 2654435761u >> 24);
}

// Host to device, device to device, device to host; the bytes around the copy must stay.
static void RoundTrip(unsigned char* source, unsigned char* target, unsigned char* first,
                      unsigned char* second, size_t bytes, size_t offset, bool asynchronous) {
  CHECK(cudaMemset(second, 0xee, std::min(kSpace, bytes + 64)));
  std::memset(target, 0xdd, bytes + 64);
  if (asynchronous) {
    CHECK(cudaMemcpyAsync(first + offset, source + offset, bytes, cudaMemcpyHostToDevice, 0));
    CHECK(cudaMemcpyAsync(second + 2 * offset, first + offset, bytes, cudaMemcpyDeviceToDevice, 0));
    CHECK(cudaMemcpyAsync(target, second, bytes + 2 * offset + 1, cudaMemcpyDeviceToHost, 0));
    CHECK(cudaStreamSynchronize(0));
  } else {
    CHECK(cudaMemcpy(first + offset, source + offset, bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(second + 2 * offset, first + offset, bytes, cudaMemcpyDefault));
    CHECK(cudaMemcpy(target, second, bytes + 2 * offset + 1, cudaMemcpyDefault));
  }
  REQUIRE(std::memcmp(target + 2 * offset, source + offset, bytes) == 0);
  for (size_t i = 0; i < 2 * offset; ++i) REQUIRE(target[i] == 0xee);
  REQUIRE(target[bytes + 2 * offset] == 0xee && target[bytes + 2 * offset + 1] == 0xdd);
}

static void Copies(unsigned char* first, unsigned char* second) {
  std::vector<unsigned char> pageable_in(kSpace), pageable_out(kSpace);
  unsigned char *pinned_in, *pinned_out;
  CHECK(cudaMallocHost(&pinned_in, kPinnedSpace));
  CHECK(cudaMallocHost(&pinned_out, kPinnedSpace));
  Fill(pageable_in.data(), kSpace, 1);
  Fill(pinned_in, kPinnedSpace, 2);
  const size_t sizes[] = {
      1, 2, 3, 7, 16, 255, 4095, 4096, 4097, 65535, 65537, 1 << 20, (2 << 20) + 5, 9 << 20, kLargest};
  int copies = 0;
  for (size_t bytes : sizes) {
    for (size_t offset : {0, 3, 13}) {
      if (bytes > (3 << 20) && offset == 13) continue;
      for (bool asynchronous : {false, true}) {
        RoundTrip(pageable_in.data(), pageable_out.data(), first, second, bytes, offset, asynchronous);
        copies += 3;
        if (bytes + 64 > kPinnedSpace) continue;
        RoundTrip(pinned_in, pinned_out, first, second, bytes, offset, asynchronous);
        copies += 3;
      }
    }
  }
  std::printf("memory_kinds: %d copies equal\n", copies);
  CHECK(cudaFreeHost(pinned_in));
  CHECK(cudaFreeHost(pinned_out));
}

static void Pitched() {
  const size_t width = 101, height = 37;
  unsigned char *device, host[height][128] = {}, back[height][120];
  size_t pitch = 0;
  CHECK(cudaMallocPitch(&device, &pitch, width, height));
  REQUIRE(pitch >= width && pitch % 32 == 0);
  Fill(&host[0][0], sizeof(host), 3);
  std::memset(back, 0x77, sizeof(back));
  CHECK(cudaMemset2D(device, pitch, 0x42, width, height));
  CHECK(cudaMemcpy2D(device + 1, pitch, &host[0][5], 128, width - 2, height - 1, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy2D(back, 120, device, pitch, width, height, cudaMemcpyDeviceToHost));
  for (size_t y = 0; y < height; ++y) {
    for (size_t x = 0; x < 120; ++x) {
      bool copied = y < height - 1 && x >= 1 && x < width - 1;
      unsigned char wanted = x >= width ? 0x77 : copied ? host[y][x + 4] : 0x42;
      REQUIRE(back[y][x] == wanted);
    }
  }
  CHECK(cudaFree(device));
}

static void Pools() {
  cudaStream_t stream;
  std::vector<int> result(5000);
  int supported = 0;
  CHECK(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, 0));
  REQUIRE(supported == 1);
  CHECK(cudaStreamCreate(&stream));
  for (int round = 0; round < 10; ++round) {
    int *first, *second;
    CHECK(cudaMallocAsync(&first, result.size() * sizeof(int), stream));
    CHECK(cudaMallocAsync(&second, (round + 1) * 100000, stream));
    CHECK(cudaMemsetAsync(first, round, result.size() * sizeof(int), stream));
    CHECK(cudaFreeAsync(second, stream));
    CHECK(cudaMemcpyAsync(result.data(), first, result.size() * sizeof(int), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaFreeAsync(first, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (int value : result) REQUIRE(value == round * 0x01010101);
  }
  cudaMemPool_t pool;
  CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
  CHECK(cudaMemPoolTrimTo(pool, 0));
  CHECK(cudaStreamDestroy(stream));
}

static void Queries(unsigned char* device) {
  size_t free_before = 0, free_after = 0, total = 0;
  void *large, *pinned;
  char on_stack[8];
  CHECK(cudaMemGetInfo(&free_before, &total));
  CHECK(cudaMalloc(&large, 64 << 20));
  CHECK(cudaMemGetInfo(&free_after, &total));
  REQUIRE(total > 0 && free_before <= total && free_after <= total);  // others use the device as well
  CHECK(cudaFree(large));
  CHECK(cudaMallocHost(&pinned, 4096));
  cudaPointerAttributes attributes;
  CHECK(cudaPointerGetAttributes(&attributes, device + 100));
  REQUIRE(attributes.type == cudaMemoryTypeDevice && attributes.device == 0);
  REQUIRE(attributes.devicePointer == device + 100 && attributes.hostPointer == nullptr);
  CHECK(cudaPointerGetAttributes(&attributes, (char*)pinned + 8));
  REQUIRE(attributes.type == cudaMemoryTypeHost && attributes.hostPointer == (char*)pinned + 8);
  REQUIRE(attributes.devicePointer == (char*)pinned + 8);
  CHECK(cudaPointerGetAttributes(&attributes, on_stack));
  REQUIRE(attributes.type == cudaMemoryTypeUnregistered && attributes.devicePointer == nullptr);
  CHECK(cudaFreeHost(pinned));
}

int main() {
  unsigned char *first, *second;
  CHECK(cudaMalloc(&first, kSpace));
  CHECK(cudaMalloc(&second, kSpace));
  REQUIRE(uintptr_t(first) % 256 == 0 && uintptr_t(second) % 256 == 0);
  Copies(first, second);
  Pitched();
  Pools();
  Queries(first);
  CHECK(cudaFree(first));
  CHECK(cudaFree(second));
  std::printf("memory_kinds: done\n");
  return 0;
}
