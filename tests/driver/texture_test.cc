// SPDX-License-Identifier: Apache-2.0
// Census category texture-surface, the texture objects: over linear memory, pitched memory, arrays and
// mipmapped arrays; what kernels read through them, and what the calls say about them.
#include "tests/driver/array_helpers.h"

namespace causeway::driver_test {
namespace {

// Each thread reads one texel, (tid.x, tid.y, tid.z) plus `shift`, and stores its first channel.
//   fetch1(texture, out)          integer coordinates
//   read1, read2, read3(texture, out, shift, scale)
//   layer2(texture, out, shift)   tid.z is the layer
//   level2(texture, out, level)   at (tid.x + 0.5, tid.y + 0.5) * scale
//   whole2(texture, out)          all four channels as 32-bit integers
constexpr char kReaders[] = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .entry fetch1(.param .u64 texture, .param .u64 out, .param .s32 shift)
{
  .reg .b32 %r<6>; .reg .f32 %f<5>; .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [texture]; ld.param.u64 %rd2, [out]; ld.param.s32 %r2, [shift];
  mov.u32 %r1, %tid.x;
  add.s32 %r3, %r1, %r2;
  tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd1, {%r3}];
  mul.wide.u32 %rd3, %r1, 4;
  add.u64 %rd4, %rd2, %rd3;
  st.global.f32 [%rd4], %f1;
  ret;
}
.visible .entry read1(.param .u64 texture, .param .u64 out, .param .f32 shift, .param .f32 scale)
{
  .reg .b32 %r<6>; .reg .f32 %f<9>; .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [texture]; ld.param.u64 %rd2, [out];
  ld.param.f32 %f5, [shift]; ld.param.f32 %f6, [scale];
  mov.u32 %r1, %tid.x;
  cvt.rn.f32.u32 %f7, %r1;
  add.f32 %f8, %f7, %f5;
  mul.f32 %f8, %f8, %f6;
  tex.1d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f8}];
  mul.wide.u32 %rd3, %r1, 4;
  add.u64 %rd4, %rd2, %rd3;
  st.global.f32 [%rd4], %f1;
  ret;
}
.visible .entry read2(.param .u64 texture, .param .u64 out, .param .f32 shift, .param .f32 scale)
{
  .reg .b32 %r<6>; .reg .f32 %f<12>; .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [texture]; ld.param.u64 %rd2, [out];
  ld.param.f32 %f5, [shift]; ld.param.f32 %f6, [scale];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ntid.x;
  cvt.rn.f32.u32 %f7, %r1; cvt.rn.f32.u32 %f8, %r2;
  add.f32 %f9, %f7, %f5; add.f32 %f10, %f8, %f5;
  mul.f32 %f9, %f9, %f6; mul.f32 %f10, %f10, %f6;
  tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f9, %f10}];
  mad.lo.u32 %r4, %r2, %r3, %r1;
  mul.wide.u32 %rd3, %r4, 4;
  add.u64 %rd4, %rd2, %rd3;
  st.global.f32 [%rd4], %f1;
  ret;
}
.visible .entry read3(.param .u64 texture, .param .u64 out, .param .f32 shift)
{
  .reg .b32 %r<8>; .reg .f32 %f<12>; .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [texture]; ld.param.u64 %rd2, [out];
  ld.param.f32 %f5, [shift];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mov.u32 %r4, %ntid.x; mov.u32 %r5, %ntid.y;
  cvt.rn.f32.u32 %f6, %r1; cvt.rn.f32.u32 %f7, %r2; cvt.rn.f32.u32 %f8, %r3;
  add.f32 %f6, %f6, %f5; add.f32 %f7, %f7, %f5; add.f32 %f8, %f8, %f5;
  tex.3d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f6, %f7, %f8, %f8}];
  mad.lo.u32 %r6, %r3, %r5, %r2;
  mad.lo.u32 %r6, %r6, %r4, %r1;
  mul.wide.u32 %rd3, %r6, 4;
  add.u64 %rd4, %rd2, %rd3;
  st.global.f32 [%rd4], %f1;
  ret;
}
.visible .entry layer2(.param .u64 texture, .param .u64 out, .param .f32 shift)
{
  .reg .b32 %r<8>; .reg .f32 %f<12>; .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [texture]; ld.param.u64 %rd2, [out];
  ld.param.f32 %f5, [shift];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mov.u32 %r4, %ntid.x; mov.u32 %r5, %ntid.y;
  cvt.rn.f32.u32 %f6, %r1; cvt.rn.f32.u32 %f7, %r2;
  add.f32 %f6, %f6, %f5; add.f32 %f7, %f7, %f5;
  tex.a2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%r3, %f6, %f7, %f7}];
  mad.lo.u32 %r6, %r3, %r5, %r2;
  mad.lo.u32 %r6, %r6, %r4, %r1;
  mul.wide.u32 %rd3, %r6, 4;
  add.u64 %rd4, %rd2, %rd3;
  st.global.f32 [%rd4], %f1;
  ret;
}
.visible .entry level2(.param .u64 texture, .param .u64 out, .param .f32 level, .param .f32 scale)
{
  .reg .b32 %r<8>; .reg .f32 %f<12>; .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [texture]; ld.param.u64 %rd2, [out];
  ld.param.f32 %f5, [level]; ld.param.f32 %f6, [scale];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ntid.x;
  cvt.rn.f32.u32 %f7, %r1; cvt.rn.f32.u32 %f8, %r2;
  add.f32 %f7, %f7, 0f3F000000; add.f32 %f8, %f8, 0f3F000000;
  mul.f32 %f7, %f7, %f6; mul.f32 %f8, %f8, %f6;
  tex.level.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f7, %f8}], %f5;
  mad.lo.u32 %r4, %r2, %r3, %r1;
  mul.wide.u32 %rd3, %r4, 4;
  add.u64 %rd4, %rd2, %rd3;
  st.global.f32 [%rd4], %f1;
  ret;
}
.visible .entry whole2(.param .u64 texture, .param .u64 out)
{
  .reg .b32 %r<10>; .reg .f32 %f<3>; .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [texture]; ld.param.u64 %rd2, [out];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ntid.x;
  cvt.rn.f32.u32 %f1, %r1; cvt.rn.f32.u32 %f2, %r2;
  tex.2d.v4.u32.f32 {%r5, %r6, %r7, %r8}, [%rd1, {%f1, %f2}];
  mad.lo.u32 %r4, %r2, %r3, %r1;
  mul.wide.u32 %rd3, %r4, 16;
  add.u64 %rd4, %rd2, %rd3;
  st.global.v4.u32 [%rd4], {%r5, %r6, %r7, %r8};
  ret;
}
)";

