// SPDX-License-Identifier: Apache-2.0
// The forms for the calling thread's own default stream, by their exact names: batches of copies and what
// moves managed memory. And the first forms of what looks functions up.
#include <cstring>
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

// What these forms take for the thread's own stream; but for the newer batches, which want it by name.
constexpr CUstream kOwn = nullptr;
constexpr size_t kBytes = 1 << 20;

class PerThreadMemoryTest : public DriverTest {
 protected:
  void SetUp() override {
    // The software GPU by itself has no batches.
    if (Symbol("cuMemcpyBatchAsync_ptsz") == nullptr) GTEST_SKIP() << "this library has no such names";
    DriverTest::SetUp();
  }
  void TearDown() override {
    if (context_ != nullptr) DriverTest::TearDown();
  }
  void Synchronize() {
    auto* synchronize = SymbolAs<CUresult(CUstream)>("cuStreamSynchronize_ptsz");
    ASSERT_NE(synchronize, nullptr);
    OK(synchronize(kOwn));
  }
};

CUdeviceptr Host(const void* address) {
  return reinterpret_cast<CUdeviceptr>(address);
}

TEST_F(PerThreadMemoryTest, LinearCopies) {
  using First = CUresult(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*, size_t*, size_t,
                         size_t*, CUstream);
  using Second =
      CUresult(CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUmemcpyAttributes*, size_t*, size_t, CUstream);
  auto* first = SymbolAs<First>("cuMemcpyBatchAsync_ptsz");
  auto* second = SymbolAs<Second>("cuMemcpyBatchAsync_v2_ptsz");
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  std::vector<char> values(256, 7), back(256);
  CUdeviceptr device = 0;
  OK(cuMemAlloc(&device, 256));
  CUdeviceptr to[] = {device, device + 128}, from[] = {Host(values.data()), Host(values.data() + 128)};
  CUdeviceptr ours[] = {Host(back.data())};
  size_t halves[] = {128, 128}, whole[] = {256}, start[] = {0}, failed = 0;
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  EXPECT_EQ(first(to, from, halves, 2, &attributes, start, 1, &failed, kOwn), CUDA_SUCCESS);
  EXPECT_EQ(second(ours, to, whole, 1, &attributes, start, 1, kOwn), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(second(ours, to, whole, 1, &attributes, start, 1, CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  Synchronize();
  EXPECT_EQ(back, values);
  EXPECT_EQ(first(to, from, halves, 0, &attributes, start, 1, &failed, kOwn), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(second(to, from, halves, 0, &attributes, start, 1, CU_STREAM_PER_THREAD),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(PerThreadMemoryTest, Boxes) {
  using First = CUresult(size_t, CUDA_MEMCPY3D_BATCH_OP*, size_t*, unsigned long long, CUstream);
  using Second = CUresult(size_t, CUDA_MEMCPY3D_BATCH_OP*, unsigned long long, CUstream);
  auto* plain = SymbolAs<First>("cuMemcpy3DBatchAsync");
  auto* first = SymbolAs<First>("cuMemcpy3DBatchAsync_ptsz");
  auto* second = SymbolAs<Second>("cuMemcpy3DBatchAsync_v2_ptsz");
  ASSERT_NE(plain, nullptr);
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  std::vector<char> values(256), back(256);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<char>(i);
  CUdeviceptr device = 0;
  OK(cuMemAlloc(&device, 256));
  CUDA_MEMCPY3D_BATCH_OP in{}, out{};
  in.src.type = in.dst.type = out.src.type = out.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  in.src.op.ptr.ptr = Host(values.data());
  in.dst.op.ptr.ptr = out.src.op.ptr.ptr = device;
  out.dst.op.ptr.ptr = Host(back.data());
  in.extent = out.extent = {64, 4, 1};
  in.srcAccessOrder = out.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  size_t failed = 0;
  EXPECT_EQ(first(1, &in, &failed, 0, kOwn), CUDA_SUCCESS);
  EXPECT_EQ(second(1, &out, 0, kOwn), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(second(1, &out, 0, CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  Synchronize();
  EXPECT_EQ(back, values);
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  back.assign(back.size(), 0);
  EXPECT_EQ(plain(1, &out, &failed, 0, stream), CUDA_SUCCESS);
  OK(cuStreamSynchronize(stream));
  EXPECT_EQ(back, values);
  EXPECT_EQ(plain(1, &out, &failed, 1, stream), CUDA_ERROR_INVALID_VALUE);  // no flags exist
  OK(cuStreamDestroy(stream));
}

TEST_F(PerThreadMemoryTest, ManagedMemory) {
  using Prefetch =
      CUresult(CUdeviceptr*, size_t*, size_t, CUmemLocation*, size_t*, size_t, unsigned long long, CUstream);
  using Discard = CUresult(CUdeviceptr*, size_t*, size_t, unsigned long long, CUstream);
  auto* prefetch = SymbolAs<Prefetch>("cuMemPrefetchBatchAsync_ptsz");
  auto* both = SymbolAs<Prefetch>("cuMemDiscardAndPrefetchBatchAsync_ptsz");
  auto* discard = SymbolAs<Discard>("cuMemDiscardBatchAsync_ptsz");
  ASSERT_NE(prefetch, nullptr);
  ASSERT_NE(both, nullptr);
  ASSERT_NE(discard, nullptr);
  CUdeviceptr memory = 0;
  OK(cuMemAllocManaged(&memory, kBytes, CU_MEM_ATTACH_GLOBAL));
  size_t bytes[] = {kBytes}, start[] = {0};
  CUmemLocation device{};
  device.type = CU_MEM_LOCATION_TYPE_DEVICE;
  EXPECT_EQ(prefetch(&memory, bytes, 1, &device, start, 1, 0, kOwn), CUDA_SUCCESS);
  int place = -9;
  OK(cuMemRangeGetAttribute(&place, sizeof place, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, memory,
                            kBytes));
  EXPECT_EQ(place, 0);
  EXPECT_EQ(both(&memory, bytes, 1, &device, start, 1, 0, kOwn), CUDA_SUCCESS);
  Say("discard", static_cast<int>(discard(&memory, bytes, 1, 0, kOwn)));
  EXPECT_EQ(discard(&memory, bytes, 0, 0, kOwn), CUDA_ERROR_INVALID_VALUE);
  Synchronize();
  OK(cuMemFree(memory));
}

// NVIDIA's library crashes at an attachment without a flag, or of a single stream that is the default one.
TEST_F(PerThreadMemoryTest, Attachment) {
  auto* attach = SymbolAs<CUresult(CUstream, CUdeviceptr, size_t, unsigned)>("cuStreamAttachMemAsync_ptsz");
  ASSERT_NE(attach, nullptr);
  CUdeviceptr memory = 0;
  OK(cuMemAllocManaged(&memory, kBytes, CU_MEM_ATTACH_GLOBAL));
  EXPECT_EQ(attach(kOwn, memory, 0, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  Synchronize();
  OK(cuMemFree(memory));
}

TEST_F(PerThreadMemoryTest, Decompression) {
  NEEDS_HARDWARE("decompression");
  auto* decompress = SymbolAs<CUresult(CUmemDecompressParams*, size_t, unsigned, size_t*, CUstream)>(
      "cuMemBatchDecompressAsync_ptsz");
  ASSERT_NE(decompress, nullptr);
  CUmemDecompressParams parameters{};
  size_t index = 0;
  EXPECT_NE(decompress(&parameters, 1, 0, &index, kOwn), CUDA_SUCCESS);
}

// ---- looking functions up ----

TEST_F(PerThreadMemoryTest, FirstFormOfGetProcAddress) {
  auto* get = SymbolAs<CUresult(const char*, void**, int, cuuint64_t)>("cuGetProcAddress");
  ASSERT_NE(get, nullptr);
  void* found = nullptr;
  EXPECT_EQ(get("cuMemAlloc", &found, 12000, CU_GET_PROC_ADDRESS_DEFAULT), CUDA_SUCCESS);
  ASSERT_NE(found, nullptr);
  CUdeviceptr memory = 0;
  OK(reinterpret_cast<decltype(&cuMemAlloc)>(found)(&memory, 64));
  OK(cuMemFree(memory));
  found = nullptr;
  Say("unknown name", static_cast<int>(get("cuNoSuchFunction", &found, 12000, CU_GET_PROC_ADDRESS_DEFAULT)));
  EXPECT_EQ(found, nullptr);
  EXPECT_EQ(get("cuMemAlloc", &found, 12000, 4), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(PerThreadMemoryTest, ExportTables) {
  // What the runtime asks for first.
  const CUuuid context_storage{{'\xc6', '\x93', '\x33', '\x6e', '\x11', '\x21', '\xdf', '\x11', '\xa8',
                                '\xc3', '\x68', '\xf3', '\x55', '\xd8', '\x95', '\x93'}};
  const CUuuid unknown{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}};
  const void* table = nullptr;
  EXPECT_EQ(cuGetExportTable(&table, &context_storage), CUDA_SUCCESS);
  EXPECT_NE(table, nullptr);
  Say("unknown table", static_cast<int>(cuGetExportTable(&table, &unknown)));
}

}  // namespace
}  // namespace causeway::driver_test
