// SPDX-License-Identifier: Apache-2.0
// Modules and libraries of the software GPU, from every kind of image, and programs that use it directly.
#include <cstring>
#include <fstream>
#include <iterator>

#include "tests/software_gpu/test_driver.h"

namespace causeway::software_gpu_test {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

TEST_F(DriverTest, ModuleKnowsItsFunctionsAndVariables) {
  LoadKernels();
  CUfunction missing = nullptr;
  EXPECT_EQ(CU(cuModuleGetFunction)(&missing, module_, "absent"), CUDA_ERROR_NOT_FOUND);
  unsigned count = 0;
  EXPECT_EQ(CU(cuModuleGetFunctionCount)(&count, module_), CUDA_SUCCESS);
  EXPECT_EQ(count, 4u);
  CUdeviceptr counter = 0;
  size_t bytes = 0;
  ASSERT_EQ(CU(cuModuleGetGlobal_v2)(&counter, &bytes, module_, "counter"), CUDA_SUCCESS);
  EXPECT_EQ(bytes, 4u);
  EXPECT_EQ(Read(counter, 1)[0], 5u);
  EXPECT_EQ(CU(cuMemFree_v2)(counter), CUDA_ERROR_INVALID_VALUE);
  size_t offset = 0;
  EXPECT_EQ(CU(cuFuncGetParamInfo)(add_, 2, &offset, &bytes), CUDA_SUCCESS);
  EXPECT_EQ(offset, 12u);
  EXPECT_EQ(bytes, 4u);
  EXPECT_EQ(CU(cuFuncGetParamInfo)(add_, 3, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
  int value = 0;
  EXPECT_EQ(CU(cuFuncGetAttribute)(&value, CU_FUNC_ATTRIBUTE_PTX_VERSION, add_), CUDA_SUCCESS);
  EXPECT_EQ(value, 80);
  EXPECT_EQ(CU(cuModuleUnload)(module_), CUDA_SUCCESS);
  if (IsOtherLibrary()) return;  // stale handles are recognised here only
  EXPECT_EQ(CU(cuModuleUnload)(module_), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(CU(cuFuncGetAttribute)(&value, CU_FUNC_ATTRIBUTE_PTX_VERSION, add_), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(DriverTest, ImagesThatAreNone) {
  EXPECT_EQ(CU(cuModuleLoadData)(&module_, "garbage"), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(CU(cuModuleLoadData)(&module_, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuModuleLoadData)(&module_, ".version 8.0\n.target sm_80\n.address_size 64\nxx"),
            CUDA_ERROR_INVALID_PTX);
  const char broken_elf[64] = "\x7f\x45LF, but nothing of a cubin follows";
  EXPECT_EQ(CU(cuModuleLoadData)(&module_, broken_elf), CUDA_ERROR_INVALID_IMAGE);
}

class FatbinTest : public DriverTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(FatbinTest, LoadsAndRuns) {
  std::string image = ReadFile(std::string(SOFTWARE_GPU_IMAGES) + "/" + GetParam() + ".fatbin");
  struct {
    unsigned magic = 0x466243B1;
    unsigned version = 1;
    const void* data = nullptr;
    const void* unused = nullptr;
  } wrapper;
  wrapper.data = image.data();
  EXPECT_EQ(CU(cuModuleLoadData)(&module_, &wrapper), CUDA_ERROR_INVALID_IMAGE);
  CUlibrary library = nullptr;
  ASSERT_EQ(CU(cuLibraryLoadData)(&library, &wrapper, nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  CUkernel kernel = nullptr;
  ASSERT_EQ(CU(cuLibraryGetKernel)(&kernel, library, "scale"), CUDA_SUCCESS);
  CUdeviceptr data = Allocate(40);
  ASSERT_EQ(CU(cuMemsetD32_v2)(data, 3, 10), CUDA_SUCCESS);
  unsigned factor = 5;
  void* parameters[] = {&data, &factor};
  ASSERT_EQ(CU(cuLaunchKernel)(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 9, 1, 1, 0, nullptr, parameters,
                               nullptr),
            CUDA_SUCCESS);
  std::vector<unsigned> words = Read(data, 10);
  EXPECT_EQ(words[8], 15u);
  EXPECT_EQ(words[9], 3u);
  EXPECT_EQ(CU(cuLibraryUnload)(library), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuModuleLoadFatBinary)(&module_, image.data()), CUDA_SUCCESS);
}

INSTANTIATE_TEST_SUITE_P(CompressionModes, FatbinTest, ::testing::Values("none", "speed", "size", "default"),
                         [](const auto& mode) { return std::string(mode.param); });

TEST_F(DriverTest, FatbinWithoutPtxIsRefused) {
  if (IsOtherLibrary()) GTEST_SKIP() << "a real GPU runs cubins";
  std::string image = ReadFile(std::string(SOFTWARE_GPU_IMAGES) + "/cubin.fatbin");
  EXPECT_EQ(CU(cuModuleLoadData)(&module_, image.data()), CUDA_ERROR_NO_BINARY_FOR_GPU);
}

TEST_F(DriverTest, LibraryKernelsWorkInEveryContext) {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  ASSERT_EQ(CU(cuLibraryLoadData)(&library, kKernels, nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  ASSERT_EQ(CU(cuLibraryGetKernel)(&kernel, library, "add"), CUDA_SUCCESS);
  CUfunction here = nullptr;
  CUfunction there = nullptr;
  ASSERT_EQ(CU(cuKernelGetFunction)(&here, kernel), CUDA_SUCCESS);
  CUcontext second = nullptr;
  ASSERT_EQ(CU(cuCtxCreate_v2)(&second, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuKernelGetFunction)(&there, kernel), CUDA_SUCCESS);
  EXPECT_NE(here, there);
  EXPECT_EQ(CU(cuCtxDestroy_v2)(second), CUDA_SUCCESS);
  const char* name = nullptr;
  EXPECT_EQ(CU(cuKernelGetName)(&name, kernel), CUDA_SUCCESS);
  EXPECT_STREQ(name, "add");
  if (IsOtherLibrary()) return;  // stale handles are recognised here only
  EXPECT_EQ(CU(cuFuncGetName)(&name, there), CUDA_ERROR_INVALID_HANDLE);
}

TEST(ProcAddress, AnswersByNameVersionAndFlags) {
  auto look_up = CU(cuGetProcAddress_v2);
  void* function = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  EXPECT_EQ(look_up("cuMemAlloc", &function, 13000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, reinterpret_cast<void*>(CU(cuMemAlloc_v2)));
  EXPECT_EQ(look_up("cuMemAlloc_v2", &function, 13000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(look_up("cuMemAllocAsync", &function, 10000, 0, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  EXPECT_EQ(look_up("cuLaunchKernel", &function, 13000, 2, &status), CUDA_SUCCESS);
  EXPECT_NE(function, reinterpret_cast<void*>(CU(cuLaunchKernel)));
  EXPECT_EQ(look_up("cuLaunchKernel", &function, 6000, 2, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  EXPECT_EQ(look_up("cuInit", &function, 13000, 4, &status), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace causeway::software_gpu_test
