// SPDX-License-Identifier: Apache-2.0
// Census category library: images without a context, their kernels and variables.
#include <unistd.h>

#include <cstring>
#include <set>
#include <vector>

#include "tests/driver/driver_test.h"
#include "tests/driver/images.h"

namespace causeway::driver_test {
namespace {

class LibraryTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    OK(cuLibraryLoadData(&library_, kKernels, nullptr, nullptr, 0, nullptr, nullptr, 0));
    OK(cuLibraryGetKernel(&add_, library_, "add"));
  }
  void TearDown() override {
    EXPECT_EQ(cuLibraryUnload(library_), CUDA_SUCCESS);
    DriverTest::TearDown();
  }
  CUlibrary library_ = nullptr;
  CUkernel add_ = nullptr;
};

struct Wrapper {
  uint32_t magic = 0x466243B1, version = 1;
  const void* data;
  const void* linked = nullptr;
};

TEST_F(LibraryTest, LoadsEveryKindOfImage) {
  const Wrapper wrapper{.data = image_zstd};
  for (const void* image :
       std::vector<const void*>{kKernels, image_stored, image_zstd, image_lz4, &wrapper}) {
    CUlibrary library;
    CUkernel add;
    OK(cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0));
    OK(cuLibraryGetKernel(&add, library, "add"));
    ExpectAdds(reinterpret_cast<CUfunction>(add));
    OK(cuLibraryUnload(library));
  }
}

