// SPDX-License-Identifier: Apache-2.0
// Census category module: images of every kind, functions and variables, the compiler's options.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <set>
#include <vector>

#include "tests/driver/child_process.h"
#include "tests/driver/driver_test.h"
#include "tests/driver/images.h"

namespace causeway::driver_test {
namespace {

class ModuleTest : public DriverTest {
 protected:
  static void ExpectAdds(CUmodule module) {
    CUfunction add;
    OK(cuModuleGetFunction(&add, module, "add"));
    DriverTest::ExpectAdds(add);
  }
};

constexpr char kBadPtx[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry broken()\n{\n  fly.u32 %r1;\n}\n";

// What nvcc puts around a fatbin.
struct Wrapper {
  uint32_t magic = 0x466243B1, version = 1;
  const void* data;
  const void* linked = nullptr;
};

std::string WriteTemporary(const void* bytes, size_t count) {
  std::string path = ::testing::TempDir() + "causeway_module_XXXXXX";
  const int file = mkstemp(path.data());
  EXPECT_GE(file, 0);
  EXPECT_EQ(write(file, bytes, count), static_cast<ssize_t>(count));
  close(file);
  return path;
}

TEST_F(ModuleTest, LoadsEveryKindOfImage) {
  CUmodule module;
  OK(cuModuleLoadData(&module, kKernels));
  ExpectAdds(module);
  OK(cuModuleUnload(module));
  OK(cuModuleLoadFatBinary(&module, kKernels));
  ExpectAdds(module);
  OK(cuModuleUnload(module));
  for (const auto* image : {image_stored, image_zstd, image_lz4}) {
    OK(cuModuleLoadFatBinary(&module, image));
    ExpectAdds(module);
    OK(cuModuleUnload(module));
    OK(cuModuleLoadDataEx(&module, image, 0, nullptr, nullptr));
    ExpectAdds(module);
    OK(cuModuleUnload(module));
  }
}

TEST_F(ModuleTest, WaitsLittle) {
  CUmoduleLoadingMode mode{};
  CUmodule module;
  CUfunction add;
  uint64_t before = RepliesAwaited();
  OK(cuModuleGetLoadingMode(&mode));
  EXPECT_EQ(RepliesAwaited(), before);
  OK(cuModuleLoadData(&module, image_zstd));
  EXPECT_LE(RepliesAwaited(), before + 1);
  OK(cuModuleGetFunction(&add, module, "add"));
  EXPECT_LE(RepliesAwaited(), before + 2);
  int value = 0;
  size_t offset = 0, bytes = 0;
  before = RepliesAwaited();
  for (int attribute = 0; attribute < CU_FUNC_ATTRIBUTE_MAX; ++attribute) {
    EXPECT_EQ(cuFuncGetAttribute(&value, static_cast<CUfunction_attribute>(attribute), add), CUDA_SUCCESS);
  }
  EXPECT_EQ(cuFuncGetParamInfo(add, 2, &offset, &bytes), CUDA_SUCCESS);
  EXPECT_EQ(RepliesAwaited(), before);
  OK(cuModuleUnload(module));
}

// More than one message holds.
std::string LargeText(pid_t owner) {
  std::string text = "// " + std::to_string(owner) + "\n" + kKernels + "\n";
  for (int line = 0; text.size() < 3'000'000; ++line) text += "// line " + std::to_string(line) + "\n";
  return text;
}

uint64_t RepliesToLoad(CUmodule* module, const std::string& text) {
  const uint64_t before = RepliesAwaited();
  EXPECT_EQ(cuModuleLoadData(module, text.c_str()), CUDA_SUCCESS);
  return RepliesAwaited() - before;
}

TEST(Child, DISABLED_LoadsAsItsParentDid) {
  CUcontext context;
  CUmodule module;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  exit(static_cast<int>(RepliesToLoad(&module, LargeText(getppid()))));
}

// A large image that a process of this machine has loaded is not sent again.
TEST_F(ModuleTest, LargeImagesAreSentOnce) {
  std::string text = LargeText(getpid());
  CUmodule first, second, other;
  RepliesToLoad(&first, text);
  // Its host keeps it as soon as it has looked at all of it.
  auto replies = RepliesToLoad(&second, text);
  for (int tries = 0; replies > 1 && tries < 300; ++tries) {
    OK(cuModuleUnload(second));
    usleep(20'000);
    replies = RepliesToLoad(&second, text);
  }
  EXPECT_LE(replies, 1u);
  ExpectAdds(second);
  OK(cuModuleUnload(second));
  EXPECT_LE(RunChild("Child.DISABLED_LoadsAsItsParentDid"), 1);
  ExpectAdds(first);
  // One byte makes it another.
  text.replace(text.find("add("), 4, "abd(");
  OK(cuModuleLoadData(&other, text.c_str()));
  CUfunction function;
  EXPECT_EQ(cuModuleGetFunction(&function, other, "add"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuModuleGetFunction(&function, other, "abd"), CUDA_SUCCESS);
  // A library keeps its image while it lives, whatever becomes of the caller's.
  CUlibrary library;
  CUkernel kernel;
  OK(cuLibraryLoadData(&library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  text.assign(text.size(), ' ');
  EXPECT_EQ(cuLibraryGetKernel(&kernel, library, "abd"), CUDA_SUCCESS);
  EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
  OK(cuModuleUnload(other));
  OK(cuModuleUnload(first));
}

TEST_F(ModuleTest, LoadsFiles) {
  for (const auto& [bytes, count] :
       std::vector<std::pair<const void*, size_t>>{{kKernels, sizeof kKernels - 1},
                                                   {image_stored, sizeof image_stored},
                                                   {image_zstd, sizeof image_zstd}}) {
    const std::string path = WriteTemporary(bytes, count);
    CUmodule module;
    OK(cuModuleLoad(&module, path.c_str()));
    ExpectAdds(module);
    OK(cuModuleUnload(module));
    unlink(path.c_str());
  }
  CUmodule module;
  EXPECT_EQ(cuModuleLoad(&module, "/nowhere/at/all.cubin"), CUDA_ERROR_FILE_NOT_FOUND);
  EXPECT_EQ(cuModuleLoad(nullptr, "/nowhere/at/all.cubin"), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuModuleLoad(&module, nullptr), CUDA_ERROR_INVALID_VALUE);
  const std::string path = WriteTemporary("\x01\x02\x03 no image\x7f\x80", 15);
  Say("garbage", cuModuleLoad(&module, path.c_str()));
  unlink(path.c_str());
}

TEST_F(ModuleTest, CubinsOfThisGpu) {
  NEEDS_HARDWARE("SASS");
  CUmodule module;
  OK(cuModuleLoadData(&module, image_cubin_90));
  ExpectAdds(module);
  OK(cuModuleUnload(module));
  OK(cuModuleLoadData(&module, image_sass_only));
  ExpectAdds(module);
  const std::string path = WriteTemporary(image_cubin_90, sizeof image_cubin_90);
  OK(cuModuleLoad(&module, path.c_str()));
  ExpectAdds(module);
  unlink(path.c_str());
}

TEST_F(ModuleTest, RefusesWhatIsNoImage) {
  CUmodule module;
  const Wrapper wrapper{.data = image_stored};
  const unsigned char garbage[64] = {1, 2, 3, 4};
  EXPECT_EQ(cuModuleLoadData(&module, &wrapper), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(cuModuleLoadFatBinary(&module, &wrapper), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(cuModuleLoadData(&module, garbage), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(cuModuleLoadDataEx(&module, garbage, 0, nullptr, nullptr), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(cuModuleLoadData(&module, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuModuleLoadData(nullptr, kKernels), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuModuleLoadFatBinary(&module, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuModuleLoadDataEx(&module, nullptr, 0, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuModuleLoadData(&module, kBadPtx), CUDA_ERROR_INVALID_PTX);
  Say("some text", cuModuleLoadData(&module, "this is no PTX at all"));
  OK(cuCtxSetCurrent(nullptr));
  EXPECT_EQ(cuModuleLoadData(&module, kKernels), CUDA_ERROR_INVALID_CONTEXT);
  OK(cuCtxSetCurrent(context_));
}

TEST_F(ModuleTest, FunctionsByName) {
  CUmodule module;
  OK(cuModuleLoadData(&module, kKernels));
  CUfunction add = nullptr, again = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&add, module, "add"), CUDA_SUCCESS);
  EXPECT_EQ(cuModuleGetFunction(&again, module, "add"), CUDA_SUCCESS);
  EXPECT_EQ(add, again);
  EXPECT_EQ(cuModuleGetFunction(&add, module, "nothing"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuModuleGetFunction(nullptr, module, "add"), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuModuleGetFunction(&add, module, nullptr), CUDA_ERROR_INVALID_VALUE);
  Say("null module", cuModuleGetFunction(&add, nullptr, "add"));
  const std::string long_name(5000, 'x');
  EXPECT_EQ(cuModuleGetFunction(&add, module, long_name.c_str()), CUDA_ERROR_NOT_FOUND);
}

TEST_F(ModuleTest, VariablesByName) {
  CUmodule module;
  OK(cuModuleLoadData(&module, kKernels));
  CUdeviceptr address = 0;
  size_t bytes = 0;
  EXPECT_EQ(cuModuleGetGlobal(&address, &bytes, module, "counter"), CUDA_SUCCESS);
  EXPECT_EQ(bytes, 4u);
  uint32_t value = 0;
  EXPECT_EQ(cuMemcpyDtoH(&value, address, 4), CUDA_SUCCESS);
  EXPECT_EQ(value, 5u);
  CUdeviceptr same = 0;
  EXPECT_EQ(cuModuleGetGlobal(&same, nullptr, module, "counter"), CUDA_SUCCESS);
  EXPECT_EQ(same, address);
  bytes = 0;
  EXPECT_EQ(cuModuleGetGlobal(nullptr, &bytes, module, "counter"), CUDA_SUCCESS);
  EXPECT_EQ(bytes, 4u);
  EXPECT_EQ(cuModuleGetGlobal(&address, &bytes, module, "nothing"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuModuleGetGlobal(&address, &bytes, module, nullptr), CUDA_ERROR_INVALID_VALUE);
  Say("null module", cuModuleGetGlobal(&address, &bytes, nullptr, "counter"));
}

// A text with as many kernels as are wanted.
std::string ManyKernels(int count) {
  std::string text = ".version 8.0\n.target sm_80\n.address_size 64\n";
  for (int i = 0; i < count; ++i)
    text += ".visible .entry kernel_number_" + std::to_string(i) + "()\n{\n  ret;\n}\n";
  return text;
}

TEST_F(ModuleTest, EnumeratesAnyNumberOfFunctions) {
  constexpr int kCount = 1000;
  CUmodule module;
  OK(cuModuleLoadData(&module, ManyKernels(kCount).c_str()));
  unsigned count = 0;
  EXPECT_EQ(cuModuleGetFunctionCount(&count, module), CUDA_SUCCESS);
  EXPECT_EQ(count, unsigned{kCount});
  EXPECT_EQ(cuModuleGetFunctionCount(nullptr, module), CUDA_ERROR_INVALID_VALUE);
  std::vector<CUfunction> functions(kCount + 3, nullptr);
  EXPECT_EQ(cuModuleEnumerateFunctions(functions.data(), kCount + 3, module), CUDA_SUCCESS);
  EXPECT_EQ(functions[kCount], nullptr);
  std::set<std::string> names;
  for (int i = 0; i < kCount; ++i) {
    const char* name = nullptr;
    OK(cuFuncGetName(&name, functions[i]));
    names.insert(name);
  }
  EXPECT_EQ(names.size(), size_t{kCount});
  EXPECT_TRUE(names.contains("kernel_number_999"));
  CUfunction by_name;
  OK(cuModuleGetFunction(&by_name, module, "kernel_number_500"));
  EXPECT_NE(std::find(functions.begin(), functions.end(), by_name), functions.end());
  EXPECT_EQ(cuLaunchKernel(functions[999], 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_SUCCESS);
  CUfunction one = nullptr;
  EXPECT_EQ(cuModuleEnumerateFunctions(&one, 1, module), CUDA_SUCCESS);
  EXPECT_EQ(one, functions[0]);
  EXPECT_EQ(cuModuleEnumerateFunctions(&one, 0, module), CUDA_SUCCESS);
  Say("no room", cuModuleEnumerateFunctions(nullptr, 1, module));
  OK(cuCtxSynchronize());
}

TEST_F(ModuleTest, UnloadEndsHandles) {
  CUmodule module;
  OK(cuModuleLoadData(&module, kKernels));
  CUfunction add;
  OK(cuModuleGetFunction(&add, module, "add"));
  EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  Say("null", cuModuleUnload(nullptr));
  if (!OnSoftwareGpu()) return;  // NVIDIA's driver follows a dead module's pointer
  EXPECT_EQ(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuModuleGetFunction(&add, module, "add"), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_HANDLE);
  int value;
  EXPECT_EQ(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, add), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(ModuleTest, UnloadWaitsForTheDevice) {
  CUstream busy;
  OK(cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
  CUmodule module;
  OK(cuModuleLoadData(&module, kKernels));
  Spinner spinner(Kernel("spin"), busy);
  EXPECT_TRUE(Waits(spinner, [&] { EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS); }));
  OK(cuStreamDestroy(busy));
}

TEST_F(ModuleTest, LoadingMode) {
  CUmoduleLoadingMode mode{};
  EXPECT_EQ(cuModuleGetLoadingMode(&mode), CUDA_SUCCESS);
  Say("mode", static_cast<int>(mode));
}

// ---- the compiler's options

struct Logs {
  std::vector<char> info, error;
  std::vector<CUjit_option> options;
  std::vector<void*> values;

  explicit Logs(size_t bytes) : info(bytes + 8, '#'), error(bytes + 8, '#') {
    Add(CU_JIT_INFO_LOG_BUFFER, info.data());
    Add(CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, reinterpret_cast<void*>(bytes));
    Add(CU_JIT_ERROR_LOG_BUFFER, error.data());
    Add(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, reinterpret_cast<void*>(bytes));
    Add(CU_JIT_WALL_TIME, nullptr);
    Add(CU_JIT_LOG_VERBOSE, reinterpret_cast<void*>(uintptr_t{1}));
  }
  void Add(CUjit_option option, void* value) {
    options.push_back(option);
    values.push_back(value);
  }
  size_t value(size_t index) const { return reinterpret_cast<uintptr_t>(values[index]); }
  float milliseconds() const {
    float time;
    std::memcpy(&time, &values[4], sizeof time);
    return time;
  }
};

TEST_F(ModuleTest, LogsOfAFailedCompilation) {
  for (const size_t bytes : {size_t{16}, size_t{1000}, size_t{100'000}, size_t{3'000'000}}) {
    Logs logs(bytes);
    CUmodule module;
    EXPECT_EQ(cuModuleLoadDataEx(&module, kBadPtx, static_cast<unsigned>(logs.options.size()),
                                 logs.options.data(), logs.values.data()),
              CUDA_ERROR_INVALID_PTX);
    const size_t length = strnlen(logs.error.data(), bytes);
    EXPECT_LT(length, bytes);
    EXPECT_GT(length, 0u);
    EXPECT_EQ(logs.error[bytes], '#');  // not a byte past its end
    EXPECT_EQ(logs.info[bytes], '#');
    Say("error log " + std::to_string(bytes), std::string(logs.error.data(), length));
    Say("error size " + std::to_string(bytes), logs.value(3));
    Say("info size " + std::to_string(bytes), logs.value(1));
  }
}

TEST_F(ModuleTest, LogsOfACompilation) {
  Logs logs(8192);
  CUmodule module;
  OK(cuModuleLoadDataEx(&module, kKernels, static_cast<unsigned>(logs.options.size()), logs.options.data(),
                        logs.values.data()));
  ExpectAdds(module);
  EXPECT_GE(logs.milliseconds(), 0.0f);
  EXPECT_LT(logs.milliseconds(), 60'000.0f);
  Say("info size is set", logs.value(1) != 8192);
  Say("error size", logs.value(3));
}

TEST_F(ModuleTest, PlainOptions) {
  const std::vector<std::pair<CUjit_option, uintptr_t>> options = {
      {CU_JIT_MAX_REGISTERS, 32},
      {CU_JIT_THREADS_PER_BLOCK, 256},
      {CU_JIT_OPTIMIZATION_LEVEL, 1},
      {CU_JIT_TARGET_FROM_CUCONTEXT, 0},
      {CU_JIT_FALLBACK_STRATEGY, CU_PREFER_PTX},
      {CU_JIT_GENERATE_DEBUG_INFO, 0},
      {CU_JIT_GENERATE_LINE_INFO, 1},
      {CU_JIT_CACHE_MODE, CU_JIT_CACHE_OPTION_CA},
      {CU_JIT_POSITION_INDEPENDENT_CODE, 0},
      {CU_JIT_MIN_CTA_PER_SM, 1},
      {CU_JIT_MAX_THREADS_PER_BLOCK, 512},
      {CU_JIT_OVERRIDE_DIRECTIVE_VALUES, 1},
      {CU_JIT_SPLIT_COMPILE, 1},
  };
  for (auto [option, number] : options) {
    void* value = reinterpret_cast<void*>(number);
    CUmodule module;
    const CUresult result = cuModuleLoadDataEx(&module, kKernels, 1, &option, &value);
    Say("option " + std::to_string(option), result);
    Say("value " + std::to_string(option), reinterpret_cast<uintptr_t>(value));
    if (result == CUDA_SUCCESS) {
      ExpectAdds(module);
      OK(cuModuleUnload(module));
    }
  }
  CUjit_option option = CU_JIT_OPTIMIZATION_LEVEL;
  CUmodule module;
  EXPECT_EQ(cuModuleLoadDataEx(&module, kKernels, 1, &option, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuModuleLoadDataEx(&module, kKernels, 1, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  void* value = nullptr;
  option = static_cast<CUjit_option>(CU_JIT_NUM_OPTIONS + 50);
  Say("unknown option", cuModuleLoadDataEx(&module, kKernels, 1, &option, &value));
}

// Device code that refers to a variable of the host program.
TEST_F(ModuleTest, SymbolsOfTheHost) {
  NEEDS_HARDWARE("host symbols");
  constexpr char kText[] = R"(
.version 8.0
.target sm_80
.address_size 64
.extern .global .align 4 .u32 of_the_host;
.visible .entry fetch(.param .u64 to)
{
  .reg .b32 %r<2>; .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [to];
  ld.global.u32 %r1, [of_the_host];
  st.global.u32 [%rd1], %r1;
  ret;
}
)";
  uint32_t* host;
  OK(cuMemHostAlloc(reinterpret_cast<void**>(&host), 4, 0));
  *host = 4711;
  const char* names[] = {"of_the_host"};
  void* addresses[] = {host};
  CUjit_option options[] = {CU_JIT_GLOBAL_SYMBOL_NAMES, CU_JIT_GLOBAL_SYMBOL_ADDRESSES,
                            CU_JIT_GLOBAL_SYMBOL_COUNT};
  void* values[] = {names, addresses, reinterpret_cast<void*>(uintptr_t{1})};
  CUmodule module;
  const CUresult loaded = cuModuleLoadDataEx(&module, kText, 3, options, values);
  Say("load", loaded);
  if (loaded == CUDA_SUCCESS) {
    CUfunction fetch;
    OK(cuModuleGetFunction(&fetch, module, "fetch"));
    CUdeviceptr to;
    OK(cuMemAlloc(&to, 4));
    void* parameters[] = {&to};
    OK(cuLaunchKernel(fetch, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    uint32_t fetched = 0;
    OK(cuMemcpyDtoH(&fetched, to, 4));
    EXPECT_EQ(fetched, 4711u);
  }
  OK(cuMemFreeHost(host));
}

// A module is looked at before captures, which forbid that it ends; what belongs to a library does not end by itself.
TEST_F(ModuleTest, UnloadBesideACapture) {
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (const auto mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    const bool forbids = mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    CUmodule module = nullptr;
    CUgraph graph = nullptr;
    OK(cuModuleLoadData(&module, kKernels));
    OK(cuStreamBeginCapture(stream, mode));
    EXPECT_EQ(cuModuleUnload(nullptr), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuModuleUnload(module), forbids ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
    EXPECT_EQ(cuStreamEndCapture(stream, &graph),
              forbids ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
    if (graph != nullptr) {
      OK(cuGraphDestroy(graph));
    }
    if (forbids) {
      OK(cuModuleUnload(module));
    }
  }
  CUlibrary library = nullptr;
  CUmodule of_library = nullptr;
  OK(cuLibraryLoadData(&library, kKernels, nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuLibraryGetModule(&of_library, library));
  EXPECT_EQ(cuModuleUnload(of_library), CUDA_ERROR_NOT_PERMITTED);
  OK(cuLibraryUnload(library));
  OK(cuStreamDestroy(stream));
}

}  // namespace
}  // namespace causeway::driver_test
