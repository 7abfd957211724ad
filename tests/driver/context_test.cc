// SPDX-License-Identifier: Apache-2.0
// Census category context: contexts that a program makes, the stack of each thread, settings.
#include <thread>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

// No context is current when a test begins.
class ContextTest : public ::testing::Test {
 protected:
  void SetUp() override {
    OK(cuInit(0));
    CUcontext context = nullptr;
    while (cuCtxGetCurrent(&context) == CUDA_SUCCESS && context != nullptr) cuCtxPopCurrent(nullptr);
  }
  CUcontext Current() {
    CUcontext context = nullptr;
    EXPECT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
    return context;
  }
  // By the ABI without parameters, which makes it current.
  CUcontext Create(unsigned flags = 0) {
    using Create = CUresult(CUcontext*, unsigned, CUdevice);
    CUcontext context = nullptr;
    EXPECT_EQ(SymbolAs<Create>("cuCtxCreate_v2")(&context, flags, 0), CUDA_SUCCESS);
    return context;
  }
};

TEST_F(ContextTest, CreateDestroy) {
  EXPECT_EQ(Current(), nullptr);
  const CUcontext one = Create(), two = Create();
  EXPECT_NE(one, two);
  EXPECT_EQ(Current(), two);
  CUdeviceptr address = 0;
  OK(cuMemAlloc(&address, 4096));
  unsigned long long first = 0, second = 0;
  OK(cuCtxGetId(one, &first));
  OK(cuCtxGetId(two, &second));
  EXPECT_NE(first, second);
  OK(cuCtxDestroy(two));  // pops it
  EXPECT_EQ(Current(), one);
  OK(cuCtxDestroy(one));
  EXPECT_EQ(Current(), nullptr);
  EXPECT_EQ(cuMemAlloc(&address, 4096), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_NE(cuCtxDestroy(nullptr), CUDA_SUCCESS);
}

// Pools and allocations belong to the device, and a link to the process, whichever context was current when they were made.
TEST_F(ContextTest, OutlivesItsContext) {
  CUcontext context = Create();
  CUmemPoolProps pool_properties{};
  pool_properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  pool_properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = pool_properties.location;
  size_t granularity = 0;
  OK(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CUmemoryPool standard = nullptr, pool = nullptr;
  CUmemGenericAllocationHandle allocation = 0;
  CUlinkState link = nullptr;
  CUdeviceptr mapped = 0, address = 0;
  OK(cuDeviceGetDefaultMemPool(&standard, 0));
  OK(cuMemPoolCreate(&pool, &pool_properties));
  OK(cuMemCreate(&allocation, granularity, &properties, 0));
  OK(cuLinkCreate(0, nullptr, nullptr, &link));
  OK(cuCtxDestroy(context));
  context = Create();
  CUmemoryPool again = nullptr;
  OK(cuDeviceGetDefaultMemPool(&again, 0));
  EXPECT_EQ(again, standard);
  OK(cuDeviceSetMemPool(0, standard));
  for (CUmemoryPool each : {standard, pool}) {
    EXPECT_EQ(cuMemAllocFromPoolAsync(&address, 100, each, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFreeAsync(address, nullptr), CUDA_SUCCESS);
  }
  EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemAddressReserve(&mapped, granularity, 0, 0, 0));
  EXPECT_EQ(cuMemMap(mapped, granularity, 0, allocation, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemUnmap(mapped, granularity), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(allocation), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(mapped, granularity), CUDA_SUCCESS);
  EXPECT_EQ(cuLinkDestroy(link), CUDA_SUCCESS);
  OK(cuCtxDestroy(context));
}

TEST_F(ContextTest, AllFormsOfCreate) {
  using Create3 = CUresult(CUcontext*, CUexecAffinityParam*, int, unsigned, CUdevice);
  using Create4 = CUresult(CUcontext*, CUctxCreateParams*, unsigned, CUdevice);
  CUcontext context = nullptr;
  OK(SymbolAs<Create3>("cuCtxCreate_v3")(&context, nullptr, 0, 0, 0));
  OK(cuCtxDestroy(context));
  OK(SymbolAs<Create4>("cuCtxCreate_v4")(&context, nullptr, 0, 0));
  OK(cuCtxDestroy(context));
  EXPECT_EQ(SymbolAs<Create3>("cuCtxCreate_v3")(nullptr, nullptr, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(SymbolAs<Create4>("cuCtxCreate_v4")(&context, nullptr, 0, 99), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(SymbolAs<Create4>("cuCtxCreate_v4")(&context, nullptr, 1u << 20, 0), CUDA_ERROR_INVALID_VALUE);
  if (!OnSoftwareGpu()) {
    CUexecAffinityParam affinity{};
    affinity.type = CU_EXEC_AFFINITY_TYPE_SM_COUNT;
    affinity.param.smCount.val = 8;
    const CUresult result = SymbolAs<Create3>("cuCtxCreate_v3")(&context, &affinity, 1, 0, 0);
    Say("affinity", result);
    if (result == CUDA_SUCCESS) {
      OK(cuCtxDestroy(context));
    }
    CUctxCreateParams parameters{&affinity, 1, nullptr};
    const CUresult other = SymbolAs<Create4>("cuCtxCreate_v4")(&context, &parameters, 0, 0);
    Say("affinity by parameters", other);
    if (other == CUDA_SUCCESS) {
      OK(cuCtxDestroy(context));
    }
  }
}

TEST_F(ContextTest, Stack) {
  const CUcontext one = Create(), two = Create();
  OK(cuCtxPushCurrent(one));
  EXPECT_EQ(Current(), one);
  CUcontext popped = nullptr;
  OK(cuCtxPopCurrent(&popped));
  EXPECT_EQ(popped, one);
  EXPECT_EQ(Current(), two);
  OK(cuCtxSetCurrent(one));  // replaces the top
  EXPECT_EQ(Current(), one);
  OK(cuCtxSetCurrent(nullptr));  // empties it
  EXPECT_EQ(Current(), one);
  OK(cuCtxPopCurrent(&popped));
  EXPECT_EQ(popped, one);
  EXPECT_EQ(Current(), nullptr);
  EXPECT_EQ(cuCtxPopCurrent(&popped), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuCtxPushCurrent(nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuCtxGetCurrent(nullptr), CUDA_ERROR_INVALID_VALUE);
  std::thread([&] {  // a thread has a stack of its own
    EXPECT_EQ(Current(), nullptr);
    EXPECT_EQ(cuCtxPushCurrent(two), CUDA_SUCCESS);
    EXPECT_EQ(Current(), two);
  })
      .join();
  EXPECT_EQ(Current(), nullptr);
  OK(cuCtxDestroy(one));
  OK(cuCtxDestroy(two));
}

// The first form takes no context that the thread has already.
TEST_F(ContextTest, TheFirstFormOfPush) {
  auto* push = SymbolAs<CUresult(CUcontext)>("cuCtxPushCurrent");
  ASSERT_NE(push, nullptr);
  CUcontext own = nullptr;
  OK(SymbolAs<CUresult(CUcontext*, unsigned, CUdevice)>("cuCtxCreate_v2")(&own, 0, 0));
  EXPECT_EQ(push(own), CUDA_ERROR_INVALID_CONTEXT);
  OK(cuCtxPushCurrent(own));  // today's does
  OK(cuCtxPopCurrent(nullptr));
  OK(cuCtxPopCurrent(nullptr));
  OK(push(own));
  CUcontext current = nullptr;
  OK(cuCtxGetCurrent(&current));
  EXPECT_EQ(current, own);
  OK(cuCtxDestroy(own));
}

// Launches of before CUDA 4 look at the context first.
TEST_F(ContextTest, LegacyLaunchesWithoutAContext) {
  const CUcontext own = Create();
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  OK(cuModuleLoadData(&module, kKernels));
  OK(cuModuleGetFunction(&add, module, "add"));
  OK(cuCtxPopCurrent(nullptr));
  uint32_t word = 0;
  EXPECT_EQ(cuParamSetSize(add, 12), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuParamSeti(add, 0, 1), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuParamSeti(add, 512, 1), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuParamSetf(add, 0, 1), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuParamSetv(add, 0, &word, 4), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuParamSetv(add, 0, nullptr, 0), CUDA_ERROR_INVALID_CONTEXT);
  OK(cuCtxDestroy(own));
}

// The first form leaves a context that has further uses where it is, names none, and does not push it again.
TEST_F(ContextTest, TheFirstFormOfPop) {
  auto* pop = SymbolAs<CUresult(CUcontext*)>("cuCtxPopCurrent");
  auto* attach = SymbolAs<CUresult(CUcontext*, unsigned)>("cuCtxAttach");
  ASSERT_NE(pop, nullptr);
  ASSERT_NE(attach, nullptr);
  const CUcontext own = Create();
  CUcontext named = nullptr;
  OK(pop(&named));
  EXPECT_EQ(named, own);
  OK(cuCtxPushCurrent(own));
  OK(attach(&named, 0));
  named = nullptr;
  OK(pop(&named));
  EXPECT_EQ(named, nullptr);
  EXPECT_EQ(Current(), own);
  OK(cuCtxPopCurrent(nullptr));
  EXPECT_EQ(SymbolAs<CUresult(CUcontext)>("cuCtxPushCurrent")(own), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(attach(nullptr, 1), CUDA_ERROR_INVALID_CONTEXT);  // without a context
  OK(cuCtxDestroy(own));
}

TEST_F(ContextTest, DestroyedElsewhere) {
  const CUcontext context = Create();
  std::thread([&] { EXPECT_EQ(cuCtxDestroy(context), CUDA_SUCCESS); }).join();
  Say("current", Current() == context);
  CUdeviceptr address = 0;
  Say("alloc", cuMemAlloc(&address, 4096));
  CUcontext popped = nullptr;
  Say("pop", cuCtxPopCurrent(&popped));
}

TEST_F(ContextTest, WhatItIs) {
  const CUcontext context = Create(CU_CTX_SCHED_BLOCKING_SYNC);
  CUdevice device = -1;
  OK(cuCtxGetDevice(&device));
  EXPECT_EQ(device, 0);
  using GetDevice = CUresult(CUdevice*, CUcontext);
  if (auto* get = SymbolAs<GetDevice>("cuCtxGetDevice_v2")) {
    device = -1;
    OK(get(&device, context));
    EXPECT_EQ(device, 0);
    device = -1;
    OK(get(&device, nullptr));
    EXPECT_EQ(device, 0);
  }
  unsigned version = 0, flags = 0;
  OK(cuCtxGetApiVersion(context, &version));
  EXPECT_EQ(version, 3020u);
  OK(cuCtxGetFlags(&flags));
  EXPECT_EQ(flags & CU_CTX_SCHED_MASK, static_cast<unsigned>(CU_CTX_SCHED_BLOCKING_SYNC));
  Say("flags", flags);
  OK(cuCtxSetFlags(CU_CTX_SCHED_YIELD));
  OK(cuCtxGetFlags(&flags));
  Say("flags set", flags);
  EXPECT_EQ(cuCtxGetFlags(nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuCtxSetFlags(1u << 20), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuCtxGetApiVersion(context, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuCtxGetDevice(nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuCtxGetId(context, nullptr), CUDA_ERROR_INVALID_VALUE);
  OK(cuCtxDestroy(context));
  EXPECT_EQ(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuCtxGetFlags(&flags), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(ContextTest, AttachDetach) {
  const CUcontext context = Create();
  CUcontext attached = nullptr;
  OK(cuCtxAttach(&attached, 0));
  EXPECT_EQ(attached, context);
  EXPECT_EQ(cuCtxAttach(&attached, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuCtxAttach(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuCtxDetach(context));
  EXPECT_EQ(Current(), context);  // one use is left
  OK(cuCtxDetach(context));
  Say("after the last", Current() == nullptr);
}

TEST_F(ContextTest, Limits) {
  const CUcontext context = Create();
  size_t value = 0;
  for (int limit = 0; limit < CU_LIMIT_MAX; ++limit) {
    const CUresult result = cuCtxGetLimit(&value, static_cast<CUlimit>(limit));
    Say("result" + std::to_string(limit), static_cast<int>(result));
    if (result == CUDA_SUCCESS) Say("limit" + std::to_string(limit), value);
  }
  OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
  OK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
  EXPECT_EQ(value, 2048u);
  EXPECT_EQ(cuCtxGetLimit(nullptr, CU_LIMIT_STACK_SIZE), CUDA_ERROR_INVALID_VALUE);
  EXPECT_NE(cuCtxGetLimit(&value, CU_LIMIT_MAX), CUDA_SUCCESS);
  EXPECT_NE(cuCtxSetLimit(CU_LIMIT_MAX, 1), CUDA_SUCCESS);
  OK(cuCtxDestroy(context));
}

// They are answered when they are called: natively too.
TEST_F(ContextTest, SettingsWithoutAContext) {
  EXPECT_EQ(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_SHARED), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuCtxSetSharedMemConfig(CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE), CUDA_ERROR_INVALID_CONTEXT);
  const CUcontext context = Create();
  OK(cuCtxSynchronize());  // nothing of it is left
  OK(cuCtxDestroy(context));
}

TEST_F(ContextTest, Settings) {
  const CUcontext context = Create();
  CUfunc_cache cache{};
  OK(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_SHARED));
  OK(cuCtxGetCacheConfig(&cache));
  Say("cache", static_cast<int>(cache));
  EXPECT_EQ(cuCtxGetCacheConfig(nullptr), CUDA_ERROR_INVALID_VALUE);
  CUsharedconfig shared{};
  OK(cuCtxGetSharedMemConfig(&shared));
  Say("shared", static_cast<int>(shared));
  int least = -99, greatest = 99;
  OK(cuCtxGetStreamPriorityRange(&least, &greatest));
  EXPECT_EQ(least, 0);
  EXPECT_LT(greatest, 0);
  Say("greatest", greatest);
  OK(cuCtxGetStreamPriorityRange(nullptr, nullptr));
  OK(cuCtxResetPersistingL2Cache());
  if (!OnSoftwareGpu()) {
    OK(cuCtxSetSharedMemConfig(CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE));
    CUexecAffinityParam affinity{};
    Say("affinity", cuCtxGetExecAffinity(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
  }
  OK(cuCtxDestroy(context));
  EXPECT_EQ(cuCtxGetCacheConfig(&cache), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(ContextTest, Synchronize) {
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
  const CUcontext one = Create(), two = Create();
  OK(cuCtxSynchronize());
  using Synchronize = CUresult(CUcontext);
  if (auto* synchronize = SymbolAs<Synchronize>("cuCtxSynchronize_v2")) {
    OK(synchronize(one));
    OK(synchronize(two));
    OK(synchronize(nullptr));
  }
  OK(cuCtxDestroy(two));
  OK(cuCtxDestroy(one));
}

// Work of one context does not hold up another's synchronisation.
TEST_F(ContextTest, OthersDoNotWait) {
  NEEDS_HARDWARE("contexts that run at once");
  const CUcontext busy = Create();
  CUmodule module = nullptr;
  CUfunction spin = nullptr;
  OK(cuModuleLoadData(&module, kKernels));
  OK(cuModuleGetFunction(&spin, module, "spin"));
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const CUcontext other = Create();
  OK(cuCtxSetCurrent(busy));
  {
    Spinner spinner(spin, stream);
    OK(cuCtxPushCurrent(other));
    EXPECT_FALSE(Waits(
        spinner, [] { EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS); }, false));
    OK(cuCtxPopCurrent(nullptr));
    OK(cuStreamSynchronize(stream));
  }
  OK(cuCtxDestroy(busy));
  OK(cuCtxDestroy(other));
}

TEST_F(ContextTest, EventsOfAContext) {
  NEEDS_HARDWARE("events of whole contexts");
  const CUcontext context = Create();
  CUevent event = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuCtxRecordEvent(context, event));
  OK(cuCtxWaitEvent(context, event));
  OK(cuEventSynchronize(event));
  OK(cuEventDestroy(event));
  OK(cuCtxDestroy(context));
}

}  // namespace
}  // namespace causeway::driver_test
