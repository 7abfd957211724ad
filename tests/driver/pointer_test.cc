// SPDX-License-Identifier: Apache-2.0
// Census category unified memory: what can be asked about a pointer.
#include <string>
#include <utility>
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class PointerTest : public DriverTest {
 protected:
  uint64_t Ask(CUpointer_attribute attribute, CUdeviceptr address, CUresult expected = CUDA_SUCCESS) {
    uint64_t value = 0;
    EXPECT_EQ(cuPointerGetAttribute(&value, attribute, address), expected) << attribute;
    return value;
  }
  void SayAll(const std::string& what, CUdeviceptr address) {
    for (int attribute = 1; attribute <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE; ++attribute) {
      if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS) continue;
      uint64_t value = 0;
      const CUresult result =
          cuPointerGetAttribute(&value, static_cast<CUpointer_attribute>(attribute), address);
      Say(what + "Result" + std::to_string(attribute), result);
    }
  }
};

TEST_F(PointerTest, DeviceMemory) {
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, 1000));
  EXPECT_EQ(Ask(CU_POINTER_ATTRIBUTE_CONTEXT, memory), reinterpret_cast<uint64_t>(context_));
  EXPECT_EQ(Ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory), uint64_t{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(Ask(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, memory + 10), memory + 10);
  Ask(CU_POINTER_ATTRIBUTE_HOST_POINTER, memory, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Ask(CU_POINTER_ATTRIBUTE_IS_MANAGED, memory), 0u);
  EXPECT_EQ(Ask(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory), 0u);
  EXPECT_EQ(Ask(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, memory + 10), memory);
  EXPECT_EQ(Ask(CU_POINTER_ATTRIBUTE_MAPPED, memory), 1u);
  Say("rangeSize", Ask(CU_POINTER_ATTRIBUTE_RANGE_SIZE, memory));
  EXPECT_EQ(Ask(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory), 0u);
  CUdeviceptr second = 0;
  OK(cuMemAlloc(&second, 1000));
  EXPECT_NE(Ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, memory), Ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, second));
  EXPECT_EQ(Ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, memory), Ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, memory + 999));
  SayAll("device", memory);
  EXPECT_EQ(cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_MAPPED, memory), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemFree(memory));
  Ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory, CUDA_ERROR_INVALID_VALUE);
}

TEST_F(PointerTest, PinnedMemory) {
  void* memory = nullptr;
  OK(cuMemHostAlloc(&memory, 1000, CU_MEMHOSTALLOC_PORTABLE));
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  EXPECT_EQ(Ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), uint64_t{CU_MEMORYTYPE_HOST});
  EXPECT_EQ(Ask(CU_POINTER_ATTRIBUTE_HOST_POINTER, address + 5), address + 5);
  EXPECT_EQ(Ask(CU_POINTER_ATTRIBUTE_CONTEXT, address), reinterpret_cast<uint64_t>(context_));
  EXPECT_EQ(Ask(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address + 5), address);
  EXPECT_EQ(Ask(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address + 5), address + 5);
  OK(cuMemFreeHost(memory));
  Ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address, CUDA_ERROR_INVALID_VALUE);
}

// Every attribute of memory that the program and the device share: at its beginning, inside and at its last
// byte, with addresses as distances and handles as whether there is one.
TEST_F(PointerTest, EveryAttributeOfHostMemory) {
  constexpr size_t kBytes = 3 << 20;
  const auto say = [this](const std::string& what, CUdeviceptr base, CUdeviceptr address) {
    for (int attribute = 1; attribute <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE; ++attribute) {
      if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS) continue;
      uint64_t value = 0;
      const CUresult result =
          cuPointerGetAttribute(&value, static_cast<CUpointer_attribute>(attribute), address);
      switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
          value = value == reinterpret_cast<uint64_t>(context_) ? 1 : value == 0 ? 0 : 2;
          break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
          if (value != 0) value -= base;
          break;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
          value = value != 0;
          break;
        default:
          break;
      }
      Say(what + " " + std::to_string(attribute), std::to_string(result) + ":" + std::to_string(value));
    }
  };
  void *pinned = nullptr, *combined = nullptr;
  OK(cuMemHostAlloc(&pinned, kBytes, 0));
  OK(cuMemHostAlloc(&combined, kBytes, CU_MEMHOSTALLOC_WRITECOMBINED | CU_MEMHOSTALLOC_PORTABLE));
  std::vector<char> ordinary(kBytes);
  OK(cuMemHostRegister(ordinary.data(), kBytes, 0));
  for (const auto& [name, memory] : {std::pair{"pinned", pinned},
                                     {"combined", combined},
                                     {"registered", static_cast<void*>(ordinary.data())}}) {
    const auto base = reinterpret_cast<CUdeviceptr>(memory);
    say(name, base, base);
    say(std::string(name) + " inside", base, base + 12345);
    say(std::string(name) + " last", base, base + kBytes - 1);
  }
  OK(cuMemHostUnregister(ordinary.data()));
  OK(cuMemFreeHost(combined));
  OK(cuMemFreeHost(pinned));
}

TEST_F(PointerTest, PoolsAndVariables) {
  CUdeviceptr memory = 0;
  CUmemoryPool pool = nullptr;
  OK(cuMemAllocAsync(&memory, 1000, nullptr));
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  EXPECT_EQ(Ask(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory), reinterpret_cast<uint64_t>(pool));
  EXPECT_EQ(Ask(CU_POINTER_ATTRIBUTE_CONTEXT, memory), 0u);
  OK(cuMemFreeAsync(memory, nullptr));
  CUdeviceptr variable = 0;
  size_t bytes = 0;
  Kernel("add");
  OK(cuModuleGetGlobal(&variable, &bytes, module_, "counter"));
  EXPECT_EQ(Ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, variable), uint64_t{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(Ask(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, variable), variable);
}

TEST_F(PointerTest, Plural) {
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, 1000));
  unsigned type = 9, managed = 9;
  int ordinal = 9;
  uint64_t host = 9;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_HOST_POINTER};
  void* data[] = {&type, &managed, &ordinal, &host};
  OK(cuPointerGetAttributes(4, attributes, data, memory));
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(managed, 0u);
  EXPECT_EQ(ordinal, 0);
  EXPECT_EQ(host, 0u);
  char ours[8];
  OK(cuPointerGetAttributes(4, attributes, data, reinterpret_cast<CUdeviceptr>(ours)));
  EXPECT_EQ(type, 0u);
  EXPECT_EQ(ordinal, -2);
  EXPECT_EQ(cuPointerGetAttributes(0, attributes, data, memory), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuPointerGetAttributes(4, nullptr, data, memory), CUDA_ERROR_INVALID_VALUE);
  Ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(ours), CUDA_ERROR_INVALID_VALUE);
  Ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0, CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace causeway::driver_test
