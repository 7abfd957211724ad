// SPDX-License-Identifier: Apache-2.0
// Census categories module and library: managed variables, which host and device name by one address.
#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

using ManagedVariableTest = DriverTest;

// shared += ordinary
constexpr char kText[] = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 shared = 3;
.visible .global .attribute(.managed) .align 4 .b8 block[8192];
.visible .global .align 4 .u32 ordinary = 4;
.visible .entry work()
{
  .reg .b32 %r<4>;
  ld.global.u32 %r1, [shared];
  ld.global.u32 %r2, [ordinary];
  add.u32 %r3, %r1, %r2;
  st.global.u32 [shared], %r3;
  st.global.u32 [block+4096], %r3;
  ret;
}
)";

TEST_F(ManagedVariableTest, SharedByHostAndDevice) {
  CUlibrary library;
  CUkernel work;
  OK(cuLibraryLoadData(&library, kText, nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuLibraryGetKernel(&work, library, "work"));
  CUdeviceptr address = 0, block_address = 0;
  size_t bytes = 0;
  OK(cuLibraryGetManaged(&address, &bytes, library, "shared"));
  EXPECT_EQ(bytes, 4u);
  OK(cuLibraryGetManaged(&block_address, &bytes, library, "block"));
  EXPECT_EQ(bytes, 8192u);
  auto* shared = reinterpret_cast<volatile uint32_t*>(address);
  auto* block = reinterpret_cast<volatile uint32_t*>(block_address);
  EXPECT_EQ(*shared, 3u);
  *shared = 10;
  block[0] = 1;
  for (uint32_t round = 1; round <= 3; ++round) {
    OK(cuLaunchKernel(reinterpret_cast<CUfunction>(work), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
    OK(cuCtxSynchronize());
    EXPECT_EQ(*shared, 10 + 4 * round);
    EXPECT_EQ(block[1024], 10 + 4 * round);
    block[1] = round;  // beside what the device writes
    EXPECT_EQ(block[0], 1u);
  }
  uint32_t copied = 0;
  *shared = 99;
  OK(cuMemcpyDtoH(&copied, address, 4));
  EXPECT_EQ(copied, 99u);
  int managed = 0;
  EXPECT_EQ(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address), CUDA_SUCCESS);
  EXPECT_EQ(managed, 1);
  Say("an ordinary variable", cuLibraryGetManaged(&address, &bytes, library, "ordinary"));
  EXPECT_EQ(cuLibraryGetManaged(&address, &bytes, library, nullptr), CUDA_ERROR_INVALID_VALUE);
  OK(cuLibraryUnload(library));
}

TEST_F(ManagedVariableTest, OfAModule) {
  CUmodule module;
  CUfunction work;
  OK(cuModuleLoadData(&module, kText));
  OK(cuModuleGetFunction(&work, module, "work"));
  CUdeviceptr address = 0;
  OK(cuModuleGetGlobal(&address, nullptr, module, "shared"));
  auto* shared = reinterpret_cast<volatile uint32_t*>(address);
  EXPECT_EQ(*shared, 3u);
  *shared = 20;
  OK(cuLaunchKernel(work, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  OK(cuStreamSynchronize(nullptr));
  EXPECT_EQ(*shared, 24u);
  OK(cuModuleUnload(module));
}

}  // namespace
}  // namespace causeway::driver_test