CUDA_TEXTURE_DESC Nearest(CUaddress_mode mode = CU_TR_ADDRESS_MODE_CLAMP, unsigned flags = 0) {
  CUDA_TEXTURE_DESC desc{};
  desc.addressMode[0] = desc.addressMode[1] = desc.addressMode[2] = mode;
  desc.filterMode = CU_TR_FILTER_MODE_POINT;
  desc.flags = flags;
  return desc;
}
CUDA_RESOURCE_DESC ResourceOf(CUarray array) {
  CUDA_RESOURCE_DESC desc{};
  desc.resType = CU_RESOURCE_TYPE_ARRAY;
  desc.res.array.hArray = array;
  return desc;
}

class TextureTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    OK(cuModuleLoadData(&readers_, kReaders));
    OK(cuMemAlloc(&out_, kOutBytes));
  }
  // Runs a kernel of one block; returns what it stored.
  template <class T = float, class... More>
  std::vector<T> Read(const char* name, CUtexObject texture, unsigned x, unsigned y, unsigned z, size_t count,
                      More... more) {
    CUfunction function = nullptr;
    std::vector<T> values(count);
    EXPECT_EQ(cuModuleGetFunction(&function, readers_, name), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8(out_, 0xcd, kOutBytes), CUDA_SUCCESS);
    void* parameters[] = {&texture, &out_, &more...};
    EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, x, y, z, 0, nullptr, parameters, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoH(values.data(), out_, count * sizeof(T)), CUDA_SUCCESS);
    return values;
  }
  CUtexObject Make(const CUDA_RESOURCE_DESC& resource, const CUDA_TEXTURE_DESC& how) {
    CUtexObject texture = 0;
    EXPECT_EQ(cuTexObjectCreate(&texture, &resource, &how, nullptr), CUDA_SUCCESS);
    return texture;
  }
  static constexpr size_t kOutBytes = 4096;
  CUmodule readers_ = nullptr;
  CUdeviceptr out_ = 0;
};

