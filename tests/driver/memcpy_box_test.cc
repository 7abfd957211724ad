// SPDX-License-Identifier: Apache-2.0
// Census category memcpy: rows, boxes and arrays.
#include <cstring>
#include <vector>

#include "tests/driver/array_helpers.h"

namespace causeway::driver_test {
namespace {

class MemcpyBoxTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    for (size_t i = 0; i < source_.size(); ++i) source_[i] = static_cast<uint32_t>(i);
    OK(cuMemAllocPitch(&device_, &pitch_, kWidth * 4, kHeight * kDepth, 4));
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
  }
  static constexpr size_t kWidth = 37, kHeight = 11, kDepth = 5;
  CUDA_MEMCPY3D ToDevice() {
    CUDA_MEMCPY3D box{};
    box.srcMemoryType = CU_MEMORYTYPE_HOST;
    box.srcHost = source_.data();
    box.srcPitch = kWidth * 4;
    box.srcHeight = kHeight;
    box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    box.dstDevice = device_;
    box.dstPitch = pitch_;
    box.dstHeight = kHeight;
    box.WidthInBytes = kWidth * 4;
    box.Height = kHeight;
    box.Depth = kDepth;
    return box;
  }
  CUDA_MEMCPY3D ToHost(void* host) {
    CUDA_MEMCPY3D box = ToDevice();
    box.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    box.srcDevice = device_;
    box.srcPitch = pitch_;
    box.dstMemoryType = CU_MEMORYTYPE_HOST;
    box.dstHost = host;
    box.dstPitch = kWidth * 4;
    return box;
  }
  std::vector<uint32_t> source_ = std::vector<uint32_t>(kWidth * kHeight * kDepth);
  CUdeviceptr device_ = 0;
  size_t pitch_ = 0;
  CUstream stream_ = nullptr;
};

TEST_F(MemcpyBoxTest, BoxesOfEveryKindOfMemory) {
  void* pinned = nullptr;
  OK(cuMemHostAlloc(&pinned, source_.size() * 4, 0));
  std::vector<uint32_t> back(source_.size());
  CUDA_MEMCPY3D in = ToDevice(), out = ToHost(back.data());
  OK(cuMemcpy3D(&in));
  OK(cuMemcpy3D(&out));
  EXPECT_EQ(back, source_);
  out = ToHost(pinned);
  OK(cuMemcpy3DAsync(&out, stream_));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(std::memcmp(pinned, source_.data(), source_.size() * 4), 0);
  OK(cuMemsetD8(device_, 0, pitch_ * kHeight * kDepth));
  OK(cuCtxSynchronize());
  in.srcHost = pinned;
  OK(cuMemcpy3DAsync(&in, stream_));
  back.assign(back.size(), 0);
  out = ToHost(back.data());
  out.srcMemoryType = out.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  out.dstDevice = reinterpret_cast<CUdeviceptr>(back.data());
  OK(cuMemcpy3DAsync(&out, stream_));
  EXPECT_EQ(back, source_);
  // A part of it, moved.
  CUDA_MEMCPY3D part = ToHost(back.data());
  part.srcXInBytes = 8;
  part.srcY = 2;
  part.srcZ = 1;
  part.WidthInBytes = 20;
  part.Height = 3;
  part.Depth = 2;
  OK(cuMemcpy3D(&part));
  for (size_t z = 0; z < 2; ++z) {
    for (size_t y = 0; y < 3; ++y) {
      for (size_t x = 0; x < 5; ++x) {
        ASSERT_EQ(back[(z * kHeight + y) * kWidth + x],
                  source_[((z + 1) * kHeight + y + 2) * kWidth + x + 2]);
      }
    }
  }
  // On the host alone.
  std::vector<uint32_t> copy(source_.size());
  CUDA_MEMCPY3D host = ToDevice();
  host.dstMemoryType = CU_MEMORYTYPE_HOST;
  host.dstHost = copy.data();
  host.dstPitch = kWidth * 4;
  OK(cuMemcpy3D(&host));
  EXPECT_EQ(copy, source_);
}

