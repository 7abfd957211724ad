// SPDX-License-Identifier: Apache-2.0
// Census category launch: parameters in every form, configurations that are refused, cooperative launches,
// the interface from before CUDA 4. (cuLaunchHostFunc: callback_test.cc. Attributes:
// launch_attribute_test.cc.)
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/driver/array_helpers.h"
#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

class LaunchTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    add_ = Kernel("add");
    OK(cuMemAlloc(&data_, 4096));
    OK(cuMemsetD32(data_, 0, 1024));
    OK(cuCtxSynchronize());  // non-blocking streams do not wait for it
  }
  void TearDown() override {
    EXPECT_EQ(cuMemFree(data_), CUDA_SUCCESS);
    DriverTest::TearDown();
  }
  // add(data_, 1, value)
  CUresult Add(unsigned grid[3], unsigned block[3], unsigned shared = 0, CUstream stream = nullptr) {
    return cuLaunchKernel(add_, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, stream,
                          parameters_, nullptr);
  }
  uint32_t First() {
    uint32_t value = ~0u;
    EXPECT_EQ(cuMemcpyDtoH(&value, data_, 4), CUDA_SUCCESS);
    return value;
  }
  CUfunction add_ = nullptr;
  CUdeviceptr data_ = 0;
  uint32_t n_ = 1, value_ = 5;
  void* parameters_[3] = {&data_, &n_, &value_};
};

TEST_F(LaunchTest, ParametersAsPointers) {
  OK(cuLaunchKernel(add_, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters_, nullptr));
  value_ = 100;  // read during the call
  EXPECT_EQ(First(), 5u);
}