TEST_F(LibraryTest, LoadsFiles) {
  std::string path = ::testing::TempDir() + "causeway_library_XXXXXX";
  const int file = mkstemp(path.data());
  ASSERT_GE(file, 0);
  ASSERT_EQ(write(file, image_lz4, sizeof image_lz4), static_cast<ssize_t>(sizeof image_lz4));
  close(file);
  CUlibrary library;
  CUkernel add;
  OK(cuLibraryLoadFromFile(&library, path.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuLibraryGetKernel(&add, library, "add"));
  ExpectAdds(reinterpret_cast<CUfunction>(add));
  OK(cuLibraryUnload(library));
  unlink(path.c_str());
  EXPECT_EQ(cuLibraryLoadFromFile(&library, "/nowhere/at/all", nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_ERROR_FILE_NOT_FOUND);
  EXPECT_EQ(cuLibraryLoadFromFile(&library, nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLibraryLoadFromFile(nullptr, path.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(LibraryTest, Options) {
  CUlibrary library;
  CUkernel add;
  // The program keeps its image, or not.
  for (const uintptr_t preserved : {0, 1}) {
    std::string image = kKernels;
    CUlibraryOption option = CU_LIBRARY_BINARY_IS_PRESERVED;
    void* value = reinterpret_cast<void*>(preserved);
    OK(cuLibraryLoadData(&library, image.c_str(), nullptr, nullptr, 0, &option, &value, 1));
    if (preserved == 0) std::memset(image.data(), 'x', image.size());
    OK(cuLibraryGetKernel(&add, library, "add"));
    ExpectAdds(reinterpret_cast<CUfunction>(add));
    OK(cuLibraryUnload(library));
  }
  char error[2048] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {error, reinterpret_cast<void*>(sizeof error)};
  constexpr char kBad[] =
      ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry b()\n{\n  fly;\n}\n";
  const CUresult loaded = cuLibraryLoadData(&library, kBad, options, values, 2, nullptr, nullptr, 0);
  Say("bad text", loaded);  // a lazy driver may find out later
  Say("bad text's log", std::string(error));
  if (loaded == CUDA_SUCCESS) {
    EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
  }
  CUlibraryOption unknown = static_cast<CUlibraryOption>(99);
  void* value = nullptr;
  Say("unknown library option",
      cuLibraryLoadData(&library, kKernels, nullptr, nullptr, 0, &unknown, &value, 1));
  Say("options without values",
      cuLibraryLoadData(&library, kKernels, options, nullptr, 2, nullptr, nullptr, 0));
}

TEST_F(LibraryTest, RefusedImages) {
  CUlibrary library;
  const unsigned char garbage[64] = {1, 2, 3, 4};
  const CUresult loaded = cuLibraryLoadData(&library, garbage, nullptr, nullptr, 0, nullptr, nullptr, 0);
  Say("garbage", loaded);  // a lazy driver may find out later
  if (loaded == CUDA_SUCCESS) {
    EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
  }
  EXPECT_EQ(cuLibraryLoadData(&library, nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLibraryLoadData(nullptr, kKernels, nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(LibraryTest, KernelsByNameAndAll) {
  CUkernel again = nullptr;
  EXPECT_EQ(cuLibraryGetKernel(&again, library_, "add"), CUDA_SUCCESS);
  EXPECT_EQ(again, add_);
  EXPECT_EQ(cuLibraryGetKernel(&again, library_, "nothing"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuLibraryGetKernel(nullptr, library_, "add"), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLibraryGetKernel(&again, library_, nullptr), CUDA_ERROR_INVALID_VALUE);
  Say("null library", cuLibraryGetKernel(&again, nullptr, "add"));
  unsigned count = 0;
  EXPECT_EQ(cuLibraryGetKernelCount(&count, library_), CUDA_SUCCESS);
  EXPECT_EQ(count, 4u);
  EXPECT_EQ(cuLibraryGetKernelCount(nullptr, library_), CUDA_ERROR_INVALID_VALUE);
  CUkernel kernels[6] = {};
  EXPECT_EQ(cuLibraryEnumerateKernels(kernels, 6, library_), CUDA_SUCCESS);
  EXPECT_EQ(kernels[4], nullptr);
  std::set<std::string> names;
  for (int i = 0; i < 4; ++i) {
    const char* name = nullptr;
    OK(cuKernelGetName(&name, kernels[i]));
    names.insert(name);
  }
  EXPECT_EQ(names, (std::set<std::string>{"add", "spin", "store", "crash"}));
  Say("none wanted", cuLibraryEnumerateKernels(kernels, 0, library_));
  Say("no room", cuLibraryEnumerateKernels(nullptr, 1, library_));
}

TEST_F(LibraryTest, EnumeratesAnyNumberOfKernels) {
  constexpr int kCount = 1000;
  std::string text = ".version 8.0\n.target sm_80\n.address_size 64\n";
  for (int i = 0; i < kCount; ++i)
    text += ".visible .entry kernel_number_" + std::to_string(i) + "()\n{\n  ret;\n}\n";
  CUlibrary library;
  OK(cuLibraryLoadData(&library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  std::vector<CUkernel> kernels(kCount);
  OK(cuLibraryEnumerateKernels(kernels.data(), kCount, library));
  EXPECT_EQ(std::set<CUkernel>(kernels.begin(), kernels.end()).size(), size_t{kCount});
  OK(cuLibraryUnload(library));
}

TEST_F(LibraryTest, ModuleAndFunctionOfTheContext) {
  CUmodule module = nullptr, same = nullptr;
  EXPECT_EQ(cuLibraryGetModule(&module, library_), CUDA_SUCCESS);
  EXPECT_EQ(cuLibraryGetModule(&same, library_), CUDA_SUCCESS);
  EXPECT_EQ(module, same);
  EXPECT_EQ(cuLibraryGetModule(nullptr, library_), CUDA_ERROR_INVALID_VALUE);
  CUfunction by_module = nullptr, by_kernel = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&by_module, module, "add"), CUDA_SUCCESS);
  EXPECT_EQ(cuKernelGetFunction(&by_kernel, add_), CUDA_SUCCESS);
  EXPECT_EQ(cuKernelGetFunction(nullptr, add_), CUDA_ERROR_INVALID_VALUE);
  Say("null kernel", cuKernelGetFunction(&by_kernel, nullptr));
  Say("one function", by_module == by_kernel);
  ExpectAdds(by_module);
  OK(cuKernelGetFunction(&by_kernel, add_));
  ExpectAdds(by_kernel);
  ExpectAdds(reinterpret_cast<CUfunction>(add_));
  CUlibrary of_kernel = nullptr;
  EXPECT_EQ(cuKernelGetLibrary(&of_kernel, add_), CUDA_SUCCESS);
  EXPECT_EQ(of_kernel, library_);
  EXPECT_EQ(cuKernelGetLibrary(nullptr, add_), CUDA_ERROR_INVALID_VALUE);
}

// Libraries ask for a kernel's function before each launch.
TEST_F(LibraryTest, AFunctionInEachContext) {
  CUfunction first = nullptr, again = nullptr;
  CUcontext own = nullptr, other = nullptr;
  OK(cuCtxGetCurrent(&own));
  OK(cuKernelGetFunction(&first, add_));
  for (int round = 0; round < 12; ++round) {
    CUfunction there = nullptr, there_again = nullptr;
    OK(cuCtxCreate(&other, nullptr, 0, 0));
    OK(cuKernelGetFunction(&there, add_));
    OK(cuKernelGetFunction(&there_again, add_));
    EXPECT_EQ(there, there_again);
    EXPECT_NE(there, first);
    ExpectAdds(there);
    OK(cuCtxSetCurrent(own));
    OK(cuKernelGetFunction(&again, add_));
    EXPECT_EQ(again, first);
    ExpectAdds(again);
    OK(cuCtxDestroy(other));
  }
  OK(cuCtxSetCurrent(nullptr));
  again = nullptr;
  Say("without a context", cuKernelGetFunction(&again, add_));
  OK(cuCtxSetCurrent(own));
}

TEST_F(LibraryTest, LookUpsLogNothing) {
  int lines = 0;
  const auto count = [](void* user, CUlogLevel, char*, size_t) { ++*static_cast<int*>(user); };
  CUlogsCallbackHandle handle = nullptr;
  OK(cuLogsRegisterCallback(count, &lines, &handle));
  CUmodule module = nullptr;
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  int registers = 0;
  OK(cuLibraryGetKernel(&kernel, library_, "add"));
  OK(cuKernelGetFunction(&function, kernel));
  OK(cuLibraryGetModule(&module, library_));
  OK(cuModuleGetFunction(&function, module, "add"));
  OK(cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
  ExpectAdds(function);
  EXPECT_EQ(lines, 0);
  OK(cuLogsUnregisterCallback(handle));
}

TEST_F(LibraryTest, Variables) {
  CUdeviceptr address = 0;
  size_t bytes = 0;
  EXPECT_EQ(cuLibraryGetGlobal(&address, &bytes, library_, "counter"), CUDA_SUCCESS);
  EXPECT_EQ(bytes, 4u);
  uint32_t value = 0;
  OK(cuMemcpyDtoH(&value, address, 4));
  EXPECT_EQ(value, 5u);
  EXPECT_EQ(cuLibraryGetGlobal(&address, nullptr, library_, "counter"), CUDA_SUCCESS);
  EXPECT_EQ(cuLibraryGetGlobal(nullptr, &bytes, library_, "counter"), CUDA_SUCCESS);
  EXPECT_EQ(cuLibraryGetGlobal(&address, &bytes, library_, "nothing"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cuLibraryGetGlobal(&address, &bytes, library_, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLibraryGetManaged(&address, &bytes, library_, "nothing"), CUDA_ERROR_NOT_FOUND);
  Say("not managed", cuLibraryGetManaged(&address, &bytes, library_, "counter"));
  void* function = nullptr;
  Say("unified nothing", cuLibraryGetUnifiedFunction(&function, library_, "nothing"));
  Say("unified kernel", cuLibraryGetUnifiedFunction(&function, library_, "add"));
}

TEST_F(LibraryTest, KernelAttributes) {
  for (int attribute = 0; attribute < CU_FUNC_ATTRIBUTE_MAX; ++attribute) {
    int value = -1;
    const CUresult result =
        cuKernelGetAttribute(&value, static_cast<CUfunction_attribute>(attribute), add_, 0);
    Say("attribute " + std::to_string(attribute), std::to_string(result) + " " + std::to_string(value));
  }
  int value = 0;
  EXPECT_EQ(cuKernelGetAttribute(nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, add_, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX, add_, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, add_, 99), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536, add_, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, add_, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 65536);
  CUfunction function;
  OK(cuKernelGetFunction(&function, add_));
  EXPECT_EQ(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function),
            CUDA_SUCCESS);
  Say("the function's", value);
  EXPECT_EQ(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 4096),
            CUDA_SUCCESS);
  EXPECT_EQ(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, add_, 0),
            CUDA_SUCCESS);
  Say("the kernel's after the function's was set", value);
  EXPECT_EQ(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 30, add_, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_NUM_REGS, 4, add_, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuKernelSetCacheConfig(add_, CU_FUNC_CACHE_PREFER_SHARED, 0), CUDA_SUCCESS);
  Say("unknown cache", cuKernelSetCacheConfig(add_, static_cast<CUfunc_cache>(77), 0));
}

TEST_F(LibraryTest, KernelNamesAndParameters) {
  const char* name = nullptr;
  EXPECT_EQ(cuKernelGetName(&name, add_), CUDA_SUCCESS);
  EXPECT_STREQ(name, "add");
  EXPECT_EQ(cuKernelGetName(nullptr, add_), CUDA_ERROR_INVALID_VALUE);
  const size_t offsets[] = {0, 8, 12}, sizes[] = {8, 4, 4};
  for (size_t i = 0; i < 3; ++i) {
    size_t offset = 99, bytes = 99;
    EXPECT_EQ(cuKernelGetParamInfo(add_, i, &offset, &bytes), CUDA_SUCCESS);
    EXPECT_EQ(offset, offsets[i]);
    EXPECT_EQ(bytes, sizes[i]);
    EXPECT_EQ(cuKernelGetParamInfo(add_, i, &offset, nullptr), CUDA_SUCCESS);
  }
  size_t offset, bytes;
  EXPECT_EQ(cuKernelGetParamInfo(add_, 3, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
  Say("no offset", cuKernelGetParamInfo(add_, 0, nullptr, &bytes));
}

TEST_F(LibraryTest, WorksBeforeAContextIsCurrent) {
  OK(cuCtxSetCurrent(nullptr));
  CUlibrary library;
  EXPECT_EQ(cuLibraryLoadData(&library, image_stored, nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  CUkernel add;
  EXPECT_EQ(cuLibraryGetKernel(&add, library, "add"), CUDA_SUCCESS);
  unsigned count = 0;
  EXPECT_EQ(cuLibraryGetKernelCount(&count, library), CUDA_SUCCESS);
  CUfunction function;
  Say("function without a context", cuKernelGetFunction(&function, add));
  OK(cuCtxSetCurrent(context_));
  ExpectAdds(reinterpret_cast<CUfunction>(add));
  OK(cuLibraryUnload(library));
}

TEST_F(LibraryTest, UnloadEndsHandles) {
  Say("null", cuLibraryUnload(nullptr));
  if (!OnSoftwareGpu()) return;  // NVIDIA's driver follows a dead library's pointer
  CUlibrary library;
  CUkernel add;
  OK(cuLibraryLoadData(&library, kKernels, nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuLibraryGetKernel(&add, library, "add"));
  OK(cuLibraryUnload(library));
  EXPECT_EQ(cuLibraryUnload(library), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuLibraryGetKernel(&add, library, "add"), CUDA_ERROR_INVALID_HANDLE);
  CUfunction function;
  EXPECT_EQ(cuKernelGetFunction(&function, add), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuLaunchKernel(reinterpret_cast<CUfunction>(add), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
            CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace
}  // namespace causeway::driver_test
