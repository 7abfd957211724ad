// SPDX-License-Identifier: Apache-2.0
// Census category tensor map: 128 bytes that the driver encodes. Their meaning is the hardware's; equal
// arguments must give equal bytes, so the bytes are recorded, encoded for one address that both runs share.
#include <array>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

struct Arguments {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  cuuint32_t rank = 2;
  uint64_t address = 0x200000000;  // nothing is there: encoding does not look
  std::array<cuuint64_t, 5> dimensions{256, 64, 4, 2, 2};
  std::array<cuuint64_t, 5> strides{1024, 65536, 262144, 524288, 0};
  std::array<cuuint32_t, 5> box{32, 8, 1, 1, 1};
  std::array<cuuint32_t, 5> element_strides{1, 1, 1, 1, 1};
  std::array<int, 5> lower{0, 0, 0, 0, 0}, upper{0, 0, 0, 0, 0};
  cuuint32_t channels = 16, pixels = 8;
  CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
  CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_NONE;
  CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;

  CUresult Tiled(CUtensorMap* map) const {
    return cuTensorMapEncodeTiled(map, type, rank, reinterpret_cast<void*>(address), dimensions.data(),
                                  strides.data(), box.data(), element_strides.data(), interleave, swizzle,
                                  promotion, fill);
  }
  CUresult Im2col(CUtensorMap* map) const {
    return cuTensorMapEncodeIm2col(map, type, rank, reinterpret_cast<void*>(address), dimensions.data(),
                                   strides.data(), lower.data(), upper.data(), channels, pixels,
                                   element_strides.data(), interleave, swizzle, promotion, fill);
  }
  CUresult Wide(CUtensorMap* map) const {
    return cuTensorMapEncodeIm2colWide(map, type, rank, reinterpret_cast<void*>(address), dimensions.data(),
                                       strides.data(), lower[0], upper[0], channels, pixels,
                                       element_strides.data(), interleave, CU_TENSOR_MAP_IM2COL_WIDE_MODE_W,
                                       swizzle, promotion, fill);
  }
};

std::string Bytes(const CUtensorMap& map) {
  std::string text;
  for (const cuuint64_t word : map.opaque) {
    char digits[20];
    std::snprintf(digits, sizeof digits, "%016llx ", static_cast<unsigned long long>(word));
    text += digits;
  }
  return text;
}

class TensorMapTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    NEEDS_HARDWARE("tensor maps");
  }
  alignas(64) CUtensorMap map_{};
};

TEST_F(TensorMapTest, TiledOfEveryRank) {
  for (cuuint32_t rank = 1; rank <= 5; ++rank) {
    Arguments arguments;
    arguments.rank = rank;
    EXPECT_EQ(arguments.Tiled(&map_), CUDA_SUCCESS) << rank;
    Say("rank " + std::to_string(rank), Bytes(map_));
  }
}

TEST_F(TensorMapTest, TiledOfEveryType) {
  for (int type = 0; type <= CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B + 1; ++type) {
    Arguments arguments;
    arguments.type = static_cast<CUtensorMapDataType>(type);
    const CUresult result = arguments.Tiled(&map_);
    Say("result " + std::to_string(type), static_cast<int>(result));
    if (result == CUDA_SUCCESS) Say("type " + std::to_string(type), Bytes(map_));
  }
}

TEST_F(TensorMapTest, Options) {
  Arguments arguments;
  arguments.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  arguments.promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  arguments.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
  arguments.element_strides = {1, 2, 1, 1, 1};
  EXPECT_EQ(arguments.Tiled(&map_), CUDA_SUCCESS);
  Say("map", Bytes(map_));
}

TEST_F(TensorMapTest, Im2col) {
  for (cuuint32_t rank = 3; rank <= 5; ++rank) {
    Arguments arguments;
    arguments.rank = rank;
    arguments.lower = {-1, -1, -1, 0, 0};
    arguments.upper = {-1, -1, -1, 0, 0};
    const CUresult result = arguments.Im2col(&map_);
    EXPECT_EQ(result, CUDA_SUCCESS) << rank;
    Say("rank " + std::to_string(rank), Bytes(map_));
  }
}

// For devices after Hopper; the answer elsewhere is recorded.
TEST_F(TensorMapTest, Im2colWide) {
  Arguments arguments;
  arguments.rank = 4;
  arguments.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  arguments.channels = 64;
  arguments.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const CUresult result = arguments.Wide(&map_);
  Say("result", static_cast<int>(result));
  if (result == CUDA_SUCCESS) Say("map", Bytes(map_));
  arguments.rank = 2;
  EXPECT_NE(arguments.Wide(&map_), CUDA_SUCCESS);
}

