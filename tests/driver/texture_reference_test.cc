// SPDX-License-Identifier: Apache-2.0
// Census category texture-surface, the references that came before objects: a module declares them, the
// program sets them, and the next launch reads them.
#include "tests/driver/array_helpers.h"

namespace causeway::driver_test {
namespace {

//   fetch1(out), read2(out)   store what `plane` or `line` hold at the thread's place
//   write2(value)             `sheet` at the thread's place = value + its number
constexpr char kReferences[] = R"(
.version 8.0
.target sm_80
.address_size 64
.global .texref line;
.global .texref plane;
.global .surfref sheet;
.visible .entry fetch1(.param .u64 out)
{
  .reg .b32 %r<3>; .reg .f32 %f<5>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x;
  tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [line, {%r1}];
  mul.wide.u32 %rd2, %r1, 4;
  add.u64 %rd3, %rd1, %rd2;
  st.global.f32 [%rd3], %f1;
  ret;
}
.visible .entry read2(.param .u64 out)
{
  .reg .b32 %r<5>; .reg .f32 %f<9>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ntid.x;
  cvt.rn.f32.u32 %f5, %r1; cvt.rn.f32.u32 %f6, %r2;
  add.f32 %f7, %f5, 0f3F000000; add.f32 %f8, %f6, 0f3F000000;
  tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [plane, {%f7, %f8}];
  mad.lo.u32 %r4, %r2, %r3, %r1;
  mul.wide.u32 %rd2, %r4, 4;
  add.u64 %rd3, %rd1, %rd2;
  st.global.f32 [%rd3], %f1;
  ret;
}
.visible .entry write2(.param .f32 value)
{
  .reg .b32 %r<7>; .reg .f32 %f<4>;
  ld.param.f32 %f1, [value];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ntid.x;
  mad.lo.u32 %r4, %r2, %r3, %r1;
  cvt.rn.f32.u32 %f2, %r4;
  add.f32 %f3, %f1, %f2;
  shl.b32 %r5, %r1, 2;
  mov.b32 %r6, %f3;
  sust.b.2d.b32.trap [sheet, {%r5, %r2}], {%r6};
  ret;
}
)";

class TextureReferenceTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    OK(cuModuleLoadData(&references_, kReferences));
    OK(cuMemAlloc(&out_, 4096));
  }
  CUtexref Reference(const char* name) {
    CUtexref reference = nullptr;
    EXPECT_EQ(cuModuleGetTexRef(&reference, references_, name), CUDA_SUCCESS);
    return reference;
  }
  std::vector<float> Read(const char* name, unsigned x, unsigned y) {
    CUfunction function = nullptr;
    std::vector<float> values(size_t{x} * y);
    EXPECT_EQ(cuModuleGetFunction(&function, references_, name), CUDA_SUCCESS);
    void* parameters[] = {&out_};
    EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, x, y, 1, 0, nullptr, parameters, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoH(values.data(), out_, values.size() * 4), CUDA_SUCCESS);
    return values;
  }
  CUmodule references_ = nullptr;
  CUdeviceptr out_ = 0;
};

