// SPDX-License-Identifier: Apache-2.0
// NVIDIA's own CUDA runtime (the static one) starts over our tables: it looks up its 439 names, checks the
// tables' sizes and verifies the integrity value; if one is wrong, every call fails. It also judges the error
// texts.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>

#include "guest_lib/device/context_storage.h"
#include "ivshmem_ring/protocol/driver_api.h"
#include "tests/unit/fake_guest_state.h"

namespace causeway::guest {
namespace {

using test::PrimaryOf;

TEST(RuntimeStartup, FindsTheDevices) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
  ASSERT_EQ(count, 2);
  cudaDeviceProp properties;
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 1), cudaSuccess);
  EXPECT_STREQ(properties.name, "Fake device 1");
  EXPECT_EQ(std::memcmp(&properties.uuid, &test::Guest().devices[1].uuid, 16), 0);
}

TEST(RuntimeStartup, KeepsItsStateInContextStorage) {
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  EXPECT_EQ(total_bytes, size_t{1} << 30);
  EXPECT_EQ(CurrentContext(), PrimaryOf(1));
  ContextStorageDestroy(PrimaryOf(1));
  EXPECT_EQ(CurrentContext(), PrimaryOf(1));
  EXPECT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess) << "the runtime sets itself up again";
}

TEST(RuntimeStartup, ErrorTextsAreTheRuntimesOwn) {
  int compared = 0;
  for (int code = 0; code < 1000; ++code) {
    const char* text = nullptr;
    if (cuGetErrorString(static_cast<CUresult>(code), &text) != CUDA_SUCCESS) continue;
    const char* const runtime_text = cudaGetErrorString(static_cast<cudaError_t>(code));
    // Results that exist in the driver only.
    if (std::strcmp(runtime_text, "unrecognized error code") == 0) {
      EXPECT_TRUE(code == CUDA_ERROR_CONTEXT_ALREADY_CURRENT || code == CUDA_ERROR_KEY_ROTATION) << code;
      continue;
    }
    EXPECT_STREQ(text, runtime_text) << code;
    ++compared;
  }
  EXPECT_GE(compared, 99);
}

}  // namespace
}  // namespace causeway::guest
