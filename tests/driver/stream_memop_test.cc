// SPDX-License-Identifier: Apache-2.0
// Census category stream-memop: streams that write words and wait for them.
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class StreamMemopTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&other_, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&words_, 4096));
    OK(cuMemsetD8(words_, 0, 4096));
    OK(cuCtxSynchronize());
    int supported = 0;
    OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0));
    if (supported == 0) GTEST_SKIP() << "the device has no stream memory operations";
  }
  template <class T>
  T Read(CUdeviceptr address) {
    T value{};
    EXPECT_EQ(cuMemcpyDtoH(&value, address, sizeof value), CUDA_SUCCESS);
    return value;
  }
  CUstream stream_ = nullptr, other_ = nullptr;
  CUdeviceptr words_ = 0;
};

TEST_F(StreamMemopTest, Writes) {
  OK(cuStreamWriteValue32(stream_, words_, 0x12345678, CU_STREAM_WRITE_VALUE_DEFAULT));
  OK(cuStreamWriteValue64(stream_, words_ + 8, 0x1122334455667788, CU_STREAM_WRITE_VALUE_DEFAULT));
  OK(cuStreamWriteValue32(stream_, words_ + 4, 7, CU_STREAM_WRITE_VALUE_DEFAULT));
  // A flag of the older forms alone (cuda.h).
  EXPECT_EQ(cuStreamWriteValue32(stream_, words_ + 4, 8, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER),
            CUDA_ERROR_INVALID_VALUE);
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(Read<uint32_t>(words_), 0x12345678u);
  EXPECT_EQ(Read<uint32_t>(words_ + 4), 7u);
  EXPECT_EQ(Read<uint64_t>(words_ + 8), 0x1122334455667788u);
}

struct Condition {
  unsigned flags;
  uint64_t wanted, not_yet, satisfied;
};

// The stream stands still until another stream has written what it waits for.
TEST_F(StreamMemopTest, WaitsFor64Bits) {
  const Condition conditions[] = {
      {CU_STREAM_WAIT_VALUE_GEQ, 5, 4, 6},
      {CU_STREAM_WAIT_VALUE_GEQ, 2, ~0ull - 3, 3},  // cyclic
      {CU_STREAM_WAIT_VALUE_EQ, 1ull << 40, 1, 1ull << 40},
      {CU_STREAM_WAIT_VALUE_AND, 0x10, 0x0f, 0x30},
  };
  for (const Condition& c : conditions) {
    OK(cuStreamWriteValue64(other_, words_, c.not_yet, 0));
    OK(cuStreamSynchronize(other_));
    OK(cuStreamWaitValue64(stream_, words_, c.wanted, c.flags));
    OK(cuStreamWriteValue32(stream_, words_ + 16, 1, 0));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(cuStreamQuery(stream_), CUDA_ERROR_NOT_READY) << c.flags;
    OK(cuStreamWriteValue64(other_, words_, c.satisfied, 0));
    OK(cuStreamSynchronize(stream_));
  }
  EXPECT_EQ(Read<uint32_t>(words_ + 16), 1u);
}

TEST_F(StreamMemopTest, WaitsFor32Bits) {
  const Condition conditions[] = {{CU_STREAM_WAIT_VALUE_GEQ, 5, 4, 5},
                                  {CU_STREAM_WAIT_VALUE_EQ, 9, 8, 9},
                                  {CU_STREAM_WAIT_VALUE_AND, 1, 2, 3}};
  for (const Condition& c : conditions) {
    OK(cuStreamWriteValue32(other_, words_, static_cast<uint32_t>(c.not_yet), 0));
    OK(cuStreamSynchronize(other_));
    OK(cuStreamWaitValue32(stream_, words_, static_cast<uint32_t>(c.wanted), c.flags));
    EXPECT_EQ(cuStreamQuery(stream_), CUDA_ERROR_NOT_READY) << c.flags;
    OK(cuStreamWriteValue32(other_, words_, static_cast<uint32_t>(c.satisfied), 0));
    OK(cuStreamSynchronize(stream_));
  }
}

TEST_F(StreamMemopTest, NorWhereSupported) {
  int supported = 0;
  OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 0));
  const CUresult result = cuStreamWaitValue32(stream_, words_, 1, CU_STREAM_WAIT_VALUE_NOR);
  Say("supported", supported);
  EXPECT_EQ(result, supported != 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED);
  OK(cuStreamSynchronize(stream_));
}

