// SPDX-License-Identifier: Apache-2.0
// Census category multicast: questions and wrong arguments only. A multicast object takes resources of the
// machine's fabric that outlive a process which misuses them, so no test makes one.
#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class MulticastTest : public DriverTest {};

TEST_F(MulticastTest, Granularity) {
  NEEDS_HARDWARE("multicast objects");
  CUmulticastObjectProp prop{};
  prop.numDevices = 2;
  prop.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.size = 2u << 20;
  size_t least = 0, best = 0;
  const CUresult result = cuMulticastGetGranularity(&least, &prop, CU_MULTICAST_GRANULARITY_MINIMUM);
  Say("result", result);
  if (result == CUDA_SUCCESS) {
    OK(cuMulticastGetGranularity(&best, &prop, CU_MULTICAST_GRANULARITY_RECOMMENDED));
    Say("least", least);
    Say("recommended", best);
    EXPECT_GE(best, least);
  }
  EXPECT_EQ(cuMulticastGetGranularity(nullptr, &prop, CU_MULTICAST_GRANULARITY_MINIMUM),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMulticastGetGranularity(&least, nullptr, CU_MULTICAST_GRANULARITY_MINIMUM),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MulticastTest, WrongArguments) {
  NEEDS_HARDWARE("multicast objects");
  EXPECT_EQ(cuMulticastCreate(nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_NE(cuMulticastAddDevice(0, 0), CUDA_SUCCESS);
  EXPECT_NE(cuMulticastBindMem(0, 0, 0, 0, 2u << 20, 0), CUDA_SUCCESS);
  EXPECT_NE(cuMulticastBindAddr(0, 0, 0, 2u << 20, 0), CUDA_SUCCESS);
  EXPECT_NE(cuMulticastUnbind(0, 0, 0, 2u << 20), CUDA_SUCCESS);
}

}  // namespace
}  // namespace causeway::driver_test
