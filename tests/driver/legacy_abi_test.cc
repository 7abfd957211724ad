// SPDX-License-Identifier: Apache-2.0
// The interface of CUDA 3.1 by its exact names: sizes and device addresses of 32 bits. Calls of the two ages
// do not mix within a context; what works at all on today's devices, the driver decides, so most answers are
// recorded.
#include "tests/driver/array_helpers.h"

namespace causeway::driver_test {
namespace {

using Address = unsigned int;

// cuda.h shows these only to sources that ask for all versions.
struct OldArray {
  unsigned width, height;
  CUarray_format format;
  unsigned channels;
};
struct OldArray3D {
  unsigned width, height, depth;
  CUarray_format format;
  unsigned channels, flags;
};
struct OldCopy2D {
  unsigned from_x = 0, from_y = 0;
  CUmemorytype from_type = CU_MEMORYTYPE_HOST;
  const void* from_host = nullptr;
  Address from_device = 0;
  CUarray from_array = nullptr;
  unsigned from_pitch = 0;
  unsigned to_x = 0, to_y = 0;
  CUmemorytype to_type = CU_MEMORYTYPE_HOST;
  void* to_host = nullptr;
  Address to_device = 0;
  CUarray to_array = nullptr;
  unsigned to_pitch = 0;
  unsigned width = 0, height = 0;
};
static_assert(sizeof(OldCopy2D) == 96);
struct OldCopy3D {
  unsigned from_x = 0, from_y = 0, from_z = 0, from_lod = 0;
  CUmemorytype from_type = CU_MEMORYTYPE_HOST;
  const void* from_host = nullptr;
  Address from_device = 0;
  CUarray from_array = nullptr;
  void* reserved0 = nullptr;
  unsigned from_pitch = 0, from_height = 0;
  unsigned to_x = 0, to_y = 0, to_z = 0, to_lod = 0;
  CUmemorytype to_type = CU_MEMORYTYPE_HOST;
  void* to_host = nullptr;
  Address to_device = 0;
  CUarray to_array = nullptr;
  void* reserved1 = nullptr;
  unsigned to_pitch = 0, to_height = 0;
  unsigned width = 0, height = 0, depth = 0;
};
static_assert(sizeof(OldCopy3D) == 144);

class LegacyAbiTest : public DriverTest {
 protected:
  void SetUp() override {
    if (Symbol("cuMemAlloc") == nullptr) GTEST_SKIP() << "this library has no names of CUDA 3.1";
    DriverTest::SetUp();
  }
  void TearDown() override {
    if (context_ != nullptr) DriverTest::TearDown();
  }
  // Calls a name with these very argument types.
  template <class... P>
  CUresult Old(const char* name, P... p) {
    auto* function = SymbolAs<CUresult(P...)>(name);
    EXPECT_NE(function, nullptr) << name;
    const CUresult result = function != nullptr ? function(p...) : CUDA_ERROR_NOT_FOUND;
    Say(name, static_cast<int>(result));
    return result;
  }
};

TEST_F(LegacyAbiTest, MemoryInTodaysContext) {
  Address address = 0;
  unsigned bytes = 0, other = 0;
  char host[64] = {};
  void* pinned = nullptr;
  EXPECT_EQ(Old("cuMemAlloc", &address, 64u), CUDA_ERROR_INVALID_CONTEXT);
  Old("cuMemAllocPitch", &address, &bytes, 64u, 4u, 4u);
  Old("cuMemFree", Address{0x1000});
  Old("cuMemGetAddressRange", &address, &bytes, Address{0x1000});
  Old("cuMemGetInfo", &bytes, &other);
  if (Old("cuMemAllocHost", &pinned, 64u) == CUDA_SUCCESS) {
    EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
  }
  Old("cuMemHostGetDevicePointer", &address, static_cast<void*>(host), 0u);
  EXPECT_EQ(Old("cuModuleGetGlobal", &address, &bytes, static_cast<CUmodule>(nullptr), "counter"),
            CUDA_ERROR_INVALID_HANDLE);
  Old("cuMemsetD8", Address{0x1000}, static_cast<unsigned char>(1), 4u);
  Old("cuMemsetD16", Address{0x1000}, static_cast<unsigned short>(1), 4u);
  Old("cuMemsetD32", Address{0x1000}, 1u, 4u);
  Old("cuMemsetD2D8", Address{0x1000}, 64u, static_cast<unsigned char>(1), 4u, 4u);
  Old("cuMemsetD2D16", Address{0x1000}, 64u, static_cast<unsigned short>(1), 4u, 4u);
  Old("cuMemsetD2D32", Address{0x1000}, 64u, 1u, 4u, 4u);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

// Captures are looked at first.
TEST_F(LegacyAbiTest, FreesBesideACapture) {
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(Old("cuMemFree", Address{0}), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(Old("cuMemFree", Address{0}), CUDA_ERROR_INVALID_CONTEXT);
  OK(cuStreamDestroy(stream));
}

TEST_F(LegacyAbiTest, CopiesInTodaysContext) {
  char host[64] = {};
  void* to = host;
  const void* from = host;
  const CUstream stream = nullptr;
  Old("cuMemcpyHtoD", Address{0x1000}, from, 4u);
  Old("cuMemcpyDtoH", to, Address{0x1000}, 4u);
  Old("cuMemcpyDtoD", Address{0x1000}, Address{0x1000}, 4u);
  Old("cuMemcpyHtoDAsync", Address{0x1000}, from, 4u, stream);
  Old("cuMemcpyDtoHAsync", to, Address{0x1000}, 4u, stream);
  Old("cuMemcpyDtoDAsync", Address{0x1000}, Address{0x1000}, 4u, stream);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_F(LegacyAbiTest, ArraysInTodaysContext) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(16, 16);
  CUarray array = nullptr, made = nullptr;
  OK(cuArray3DCreate(&array, &shape));
  const OldArray flat{16, 16, CU_AD_FORMAT_FLOAT, 1};
  const OldArray3D deep{16, 16, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  OldArray flat_back{};
  OldArray3D deep_back{};
  Old("cuArrayCreate", &made, &flat);
  Old("cuArray3DCreate", &made, &deep);
  Old("cuArrayGetDescriptor", &flat_back, array);
  Old("cuArray3DGetDescriptor", &deep_back, array);
  char host[64] = {};
  void* to = host;
  const void* from = host;
  const CUstream stream = nullptr;
  Old("cuMemcpyHtoA", array, 0u, from, 4u);
  Old("cuMemcpyHtoAAsync", array, 0u, from, 4u, stream);
  Old("cuMemcpyAtoH", to, array, 0u, 4u);
  Old("cuMemcpyAtoHAsync", to, array, 0u, 4u, stream);
  Old("cuMemcpyAtoA", array, 0u, array, 8u, 4u);
  Old("cuMemcpyAtoD", Address{0x1000}, array, 0u, 4u);
  Old("cuMemcpyDtoA", array, 0u, Address{0x1000}, 4u);
  const OldCopy2D box2{.from_type = CU_MEMORYTYPE_HOST,
                       .from_host = host,
                       .from_pitch = 8,
                       .to_type = CU_MEMORYTYPE_ARRAY,
                       .to_array = array,
                       .width = 8,
                       .height = 2};
  Old("cuMemcpy2D", &box2);
  Old("cuMemcpy2DUnaligned", &box2);
  Old("cuMemcpy2DAsync", &box2, stream);
  const OldCopy3D box3{.from_type = CU_MEMORYTYPE_HOST,
                       .from_host = host,
                       .from_pitch = 8,
                       .from_height = 2,
                       .to_type = CU_MEMORYTYPE_ARRAY,
                       .to_array = array,
                       .width = 8,
                       .height = 2,
                       .depth = 1};
  Old("cuMemcpy3D", &box3);
  Old("cuMemcpy3DAsync", &box3, stream);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cuArrayDestroy(array), CUDA_SUCCESS);
}

TEST_F(LegacyAbiTest, TextureReferencesInTodaysContext) {
  CUtexref reference = nullptr;
  OK(cuTexRefCreate(&reference));
  const OldArray flat{16, 16, CU_AD_FORMAT_FLOAT, 1};
  Address address = 0;
  unsigned offset = 0;
  Old("cuTexRefSetAddress", &offset, reference, Address{0x1000}, 64u);
  Old("cuTexRefSetAddress2D", reference, &flat, Address{0x1000}, 512u);
  Old("cuTexRefGetAddress", &address, reference);
  // Where there is no reference, that is what it says first.
  EXPECT_EQ(Old("cuTexRefSetAddress", &offset, CUtexref{nullptr}, Address{0x1000}, 64u),
            CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(Old("cuTexRefSetAddress2D", CUtexref{nullptr}, &flat, Address{0x1000}, 512u),
            CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(Old("cuTexRefGetAddress", &address, CUtexref{nullptr}), CUDA_ERROR_INVALID_HANDLE);
  OK(cuTexRefDestroy(reference));
}

TEST_F(LegacyAbiTest, DeviceMemoryIsClamped) {
  size_t total = 0;
  OK(cuDeviceTotalMem(&total, 0));
  unsigned bytes = 0;
  EXPECT_EQ(Old("cuDeviceTotalMem", &bytes, CUdevice{0}), CUDA_SUCCESS);
  Say("all ones", bytes == ~0u);
  if (total < ~0u) {
    EXPECT_EQ(bytes, total);
  }
  Old("cuDeviceTotalMem", static_cast<unsigned*>(nullptr), CUdevice{0});
}

// A device with more memory than 32 bits can address has no context of that age.
TEST_F(LegacyAbiTest, ContextOfItsOwn) {
  CUcontext old = nullptr;
  EXPECT_EQ(Old("cuCtxCreate", &old, 0u, CUdevice{0}), CUDA_ERROR_OUT_OF_MEMORY);
  CUcontext current = nullptr;
  OK(cuCtxGetCurrent(&current));
  EXPECT_EQ(current, context_);
}

}  // namespace
}  // namespace causeway::driver_test