TEST_F(LaunchTest, ParametersAsABuffer) {
  struct {
    CUdeviceptr data;
    uint32_t n, value;
  } packed = {data_, 1, 7};
  size_t bytes = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  OK(cuLaunchKernel(add_, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, extra));
  EXPECT_EQ(First(), 7u);
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  OK(cuLaunchKernelEx(&config, add_, nullptr, extra));
  EXPECT_EQ(First(), 14u);
  EXPECT_EQ(cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters_, extra), CUDA_ERROR_INVALID_VALUE);
  bytes = sizeof packed - 4;
  Say("too small", cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  char larger[64] = {};
  std::memcpy(larger, &packed, sizeof packed);
  extra[1] = larger;
  bytes = sizeof larger;
  Say("too large", cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  OK(cuCtxSynchronize());
}

TEST_F(LaunchTest, NoParameters) {
  CUmodule module;
  CUfunction nothing;
  OK(cuModuleLoadData(
      &module, ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry nothing()\n{\n  ret;\n}\n"));
  OK(cuModuleGetFunction(&nothing, module, "nothing"));
  EXPECT_EQ(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_SUCCESS);
  void* none[] = {nullptr};
  EXPECT_EQ(cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, nullptr, none, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  OK(cuCtxSynchronize());
}

// *to = bytes[index], of one parameter of that size.
std::string FetchText(size_t bytes) {
  const std::string size = std::to_string(bytes);
  return ".version 8.1\n.target sm_80\n.address_size 64\n.visible .entry fetch(.param .u64 to, .param .u64 "
         "index, "
         ".param .align 4 .b8 bytes[" +
         size +
         "])\n{\n  .reg .b32 %r<2>; .reg .b64 %rd<5>;\n  ld.param.u64 %rd1, [to];\n  ld.param.u64 %rd2, "
         "[index];\n"
         "  mov.u64 %rd3, bytes;\n  add.s64 %rd4, %rd3, %rd2;\n  ld.param.u8 %r1, [%rd4];\n"
         "  st.global.u32 [%rd1], %r1;\n  ret;\n}\n";
}

TEST_F(LaunchTest, LargeParameters) {
  for (const size_t bytes :
       {size_t{100}, size_t{2000}, size_t{4080}, size_t{4084}, size_t{20'000}, size_t{32'748}}) {
    CUmodule module;
    CUfunction fetch;
    OK(cuModuleLoadData(&module, FetchText(bytes).c_str()));
    OK(cuModuleGetFunction(&fetch, module, "fetch"));
    std::vector<uint8_t> content(bytes);
    for (size_t i = 0; i < bytes; ++i) content[i] = static_cast<uint8_t>(i * 7 + i / 251);
    for (uint64_t index : {uint64_t{0}, uint64_t{bytes / 2}, uint64_t{bytes - 1}}) {
      void* parameters[] = {&data_, &index, content.data()};
      OK(cuLaunchKernel(fetch, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
      EXPECT_EQ(First(), content[index]) << bytes << " " << index;
      OK(cuLaunchCooperativeKernel(fetch, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters));
      EXPECT_EQ(First(), content[index]) << bytes << " " << index;
    }
    OK(cuModuleUnload(module));
  }
}

TEST_F(LaunchTest, RefusedConfigurations) {
  struct Case {
    const char* name;
    unsigned grid[3], block[3], shared;
    CUresult result;
  };
  const Case cases[] = {
      {"no grid x", {0, 1, 1}, {1, 1, 1}, 0, CUDA_ERROR_INVALID_VALUE},
      {"no grid y", {1, 0, 1}, {1, 1, 1}, 0, CUDA_ERROR_INVALID_VALUE},
      {"no grid z", {1, 1, 0}, {1, 1, 1}, 0, CUDA_ERROR_INVALID_VALUE},
      {"no block x", {1, 1, 1}, {0, 1, 1}, 0, CUDA_ERROR_INVALID_VALUE},
      {"no block y", {1, 1, 1}, {1, 0, 1}, 0, CUDA_ERROR_INVALID_VALUE},
      {"no block z", {1, 1, 1}, {1, 1, 0}, 0, CUDA_ERROR_INVALID_VALUE},
      {"block of 5000", {1, 1, 1}, {5000, 1, 1}, 0, CUDA_ERROR_INVALID_VALUE},
      {"block of 32x64", {1, 1, 1}, {32, 64, 1}, 0, CUDA_ERROR_INVALID_VALUE},
      {"block z of 65", {1, 1, 1}, {1, 1, 65}, 0, CUDA_ERROR_INVALID_VALUE},
      {"grid y of 65536", {1, 65536, 1}, {1, 1, 1}, 0, CUDA_ERROR_INVALID_VALUE},
      {"grid z of 65536", {1, 1, 65536}, {1, 1, 1}, 0, CUDA_ERROR_INVALID_VALUE},
      {"grid x of 2^31", {1u << 31, 1, 1}, {1, 1, 1}, 0, CUDA_ERROR_INVALID_VALUE},
      {"a megabyte shared", {1, 1, 1}, {1, 1, 1}, 1 << 20, CUDA_ERROR_INVALID_VALUE},
      {"more shared than allowed", {1, 1, 1}, {1, 1, 1}, 60'000, CUDA_ERROR_INVALID_VALUE},
  };
  for (const Case& c : cases) {
    unsigned grid[] = {c.grid[0], c.grid[1], c.grid[2]}, block[] = {c.block[0], c.block[1], c.block[2]};
    EXPECT_EQ(Add(grid, block, c.shared), c.result) << c.name;
    CUlaunchConfig config{};
    config.gridDimX = grid[0], config.gridDimY = grid[1], config.gridDimZ = grid[2];
    config.blockDimX = block[0], config.blockDimY = block[1], config.blockDimZ = block[2];
    config.sharedMemBytes = c.shared;
    EXPECT_EQ(cuLaunchKernelEx(&config, add_, parameters_, nullptr), c.result) << c.name;
    Say(std::string("cooperative: ") + c.name,
        cuLaunchCooperativeKernel(add_, grid[0], grid[1], grid[2], block[0], block[1], block[2], c.shared,
                                  nullptr, parameters_));
  }
  unsigned one[] = {1, 1, 1};
  EXPECT_EQ(Add(one, one), CUDA_SUCCESS);  // none of them sticks
  EXPECT_EQ(First(), 5u);
  OK(cuFuncSetAttribute(add_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60'000));
  EXPECT_EQ(Add(one, one, 60'000), CUDA_SUCCESS);
  EXPECT_EQ(First(), 10u);
}

TEST_F(LaunchTest, ThreadLimitOfTheKernel) {
  CUmodule module;
  CUfunction limited;
  OK(cuModuleLoadData(
      &module,
      ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry limited() .maxntid 64, 1, 1\n"
      "{\n  ret;\n}\n"));
  OK(cuModuleGetFunction(&limited, module, "limited"));
  int most = 0;
  OK(cuFuncGetAttribute(&most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, limited));
  EXPECT_EQ(most, 64);
  EXPECT_EQ(cuLaunchKernel(limited, 1, 1, 1, 64, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_SUCCESS);
  Say("65 threads", cuLaunchKernel(limited, 1, 1, 1, 65, 1, 1, 0, nullptr, nullptr, nullptr));
  OK(cuCtxSynchronize());
}

TEST_F(LaunchTest, RefusedHandles) {
  EXPECT_EQ(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
            CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuLaunchKernelEx(nullptr, add_, parameters_, nullptr), CUDA_ERROR_INVALID_VALUE);
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  Say("null function", cuLaunchKernelEx(&config, nullptr, nullptr, nullptr));
  config.numAttrs = 1;
  EXPECT_EQ(cuLaunchKernelEx(&config, add_, parameters_, nullptr), CUDA_ERROR_INVALID_VALUE);
  OK(cuCtxSetCurrent(nullptr));
  EXPECT_EQ(cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters_, nullptr),
            CUDA_ERROR_INVALID_CONTEXT);
  CUcontext other;
  OK(cuCtxCreate(&other, nullptr, 0, 0));
  Say("function of another context",
      cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters_, nullptr));
  OK(cuCtxDestroy(other));
  OK(cuCtxSetCurrent(context_));
}

TEST_F(LaunchTest, ReturnsAtOnce) {
  CUstream busy;
  OK(cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
  unsigned one[] = {1, 1, 1};
  Spinner spinner(Kernel("spin"), busy);
  EXPECT_FALSE(Waits(
      spinner,
      [&] {
        EXPECT_EQ(Add(one, one, 0, busy), CUDA_SUCCESS);
        EXPECT_EQ(cuLaunchCooperativeKernel(add_, 1, 1, 1, 1, 1, 1, 0, busy, parameters_), CUDA_SUCCESS);
      },
      false));
  OK(cuStreamSynchronize(busy));
  EXPECT_EQ(First(), 10u);
  OK(cuStreamDestroy(busy));
}

TEST_F(LaunchTest, Cooperative) {
  EXPECT_EQ(cuLaunchCooperativeKernel(add_, 4, 1, 1, 32, 1, 1, 0, nullptr, parameters_), CUDA_SUCCESS);
  EXPECT_EQ(First(), 5u);
  EXPECT_EQ(cuLaunchCooperativeKernel(add_, 1'000'000, 1, 1, 1024, 1, 1, 0, nullptr, parameters_),
            CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  int blocks = 0, processors = 0;
  OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add_, 1024, 0));
  OK(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  const auto most = static_cast<unsigned>(blocks * processors);
  EXPECT_EQ(cuLaunchCooperativeKernel(add_, most + 1, 1, 1, 1024, 1, 1, 0, nullptr, parameters_),
            CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(cuLaunchCooperativeKernel(add_, most, 1, 1, 1024, 1, 1, 0, nullptr, parameters_), CUDA_SUCCESS);
  }
  EXPECT_EQ(First(), 20u);
  // As the CUDA runtime does it: a kernel in the function's place, cooperative by an attribute.
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  OK(cuLibraryLoadData(&library, kKernels, nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuLibraryGetKernel(&kernel, library, "add"));
  CUlaunchAttribute cooperative{};
  cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  cooperative.value.cooperative = 1;
  CUlaunchConfig config{4, 1, 1, 32, 1, 1, 0, nullptr, &cooperative, 1};
  auto* function = reinterpret_cast<CUfunction>(kernel);
  EXPECT_EQ(cuLaunchKernelEx(&config, function, parameters_, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(First(), 25u);
  EXPECT_EQ(cuLaunchCooperativeKernel(function, 4, 1, 1, 32, 1, 1, 0, nullptr, parameters_), CUDA_SUCCESS);
  EXPECT_EQ(First(), 30u);
  OK(cuLibraryUnload(library));
  EXPECT_EQ(cuLaunchCooperativeKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters_),
            CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(LaunchTest, CooperativeOnSeveralDevices) {
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUDA_LAUNCH_PARAMS one{};
  one.function = add_;
  one.gridDimX = one.gridDimY = one.gridDimZ = 1;
  one.blockDimX = one.blockDimY = one.blockDimZ = 1;
  one.hStream = stream;
  one.kernelParams = parameters_;
  const CUresult result = cuLaunchCooperativeKernelMultiDevice(&one, 1, 0);
  Say("one device", result);
  OK(cuStreamSynchronize(stream));
  EXPECT_EQ(First(), result == CUDA_SUCCESS ? 5u : 0u);
  // The stream says which context it is.
  CUcontext context = nullptr;
  OK(cuCtxPopCurrent(&context));
  EXPECT_EQ(cuLaunchCooperativeKernelMultiDevice(&one, 1, 0), result);
  OK(cuCtxPushCurrent(context));
  OK(cuStreamSynchronize(stream));
  for (const CUstream none : {CUstream{}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    one.hStream = none;
    EXPECT_EQ(cuLaunchCooperativeKernelMultiDevice(&one, 1, 0), CUDA_ERROR_INVALID_HANDLE);
  }
  Say("none", cuLaunchCooperativeKernelMultiDevice(&one, 0, 0));
  Say("no list", cuLaunchCooperativeKernelMultiDevice(nullptr, 1, 0));
  OK(cuStreamDestroy(stream));
}

// Each launch needs its own device, which is said before anything of the functions.
TEST_F(LaunchTest, MoreLaunchesThanDevices) {
  int devices = 0;
  OK(cuDeviceGetCount(&devices));
  std::vector<CUDA_LAUNCH_PARAMS> list(static_cast<size_t>(devices) + 2);
  EXPECT_EQ(cuLaunchCooperativeKernelMultiDevice(list.data(), static_cast<unsigned>(list.size()), 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(LaunchTest, PerThreadForms) {
  NEEDS_HARDWARE("per-thread forms");
  const auto launch = SymbolAs<decltype(cuLaunchKernel)>("cuLaunchKernel_ptsz");
  const auto launch_ex = SymbolAs<decltype(cuLaunchKernelEx)>("cuLaunchKernelEx_ptsz");
  const auto cooperative = SymbolAs<decltype(cuLaunchCooperativeKernel)>("cuLaunchCooperativeKernel_ptsz");
  ASSERT_TRUE(launch != nullptr && launch_ex != nullptr && cooperative != nullptr);
  OK(launch(add_, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters_, nullptr));
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  OK(launch_ex(&config, add_, parameters_, nullptr));
  OK(cooperative(add_, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters_));
  OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  EXPECT_EQ(First(), 15u);
}

TEST_F(LaunchTest, AsBeforeCuda4) {
  EXPECT_EQ(cuFuncSetBlockShape(add_, 32, 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuFuncSetSharedSize(add_, 256), CUDA_SUCCESS);
  EXPECT_EQ(cuParamSetv(add_, 0, &data_, sizeof data_), CUDA_SUCCESS);
  EXPECT_EQ(cuParamSetv(add_, 0, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuParamSeti(add_, 8, 2), CUDA_SUCCESS);
  EXPECT_EQ(cuParamSeti(add_, 12, 3), CUDA_SUCCESS);
  EXPECT_EQ(cuParamSetSize(add_, 16), CUDA_SUCCESS);
  EXPECT_EQ(cuLaunch(add_), CUDA_SUCCESS);
  EXPECT_EQ(First(), 3u);
  EXPECT_EQ(cuLaunchGrid(add_, 2, 1), CUDA_SUCCESS);
  EXPECT_EQ(First(), 6u);
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  EXPECT_EQ(cuLaunchGridAsync(add_, 1, 2, stream), CUDA_SUCCESS);
  OK(cuStreamSynchronize(stream));
  // Both rows add to the same numbers, and either may read before the other has written.
  EXPECT_TRUE(First() == 9u || First() == 12u) << First();
  OK(cuStreamDestroy(stream));
  EXPECT_EQ(cuParamSetf(add_, 12, 1.0f), CUDA_SUCCESS);  // 0x3f800000
  const uint32_t before = First();
  EXPECT_EQ(cuLaunch(add_), CUDA_SUCCESS);
  EXPECT_EQ(First(), before + 0x3f800000u);
  EXPECT_EQ(cuParamSeti(add_, 100, 3), CUDA_SUCCESS);  // beyond the parameters: nobody looks there
  EXPECT_EQ(cuParamSetf(add_, 16, 1.0f), CUDA_SUCCESS);
  EXPECT_EQ(cuLaunch(add_), CUDA_SUCCESS);
  EXPECT_EQ(First(), before + 2 * 0x3f800000u);
  Say("no block", cuFuncSetBlockShape(add_, 0, 1, 1));
  Say("no grid", cuLaunchGrid(add_, 0, 1));
  if (OnNvidiaLibrary()) return;  // which writes to any offset
  EXPECT_EQ(cuParamSeti(add_, -4, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuParamSeti(add_, 1 << 20, 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuParamSetf(add_, 1 << 20, 2.0F), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuParamSetSize(add_, 5000), CUDA_SUCCESS);
  EXPECT_EQ(cuParamSetSize(add_, 1 << 20), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncSetBlockShape(nullptr, 1, 1, 1), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuLaunch(nullptr), CUDA_ERROR_INVALID_HANDLE);
  OK(cuCtxSynchronize());
}

TEST_F(LaunchTest, LargeParametersAsBeforeCuda4) {
  CUmodule module;
  CUfunction fetch;
  OK(cuModuleLoadData(&module, FetchText(4080).c_str()));
  OK(cuModuleGetFunction(&fetch, module, "fetch"));
  std::vector<uint8_t> content(4080);
  std::iota(content.begin(), content.end(), uint8_t{3});
  uint64_t index = 4001;
  EXPECT_EQ(cuFuncSetBlockShape(fetch, 1, 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuParamSetSize(fetch, 16 + 4080), CUDA_SUCCESS);
  EXPECT_EQ(cuParamSetv(fetch, 0, &data_, sizeof data_), CUDA_SUCCESS);
  EXPECT_EQ(cuParamSetv(fetch, 8, &index, sizeof index), CUDA_SUCCESS);
  EXPECT_EQ(cuParamSetv(fetch, 16, content.data(), 4080), CUDA_SUCCESS);
  EXPECT_EQ(cuLaunch(fetch), CUDA_SUCCESS);
  EXPECT_EQ(First(), content[index]);
}

// Text that a kernel prints is on stdout after each of these calls.
TEST_F(LaunchTest, PrintedTextArrivesAtSynchronisation) {
  constexpr char kText[] = R"(
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 status) vprintf(.param .b64 format, .param .b64 arguments);
.global .align 1 .b8 text[14] = {112, 114, 105, 110, 116, 101, 100, 32, 116, 101, 120, 116, 10, 0};
.visible .entry say()
{
  .reg .b32 %r<2>; .reg .b64 %rd<4>;
  mov.u64 %rd1, text;
  cvta.global.u64 %rd2, %rd1;
  mov.u64 %rd3, 0;
  {
  .param .b64 format;
  .param .b64 arguments;
  .param .b32 status;
  st.param.b64 [format+0], %rd2;
  st.param.b64 [arguments+0], %rd3;
  call.uni (status), vprintf, (format, arguments);
  ld.param.b32 %r1, [status+0];
  }
  ret;
}
)";
  CUmodule module;
  CUfunction say;
  OK(cuModuleLoadData(&module, kText));
  OK(cuModuleGetFunction(&say, module, "say"));
  CUstream stream;
  CUevent event;
  OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  OK(cuEventCreate(&event, 0));
  const auto printed = [&](auto synchronise) {
    std::fflush(stdout);
    char path[] = "/tmp/causeway_launch_XXXXXX";
    const int file = mkstemp(path), saved = dup(1);
    dup2(file, 1);
    EXPECT_EQ(cuLaunchKernel(say, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr), CUDA_SUCCESS);
    synchronise();
    std::fflush(stdout);
    dup2(saved, 1);
    char text[64] = {};
    const ssize_t bytes = pread(file, text, sizeof text - 1, 0);
    close(saved);
    close(file);
    unlink(path);
    return std::string(text, bytes > 0 ? static_cast<size_t>(bytes) : 0);
  };
  const std::string expected = "printed text\n";
  uint32_t value;
  EXPECT_EQ(printed([&] { EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS); }), expected);
  EXPECT_EQ(printed([&] { EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS); }), expected);
  EXPECT_EQ(printed([&] {
              EXPECT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
              EXPECT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
            }),
            expected);
  EXPECT_EQ(printed([&] { EXPECT_EQ(cuMemcpyDtoH(&value, data_, 4), CUDA_SUCCESS); }), expected);
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(stream));
}

}  // namespace
}  // namespace causeway::driver_test