TEST_F(TensorMapTest, WrongArguments) {
  auto tiled = [&](auto change) {
    Arguments arguments;
    change(arguments);
    return arguments.Tiled(&map_);
  };
  EXPECT_EQ(tiled([](Arguments& a) { a.rank = 0; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(tiled([](Arguments& a) { a.rank = 6; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(tiled([](Arguments& a) { a.address += 8; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(tiled([](Arguments& a) { a.strides[0] = 1000; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(tiled([](Arguments& a) { a.box[0] = 512; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(tiled([](Arguments& a) { a.box[1] = 0; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(tiled([](Arguments& a) { a.dimensions[0] = 0; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(tiled([](Arguments& a) { a.element_strides[1] = 9; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(tiled([](Arguments& a) { a.swizzle = static_cast<CUtensorMapSwizzle>(99); }),
            CUDA_ERROR_INVALID_VALUE);
  Arguments arguments;
  EXPECT_EQ(arguments.Tiled(nullptr), CUDA_ERROR_INVALID_VALUE);
  arguments.rank = 2;  // im2col starts at 3
  EXPECT_EQ(arguments.Im2col(&map_), CUDA_ERROR_INVALID_VALUE);
  arguments.rank = 3;
  EXPECT_EQ(arguments.Im2col(nullptr), CUDA_ERROR_INVALID_VALUE);
  const cuuint64_t dimensions[] = {256, 64}, strides[] = {1024};
  const cuuint32_t box[] = {32, 8}, ones[] = {1, 1};
  void* const address = reinterpret_cast<void*>(arguments.address);
  auto with = [&](const cuuint64_t* d, const cuuint64_t* s, const cuuint32_t* b, const cuuint32_t* e) {
    return cuTensorMapEncodeTiled(&map_, arguments.type, 2, address, d, s, b, e, arguments.interleave,
                                  arguments.swizzle, arguments.promotion, arguments.fill);
  };
  EXPECT_EQ(with(dimensions, strides, box, ones), CUDA_SUCCESS);
  EXPECT_EQ(with(nullptr, strides, box, ones), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(with(dimensions, nullptr, box, ones), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(with(dimensions, strides, nullptr, ones), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(with(dimensions, strides, box, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(TensorMapTest, ReplaceAddress) {
  Arguments arguments;
  OK(arguments.Tiled(&map_));
  arguments.address = 0x300000000;
  alignas(64) CUtensorMap encoded{};
  OK(arguments.Tiled(&encoded));
  EXPECT_EQ(cuTensorMapReplaceAddress(&map_, reinterpret_cast<void*>(arguments.address)), CUDA_SUCCESS);
  EXPECT_EQ(Bytes(map_), Bytes(encoded));
  EXPECT_EQ(cuTensorMapReplaceAddress(&map_, reinterpret_cast<void*>(arguments.address + 8)),
            CUDA_ERROR_INVALID_VALUE);
}

// One block loads a tile through the map into shared memory and writes it out.
constexpr char kLoadTile[] = R"(
.version 8.0
.target sm_90
.address_size 64
.visible .entry load_tile(.param .align 64 .b8 map[128], .param .u64 out, .param .u32 x, .param .u32 y)
{
  .reg .pred %p<3>; .reg .b32 %r<12>; .reg .b64 %rd<8>;
  .shared .align 128 .b8 tile[1024];
  .shared .align 8 .b64 arrived;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [x];
  ld.param.u32 %r2, [y];
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, arrived;
  mov.u32 %r5, tile;
  mov.b64 %rd2, map;
  cvta.param.u64 %rd3, %rd2;
  setp.ne.u32 %p1, %r3, 0;
  @%p1 bra WAIT;
  mbarrier.init.shared.b64 [%r4], 1;
  fence.proxy.async;
  mbarrier.arrive.expect_tx.shared.b64 %rd4, [%r4], 1024;
  cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r5], [%rd3, {%r1, %r2}], [%r4];
WAIT:
  bar.sync 0;
AGAIN:
  mbarrier.try_wait.parity.shared.b64 %p2, [%r4], 0;
  @!%p2 bra AGAIN;
  shl.b32 %r6, %r3, 2;
  add.u32 %r7, %r5, %r6;
  ld.shared.u32 %r8, [%r7];
  cvt.u64.u32 %rd5, %r6;
  add.u64 %rd6, %rd1, %rd5;
  st.global.u32 [%rd6], %r8;
  ret;
}
)";

TEST_F(TensorMapTest, AKernelLoadsThroughIt) {
  int major = 0;
  OK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  if (major < 9) GTEST_SKIP() << "the device has no tensor memory accelerator";
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  OK(cuModuleLoadData(&module, kLoadTile));
  OK(cuModuleGetFunction(&function, module, "load_tile"));
  constexpr unsigned kWidth = 256, kHeight = 64;
  std::vector<uint32_t> image(kWidth * kHeight);
  for (unsigned i = 0; i < image.size(); ++i) image[i] = i;
  CUdeviceptr data = 0, out = 0;
  OK(cuMemAlloc(&data, image.size() * 4));
  OK(cuMemAlloc(&out, 1024));
  OK(cuMemcpyHtoD(data, image.data(), image.size() * 4));
  Arguments arguments;
  arguments.type = CU_TENSOR_MAP_DATA_TYPE_UINT32;
  arguments.address = data;
  OK(arguments.Tiled(&map_));
  unsigned x = 64, y = 16;
  void* parameters[] = {&map_, &out, &x, &y};
  OK(cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, nullptr, parameters, nullptr));
  std::vector<uint32_t> tile(256);
  OK(cuMemcpyDtoH(tile.data(), out, 1024));
  for (unsigned i = 0; i < 256; ++i) ASSERT_EQ(tile[i], (y + i / 32) * kWidth + x + i % 32) << i;
}

}  // namespace
}  // namespace causeway::driver_test