TEST_F(TextureTest, LinearMemory) {
  CUdeviceptr data = 0;
  OK(cuMemAlloc(&data, 64 * 4));
  const auto values = Counting(64, 7);
  OK(cuMemcpyHtoD(data, values.data(), 64 * 4));
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_LINEAR;
  resource.res.linear = {data, CU_AD_FORMAT_FLOAT, 1, 64 * 4};
  const CUtexObject texture = Make(resource, Nearest());
  EXPECT_EQ(Read("fetch1", texture, 64, 1, 1, 64, 0), values);
  // Beyond its end a linear texture is zero.
  EXPECT_EQ(Read("fetch1", texture, 8, 1, 1, 8, 60), (std::vector<float>{67, 68, 69, 70, 0, 0, 0, 0}));
  CUDA_RESOURCE_DESC described{};
  EXPECT_EQ(cuTexObjectGetResourceDesc(&described, texture), CUDA_SUCCESS);
  EXPECT_EQ(described.resType, CU_RESOURCE_TYPE_LINEAR);
  EXPECT_EQ(described.res.linear.devPtr, data);
  EXPECT_EQ(described.res.linear.sizeInBytes, 64u * 4);
  EXPECT_EQ(described.res.linear.format, CU_AD_FORMAT_FLOAT);
  EXPECT_EQ(described.res.linear.numChannels, 1u);
  OK(cuTexObjectDestroy(texture));
}

