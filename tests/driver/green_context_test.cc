// SPDX-License-Identifier: Apache-2.0
// Census category green-ctx: resources, splitting, green contexts and their streams.
#include <cstring>
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class GreenContextTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    OK(cuDeviceGetDevResource(0, &all_, CU_DEV_RESOURCE_TYPE_SM));
  }
  // A green context with one group of at least that many multiprocessors.
  CUgreenCtx Make(unsigned minimum) {
    CUdevResource group{}, rest{};
    unsigned groups = 1;
    CUdevResourceDesc description = nullptr;
    CUgreenCtx green = nullptr;
    EXPECT_EQ(cuDevSmResourceSplitByCount(&group, &groups, &all_, &rest, 0, minimum), CUDA_SUCCESS);
    EXPECT_EQ(groups, 1u);
    EXPECT_EQ(cuDevResourceGenerateDesc(&description, &group, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_SUCCESS);
    return green;
  }
  CUdevResource all_{};
};

TEST_F(GreenContextTest, Resources) {
  EXPECT_EQ(all_.type, CU_DEV_RESOURCE_TYPE_SM);
  int processors = 0;
  OK(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  EXPECT_EQ(all_.sm.smCount, static_cast<unsigned>(processors));
  Say("least", all_.sm.minSmPartitionSize);
  Say("alignment", all_.sm.smCoscheduledAlignment);
  CUdevResource of_context{};
  OK(cuCtxGetDevResource(context_, &of_context, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT_EQ(of_context.sm.smCount, all_.sm.smCount);
  EXPECT_EQ(cuDeviceGetDevResource(0, nullptr, CU_DEV_RESOURCE_TYPE_SM), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetDevResource(99, &of_context, CU_DEV_RESOURCE_TYPE_SM), CUDA_ERROR_INVALID_DEVICE);
  Say("no type", cuDeviceGetDevResource(0, &of_context, CU_DEV_RESOURCE_TYPE_INVALID));
}

TEST_F(GreenContextTest, Split) {
  unsigned groups = 0;
  OK(cuDevSmResourceSplitByCount(nullptr, &groups, &all_, nullptr, 0, 16));  // counts only
  Say("groups of 16", groups);
  ASSERT_GT(groups, 1u);
  std::vector<CUdevResource> parts(groups);
  CUdevResource rest{};
  OK(cuDevSmResourceSplitByCount(parts.data(), &groups, &all_, &rest, 0, 16));
  unsigned total = rest.sm.smCount;
  for (unsigned i = 0; i < groups; ++i) {
    EXPECT_GE(parts[i].sm.smCount, 16u);
    total += parts[i].sm.smCount;
  }
  EXPECT_EQ(total, all_.sm.smCount);
  Say("rest", rest.sm.smCount);
  EXPECT_EQ(cuDevSmResourceSplitByCount(parts.data(), nullptr, &all_, nullptr, 0, 16),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDevSmResourceSplitByCount(parts.data(), &groups, nullptr, nullptr, 0, 16),
            CUDA_ERROR_INVALID_VALUE);
  CUdevResource none{};
  EXPECT_NE(cuDevSmResourceSplitByCount(nullptr, &groups, &none, nullptr, 0, 16), CUDA_SUCCESS);
  groups = 1;
  EXPECT_NE(cuDevSmResourceSplitByCount(parts.data(), &groups, &all_, nullptr, 0, all_.sm.smCount + 1),
            CUDA_SUCCESS);
}

TEST_F(GreenContextTest, RunsAKernel) {
  const CUgreenCtx green = Make(16);
  CUdevResource own{};
  OK(cuGreenCtxGetDevResource(green, &own, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT_GE(own.sm.smCount, 16u);
  EXPECT_LT(own.sm.smCount, all_.sm.smCount);
  const CUfunction add = Kernel("add");
  CUstream stream = nullptr;
  OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  CUdeviceptr address = 0;
  OK(cuMemAlloc(&address, 4096));
  OK(cuMemsetD32Async(address, 1, 1024, stream));
  unsigned count = 1024, value = 4, word = 0;
  void* parameters[] = {&address, &count, &value};
  OK(cuLaunchKernel(add, 4, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr));
  OK(cuStreamSynchronize(stream));
  OK(cuMemcpyDtoH(&word, address + 4092, 4));
  EXPECT_EQ(word, 5u);
  CUgreenCtx of_stream = nullptr;
  OK(cuStreamGetGreenCtx(stream, &of_stream));
  EXPECT_EQ(of_stream, green);
  OK(cuStreamGetGreenCtx(nullptr, &of_stream));  // the primary context is current
  EXPECT_EQ(of_stream, nullptr);
  CUcontext of_green = nullptr, context = nullptr;
  OK(cuStreamGetCtx(stream, &of_green));
  OK(cuCtxFromGreenCtx(&context, green));
  Say("stream's context is the green one's", of_green == context);
  OK(cuStreamDestroy(stream));
  OK(cuMemFree(address));
  OK(cuGreenCtxDestroy(green));
}

TEST_F(GreenContextTest, AsCurrentContext) {
  const CUgreenCtx green = Make(16);
  CUcontext context = nullptr, again = nullptr, current = nullptr;
  OK(cuCtxFromGreenCtx(&context, green));
  OK(cuCtxFromGreenCtx(&again, green));
  EXPECT_EQ(context, again);
  EXPECT_NE(context, context_);
  OK(cuCtxPushCurrent(context));
  OK(cuCtxGetCurrent(&current));
  EXPECT_EQ(current, context);
  CUdevice device = -1;
  OK(cuCtxGetDevice(&device));
  EXPECT_EQ(device, 0);
  CUdevResource own{};
  OK(cuCtxGetDevResource(context, &own, CU_DEV_RESOURCE_TYPE_SM));
  EXPECT_LT(own.sm.smCount, all_.sm.smCount);
  CUdeviceptr address = 0;
  OK(cuMemAlloc(&address, 4096));
  OK(cuMemsetD32(address, 3, 16));
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUgreenCtx of_stream = nullptr;
  OK(cuStreamGetGreenCtx(stream, &of_stream));
  EXPECT_EQ(of_stream, green);
  OK(cuStreamGetGreenCtx(nullptr, &of_stream));
  EXPECT_EQ(of_stream, green);
  OK(cuCtxSynchronize());
  OK(cuStreamDestroy(stream));
  OK(cuMemFree(address));
  OK(cuCtxPopCurrent(&current));
  EXPECT_EQ(current, context);
  unsigned long long id = 0, other = 0, of_context = 0;
  OK(cuGreenCtxGetId(green, &id));
  OK(cuCtxGetId(context_, &other));
  OK(cuCtxGetId(context, &of_context));
  EXPECT_NE(id, other);
  Say("context has the id", id == of_context);
  OK(cuGreenCtxDestroy(green));
}

TEST_F(GreenContextTest, Events) {
  const CUgreenCtx green = Make(16);
  CUevent event = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuGreenCtxRecordEvent(green, event));
  OK(cuGreenCtxWaitEvent(green, event));
  OK(cuEventSynchronize(event));
  EXPECT_NE(cuGreenCtxRecordEvent(green, nullptr), CUDA_SUCCESS);
  OK(cuEventDestroy(event));
  OK(cuGreenCtxDestroy(green));
}

// It keeps the primary context active.
TEST_F(GreenContextTest, HoldsThePrimaryContext) {
  LetContextEnd();
  const CUgreenCtx green = Make(16);
  OK(cuCtxSetCurrent(nullptr));
  OK(cuDevicePrimaryCtxRelease(0));
  unsigned flags = 0;
  int active = 0;
  OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(active, 1);
  OK(cuGreenCtxDestroy(green));
  OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(active, 0);
  OK(cuDevicePrimaryCtxRetain(&context_, 0));
}

TEST_F(GreenContextTest, WrongArguments) {
  CUgreenCtx green = nullptr;
  CUdevResourceDesc description = nullptr;
  CUdevResource none{};
  EXPECT_EQ(cuGreenCtxCreate(&green, nullptr, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_SUCCESS);
  EXPECT_EQ(cuGreenCtxDestroy(green), CUDA_SUCCESS);
  EXPECT_EQ(cuDevResourceGenerateDesc(nullptr, &all_, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDevResourceGenerateDesc(&description, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_NE(cuDevResourceGenerateDesc(&description, &none, 1), CUDA_SUCCESS);
  OK(cuDevResourceGenerateDesc(&description, &all_, 1));
  Say("no flag", cuGreenCtxCreate(&green, description, 0, 0));
  EXPECT_EQ(cuGreenCtxCreate(nullptr, description, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_ERROR_INVALID_VALUE);
  OK(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  CUstream stream = nullptr;
  EXPECT_EQ(cuGreenCtxStreamCreate(nullptr, green, CU_STREAM_NON_BLOCKING, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGreenCtxStreamCreate(&stream, green, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_NE(cuGreenCtxGetId(green, nullptr), CUDA_SUCCESS);
  EXPECT_NE(cuCtxFromGreenCtx(nullptr, green), CUDA_SUCCESS);
  OK(cuGreenCtxDestroy(green));
  EXPECT_NE(cuGreenCtxDestroy(nullptr), CUDA_SUCCESS);
}

}  // namespace
}  // namespace causeway::driver_test
