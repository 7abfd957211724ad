// SPDX-License-Identifier: Apache-2.0
// Census category profiler.
#include <cudaProfiler.h>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class ProfilerTest : public DriverTest {};

TEST_F(ProfilerTest, StartStop) {
  NEEDS_HARDWARE("the profiler's switch");
  EXPECT_EQ(cuProfilerStart(), CUDA_SUCCESS);
  EXPECT_EQ(cuProfilerStop(), CUDA_SUCCESS);
  EXPECT_EQ(cuProfilerStop(), CUDA_SUCCESS);
}

// Since CUDA 12.0 the driver always says so.
TEST_F(ProfilerTest, Initialize) {
  using Initialize = CUresult(const char*, const char*, int);
  NEEDS_HARDWARE("the profiler's switch");
  auto* initialize = SymbolAs<Initialize>("cuProfilerInitialize");
  ASSERT_NE(initialize, nullptr);
  EXPECT_EQ(initialize("", "", 0), CUDA_ERROR_NOT_SUPPORTED);
}

}  // namespace
}  // namespace causeway::driver_test
