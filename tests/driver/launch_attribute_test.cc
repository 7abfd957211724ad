// SPDX-License-Identifier: Apache-2.0
// Census category launch, cuLaunchKernelEx: each attribute, and what is wrong with some of their values.
#include <cstring>
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class LaunchAttributeTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    add_ = Kernel("add");
    OK(cuMemAlloc(&data_, 4));
    OK(cuMemsetD32(data_, 0, 1));
    OK(cuCtxSynchronize());  // non-blocking streams do not wait for it
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    config_.gridDimX = 4;
    config_.gridDimY = config_.gridDimZ = 1;
    config_.blockDimX = 32;
    config_.blockDimY = config_.blockDimZ = 1;
    config_.hStream = stream_;
  }
  void TearDown() override {
    EXPECT_EQ(cuStreamDestroy(stream_), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree(data_), CUDA_SUCCESS);
    DriverTest::TearDown();
  }
  CUresult Launch(std::vector<CUlaunchAttribute>& attributes) {
    config_.attrs = attributes.data();
    config_.numAttrs = static_cast<unsigned>(attributes.size());
    return cuLaunchKernelEx(&config_, add_, parameters_, nullptr);
  }
  // Launches twice, because the second one may take another way, and counts what ran.
  CUresult LaunchTwice(std::vector<CUlaunchAttribute>& attributes) {
    const uint32_t before = Sum();
    const CUresult first = Launch(attributes), second = Launch(attributes);
    EXPECT_EQ(first, second);
    EXPECT_EQ(Sum(), before + (first == CUDA_SUCCESS ? 10 : 0));
    return first;
  }
  uint32_t Sum() {
    uint32_t value = ~0u;
    EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoH(&value, data_, 4), CUDA_SUCCESS);
    return value;
  }
  static CUlaunchAttribute Attribute(CUlaunchAttributeID id) {
    CUlaunchAttribute attribute;
    std::memset(&attribute, 0, sizeof attribute);
    attribute.id = id;
    return attribute;
  }
  CUfunction add_ = nullptr;
  CUdeviceptr data_ = 0;
  uint32_t n_ = 1, value_ = 5;
  CUstream stream_ = nullptr;
  CUlaunchConfig config_{};
  void* parameters_[3] = {&data_, &n_, &value_};
};

TEST_F(LaunchAttributeTest, NoneAndIgnored) {
  std::vector<CUlaunchAttribute> none;
  EXPECT_EQ(LaunchTwice(none), CUDA_SUCCESS);
  std::vector<CUlaunchAttribute> ignored(3, Attribute(CU_LAUNCH_ATTRIBUTE_IGNORE));
  EXPECT_EQ(LaunchTwice(ignored), CUDA_SUCCESS);
}

