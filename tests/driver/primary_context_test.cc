// SPDX-License-Identifier: Apache-2.0
// Census category primary-ctx: references, state, reset.
#include <thread>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class PrimaryContextTest : public ::testing::Test {
 protected:
  void SetUp() override {
    OK(cuInit(0));
    OK(cuCtxSetCurrent(nullptr));
    ASSERT_FALSE(Active());
  }
  void TearDown() override {
    EXPECT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_FALSE(Active());
  }
  bool Active() {
    unsigned flags = 0;
    int active = -1;
    EXPECT_EQ(cuDevicePrimaryCtxGetState(0, &flags, &active), CUDA_SUCCESS);
    return active == 1;
  }
  unsigned long long Id(CUcontext context) {
    unsigned long long id = 0;
    EXPECT_EQ(cuCtxGetId(context, &id), CUDA_SUCCESS);
    return id;
  }
};

TEST_F(PrimaryContextTest, References) {
  CUcontext one = nullptr, two = nullptr;
  OK(cuDevicePrimaryCtxRetain(&one, 0));
  EXPECT_TRUE(Active());
  OK(cuDevicePrimaryCtxRetain(&two, 0));
  EXPECT_EQ(one, two);
  OK(cuDevicePrimaryCtxRelease(0));
  EXPECT_TRUE(Active());
  OK(cuDevicePrimaryCtxRelease(0));
  EXPECT_FALSE(Active());
  EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuDevicePrimaryCtxRetain(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&one, 99), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDevicePrimaryCtxRelease(99), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDevicePrimaryCtxReset(99), CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(PrimaryContextTest, HandleStaysIdChanges) {
  CUcontext first = nullptr, second = nullptr;
  OK(cuDevicePrimaryCtxRetain(&first, 0));
  const auto id = Id(first);
  OK(cuDevicePrimaryCtxRelease(0));
  OK(cuDevicePrimaryCtxRetain(&second, 0));
  EXPECT_EQ(first, second);
  EXPECT_NE(Id(second), id);
  OK(cuDevicePrimaryCtxRelease(0));
}

TEST_F(PrimaryContextTest, InactiveMayBeCurrent) {
  CUcontext context = nullptr;
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuDevicePrimaryCtxRelease(0));
  OK(cuCtxSetCurrent(context));
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc(&address, 4096), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  unsigned version = 0;
  EXPECT_EQ(cuCtxGetApiVersion(context, &version), CUDA_ERROR_INVALID_CONTEXT);
  CUdevice device = -1;
  Say("device of an inactive one", cuCtxGetDevice(&device));
  OK(cuDevicePrimaryCtxRetain(&context, 0));  // alive again, and still current
  OK(cuMemAlloc(&address, 4096));
  OK(cuMemFree(address));
  OK(cuDevicePrimaryCtxRelease(0));
}

TEST_F(PrimaryContextTest, ResetWithTwoReferences) {
  CUcontext context = nullptr;
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  CUdeviceptr address = 0;
  OK(cuMemAlloc(&address, 4096));
  std::thread([&] {
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  }).join();
  EXPECT_FALSE(Active());
  CUcontext current = nullptr;
  OK(cuCtxGetCurrent(&current));
  EXPECT_EQ(current, context);  // threads keep the pointer
  EXPECT_EQ(cuMemAlloc(&address, 4096), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  OK(cuDevicePrimaryCtxRelease(0));  // as driver 580 answers
  Say("second release", cuDevicePrimaryCtxRelease(0));
}

TEST_F(PrimaryContextTest, ReferencesAfterReset) {
  CUcontext context = nullptr;
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuDevicePrimaryCtxReset(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuDevicePrimaryCtxRelease(0));
  EXPECT_TRUE(Active());  // a reset takes no references along
  OK(cuDevicePrimaryCtxRelease(0));
  EXPECT_FALSE(Active());
  Say("release", cuDevicePrimaryCtxRelease(0));
}

// Memory that is registered for good, such as Causeway's own, is registered anew each time.
TEST_F(PrimaryContextTest, MemoryAfterResets) {
  for (int i = 0; i < 3; ++i) {
    CUcontext context = nullptr;
    void* pinned = nullptr;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuMemHostAlloc(&pinned, 4096, 0));
    OK(cuDevicePrimaryCtxReset(0));
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuMemHostAlloc(&pinned, 4096, 0));
    OK(cuMemFreeHost(pinned));
    OK(cuDevicePrimaryCtxRelease(0));
    EXPECT_FALSE(Active());
  }
}

TEST_F(PrimaryContextTest, Flags) {
  unsigned flags = 99;
  int active = -1;
  OK(cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_BLOCKING_SYNC));
  OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(flags & CU_CTX_SCHED_MASK, static_cast<unsigned>(CU_CTX_SCHED_BLOCKING_SYNC));
  CUcontext context = nullptr;
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  OK(cuCtxGetFlags(&flags));
  Say("context's flags", flags);
  // Of an active one they may be changed as well since CUDA 11.
  Say("set while active", cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_SPIN));
  OK(cuDevicePrimaryCtxSetFlags(0, 0));
  OK(cuDevicePrimaryCtxRelease(0));
  EXPECT_EQ(cuDevicePrimaryCtxSetFlags(0, 1u << 20), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDevicePrimaryCtxSetFlags(99, 0), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDevicePrimaryCtxGetState(0, nullptr, &active), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDevicePrimaryCtxGetState(0, &flags, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDevicePrimaryCtxGetState(99, &flags, &active), CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(PrimaryContextTest, OldNames) {
  NEEDS_HARDWARE("the older names");
  using OfDevice = CUresult(CUdevice);
  using SetFlags = CUresult(CUdevice, unsigned);
  CUcontext context = nullptr;
  OK(SymbolAs<SetFlags>("cuDevicePrimaryCtxSetFlags")(0, 0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(SymbolAs<OfDevice>("cuDevicePrimaryCtxRelease")(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(SymbolAs<OfDevice>("cuDevicePrimaryCtxReset")(0));
  Say("release after reset", cuDevicePrimaryCtxRelease(0));
}

// Today's form says that nobody holds the context; the first one took it for released.
TEST_F(PrimaryContextTest, TheFirstFormOfRelease) {
  auto* release = SymbolAs<CUresult(CUdevice)>("cuDevicePrimaryCtxRelease");
  ASSERT_NE(release, nullptr);
  EXPECT_EQ(release(0), CUDA_SUCCESS);
  EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
}

// The primary context is not the program's to destroy.
TEST_F(PrimaryContextTest, IsNotDestroyed) {
  CUcontext context = nullptr;
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  EXPECT_NE(cuCtxDestroy(context), CUDA_SUCCESS);
  EXPECT_TRUE(Active());
  OK(cuDevicePrimaryCtxRelease(0));
}

}  // namespace
}  // namespace causeway::driver_test
