// SPDX-License-Identifier: Apache-2.0
// Census category device: what a device is.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { OK(cuInit(0)); }
  int Attribute(CUdevice_attribute attribute) {
    int value = -1;
    EXPECT_EQ(cuDeviceGetAttribute(&value, attribute, 0), CUDA_SUCCESS) << attribute;
    return value;
  }
};

TEST_F(DeviceTest, CountAndHandles) {
  int count = 0;
  OK(cuDeviceGetCount(&count));
  ASSERT_GT(count, 0);
  Say("count", count);
  for (int i = 0; i < count; ++i) {
    CUdevice device = -1;
    OK(cuDeviceGet(&device, i));
    EXPECT_EQ(device, i);
  }
  CUdevice device = -1;
  EXPECT_EQ(cuDeviceGet(&device, count), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDeviceGet(&device, -1), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDeviceGet(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetCount(nullptr), CUDA_ERROR_INVALID_VALUE);
}

// Memory on the host that cuMemCreate gives, by the location that asks for it.
constexpr std::pair<CUdevice_attribute, CUmemLocationType> kHostMemory[] = {
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, CU_MEM_LOCATION_TYPE_HOST_NUMA},
    {CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, CU_MEM_LOCATION_TYPE_HOST}};

// A device says it has what it has: the guest has none.
TEST_F(DeviceTest, HostMemoryIsThereAsTheDeviceSays) {
  for (const auto& [attribute, place] : kHostMemory) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = place;
    properties.location.id = std::max(Attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID), 0);
    CUmemGenericAllocationHandle memory = 0;
    const CUresult result = cuMemCreate(&memory, 32 << 20, &properties, 0);
    EXPECT_EQ(result == CUDA_SUCCESS, Attribute(attribute) != 0) << attribute << ": " << result;
    if (result == CUDA_SUCCESS) {
      OK(cuMemRelease(memory));
    } else if (std::getenv("CAUSEWAY") != nullptr) {
      EXPECT_EQ(result, CUDA_ERROR_NOT_SUPPORTED);
    }
  }
}

TEST_F(DeviceTest, EveryAttribute) {
  for (int attribute = 0; attribute < CU_DEVICE_ATTRIBUTE_MAX + 4; ++attribute) {
    int value = 0;
    if (std::find_if(std::begin(kHostMemory), std::end(kHostMemory),
                     [&](const auto& one) { return one.first == attribute; }) != std::end(kHostMemory)) {
      continue;
    }
    const CUresult result = cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(attribute), 0);
    Say("result" + std::to_string(attribute), static_cast<int>(result));
    if (result == CUDA_SUCCESS) Say("value" + std::to_string(attribute), value);
  }
  int value = 0;
  EXPECT_EQ(cuDeviceGetAttribute(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 99), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(-1), 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(100000), 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE), 32);
}