TEST_F(TextureTest, PitchedMemory) {
  CUdeviceptr data = 0;
  size_t pitch = 0;
  OK(cuMemAllocPitch(&data, &pitch, 8 * 4, 4, 4));
  const auto values = Counting(32, 1);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = values.data();
  copy.srcPitch = 8 * 4;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = data;
  copy.dstPitch = pitch;
  copy.WidthInBytes = 8 * 4;
  copy.Height = 4;
  OK(cuMemcpy2D(&copy));
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_PITCH2D;
  resource.res.pitch2D = {data, CU_AD_FORMAT_FLOAT, 1, 8, 4, pitch};
  const CUtexObject texture = Make(resource, Nearest());
  EXPECT_EQ(Read("read2", texture, 8, 4, 1, 32, 0.5f, 1.0f), values);
  CUDA_RESOURCE_DESC described{};
  EXPECT_EQ(cuTexObjectGetResourceDesc(&described, texture), CUDA_SUCCESS);
  EXPECT_EQ(described.resType, CU_RESOURCE_TYPE_PITCH2D);
  EXPECT_EQ(described.res.pitch2D.devPtr, data);
  EXPECT_EQ(described.res.pitch2D.width, 8u);
  EXPECT_EQ(described.res.pitch2D.height, 4u);
  EXPECT_EQ(described.res.pitch2D.pitchInBytes, pitch);
  OK(cuTexObjectDestroy(texture));
  resource.res.pitch2D.pitchInBytes = 20;  // less than a row, and not aligned
  const CUDA_TEXTURE_DESC how = Nearest();
  CUtexObject none = 0;
  EXPECT_EQ(cuTexObjectCreate(&none, &resource, &how, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(TextureTest, ArraysOfEachShape) {
  const CUDA_ARRAY3D_DESCRIPTOR one = ArrayShape(32), two = ArrayShape(8, 4), three = ArrayShape(4, 4, 4),
                                layers = ArrayShape(4, 4, 3, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED);
  CUarray array = nullptr;
  OK(cuArray3DCreate(&array, &one));
  OK(FillArray(array, Counting(32, 1), 32));
  EXPECT_EQ(Read("read1", Make(ResourceOf(array), Nearest()), 32, 1, 1, 32, 0.5f, 1.0f), Counting(32, 1));
  OK(cuArray3DCreate(&array, &two));
  OK(FillArray(array, Counting(32, 2), 8, 4));
  EXPECT_EQ(Read("read2", Make(ResourceOf(array), Nearest()), 8, 4, 1, 32, 0.5f, 1.0f), Counting(32, 2));
  OK(cuArray3DCreate(&array, &three));
  OK(FillArray(array, Counting(64, 3), 4, 4, 4));
  EXPECT_EQ(Read("read3", Make(ResourceOf(array), Nearest()), 4, 4, 4, 64, 0.5f), Counting(64, 3));
  OK(cuArray3DCreate(&array, &layers));
  OK(FillArray(array, Counting(48, 4), 4, 4, 3));
  EXPECT_EQ(Read("layer2", Make(ResourceOf(array), Nearest()), 4, 4, 3, 48, 0.5f), Counting(48, 4));
}

TEST_F(TextureTest, AddressModes) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(4);
  CUarray array = nullptr;
  OK(cuArray3DCreate(&array, &shape));
  OK(FillArray(array, Counting(4, 1), 4));
  const unsigned normalized = CU_TRSF_NORMALIZED_COORDINATES;
  // Reads at texels -4 to 7.
  auto read = [&](CUaddress_mode mode, unsigned flags) {
    CUDA_TEXTURE_DESC how = Nearest(mode, flags);
    how.borderColor[0] = 9;
    return Read("read1", Make(ResourceOf(array), how), 12, 1, 1, 12, -3.5f, flags != 0 ? 0.25f : 1.0f);
  };
  EXPECT_EQ(read(CU_TR_ADDRESS_MODE_CLAMP, 0), (std::vector<float>{1, 1, 1, 1, 1, 2, 3, 4, 4, 4, 4, 4}));
  EXPECT_EQ(read(CU_TR_ADDRESS_MODE_BORDER, 0), (std::vector<float>{9, 9, 9, 9, 1, 2, 3, 4, 9, 9, 9, 9}));
  EXPECT_EQ(read(CU_TR_ADDRESS_MODE_WRAP, normalized),
            (std::vector<float>{1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}));
  EXPECT_EQ(read(CU_TR_ADDRESS_MODE_MIRROR, normalized),
            (std::vector<float>{4, 3, 2, 1, 1, 2, 3, 4, 4, 3, 2, 1}));
}

TEST_F(TextureTest, LinearFilter) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(8);
  CUarray array = nullptr;
  OK(cuArray3DCreate(&array, &shape));
  OK(FillArray(array, {0, 8, 16, 24, 32, 40, 48, 56}, 8));
  CUDA_TEXTURE_DESC how = Nearest();
  how.filterMode = CU_TR_FILTER_MODE_LINEAR;
  const CUtexObject texture = Make(ResourceOf(array), how);
  EXPECT_EQ(Read("read1", texture, 8, 1, 1, 8, 0.5f, 1.0f),
            (std::vector<float>{0, 8, 16, 24, 32, 40, 48, 56}));
  EXPECT_EQ(Read("read1", texture, 8, 1, 1, 8, 1.0f, 1.0f),
            (std::vector<float>{4, 12, 20, 28, 36, 44, 52, 56}));
  EXPECT_EQ(Read("read1", texture, 7, 1, 1, 7, 0.75f, 1.0f), (std::vector<float>{2, 10, 18, 26, 34, 42, 50}));
}

TEST_F(TextureTest, FormatsAreReadAsNumbersOrFractions) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(2, 2, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4);
  CUarray array = nullptr;
  OK(cuArray3DCreate(&array, &shape));
  std::vector<unsigned char> bytes(16);
  std::iota(bytes.begin(), bytes.end(), 51);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = bytes.data();
  copy.srcPitch = 8;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.WidthInBytes = 8;
  copy.Height = 2;
  OK(cuMemcpy2D(&copy));
  const CUtexObject whole =
      Make(ResourceOf(array), Nearest(CU_TR_ADDRESS_MODE_CLAMP, CU_TRSF_READ_AS_INTEGER));
  EXPECT_EQ(Read<uint32_t>("whole2", whole, 2, 2, 1, 16), std::vector<uint32_t>(bytes.begin(), bytes.end()));
  const CUtexObject fractions = Make(ResourceOf(array), Nearest());
  const std::vector<float> read = Read("read2", fractions, 2, 2, 1, 4, 0.5f, 1.0f);
  for (size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(read[i], bytes[4 * i] / 255.0f);
}

TEST_F(TextureTest, MipmappedArray) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(8, 8);
  CUmipmappedArray array = nullptr;
  OK(cuMipmappedArrayCreate(&array, &shape, 3));
  for (unsigned i = 0; i < 3; ++i) {
    CUarray level = nullptr;
    OK(cuMipmappedArrayGetLevel(&level, array, i));
    OK(FillArray(level, Counting(64 >> 2 * i, 100.0f * static_cast<float>(i)), 8 >> i, 8 >> i));
  }
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  resource.res.mipmap.hMipmappedArray = array;
  CUDA_TEXTURE_DESC how = Nearest(CU_TR_ADDRESS_MODE_CLAMP, CU_TRSF_NORMALIZED_COORDINATES);
  how.maxMipmapLevelClamp = 2;
  const CUtexObject texture = Make(resource, how);
  for (unsigned i = 0; i < 3; ++i) {
    const unsigned side = 8 >> i;
    EXPECT_EQ(Read("level2", texture, side, side, 1, side * side, static_cast<float>(i),
                   1.0f / static_cast<float>(side)),
              Counting(side * side, 100.0f * static_cast<float>(i)));
  }
  CUDA_RESOURCE_DESC described{};
  EXPECT_EQ(cuTexObjectGetResourceDesc(&described, texture), CUDA_SUCCESS);
  EXPECT_EQ(described.resType, CU_RESOURCE_TYPE_MIPMAPPED_ARRAY);
  EXPECT_EQ(described.res.mipmap.hMipmappedArray, array);
  OK(cuTexObjectDestroy(texture));
  OK(cuMipmappedArrayDestroy(array));
}

