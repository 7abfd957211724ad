// SPDX-License-Identifier: Apache-2.0
// Census category memcpy: batches of copies.
#include <cstring>
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class MemcpyBatchTest : public DriverTest {
 protected:
  void SetUp() override {
    if (linear == nullptr || boxes == nullptr) GTEST_SKIP() << "no batches of copies";
    DriverTest::SetUp();
    OK(cuMemAlloc(&device_, 1 << 20));
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    for (size_t i = 0; i < source_.size(); ++i) source_[i] = static_cast<uint32_t>(i);
  }
  void TearDown() override {
    if (!IsSkipped()) DriverTest::TearDown();
  }
  // By name: the software GPU has none of them.
  decltype(&cuMemcpyBatchAsync) linear =
      SymbolAs<std::remove_pointer_t<decltype(&cuMemcpyBatchAsync)>>("cuMemcpyBatchAsync_v2");
  decltype(&cuMemcpy3DBatchAsync) boxes =
      SymbolAs<std::remove_pointer_t<decltype(&cuMemcpy3DBatchAsync)>>("cuMemcpy3DBatchAsync_v2");
  CUdeviceptr Host(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }
  CUdeviceptr device_ = 0;
  CUstream stream_ = nullptr;
  std::vector<uint32_t> source_ = std::vector<uint32_t>(10000);
};

CUmemcpyAttributes Order(CUmemcpySrcAccessOrder order) {
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = order;
  return attributes;
}

TEST_F(MemcpyBatchTest, Linear) {
  std::vector<uint32_t> back(10000);
  CUdeviceptr to[] = {device_, device_ + 20000, device_ + 500000};
  CUdeviceptr from[] = {Host(&source_[0]), Host(&source_[5000]), Host(&source_[100])};
  size_t bytes[] = {20000, 20000, 400};
  CUmemcpyAttributes attributes[] = {Order(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL),
                                     Order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)};
  size_t first[] = {0, 2};
  OK(linear(to, from, bytes, 3, attributes, first, 2, stream_));
  CUdeviceptr host[] = {Host(back.data())};
  size_t all[] = {40000};
  CUmemcpyAttributes any = Order(CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
  OK(linear(host, to, all, 1, &any, first, 1, stream_));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(back, source_);
  size_t failed = 0;
  auto* v1 = SymbolAs<CUresult(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*, size_t*,
                               size_t, size_t*, CUstream)>("cuMemcpyBatchAsync");
  OK(v1(to, from, bytes, 3, attributes, first, 2, &failed, stream_));
  EXPECT_EQ(v1(to, from, bytes, 0, attributes, first, 2, &failed, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(failed, SIZE_MAX);
  EXPECT_EQ(linear(to, from, bytes, 3, attributes, first, 2, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(linear(to, from, bytes, 3, nullptr, first, 2, stream_), CUDA_ERROR_INVALID_VALUE);
  first[1] = 3;
  EXPECT_EQ(linear(to, from, bytes, 3, attributes, first, 2, stream_), CUDA_ERROR_INVALID_VALUE);
  attributes[0].srcAccessOrder = static_cast<CUmemcpySrcAccessOrder>(0);
  EXPECT_EQ(linear(to, from, bytes, 3, attributes, first, 1, stream_), CUDA_ERROR_INVALID_VALUE);
}

// Ordinary memory of several times what a message carries at once.
TEST_F(MemcpyBatchTest, LargePieces) {
  constexpr size_t kWords = 700'001;
  std::vector<uint32_t> from(3 * kWords), back(from.size());
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint32_t>(i * 2654435761u);
  CUdeviceptr device = 0;
  OK(cuMemAlloc(&device, from.size() * 4));
  CUdeviceptr in[3], at[3], out[3];
  size_t bytes[3], first = 0;
  for (size_t i = 0; i < 3; ++i) {
    in[i] = Host(&from[i * kWords]);
    at[i] = device + (2 - i) * kWords * 4;
    out[i] = Host(&back[i * kWords]);
    bytes[i] = (kWords - i) * 4;
  }
  CUmemcpyAttributes during = Order(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL),
                     in_order = Order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
  OK(linear(at, in, bytes, 3, &during, &first, 1, stream_));
  OK(linear(out, at, bytes, 3, &in_order, &first, 1, stream_));
  OK(cuStreamSynchronize(stream_));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(std::memcmp(&back[i * kWords], &from[i * kWords], bytes[i]), 0) << i;
  }
  OK(cuMemFree(device));
}

TEST_F(MemcpyBatchTest, Boxes) {
  std::vector<uint32_t> back(10000);
  CUarray array = nullptr;
  CUDA_ARRAY_DESCRIPTOR shape{64, 32, CU_AD_FORMAT_FLOAT, 1};
  OK(cuArrayCreate(&array, &shape));
  CUDA_MEMCPY3D_BATCH_OP ops[2]{};
  ops[0].src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  ops[0].src.op.ptr.ptr = Host(source_.data());
  ops[0].src.op.ptr.rowLength = 100;
  ops[0].dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
  ops[0].dst.op.array.array = array;
  ops[0].extent = {64, 32, 1};
  ops[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  OK(boxes(1, ops, 0, stream_));
  ops[1].src.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
  ops[1].src.op.array.array = array;
  ops[1].src.op.array.offset = {4, 2, 0};
  ops[1].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  ops[1].dst.op.ptr.ptr = Host(back.data());
  ops[1].extent = {60, 30, 1};
  ops[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  OK(boxes(1, ops + 1, 0, stream_));
  OK(cuStreamSynchronize(stream_));
  for (uint32_t y = 0; y < 30; ++y) {
    for (uint32_t x = 0; x < 60; ++x) ASSERT_EQ(back[y * 60 + x], (y + 2) * 100 + x + 4);
  }
  EXPECT_EQ(boxes(1, ops, 1, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(boxes(1, ops, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  ops[0].extent.width = 0;
  EXPECT_EQ(boxes(1, ops, 0, stream_), CUDA_ERROR_INVALID_VALUE);
  ops[0].extent.width = 101;
  EXPECT_EQ(boxes(1, ops, 0, stream_), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace causeway::driver_test
