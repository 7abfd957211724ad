// SPDX-License-Identifier: Apache-2.0
// Census category peer: access between devices, and copies between contexts. With one device the questions
// remain, and copies go between two contexts of it.
#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class PeerTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    OK(cuDeviceGetCount(&devices_));
  }
  int devices_ = 0;
};

TEST_F(PeerTest, Questions) {
  int answer = -1;
  OK(cuDeviceCanAccessPeer(&answer, 0, 0));
  EXPECT_EQ(answer, 0);
  EXPECT_EQ(cuDeviceCanAccessPeer(nullptr, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceCanAccessPeer(&answer, 0, 99), CUDA_ERROR_INVALID_DEVICE);
  Say("attribute of itself",
      cuDeviceGetP2PAttribute(&answer, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0));
  if (devices_ > 1) {
    for (int attribute = 1; attribute < 6; ++attribute) {
      const auto id = static_cast<CUdevice_P2PAttribute>(attribute);
      Say("result" + std::to_string(attribute), cuDeviceGetP2PAttribute(&answer, id, 0, 1));
      Say("value" + std::to_string(attribute), answer);
    }
  }
  EXPECT_EQ(cuDeviceGetP2PAttribute(nullptr, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(PeerTest, Atomics) {
  NEEDS_HARDWARE("peer atomics");
  const CUatomicOperation operation = CU_ATOMIC_OPERATION_INTEGER_ADD;
  unsigned capability = 0;
  Say("result", cuDeviceGetP2PAtomicCapabilities(&capability, &operation, 1, 0, devices_ > 1 ? 1 : 0));
  EXPECT_EQ(cuDeviceGetP2PAtomicCapabilities(nullptr, &operation, 1, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(PeerTest, AccessOfItsOwnDevice) {
  Say("enable", cuCtxEnablePeerAccess(context_, 0));
  EXPECT_NE(cuCtxEnablePeerAccess(nullptr, 0), CUDA_SUCCESS);
  if (!OnSoftwareGpu()) {
    Say("disable", cuCtxDisablePeerAccess(context_));
    EXPECT_NE(cuCtxDisablePeerAccess(nullptr), CUDA_SUCCESS);
  }
}

TEST_F(PeerTest, AccessOfAnotherDevice) {
  NEEDS_HARDWARE("mappings between devices");
  if (devices_ < 2) GTEST_SKIP() << "one device";
  int possible = 0;
  OK(cuDeviceCanAccessPeer(&possible, 0, 1));
  Say("possible", possible);
  CUcontext other = nullptr;
  OK(cuDevicePrimaryCtxRetain(&other, 1));
  if (possible == 1) {
    EXPECT_EQ(cuCtxEnablePeerAccess(other, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxEnablePeerAccess(other, 0));
    EXPECT_EQ(cuCtxEnablePeerAccess(other, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    OK(cuCtxDisablePeerAccess(other));
  }
  EXPECT_EQ(cuCtxDisablePeerAccess(other), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  OK(cuDevicePrimaryCtxRelease(1));
}

TEST_F(PeerTest, CopiesBetweenContexts) {
  using Create = CUresult(CUcontext*, unsigned, CUdevice);
  constexpr size_t kBytes = 64u << 10;
  CUdeviceptr from = 0, to = 0;
  OK(cuMemAlloc(&from, kBytes));
  OK(cuMemsetD32(from, 99, kBytes / 4));
  OK(cuCtxSynchronize());
  CUcontext other = nullptr;
  OK(SymbolAs<Create>("cuCtxCreate_v2")(&other, 0, 0));
  OK(cuMemAlloc(&to, kBytes));
  OK(cuMemsetD32(to, 0, kBytes / 4));
  OK(cuCtxSynchronize());
  auto check = [&] {
    unsigned word = 0;
    EXPECT_EQ(cuMemcpyDtoH(&word, to + kBytes - 4, 4), CUDA_SUCCESS);
    EXPECT_EQ(word, 99u);
    EXPECT_EQ(cuMemsetD32(to, 0, kBytes / 4), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  };
  OK(cuMemcpyPeer(to, other, from, context_, kBytes));
  OK(cuCtxSynchronize());
  check();
  OK(cuMemcpyPeerAsync(to, other, from, context_, kBytes, nullptr));
  OK(cuStreamSynchronize(nullptr));
  check();
  if (!OnSoftwareGpu()) {
    CUDA_MEMCPY3D_PEER box{};
    box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    box.srcDevice = from;
    box.dstDevice = to;
    box.srcContext = context_;
    box.dstContext = other;
    box.srcPitch = box.dstPitch = box.WidthInBytes = 256;
    box.srcHeight = box.dstHeight = box.Height = kBytes / 256;
    box.Depth = 1;
    OK(cuMemcpy3DPeer(&box));
    OK(cuCtxSynchronize());
    check();
    OK(cuMemcpy3DPeerAsync(&box, nullptr));
    OK(cuStreamSynchronize(nullptr));
    check();
  }
  OK(cuCtxDestroy(other));
  OK(cuCtxSetCurrent(context_));
  OK(cuMemFree(from));
}

}  // namespace
}  // namespace causeway::driver_test