TEST_F(TextureTest, Descriptions) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(16, 16);
  CUarray array = nullptr;
  OK(cuArray3DCreate(&array, &shape));
  const CUDA_RESOURCE_DESC resource = ResourceOf(array);
  CUDA_TEXTURE_DESC how = Nearest(CU_TR_ADDRESS_MODE_BORDER, CU_TRSF_NORMALIZED_COORDINATES);
  how.maxAnisotropy = 4;
  how.mipmapLevelBias = 0.5f;
  how.maxMipmapLevelClamp = 3;
  how.borderColor[0] = 0.25f;
  CUDA_RESOURCE_VIEW_DESC view{};
  view.format = CU_RES_VIEW_FORMAT_UINT_1X32;
  view.width = 16;
  view.height = 16;
  CUtexObject plain = 0, viewed = 0;
  OK(cuTexObjectCreate(&plain, &resource, &how, nullptr));
  OK(cuTexObjectCreate(&viewed, &resource, &how, &view));
  EXPECT_NE(plain, viewed);
  CUDA_RESOURCE_DESC resource_back{};
  CUDA_TEXTURE_DESC how_back{};
  CUDA_RESOURCE_VIEW_DESC view_back{};
  EXPECT_EQ(cuTexObjectGetResourceDesc(&resource_back, plain), CUDA_SUCCESS);
  EXPECT_EQ(resource_back.resType, CU_RESOURCE_TYPE_ARRAY);
  EXPECT_EQ(resource_back.res.array.hArray, array);
  EXPECT_EQ(resource_back.flags, 0u);
  EXPECT_EQ(cuTexObjectGetTextureDesc(&how_back, plain), CUDA_SUCCESS);
  EXPECT_EQ(how_back.addressMode[1], CU_TR_ADDRESS_MODE_BORDER);
  EXPECT_EQ(how_back.flags, how.flags);
  EXPECT_EQ(how_back.maxMipmapLevelClamp, 3.0f);
  EXPECT_EQ(how_back.borderColor[0], 0.0f);  // driver 580 does not tell it
  EXPECT_EQ(cuTexObjectGetResourceViewDesc(&view_back, viewed), CUDA_SUCCESS);
  EXPECT_EQ(view_back.format, CU_RES_VIEW_FORMAT_UINT_1X32);
  EXPECT_EQ(view_back.width, 16u);
  view_back = {};
  EXPECT_EQ(cuTexObjectGetResourceViewDesc(&view_back, plain), CUDA_SUCCESS);  // though it has none
  Say("view of none", static_cast<int>(view_back.format));
  OK(cuTexObjectDestroy(viewed));
  OK(cuTexObjectDestroy(plain));
}

TEST_F(TextureTest, WrongArguments) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(16, 16);
  CUarray array = nullptr;
  OK(cuArray3DCreate(&array, &shape));
  CUDA_RESOURCE_DESC resource = ResourceOf(array);
  const CUDA_TEXTURE_DESC how = Nearest();
  CUtexObject texture = 0;
  EXPECT_EQ(cuTexObjectCreate(nullptr, &resource, &how, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuTexObjectCreate(&texture, nullptr, &how, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuTexObjectCreate(&texture, &resource, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  OK(cuTexObjectCreate(&texture, &resource, &how, nullptr));
  EXPECT_EQ(cuTexObjectGetResourceDesc(nullptr, texture), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuTexObjectGetTextureDesc(nullptr, texture), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuTexObjectGetResourceViewDesc(nullptr, texture), CUDA_ERROR_INVALID_VALUE);
  OK(cuTexObjectDestroy(texture));
  resource.resType = static_cast<CUresourcetype>(17);
  EXPECT_EQ(cuTexObjectCreate(&texture, &resource, &how, nullptr), CUDA_ERROR_INVALID_VALUE);
  CUDA_RESOURCE_DESC linear{};
  linear.resType = CU_RESOURCE_TYPE_LINEAR;
  linear.res.linear = {out_ + 4, CU_AD_FORMAT_FLOAT, 1, 64};  // not aligned
  EXPECT_EQ(cuTexObjectCreate(&texture, &linear, &how, nullptr), CUDA_ERROR_INVALID_VALUE);
  if (OnNvidiaLibrary()) return;
  CUDA_TEXTURE_DESC back{};
  EXPECT_NE(cuTexObjectGetTextureDesc(&back, texture), CUDA_SUCCESS);  // destroyed above
  OK(cuArrayDestroy(array));
  resource = ResourceOf(array);
  EXPECT_EQ(cuTexObjectCreate(&texture, &resource, &how, nullptr), CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace
}  // namespace causeway::driver_test