TEST_F(StreamMemopTest, Batches) {
  CUstreamBatchMemOpParams operations[4] = {};
  operations[0].writeValue = {
      .operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = words_, .value = 3, .flags = 0, .alias = 0};
  operations[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operations[1].waitValue.address = words_;
  operations[1].waitValue.value = 3;
  operations[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  operations[2].operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  operations[2].writeValue.address = words_ + 8;
  operations[2].writeValue.value64 = 1ull << 50;
  operations[3].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operations[3].writeValue.address = words_ + 16;
  operations[3].writeValue.value = 4;
  OK(cuStreamBatchMemOp(stream_, 4, operations, 0));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(Read<uint32_t>(words_), 3u);
  EXPECT_EQ(Read<uint64_t>(words_ + 8), 1ull << 50);
  EXPECT_EQ(Read<uint32_t>(words_ + 16), 4u);
  EXPECT_EQ(cuStreamBatchMemOp(stream_, 1, operations, 1), CUDA_ERROR_INVALID_VALUE);
  std::vector<CUstreamBatchMemOpParams> many(100'000, operations[0]);
  EXPECT_EQ(cuStreamBatchMemOp(stream_, 100'000, many.data(), 0), CUDA_ERROR_INVALID_VALUE);
  operations[0].operation = static_cast<CUstreamBatchMemOpType>(77);
  EXPECT_EQ(cuStreamBatchMemOp(stream_, 1, operations, 0), CUDA_ERROR_INVALID_VALUE);
}

// The host writes the word that the device waits for, and sees what the device wrote.
TEST_F(StreamMemopTest, PinnedMemory) {
  uint32_t* host = nullptr;
  CUdeviceptr device = 0;
  OK(cuMemHostAlloc(reinterpret_cast<void**>(&host), 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  OK(cuMemHostGetDevicePointer(&device, host, 0));
  host[0] = host[1] = 0;
  OK(cuStreamWaitValue32(stream_, device, 1, CU_STREAM_WAIT_VALUE_EQ));
  OK(cuStreamWriteValue32(stream_, device + 4, 2, 0));
  EXPECT_EQ(cuStreamQuery(stream_), CUDA_ERROR_NOT_READY);
  std::atomic_ref<uint32_t>(host[0]).store(1);
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(std::atomic_ref<uint32_t>(host[1]).load(), 2u);
  OK(cuMemFreeHost(host));
}

// The errors are those of the call, not of a later one.
TEST_F(StreamMemopTest, Errors) {
  EXPECT_EQ(cuStreamWriteValue32(stream_, words_ + 1, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWriteValue64(stream_, words_ + 4, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWriteValue32(stream_, 0, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWriteValue32(stream_, words_, 1, 0x80), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitValue32(stream_, words_ + 2, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitValue64(stream_, words_ + 4, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitValue32(stream_, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitValue32(stream_, words_, 0, 0x80), CUDA_ERROR_INVALID_VALUE);
  OK(cuStreamSynchronize(stream_));
}

// The older names, of the same ABI.
TEST_F(StreamMemopTest, OlderNames) {
  NEEDS_HARDWARE("the older names");
  using Word32 = CUresult(CUstream, CUdeviceptr, cuuint32_t, unsigned);
  using Word64 = CUresult(CUstream, CUdeviceptr, cuuint64_t, unsigned);
  for (const char* name :
       {"cuStreamWriteValue32_v2", "cuStreamWaitValue32_v2", "cuStreamWriteValue32", "cuStreamWaitValue32"}) {
    auto* function = SymbolAs<Word32>(name);
    ASSERT_NE(function, nullptr) << name;
    const CUresult result = function(stream_, words_, 0, 0);
    Say(name, static_cast<int>(result));
  }
  for (const char* name :
       {"cuStreamWriteValue64_v2", "cuStreamWaitValue64_v2", "cuStreamWriteValue64", "cuStreamWaitValue64"}) {
    auto* function = SymbolAs<Word64>(name);
    ASSERT_NE(function, nullptr) << name;
    const CUresult result = function(stream_, words_ + 8, 0, 0);
    Say(name, static_cast<int>(result));
  }
  CUstreamBatchMemOpParams write{};
  write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  write.writeValue.address = words_;
  auto* batch =
      SymbolAs<CUresult(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned)>("cuStreamBatchMemOp");
  ASSERT_NE(batch, nullptr);
  Say("cuStreamBatchMemOp", static_cast<int>(batch(stream_, 1, &write, 0)));
  OK(cuStreamSynchronize(stream_));
}

// They are refused for the stream's sake alone, unless the kernel module was told to allow them: which operations,
// flags and words it would be is not looked at.
TEST_F(StreamMemopTest, FirstFormsLookAtTheStreamAlone) {
  auto* batch =
      SymbolAs<CUresult(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned)>("cuStreamBatchMemOp");
  auto* write = SymbolAs<CUresult(CUstream, CUdeviceptr, cuuint32_t, unsigned)>("cuStreamWriteValue32");
  ASSERT_TRUE(batch != nullptr && write != nullptr);
  if (write(stream_, words_, 0, 0) == CUDA_SUCCESS) GTEST_SKIP() << "the kernel module allows them";
  CUstreamBatchMemOpParams unknown[2]{};
  unknown[0].operation = static_cast<CUstreamBatchMemOpType>(77);
  const auto all_are = [&](CUstream stream, CUresult expected) {
    EXPECT_EQ(batch(stream, 2, unknown, 0), expected);
    EXPECT_EQ(batch(stream, 0, nullptr, 4), expected);
    EXPECT_EQ(batch(stream, 1, nullptr, 0), expected);
    EXPECT_EQ(write(stream, words_, 74, 4), expected);
    EXPECT_EQ(write(stream, 0, 74, 0), expected);
  };
  all_are(stream_, CUDA_ERROR_NOT_SUPPORTED);
  all_are(nullptr, CUDA_ERROR_NOT_SUPPORTED);
  CUstream blocking = nullptr;
  CUgraph graph = nullptr;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  all_are(blocking, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  all_are(nullptr, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuStreamDestroy(blocking));
}

TEST_F(StreamMemopTest, PerThreadForms) {
  decltype(&cuStreamWriteValue32) write = nullptr;
  decltype(&cuStreamWaitValue32) wait = nullptr;
  constexpr auto kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  OK(cuGetProcAddress("cuStreamWriteValue32", reinterpret_cast<void**>(&write), 13000, kPerThread, nullptr));
  OK(cuGetProcAddress("cuStreamWaitValue32", reinterpret_cast<void**>(&wait), 13000, kPerThread, nullptr));
  OK(wait(nullptr, words_, 5, CU_STREAM_WAIT_VALUE_EQ));
  EXPECT_EQ(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
  OK(cuStreamWriteValue32(stream_, words_, 5, 0));
  OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  OK(write(nullptr, words_, 6, 0));
  OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  EXPECT_EQ(Read<uint32_t>(words_), 6u);
}

}  // namespace
}  // namespace causeway::driver_test
