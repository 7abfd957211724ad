// SPDX-License-Identifier: Apache-2.0
// Census categories init, error, entry point.
#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

TEST(InitTest, FlagsMustBeZero) {
  EXPECT_EQ(cuInit(1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
}

TEST(ErrorTest, NamesAndTexts) {
  const char* text = nullptr;
  for (int error = -1; error < 1000; ++error) {
    const CUresult name = cuGetErrorName(static_cast<CUresult>(error), &text);
    if (name != CUDA_SUCCESS) {
      EXPECT_EQ(name, CUDA_ERROR_INVALID_VALUE);
      EXPECT_EQ(text, nullptr);
      continue;
    }
    Say("name" + std::to_string(error), std::string(text));
    EXPECT_EQ(cuGetErrorString(static_cast<CUresult>(error), &text), CUDA_SUCCESS);
    Say("text" + std::to_string(error), std::string(text));
  }
}

TEST(EntryPointTest, ProcAddress) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status{};
  EXPECT_EQ(cuGetProcAddress("cuMemAlloc", &function, 3020, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, Symbol("cuMemAlloc_v2"));
  EXPECT_EQ(cuGetProcAddress("cuNoSuchCall", &function, 13000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  int version = 0;
  EXPECT_EQ(cuDriverGetVersion(&version), CUDA_SUCCESS);
  EXPECT_GE(version, 12000);
  EXPECT_EQ(cuDriverGetVersion(nullptr), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace causeway::driver_test
