// SPDX-License-Identifier: Apache-2.0
// Census category texture-surface, the surface objects: kernels write and read arrays through them.
#include "tests/driver/array_helpers.h"

namespace causeway::driver_test {
namespace {

//   write2(surface, value)   element (tid.x, tid.y) = value + tid.y * ntid.x + tid.x
//   read2(surface, out)      the other way
//   layer2(surface, value)   the same as write2 for layer tid.z, plus 100 * tid.z
constexpr char kKernelsOfSurfaces[] = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .entry write2(.param .u64 surface, .param .u32 value)
{
  .reg .b32 %r<9>; .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [surface]; ld.param.u32 %r1, [value];
  mov.u32 %r2, %tid.x; mov.u32 %r3, %tid.y; mov.u32 %r4, %ntid.x;
  mad.lo.u32 %r5, %r3, %r4, %r2;
  add.u32 %r6, %r5, %r1;
  shl.b32 %r7, %r2, 2;
  sust.b.2d.b32.trap [%rd1, {%r7, %r3}], {%r6};
  ret;
}
.visible .entry read2(.param .u64 surface, .param .u64 out)
{
  .reg .b32 %r<9>; .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [surface]; ld.param.u64 %rd2, [out];
  mov.u32 %r2, %tid.x; mov.u32 %r3, %tid.y; mov.u32 %r4, %ntid.x;
  mad.lo.u32 %r5, %r3, %r4, %r2;
  shl.b32 %r7, %r2, 2;
  suld.b.2d.b32.zero {%r6}, [%rd1, {%r7, %r3}];
  mul.wide.u32 %rd3, %r5, 4;
  add.u64 %rd4, %rd2, %rd3;
  st.global.u32 [%rd4], %r6;
  ret;
}
.visible .entry layer2(.param .u64 surface, .param .u32 value)
{
  .reg .b32 %r<12>; .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [surface]; ld.param.u32 %r1, [value];
  mov.u32 %r2, %tid.x; mov.u32 %r3, %tid.y; mov.u32 %r4, %ntid.x; mov.u32 %r8, %tid.z;
  mad.lo.u32 %r5, %r3, %r4, %r2;
  add.u32 %r6, %r5, %r1;
  mad.lo.u32 %r6, %r8, 100, %r6;
  shl.b32 %r7, %r2, 2;
  sust.b.a2d.b32.trap [%rd1, {%r8, %r7, %r3, %r3}], {%r6};
  ret;
}
)";

class SurfaceTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    OK(cuModuleLoadData(&kernels_, kKernelsOfSurfaces));
  }
  CUsurfObject Make(CUarray array) {
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = array;
    CUsurfObject surface = 0;
    EXPECT_EQ(cuSurfObjectCreate(&surface, &resource), CUDA_SUCCESS);
    return surface;
  }
  template <class More>
  void Run(const char* name, CUsurfObject surface, More more, unsigned x, unsigned y, unsigned z = 1) {
    CUfunction function = nullptr;
    OK(cuModuleGetFunction(&function, kernels_, name));
    void* parameters[] = {&surface, &more};
    OK(cuLaunchKernel(function, 1, 1, 1, x, y, z, 0, nullptr, parameters, nullptr));
    OK(cuStreamSynchronize(nullptr));
  }
  // An array of 32-bit integers, copied as floats' bits would be.
  std::vector<uint32_t> Contents(CUarray array, size_t width, size_t height, size_t depth = 0) {
    const std::vector<float> bits = ContentsOf(array, width, height, depth);
    std::vector<uint32_t> values(bits.size());
    std::memcpy(values.data(), bits.data(), bits.size() * 4);
    return values;
  }
  CUmodule kernels_ = nullptr;
};

CUDA_ARRAY3D_DESCRIPTOR Writable(size_t width, size_t height, size_t depth = 0, unsigned flags = 0) {
  return ArrayShape(width, height, depth, CU_AD_FORMAT_UNSIGNED_INT32, 1, CUDA_ARRAY3D_SURFACE_LDST | flags);
}