TEST_F(MemcpyBoxTest, Rows) {
  std::vector<uint32_t> back(kWidth * kHeight);
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = CU_MEMORYTYPE_HOST;
  rows.srcHost = source_.data();
  rows.srcPitch = kWidth * 4;
  rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.dstDevice = device_;
  rows.dstPitch = pitch_;
  rows.WidthInBytes = kWidth * 4;
  rows.Height = kHeight;
  auto swapped = [&] {
    CUDA_MEMCPY2D other = rows;
    other.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    other.srcDevice = device_;
    other.srcPitch = pitch_;
    other.dstMemoryType = CU_MEMORYTYPE_HOST;
    other.dstHost = back.data();
    other.dstPitch = kWidth * 4;
    return other;
  }();
  const std::vector<uint32_t> expected(source_.begin(), source_.begin() + kWidth * kHeight);
  OK(cuMemcpy2D(&rows));
  OK(cuMemcpy2D(&swapped));
  EXPECT_EQ(back, expected);
  back.assign(back.size(), 0);
  OK(cuMemcpy2DUnaligned(&rows));
  OK(cuCtxSynchronize());  // pageable memory: the device may not have all of it yet
  OK(cuMemcpy2DAsync(&swapped, stream_));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(back, expected);
  for (const char* name : {"cuMemcpy2D_v2_ptds", "cuMemcpy2DUnaligned_v2_ptds"}) {
    auto* call = SymbolAs<CUresult(const CUDA_MEMCPY2D*)>(name);
    if (call == nullptr) continue;
    back.assign(back.size(), 0);
    OK(call(&rows));
    OK(call(&swapped));
    EXPECT_EQ(back, expected) << name;
  }
  EXPECT_EQ(cuMemcpy2D(nullptr), CUDA_ERROR_INVALID_VALUE);
  rows.dstPitch = 8;
  EXPECT_EQ(cuMemcpy2D(&rows), CUDA_ERROR_INVALID_VALUE);
  rows.dstPitch = pitch_;
  rows.dstDevice = 0;
  EXPECT_EQ(cuMemcpy2D(&rows), CUDA_ERROR_INVALID_VALUE);
  rows.WidthInBytes = 0;
  Say("noWidth", cuMemcpy2D(&rows));
}

TEST_F(MemcpyBoxTest, BetweenContexts) {
  std::vector<uint32_t> back(source_.size());
  auto peer = [&](const CUDA_MEMCPY3D& box) {
    CUDA_MEMCPY3D_PEER copy{};
    copy.srcMemoryType = box.srcMemoryType;
    copy.srcHost = box.srcHost;
    copy.srcDevice = box.srcDevice;
    copy.srcPitch = box.srcPitch;
    copy.srcHeight = box.srcHeight;
    copy.dstMemoryType = box.dstMemoryType;
    copy.dstHost = box.dstHost;
    copy.dstDevice = box.dstDevice;
    copy.dstPitch = box.dstPitch;
    copy.dstHeight = box.dstHeight;
    copy.WidthInBytes = box.WidthInBytes;
    copy.Height = box.Height;
    copy.Depth = box.Depth;
    copy.srcContext = copy.dstContext = context_;
    return copy;
  };
  const CUDA_MEMCPY3D_PEER in = peer(ToDevice()), out = peer(ToHost(back.data()));
  OK(cuMemcpy3DPeer(&in));
  OK(cuMemcpy3DPeerAsync(&out, stream_));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(back, source_);
}