TEST_F(TextureReferenceTest, WhatIsSetIsWhatOneGets) {
  CUtexref reference = nullptr;
  OK(cuTexRefCreate(&reference));
  CUaddress_mode address_mode{};
  for (int dim = 0; dim < 3; ++dim) {
    EXPECT_EQ(cuTexRefSetAddressMode(reference, dim, CU_TR_ADDRESS_MODE_MIRROR), CUDA_SUCCESS);
    EXPECT_EQ(cuTexRefGetAddressMode(&address_mode, reference, dim), CUDA_SUCCESS);
    EXPECT_EQ(address_mode, CU_TR_ADDRESS_MODE_MIRROR);
  }
  CUfilter_mode filter{};
  EXPECT_EQ(cuTexRefSetFilterMode(reference, CU_TR_FILTER_MODE_LINEAR), CUDA_SUCCESS);
  EXPECT_EQ(cuTexRefGetFilterMode(&filter, reference), CUDA_SUCCESS);
  EXPECT_EQ(filter, CU_TR_FILTER_MODE_LINEAR);
  filter = CU_TR_FILTER_MODE_POINT;
  EXPECT_EQ(cuTexRefSetMipmapFilterMode(reference, CU_TR_FILTER_MODE_LINEAR), CUDA_SUCCESS);
  EXPECT_EQ(cuTexRefGetMipmapFilterMode(&filter, reference), CUDA_SUCCESS);
  EXPECT_EQ(filter, CU_TR_FILTER_MODE_LINEAR);
  float bias = 0, least = 0, most = 0;
  EXPECT_EQ(cuTexRefSetMipmapLevelBias(reference, 1.5f), CUDA_SUCCESS);
  EXPECT_EQ(cuTexRefGetMipmapLevelBias(&bias, reference), CUDA_SUCCESS);
  EXPECT_EQ(bias, 1.5f);
  EXPECT_EQ(cuTexRefSetMipmapLevelClamp(reference, 0.5f, 2.5f), CUDA_SUCCESS);
  EXPECT_EQ(cuTexRefGetMipmapLevelClamp(&least, &most, reference), CUDA_SUCCESS);
  EXPECT_EQ(least, 0.5f);
  EXPECT_EQ(most, 2.5f);
  int anisotropy = 0;
  EXPECT_EQ(cuTexRefSetMaxAnisotropy(reference, 4), CUDA_SUCCESS);
  EXPECT_EQ(cuTexRefGetMaxAnisotropy(&anisotropy, reference), CUDA_SUCCESS);
  EXPECT_EQ(anisotropy, 4);
  float border[] = {0.25f, 0.5f, 0.75f, 1.0f}, border_back[4] = {};
  EXPECT_EQ(cuTexRefSetBorderColor(reference, border), CUDA_SUCCESS);
  EXPECT_EQ(cuTexRefGetBorderColor(border_back, reference), CUDA_SUCCESS);
  EXPECT_EQ(std::memcmp(border, border_back, sizeof border), 0);
  unsigned flags = 0;
  EXPECT_EQ(cuTexRefSetFlags(reference, CU_TRSF_READ_AS_INTEGER), CUDA_SUCCESS);
  EXPECT_EQ(cuTexRefGetFlags(&flags, reference), CUDA_SUCCESS);
  EXPECT_EQ(flags, unsigned{CU_TRSF_READ_AS_INTEGER});
  CUarray_format format{};
  int channels = 0;
  EXPECT_EQ(cuTexRefSetFormat(reference, CU_AD_FORMAT_SIGNED_INT16, 2), CUDA_SUCCESS);
  EXPECT_EQ(cuTexRefGetFormat(&format, &channels, reference), CUDA_SUCCESS);
  EXPECT_EQ(format, CU_AD_FORMAT_SIGNED_INT16);
  EXPECT_EQ(channels, 2);
  EXPECT_EQ(cuTexRefDestroy(reference), CUDA_SUCCESS);
}

