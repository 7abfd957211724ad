// SPDX-License-Identifier: Apache-2.0
// Calls, initialised variables, printf, assert, the device heap, and faults in the PTX interpreter.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "tests/software_gpu/interpreter_test.h"

namespace causeway::software_gpu::test {
namespace {

class Functions : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { module_ = Module::Load(GetParam()); }
  std::unique_ptr<Module> module_;
};
INSTANTIATE_TEST_SUITE_P(Builds, Functions, ::testing::Values("functions", "functions_debug"));

int Fibonacci(int n) {
  return n < 2 ? n : Fibonacci(n - 1) + Fibonacci(n - 2);
}
int SumDigits(int n, int* depth) {
  int digits[4] = {n % 10, 1, 2, 3};
  digits[n & 3] += 1;
  ++*depth;
  return n == 0 ? digits[0] : digits[0] + SumDigits(n / 10, depth) + digits[3];
}

TEST_P(Functions, CallsRecursionAndPointers) {
  Array<int> out(*module_, 160);
  Array<double> weights(*module_, 32);
  module_->Launch1D("Calls", 1, 32, out.pointer(), weights.pointer(), 5);
  for (int i = 0; i < 32; ++i) {
    char name[5] = "pair";
    name[i % 5] = 'x';
    int depth = 0;
    const int digits = SumDigits(i * 1234, &depth) * 100 + depth;
    const auto at = [&](int row) { return out[static_cast<size_t>(row * 32 + i)]; };
    ASSERT_EQ(at(0), Fibonacci(i % 12));
    ASSERT_EQ(at(1), 5 + i + name[0] + name[4]);
    ASSERT_EQ(weights[static_cast<size_t>(i)], 2.5 * i);
    ASSERT_EQ(at(2), (i % 2 == 0 ? 2 : 3) * (i + 5));
    ASSERT_EQ(at(3), ((i + 5) & 1) == 0 ? i * i * 3 : 0);
    ASSERT_EQ(at(4), digits);
  }
}

TEST_P(Functions, InitialisedVariables) {
  Array<int> out(*module_, 5);
  Array<float> floats(*module_, 1);
  module_->Launch1D("Globals", 1, 32, out.pointer(), floats.pointer());
  EXPECT_EQ(out[0], 39);
  EXPECT_EQ(out[1], 20);
  EXPECT_EQ(out[2], 5 + 'r');
  EXPECT_EQ(out[3], 'g');
  EXPECT_EQ(out[4], -1 + 'o');
  EXPECT_EQ(floats[0], 1.0f);
  // What the host writes into a variable is what the next launch sees.
  const int value = 100;
  std::memcpy(module_->Address("counter"), &value, sizeof value);
  const float weight = 8.0f;
  std::memcpy(module_->Address("weights"), &weight, sizeof weight);
  module_->Launch1D("Globals", 1, 1, out.pointer(), floats.pointer());
  EXPECT_EQ(out[0], 101);
  EXPECT_EQ(floats[0], 8.5f);
}

TEST_P(Functions, Printf) {
  Array<char> text(*module_, 8);
  std::strcpy(text.pointer(), "device");
  const int i = -42;
  const double d = 1234.56789;
  const long long l = -123456789012345;
  module_->Launch1D("Print", 1, 1, text.pointer(), i, d, l);
  char expected[2000];
  const char* t = text.pointer();
  const auto u = static_cast<unsigned>(i);
  int n = std::snprintf(expected, sizeof expected,
                        "plain %% text\n[%d|%5d|%-5d|%05d|%+d|%x|%#X|%o|%u]\n[%f|%.3f|%10.2e|%g|%-12.4g|%a]\n"
                        "[%s|%10s|%-8s|%.2s|%c|%5c]\n[%lld|%llu|%llx|%ld|%*d|%.*f|%hd|%zu]\n",
                        i, i, i, i, i, u, u, u, u, d, d, d, d, d, d, t, t, t, t, 'q', 'r', l,
                        static_cast<unsigned long long>(l), static_cast<unsigned long long>(l),
                        static_cast<long>(l), 7, i, 2, d, static_cast<short>(i), sizeof(int));
  std::snprintf(expected + n, sizeof expected - static_cast<size_t>(n), "0x1234|-42\n2 arguments, (null)\n");
  EXPECT_EQ(module_->out(), expected);
  EXPECT_EQ(module_->err(), "");
}

TEST_P(Functions, PrintfOrder) {
  module_->Launch1D("PrintIndices", 2, 3);
  EXPECT_EQ(module_->out(),
            "block 0 thread 0\nblock 0 thread 1\nblock 0 thread 2\n"
            "block 1 thread 0\nblock 1 thread 1\nblock 1 thread 2\n");
}

TEST_P(Functions, Assert) {
  module_->Launch1D("Assert", 1, 16, 16);
  EXPECT_EQ(module_->err(), "");
  const Fault fault = module_->Run("Assert", {2, 1, 1}, {16, 1, 1}, 0, false, 7);
  EXPECT_EQ(fault.cuda_error, 710);
  EXPECT_NE(module_->err().find("functions.cu:"), std::string::npos) << module_->err();
  EXPECT_NE(
      module_->err().find("block: [0,0,0], thread: [7,0,0] Assertion `int(threadIdx.x) < limit && \"too many "
                          "threads\"` failed.\n"),
      std::string::npos)
      << module_->err();
}

TEST_P(Functions, Trap) {
  module_->Launch1D("Trap", 1, 64, 64);
  const Fault fault = module_->Run("Trap", {1, 1, 1}, {64, 1, 1}, 0, false, 33);
  EXPECT_EQ(fault.cuda_error, 719);
  EXPECT_NE(fault.message.find("thread (33, 0, 0)"), std::string::npos) << fault.message;
  EXPECT_NE(fault.message.find("'Trap'"), std::string::npos) << fault.message;
}

TEST_P(Functions, BadAddresses) {
  Array<int> memory(*module_, 4);
  const auto write = [&](int* where, long long offset) {
    return module_->Run("WriteTo", {1, 1, 1}, {1, 1, 1}, 0, false, where, offset).cuda_error;
  };
  EXPECT_EQ(write(memory.pointer(), 3), 0);
  EXPECT_EQ(memory[3], 1);
  EXPECT_EQ(write(memory.pointer(), 1ll << 40), 700);
  EXPECT_EQ(write(memory.pointer(), -1000000), 700);
  EXPECT_EQ(write(nullptr, 0), 700);
  EXPECT_EQ(write(reinterpret_cast<int*>(~0ull - 3), 0), 700);
  const Fault unaligned = module_->Run("WriteUnaligned", {1, 1, 1}, {1, 1, 1}, 0, false, memory.pointer());
  EXPECT_EQ(unaligned.cuda_error, 716) << unaligned.message;
  const auto shared = [&](int index) {
    return module_->Run("WriteShared", {1, 1, 1}, {1, 1, 1}, 64, false, index).cuda_error;
  };
  EXPECT_EQ(shared(15), 0);
  EXPECT_EQ(shared(16), 700);
  EXPECT_EQ(shared(-1), 700);
  const Fault nowhere =
      module_->Run("CallNowhere", {1, 1, 1}, {1, 1, 1}, 0, false, uint64_t{0x1000}, memory.pointer());
  EXPECT_EQ(nowhere.cuda_error, 718) << nowhere.message;
}

TEST_P(Functions, Heap) {
  Array<int> out(*module_, 64);
  module_->Launch1D("Heap", 1, 64, out.pointer());
  for (size_t i = 0; i < 64; ++i) ASSERT_EQ(out[i], static_cast<int>(4950 * i));
}

TEST_P(Functions, SeesWhatTheHostWritesWhileItRuns) {
  Array<int> flag(*module_, 1), out(*module_, 1);
  std::thread host([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    __atomic_store_n(flag.pointer(), 41, __ATOMIC_RELEASE);
  });
  module_->Launch1D("WaitForHost", 1, 1, flag.pointer(), out.pointer());
  host.join();
  EXPECT_EQ(out[0], 42);
}

}  // namespace
}  // namespace causeway::software_gpu::test
