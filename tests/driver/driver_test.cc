// SPDX-License-Identifier: Apache-2.0
// Helpers of the conformance programs, and their main function.
#include "tests/driver/driver_test.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace causeway::driver_test {

// The one that the program's own calls would find.
void* Symbol(const char* name) {
  return dlsym(RTLD_DEFAULT, name);
}

uint64_t RepliesAwaited() {
  static const auto count = [] {
    const CUuuid figures{{'C', 'a', 'u', 's', 'e', 'w', 'a', 'y', ' ', 'f', 'i', 'g', 'u', 'r', 'e', 's'}};
    const void* table = nullptr;
    void* found = nullptr;
    if (cuGetExportTable(&table, &figures) == CUDA_SUCCESS) found = static_cast<void* const*>(table)[1];
    return reinterpret_cast<CUresult (*)(uint64_t*)>(found);
  }();
  uint64_t replies = 0;
  if (count != nullptr) count(&replies);
  return replies;
}

namespace {

bool context_is_kept = false;  // by a reference of the suite's own

}  // namespace

void DriverTest::SetUp() {
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context_, 0));
  OK(cuCtxSetCurrent(context_));
  CUcontext same = nullptr;
  if (!context_is_kept) context_is_kept = cuDevicePrimaryCtxRetain(&same, 0) == CUDA_SUCCESS;
  if (std::getenv("DRIVER_TEST_BESIDE_MANAGED") == nullptr) return;
  OK(cuMemAllocManaged(&beside_, 64, CU_MEM_ATTACH_GLOBAL));
  *reinterpret_cast<volatile uint32_t*>(beside_) = 0x5eed;
}

void DriverTest::TearDown() {
  if (beside_ != 0) {
    EXPECT_EQ(*reinterpret_cast<volatile uint32_t*>(beside_), 0x5eedu);
    EXPECT_EQ(cuMemFree(beside_), CUDA_SUCCESS);
  }
  EXPECT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  if (HasFailure()) LetContextEnd();
}

void DriverTest::LetContextEnd() {
  if (context_is_kept) {
    EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  }
  context_is_kept = false;
}

CUfunction DriverTest::Kernel(const char* name) {
  CUfunction function = nullptr;
  if (module_ == nullptr) {
    EXPECT_EQ(cuModuleLoadData(&module_, kKernels), CUDA_SUCCESS);
  }
  if (module_ != nullptr) {
    EXPECT_EQ(cuModuleGetFunction(&function, module_, name), CUDA_SUCCESS) << name;
  }
  return function;
}

void DriverTest::ExpectAdds(CUfunction add) {
  CUdeviceptr data;
  OK(cuMemAlloc(&data, 4));
  OK(cuMemsetD32(data, 5, 1));
  uint32_t n = 1, value = 37, sum = 0;
  void* parameters[] = {&data, &n, &value};
  OK(cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr));
  OK(cuMemcpyDtoH(&sum, data, 4));
  EXPECT_EQ(sum, 42u);
  OK(cuMemFree(data));
}

void AddTest::SetUp() {
  DriverTest::SetUp();
  OK(cuMemAlloc(&data_, kDataBytes));
  OK(cuMemsetD8(data_, 0, kDataBytes));
  spin_ = Kernel("spin");
  add_ = Kernel("add");
  OK(cuCtxSynchronize());
}

CUresult AddTest::Add(CUstream stream, uint32_t value) {
  uint32_t n = 1;
  void* parameters[] = {&data_, &n, &value};
  return cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

std::chrono::milliseconds HoldTime() {
  const char* text = std::getenv("DRIVER_TEST_HOLD_MS");
  return std::chrono::milliseconds(text != nullptr ? std::max(1, std::atoi(text)) : 30);
}

Spinner::Spinner(CUfunction spin, CUstream stream) {
  void* word = nullptr;
  EXPECT_EQ(cuMemHostAlloc(&word, 4, CU_MEMHOSTALLOC_DEVICEMAP), CUDA_SUCCESS);
  flag_ = static_cast<volatile uint32_t*>(word);
  *flag_ = 0;
  CUdeviceptr seen_by_device = 0;
  EXPECT_EQ(cuMemHostGetDevicePointer(&seen_by_device, word, 0), CUDA_SUCCESS);
  void* parameters[] = {&seen_by_device};
  EXPECT_EQ(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr), CUDA_SUCCESS);
}

Spinner::~Spinner() {
  Release();
  EXPECT_EQ(cuMemFreeHost(const_cast<uint32_t*>(flag_)), CUDA_SUCCESS);  // waits for the kernel's end
}

namespace {

// One line a test, for compare_ways.py: "[says] Suite.Name passed|failed|skipped (TAB key=value)...".
class Reporter : public ::testing::EmptyTestEventListener {
  // Where call_counter.cc is loaded, it notes whose calls it sees.
  void OnTestStart(const ::testing::TestInfo& test) override {
    static const auto begins = SymbolAs<void(const char*)>("CallCounterBegins");
    if (begins != nullptr) begins((std::string(test.test_suite_name()) + "." + test.name()).c_str());
  }
  void OnTestEnd(const ::testing::TestInfo& test) override {
    const ::testing::TestResult& result = *test.result();
    std::string line = std::string("[says] ") + test.test_suite_name() + "." + test.name() +
                       (result.Skipped()  ? " skipped"
                        : result.Passed() ? " passed"
                                          : " failed");
    for (int i = 0; i < result.test_property_count(); ++i) {
      line += std::string("\t") + result.GetTestProperty(i).key() + "=" + result.GetTestProperty(i).value();
    }
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
};

}  // namespace
}  // namespace causeway::driver_test

int main(int count, char** arguments) {
  ::testing::InitGoogleTest(&count, arguments);
  ::testing::UnitTest::GetInstance()->listeners().Append(new causeway::driver_test::Reporter);
  return RUN_ALL_TESTS();
}
