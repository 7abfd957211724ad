// SPDX-License-Identifier: Apache-2.0
// Census category multicast: questions and wrong arguments only. A multicast object takes resources of the
// machine's fabric that outlive a process which misuses them, so no test makes one.
#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

// The software GPU by itself has none of the functions.
#define NEEDS_MULTICAST()                                    \
  if (OnSoftwareGpu() && std::getenv("CAUSEWAY") == nullptr) \
  GTEST_SKIP() << "the software GPU has no multicast objects"

class MulticastTest : public DriverTest {
 protected:
  CUresult Ask(size_t* bytes, CUmulticastGranularity_flags option = CU_MULTICAST_GRANULARITY_MINIMUM) {
    return cuMulticastGetGranularity(bytes, &prop_, option);
  }
  // Where there are no multicast objects, that is said before anything is looked at.
  CUresult Wrong() {
    size_t bytes = 0;
    return Ask(&bytes) == CUDA_ERROR_NOT_SUPPORTED ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
  }
  CUmulticastObjectProp prop_{2, 2u << 20, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0};
};

TEST_F(MulticastTest, Granularity) {
  NEEDS_MULTICAST();
  size_t least = 0, best = 0;
  const CUresult result = Ask(&least);
  Say("result", result);
  if (result == CUDA_SUCCESS) {
    OK(Ask(&best, CU_MULTICAST_GRANULARITY_RECOMMENDED));
    Say("least", least);
    Say("recommended", best);
    EXPECT_GE(best, least);
  }
  EXPECT_EQ(Ask(nullptr), Wrong());
  EXPECT_EQ(cuMulticastGetGranularity(&least, nullptr, CU_MULTICAST_GRANULARITY_MINIMUM), Wrong());
}

TEST_F(MulticastTest, WrongArguments) {
  NEEDS_MULTICAST();
  EXPECT_EQ(cuMulticastCreate(nullptr, nullptr), Wrong());
  EXPECT_NE(cuMulticastAddDevice(0, 0), CUDA_SUCCESS);
  EXPECT_NE(cuMulticastBindMem(0, 0, 0, 0, 2u << 20, 0), CUDA_SUCCESS);
  EXPECT_NE(cuMulticastBindAddr(0, 0, 0, 2u << 20, 0), CUDA_SUCCESS);
  EXPECT_NE(cuMulticastUnbind(0, 0, 0, 2u << 20), CUDA_SUCCESS);
}

}  // namespace
}  // namespace causeway::driver_test