// Arrays of several times what a message carries at once, from and to rows with gaps between them.
TEST_F(MemcpyBoxTest, LargeArrays) {
  struct Shape {
    size_t width, height, depth;
  };
  for (const auto [width, height, depth] : {Shape{1000, 1500, 0}, Shape{3, 16000, 0}, Shape{120, 110, 100}}) {
    CUarray array = nullptr;
    const CUDA_ARRAY3D_DESCRIPTOR shape = ArrayShape(width, height, depth);
    OK(cuArray3DCreate(&array, &shape));
    const size_t rows = height + 2, pitch = width + 5, slices = depth != 0 ? depth : 1;
    std::vector<float> from = Counting(pitch * rows * slices), back(from.size(), -1);
    CUDA_MEMCPY3D box = WholeArray(width, height, depth);
    box.srcPitch = box.dstPitch = pitch * sizeof(float);
    box.srcHeight = box.dstHeight = rows;
    box.srcMemoryType = CU_MEMORYTYPE_HOST;
    box.srcHost = from.data();
    box.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    box.dstArray = array;
    for (const bool asynchronous : {false, true}) {
      from[0] = asynchronous ? 77 : 66;
      OK(asynchronous ? cuMemcpy3DAsync(&box, stream_) : cuMemcpy3D(&box));
      OK(cuCtxSynchronize());
      CUDA_MEMCPY3D out = box;
      out.srcMemoryType = CU_MEMORYTYPE_ARRAY;
      out.srcHost = nullptr;
      out.srcArray = array;
      out.dstMemoryType = CU_MEMORYTYPE_HOST;
      out.dstArray = nullptr;
      out.dstHost = back.data();
      OK(asynchronous ? cuMemcpy3DAsync(&out, stream_) : cuMemcpy3D(&out));
      OK(cuStreamSynchronize(stream_));
      for (size_t i = 0; i < from.size(); ++i) {
        const bool inside = i % pitch < width && i / pitch % rows < height;
        ASSERT_EQ(back[i], inside ? from[i] : -1) << i << " of " << width << "x" << height << "x" << depth;
      }
      back.assign(back.size(), -1);
    }
    OK(cuArrayDestroy(array));
  }
}

TEST_F(MemcpyBoxTest, LinearArrays) {
  CUarray first = nullptr, second = nullptr;
  CUDA_ARRAY_DESCRIPTOR shape{1024, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1};
  OK(cuArrayCreate(&first, &shape));
  OK(cuArrayCreate(&second, &shape));
  void* pinned = nullptr;
  OK(cuMemHostAlloc(&pinned, 4096, 0));
  std::vector<uint32_t> back(1024);
  std::vector<uint32_t> expected(source_.begin(), source_.begin() + 1024);
  OK(cuMemcpyHtoA(first, 0, source_.data(), 4096));
  OK(cuMemcpyAtoA(second, 0, first, 0, 4096));
  OK(cuMemcpyAtoH(back.data(), second, 0, 4096));
  EXPECT_EQ(back, expected);
  OK(cuMemcpyAtoHAsync(pinned, first, 400, 80, stream_));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(std::memcmp(pinned, source_.data() + 100, 80), 0);
  OK(cuMemcpyHtoAAsync(second, 0, pinned, 80, stream_));
  OK(cuMemcpyHtoAAsync(second, 80, source_.data(), 80, stream_));
  OK(cuMemcpyAtoHAsync(back.data(), second, 0, 160, stream_));
  EXPECT_EQ(back[0], 100u);
  EXPECT_EQ(back[21], 1u);
  OK(cuStreamSynchronize(stream_));
  OK(cuMemcpyAtoD(device_, first, 40, 80));
  OK(cuMemcpyDtoA(second, 0, device_, 80));
  OK(cuMemcpyAtoH(back.data(), second, 0, 80));
  EXPECT_EQ(back[0], 10u);
  if (!OnNvidiaLibrary()) {  // it need not check these
    EXPECT_EQ(cuMemcpyHtoA(first, 0, nullptr, 8), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemcpyAtoH(nullptr, first, 0, 8), CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(cuMemcpyHtoA(first, 4000, source_.data(), 200), CUDA_ERROR_INVALID_VALUE);
  // Nothing of so much is read.
  EXPECT_EQ(cuMemcpyHtoA(first, 0, source_.data(), size_t{1} << 40), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoA(first, 0, source_.data(), size_t{1} << 63), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyAtoHAsync(pinned, first, 4000, 200, stream_), CUDA_ERROR_INVALID_VALUE);
  auto* to_array = SymbolAs<CUresult(CUarray, size_t, const void*, size_t)>("cuMemcpyHtoA_v2_ptds");
  auto* to_host = SymbolAs<CUresult(void*, CUarray, size_t, size_t)>("cuMemcpyAtoH_v2_ptds");
  if (to_array != nullptr && to_host != nullptr) {
    OK(to_array(second, 0, source_.data() + 500, 400));
    OK(to_host(back.data(), second, 0, 400));
    EXPECT_EQ(back[0], 500u);
  }
}

}  // namespace
}  // namespace causeway::driver_test