TEST_F(LaunchAttributeTest, Cooperative) {
  std::vector<CUlaunchAttribute> attributes = {Attribute(CU_LAUNCH_ATTRIBUTE_COOPERATIVE)};
  attributes[0].value.cooperative = 1;
  EXPECT_EQ(LaunchTwice(attributes), CUDA_SUCCESS);
  config_.gridDimX = 10'000'000;
  EXPECT_EQ(Launch(attributes), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  EXPECT_EQ(Launch(attributes), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
}

TEST_F(LaunchAttributeTest, Hints) {
  std::vector<CUlaunchAttribute> one = {Attribute(CU_LAUNCH_ATTRIBUTE_PRIORITY)};
  int least = 0, greatest = 0;
  OK(cuCtxGetStreamPriorityRange(&least, &greatest));
  for (const int priority : {least, greatest}) {
    one[0].value.priority = priority;
    EXPECT_EQ(LaunchTwice(one), CUDA_SUCCESS);
  }
  one[0] = Attribute(CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY);
  one[0].value.syncPolicy = CU_SYNC_POLICY_YIELD;
  Say("synchronisation policy", LaunchTwice(one));
  one[0] = Attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE);
  one[0].value.clusterSchedulingPolicyPreference = CU_CLUSTER_SCHEDULING_POLICY_SPREAD;
  Say("scheduling policy", LaunchTwice(one));
  one[0] = Attribute(CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN);
  one[0].value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
  Say("domain", LaunchTwice(one));
  one[0] = Attribute(CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP);
  one[0].value.memSyncDomainMap.default_ = 0;
  one[0].value.memSyncDomainMap.remote = 1;
  Say("domain map", LaunchTwice(one));
  one[0] = Attribute(CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
  one[0].value.sharedMemCarveout = 50;
  Say("carveout", LaunchTwice(one));
  one[0] = Attribute(CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING);
  Say("NVLink", LaunchTwice(one));
  one[0] = Attribute(CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW);
  one[0].value.accessPolicyWindow.base_ptr = reinterpret_cast<void*>(data_);
  one[0].value.accessPolicyWindow.num_bytes = 4;
  one[0].value.accessPolicyWindow.hitRatio = 1.0f;
  one[0].value.accessPolicyWindow.hitProp = CU_ACCESS_PROPERTY_PERSISTING;
  one[0].value.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_STREAMING;
  Say("access window", LaunchTwice(one));
}

TEST_F(LaunchAttributeTest, ProgrammaticSerialization) {
  std::vector<CUlaunchAttribute> one = {Attribute(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)};
  one[0].value.programmaticStreamSerializationAllowed = 1;
  EXPECT_EQ(LaunchTwice(one), CUDA_SUCCESS);
}

TEST_F(LaunchAttributeTest, Events) {
  CUevent event;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  std::vector<CUlaunchAttribute> one = {Attribute(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)};
  one[0].value.programmaticEvent.event = event;
  one[0].value.programmaticEvent.triggerAtBlockStart = 1;
  EXPECT_EQ(Launch(one), CUDA_SUCCESS);
  EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(Launch(one), CUDA_SUCCESS);
  EXPECT_EQ(Sum(), 10u);
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
  one[0] = Attribute(CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT);
  one[0].value.launchCompletionEvent.event = event;
  EXPECT_EQ(Launch(one), CUDA_SUCCESS);
  EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  EXPECT_EQ(Sum(), 15u);
  OK(cuEventDestroy(event));
}

TEST_F(LaunchAttributeTest, EventsWithTiming) {
  NEEDS_HARDWARE("programmatic events");
  CUevent event;
  OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
  std::vector<CUlaunchAttribute> one = {Attribute(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)};
  one[0].value.programmaticEvent.event = event;
  Say("programmatic", Launch(one));
  one[0] = Attribute(CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT);
  one[0].value.launchCompletionEvent.event = event;
  Say("completion", Launch(one));
  OK(cuStreamSynchronize(stream_));
  OK(cuEventDestroy(event));
}

TEST_F(LaunchAttributeTest, Clusters) {
  NEEDS_HARDWARE("thread block clusters");
  config_.gridDimX = 16;
  const auto with = [&](unsigned x, unsigned y, unsigned z) {
    std::vector<CUlaunchAttribute> one = {Attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)};
    one[0].value.clusterDim = {x, y, z};
    return LaunchTwice(one);
  };
  for (const unsigned width : {1u, 2u, 4u, 8u}) EXPECT_EQ(with(width, 1, 1), CUDA_SUCCESS) << width;
  Say("16 without leave", with(16, 1, 1));
  OK(cuFuncSetAttribute(add_, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
  Say("16 with leave", with(16, 1, 1));
  Say("3 of 16", with(3, 1, 1));
  Say("none", with(0, 1, 1));
  Say("two rows", with(1, 2, 1));
  Say("32", with(32, 1, 1));
  std::vector<CUlaunchAttribute> two = {Attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION),
                                        Attribute(CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION)};
  two[0].value.clusterDim = {2, 1, 1};
  two[1].value.preferredClusterDim = {4, 1, 1};
  Say("preferred", LaunchTwice(two));
}

TEST_F(LaunchAttributeTest, ClustersOfTheKernel) {
  NEEDS_HARDWARE("thread block clusters");
  CUmodule module;
  CUfunction clustered;
  OK(cuModuleLoadData(
      &module,
      ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry clustered() .reqnctapercluster 2, "
      "1, 1\n{\n  ret;\n}\n"));
  OK(cuModuleGetFunction(&clustered, module, "clustered"));
  EXPECT_EQ(cuLaunchKernel(clustered, 4, 1, 1, 32, 1, 1, 0, stream_, nullptr, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuLaunchKernel(clustered, 4, 1, 1, 32, 1, 1, 0, stream_, nullptr, nullptr), CUDA_SUCCESS);
  Say("3 blocks of clusters of 2",
      cuLaunchKernel(clustered, 3, 1, 1, 32, 1, 1, 0, stream_, nullptr, nullptr));
  OK(cuStreamSynchronize(stream_));
}

TEST_F(LaunchAttributeTest, DeviceUpdatableNode) {
  NEEDS_HARDWARE("device-updatable nodes");
  std::vector<CUlaunchAttribute> one = {Attribute(CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE)};
  one[0].value.deviceUpdatableKernelNode.deviceUpdatable = 1;
  Say("outside of a capture", Launch(one));
  OK(cuStreamSynchronize(stream_));
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
  one[0].value.deviceUpdatableKernelNode.devNode = nullptr;
  const CUresult captured = Launch(one);
  Say("captured", captured);
  if (captured == CUDA_SUCCESS) {
    EXPECT_NE(one[0].value.deviceUpdatableKernelNode.devNode, nullptr);
  }
  CUgraph graph = nullptr;
  Say("captured graph", cuStreamEndCapture(stream_, &graph));
  if (graph != nullptr) {
    OK(cuGraphDestroy(graph));
  }
}

TEST_F(LaunchAttributeTest, WrongAttributes) {
  std::vector<CUlaunchAttribute> one = {Attribute(static_cast<CUlaunchAttributeID>(99))};
  EXPECT_EQ(LaunchTwice(one), CUDA_ERROR_INVALID_VALUE);
  one[0] = Attribute(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT);
  Say("no event", Launch(one));
  one[0] = Attribute(CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT);
  Say("no completion event", Launch(one));
  OK(cuStreamSynchronize(stream_));
}

// What was accepted once is not waited for again, whatever is set for other kernels meanwhile.
TEST_F(LaunchAttributeTest, AcceptedWhileOthersChange) {
  const CUfunction other = Kernel("spin");
  std::vector<CUlaunchAttribute> one = {Attribute(CU_LAUNCH_ATTRIBUTE_COOPERATIVE)};
  one[0].value.cooperative = 1;
  OK(cuFuncSetAttribute(add_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60'000));
  config_.sharedMemBytes = 60'000;
  OK(Launch(one));
  uint64_t awaited = 0;
  for (int i = 0; i < 4; ++i) {
    OK(cuFuncSetAttribute(other, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1000 * i));
    const uint64_t before = RepliesAwaited();
    OK(cuFuncSetAttribute(add_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60'000));
    OK(Launch(one));
    awaited += RepliesAwaited() - before;
  }
  EXPECT_EQ(awaited, 0u);
  EXPECT_EQ(Sum(), 5u * 5);
}

// A configuration that was accepted is refused once the kernel's attribute no longer allows it.
TEST_F(LaunchAttributeTest, AcceptedUntilAnAttributeChanges) {
  std::vector<CUlaunchAttribute> one = {Attribute(CU_LAUNCH_ATTRIBUTE_COOPERATIVE)};
  one[0].value.cooperative = 1;
  OK(cuFuncSetAttribute(add_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60'000));
  config_.sharedMemBytes = 60'000;
  EXPECT_EQ(LaunchTwice(one), CUDA_SUCCESS);
  OK(cuFuncSetAttribute(add_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1000));
  EXPECT_EQ(LaunchTwice(one), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
}

}  // namespace
}  // namespace causeway::driver_test