TEST_F(SurfaceTest, WriteThenRead) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = Writable(16, 8);
  CUarray array = nullptr;
  CUdeviceptr out = 0;
  OK(cuArray3DCreate(&array, &shape));
  OK(cuMemAlloc(&out, 128 * 4));
  const CUsurfObject surface = Make(array);
  Run("write2", surface, 1000u, 16, 8);
  std::vector<uint32_t> wanted(128), read(128);
  std::iota(wanted.begin(), wanted.end(), 1000);
  EXPECT_EQ(Contents(array, 16, 8), wanted);
  Run("read2", surface, out, 16, 8);
  OK(cuMemcpyDtoH(read.data(), out, 128 * 4));
  EXPECT_EQ(read, wanted);
  CUDA_RESOURCE_DESC described{};
  EXPECT_EQ(cuSurfObjectGetResourceDesc(&described, surface), CUDA_SUCCESS);
  EXPECT_EQ(described.resType, CU_RESOURCE_TYPE_ARRAY);
  EXPECT_EQ(described.res.array.hArray, array);
  EXPECT_EQ(cuSurfObjectDestroy(surface), CUDA_SUCCESS);
  EXPECT_EQ(cuArrayDestroy(array), CUDA_SUCCESS);
}

TEST_F(SurfaceTest, OutsideReadsZero) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = Writable(4, 4);
  CUarray array = nullptr;
  CUdeviceptr out = 0;
  OK(cuArray3DCreate(&array, &shape));
  OK(cuMemAlloc(&out, 64 * 4));
  const CUsurfObject surface = Make(array);
  Run("write2", surface, 1u, 4, 4);
  Run("read2", surface, out, 8, 8);
  std::vector<uint32_t> read(64);
  OK(cuMemcpyDtoH(read.data(), out, 64 * 4));
  for (unsigned i = 0; i < 64; ++i) {
    const unsigned x = i % 8, y = i / 8;
    EXPECT_EQ(read[i], x < 4 && y < 4 ? 1 + y * 4 + x : 0) << i;
  }
}

TEST_F(SurfaceTest, LayersAndLevels) {
  const CUDA_ARRAY3D_DESCRIPTOR layers = Writable(8, 4, 3, CUDA_ARRAY3D_LAYERED);
  CUarray array = nullptr;
  OK(cuArray3DCreate(&array, &layers));
  Run("layer2", Make(array), 5u, 8, 4, 3);
  const std::vector<uint32_t> values = Contents(array, 8, 4, 3);
  for (unsigned i = 0; i < 96; ++i) ASSERT_EQ(values[i], 5 + i % 32 + 100 * (i / 32)) << i;
  const CUDA_ARRAY3D_DESCRIPTOR mipmap = Writable(8, 8);
  CUmipmappedArray mipmapped = nullptr;
  CUarray level = nullptr;
  OK(cuMipmappedArrayCreate(&mipmapped, &mipmap, 2));
  OK(cuMipmappedArrayGetLevel(&level, mipmapped, 1));
  Run("write2", Make(level), 7u, 4, 4);
  std::vector<uint32_t> wanted(16);
  std::iota(wanted.begin(), wanted.end(), 7);
  EXPECT_EQ(Contents(level, 4, 4), wanted);
}

TEST_F(SurfaceTest, WrongArguments) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = Writable(8, 8), read_only = ArrayShape(8, 8);
  CUarray array = nullptr, other = nullptr;
  OK(cuArray3DCreate(&array, &shape));
  OK(cuArray3DCreate(&other, &read_only));
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = array;
  CUsurfObject surface = 0;
  resource.res.array.hArray = other;  // without CUDA_ARRAY3D_SURFACE_LDST
  Say("array without the flag", static_cast<int>(cuSurfObjectCreate(&surface, &resource)));
  resource.res.array.hArray = array;
  if (OnNvidiaLibrary()) return;  // it crashes
  EXPECT_EQ(cuSurfObjectCreate(nullptr, &resource), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuSurfObjectCreate(&surface, nullptr), CUDA_ERROR_INVALID_VALUE);
  OK(cuSurfObjectCreate(&surface, &resource));
  EXPECT_EQ(cuSurfObjectGetResourceDesc(nullptr, surface), CUDA_ERROR_INVALID_VALUE);
  OK(cuSurfObjectDestroy(surface));
  CUdeviceptr data = 0;
  OK(cuMemAlloc(&data, 512));
  CUDA_RESOURCE_DESC linear{};
  linear.resType = CU_RESOURCE_TYPE_LINEAR;
  linear.res.linear = {data, CU_AD_FORMAT_FLOAT, 1, 512};
  EXPECT_EQ(cuSurfObjectCreate(&surface, &linear), CUDA_ERROR_INVALID_VALUE);
  OK(cuArrayDestroy(array));
  resource.res.array.hArray = array;
  EXPECT_EQ(cuSurfObjectCreate(&surface, &resource), CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace
}  // namespace causeway::driver_test