TEST_F(TextureReferenceTest, Defaults) {
  const CUtexref reference = Reference("plane");
  CUaddress_mode address_mode{};
  EXPECT_EQ(cuTexRefGetAddressMode(&address_mode, reference, 0), CUDA_SUCCESS);
  Say("address mode", static_cast<int>(address_mode));
  CUfilter_mode filter{};
  EXPECT_EQ(cuTexRefGetFilterMode(&filter, reference), CUDA_SUCCESS);
  Say("filter", static_cast<int>(filter));
  unsigned flags = 0;
  EXPECT_EQ(cuTexRefGetFlags(&flags, reference), CUDA_SUCCESS);
  Say("flags", flags);
  int anisotropy = 0;
  EXPECT_EQ(cuTexRefGetMaxAnisotropy(&anisotropy, reference), CUDA_SUCCESS);
  Say("anisotropy", anisotropy);
  CUarray array = nullptr;
  CUmipmappedArray mipmapped = nullptr;
  CUdeviceptr address = 0;
  EXPECT_EQ(cuTexRefGetArray(&array, reference), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuTexRefGetMipmappedArray(&mipmapped, reference), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuTexRefGetAddress(&address, reference), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(TextureReferenceTest, LinearMemory) {
  CUdeviceptr data = 0, back = 0;
  OK(cuMemAlloc(&data, 128));
  OK(cuMemcpyHtoD(data, Counting(32, 3).data(), 128));
  const CUtexref line = Reference("line");
  size_t offset = 1;
  OK(cuTexRefSetFormat(line, CU_AD_FORMAT_FLOAT, 1));
  OK(cuTexRefSetAddress(&offset, line, data, 128));
  EXPECT_EQ(offset, 0u);
  EXPECT_EQ(cuTexRefGetAddress(&back, line), CUDA_SUCCESS);
  EXPECT_EQ(back, data);
  EXPECT_EQ(Read("fetch1", 32, 1), Counting(32, 3));
}

TEST_F(TextureReferenceTest, PitchedMemory) {
  using SetAddress2D = CUresult(CUtexref, const CUDA_ARRAY_DESCRIPTOR*, CUdeviceptr, size_t);
  const CUtexref plane = Reference("plane");
  for (const char* name : {"cuTexRefSetAddress2D_v3", "cuTexRefSetAddress2D_v2"}) {
    CUdeviceptr data = 0;
    size_t pitch = 0;
    OK(cuMemAllocPitch(&data, &pitch, 32, 4, 4));
    for (size_t row = 0; row < 4; ++row) {
      OK(cuMemcpyHtoD(data + row * pitch, Counting(8, 8.0f * static_cast<float>(row)).data(), 32));
    }
    const CUDA_ARRAY_DESCRIPTOR shape{8, 4, CU_AD_FORMAT_FLOAT, 1};
    EXPECT_EQ(SymbolAs<SetAddress2D>(name)(plane, &shape, data, pitch), CUDA_SUCCESS);
    EXPECT_EQ(Read("read2", 8, 4), Counting(32, 0)) << name;
  }
}

TEST_F(TextureReferenceTest, Arrays) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(8, 4);
  CUarray array = nullptr, back = nullptr;
  CUmipmappedArray mipmapped = nullptr, mipmapped_back = nullptr;
  OK(cuArray3DCreate(&array, &shape));
  OK(FillArray(array, Counting(32, 50), 8, 4));
  const CUtexref plane = Reference("plane");
  OK(cuTexRefSetArray(plane, array, CU_TRSA_OVERRIDE_FORMAT));
  EXPECT_EQ(cuTexRefGetArray(&back, plane), CUDA_SUCCESS);
  EXPECT_EQ(back, array);
  EXPECT_EQ(Read("read2", 8, 4), Counting(32, 50));
  OK(cuMipmappedArrayCreate(&mipmapped, &shape, 2));
  OK(cuTexRefSetMipmappedArray(plane, mipmapped, CU_TRSA_OVERRIDE_FORMAT));
  EXPECT_EQ(cuTexRefGetMipmappedArray(&mipmapped_back, plane), CUDA_SUCCESS);
  EXPECT_EQ(mipmapped_back, mipmapped);
}

TEST_F(TextureReferenceTest, SurfaceReference) {
  const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(8, 4, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SURFACE_LDST);
  CUarray array = nullptr, back = nullptr;
  OK(cuArray3DCreate(&array, &shape));
  CUsurfref sheet = nullptr;
  OK(cuModuleGetSurfRef(&sheet, references_, "sheet"));
  OK(cuSurfRefSetArray(sheet, array, 0));
  EXPECT_EQ(cuSurfRefGetArray(&back, sheet), CUDA_SUCCESS);
  EXPECT_EQ(back, array);
  CUfunction function = nullptr;
  OK(cuModuleGetFunction(&function, references_, "write2"));
  float value = 20;
  void* parameters[] = {&value};
  OK(cuLaunchKernel(function, 1, 1, 1, 8, 4, 1, 0, nullptr, parameters, nullptr));
  EXPECT_EQ(ContentsOf(array, 8, 4), Counting(32, 20));
}

TEST_F(TextureReferenceTest, WrongArguments) {
  CUtexref reference = nullptr, again = nullptr;
  CUsurfref surface = nullptr;
  EXPECT_EQ(cuModuleGetTexRef(&reference, references_, "no such name"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuModuleGetSurfRef(&surface, references_, "no such name"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuModuleGetTexRef(nullptr, references_, "plane"), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuModuleGetTexRef(&reference, references_, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuTexRefCreate(nullptr), CUDA_ERROR_INVALID_VALUE);
  OK(cuModuleGetTexRef(&reference, references_, "plane"));
  OK(cuModuleGetTexRef(&again, references_, "plane"));
  Say("same name, same handle", reference == again);
  EXPECT_EQ(cuTexRefGetFlags(nullptr, reference), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuTexRefSetFormat(reference, CU_AD_FORMAT_FLOAT, 3), CUDA_ERROR_INVALID_VALUE);
  Say("no dimension", static_cast<int>(cuTexRefSetAddressMode(reference, 3, CU_TR_ADDRESS_MODE_CLAMP)));
}

// The reference is looked at before flags, values and places for answers.
TEST_F(TextureReferenceTest, WithoutAReference) {
  EXPECT_EQ(cuTexRefGetFilterMode(nullptr, nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuTexRefGetArray(nullptr, nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuTexRefGetBorderColor(nullptr, nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuTexRefSetFilterMode(nullptr, static_cast<CUfilter_mode>(9)), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuTexRefSetFormat(nullptr, static_cast<CUarray_format>(99), 9), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuTexRefSetMipmappedArray(nullptr, nullptr, 3), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(TextureReferenceTest, AsAParameter) {
  NEEDS_HARDWARE("textures as parameters");
  auto* set = SymbolAs<CUresult(CUfunction, int, CUtexref)>("cuParamSetTexRef");
  ASSERT_NE(set, nullptr);
  CUtexref reference = nullptr;
  OK(cuModuleGetTexRef(&reference, references_, "plane"));
  CUfunction function = nullptr;
  OK(cuModuleGetFunction(&function, references_, "write2"));
  Say("default unit", static_cast<int>(set(function, CU_PARAM_TR_DEFAULT, reference)));
  Say("unit 0", static_cast<int>(set(function, 0, reference)));
}

TEST_F(TextureReferenceTest, EndsWithItsModule) {
  if (OnNvidiaLibrary()) GTEST_SKIP() << "NVIDIA's library does not check them all";
  const CUtexref plane = Reference("plane");
  OK(cuModuleUnload(references_));
  unsigned flags = 0;
  EXPECT_EQ(cuTexRefGetFlags(&flags, plane), CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace
}  // namespace causeway::driver_test