TEST_F(DeviceTest, NameMemoryCapability) {
  char name[256] = "", piece[5] = "";
  OK(cuDeviceGetName(name, sizeof name, 0));
  EXPECT_GT(std::strlen(name), 4u);
  Say("device name", std::string(name));
  OK(cuDeviceGetName(piece, sizeof piece, 0));
  EXPECT_EQ(std::string(piece), std::string(name).substr(0, 4));
  EXPECT_EQ(cuDeviceGetName(nullptr, 8, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetName(name, sizeof name, 99), CUDA_ERROR_INVALID_DEVICE);
  size_t bytes = 0;
  OK(cuDeviceTotalMem(&bytes, 0));
  EXPECT_GT(bytes, 1u << 20);
  Say("bytes", bytes);
  EXPECT_EQ(cuDeviceTotalMem(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceTotalMem(&bytes, 99), CUDA_ERROR_INVALID_DEVICE);
  int major = 0, minor = -1;
  OK(cuDeviceComputeCapability(&major, &minor, 0));
  EXPECT_EQ(major, Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  EXPECT_EQ(minor, Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
}

TEST_F(DeviceTest, Properties) {
  NEEDS_HARDWARE("the old structure of properties");
  CUdevprop properties{};
  OK(cuDeviceGetProperties(&properties, 0));
  EXPECT_EQ(properties.SIMDWidth, 32);
  EXPECT_EQ(properties.maxThreadsPerBlock, Attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
  EXPECT_EQ(properties.maxGridSize[1], Attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y));
  Say("properties",
      std::vector<int>{properties.maxThreadsDim[0], properties.maxThreadsDim[1], properties.maxThreadsDim[2],
                       properties.maxGridSize[0], properties.sharedMemPerBlock,
                       properties.totalConstantMemory, properties.memPitch, properties.regsPerBlock,
                       properties.clockRate, properties.textureAlign});
  EXPECT_EQ(cuDeviceGetProperties(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(DeviceTest, Identity) {
  CUuuid first{}, second{};
  using GetUuid = CUresult(CUuuid*, CUdevice);
  OK(SymbolAs<GetUuid>("cuDeviceGetUuid")(&first, 0));
  OK(SymbolAs<GetUuid>("cuDeviceGetUuid_v2")(&second, 0));
  EXPECT_EQ(std::memcmp(&first, &second, sizeof first), 0);
  EXPECT_EQ(cuDeviceGetUuid(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetUuid(&first, 99), CUDA_ERROR_INVALID_DEVICE);
  char luid[8] = "";
  unsigned mask = 0;
  Say("luid", cuDeviceGetLuid(luid, &mask, 0));  // of Windows
  char bus[32] = "", small[5] = "";
  OK(cuDeviceGetPCIBusId(bus, sizeof bus, 0));
  CUdevice device = -1;
  OK(cuDeviceGetByPCIBusId(&device, bus));
  EXPECT_EQ(device, 0);
  const std::string text(bus);
  OK(cuDeviceGetByPCIBusId(&device, text.substr(0, text.find('.')).c_str()));
  EXPECT_EQ(device, 0);
  Say("short room", cuDeviceGetPCIBusId(small, sizeof small, 0));
  EXPECT_EQ(cuDeviceGetPCIBusId(nullptr, 32, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetByPCIBusId(&device, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetByPCIBusId(nullptr, bus), CUDA_ERROR_INVALID_VALUE);
  Say("no such bus", cuDeviceGetByPCIBusId(&device, "0000:FE:1D.0"));
  Say("no bus at all", cuDeviceGetByPCIBusId(&device, "nonsense"));
}

TEST_F(DeviceTest, ExecAffinity) {
  int supported = -1;
  OK(cuDeviceGetExecAffinitySupport(&supported, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0));
  Say("supported", supported);
  EXPECT_EQ(cuDeviceGetExecAffinitySupport(nullptr, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(DeviceTest, Texture1DWidth) {
  NEEDS_HARDWARE("linear textures");
  size_t width = 0;
  OK(cuDeviceGetTexture1DLinearMaxWidth(&width, CU_AD_FORMAT_FLOAT, 1, 0));
  Say("float", width);
  OK(cuDeviceGetTexture1DLinearMaxWidth(&width, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0));
  Say("bytes", width);
  EXPECT_EQ(cuDeviceGetTexture1DLinearMaxWidth(nullptr, CU_AD_FORMAT_FLOAT, 1, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(DeviceTest, HostAtomics) {
  NEEDS_HARDWARE("host atomic capabilities");
  const CUatomicOperation operations[] = {CU_ATOMIC_OPERATION_INTEGER_ADD, CU_ATOMIC_OPERATION_EXCHANGE,
                                          CU_ATOMIC_OPERATION_CAS};
  unsigned capabilities[3] = {};
  const CUresult result = cuDeviceGetHostAtomicCapabilities(capabilities, operations, 3, 0);
  Say("result", result);
  for (const unsigned capability : capabilities) Say("capability", capability);
  EXPECT_EQ(cuDeviceGetHostAtomicCapabilities(nullptr, operations, 3, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetHostAtomicCapabilities(capabilities, nullptr, 3, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(DeviceTest, FlushWrites) {
  NEEDS_HARDWARE("GPUDirect");
  CUcontext context = nullptr;
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  Say("flush", cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                          CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER));
  OK(cuCtxSetCurrent(nullptr));
  OK(cuDevicePrimaryCtxRelease(0));
}

// Its objects belong to a library that a server does not have; here it must only be called without harm.
TEST_F(DeviceTest, NvSciSync) {
  NEEDS_HARDWARE("NvSci");
  EXPECT_NE(cuDeviceGetNvSciSyncAttributes(nullptr, 0, CUDA_NVSCISYNC_ATTR_SIGNAL), CUDA_SUCCESS);
}

}  // namespace
}  // namespace causeway::driver_test
