// SPDX-License-Identifier: Apache-2.0
// Census category function: names, parameters, attributes, loading.
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

using FunctionTest = DriverTest;

// A kernel of a given name with `count` parameters of one byte.
std::string Text(const std::string& name, int count) {
  std::string text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry " + name + "(";
  for (int i = 0; i < count; ++i)
    text += std::string(i != 0 ? ", " : "") + ".param .u8 parameter_" + std::to_string(i);
  return text + ")\n{\n  ret;\n}\n";
}

TEST_F(FunctionTest, Attributes) {
  const CUfunction add = Kernel("add");
  for (int attribute = 0; attribute < CU_FUNC_ATTRIBUTE_MAX; ++attribute) {
    int value = -1;
    const CUresult result = cuFuncGetAttribute(&value, static_cast<CUfunction_attribute>(attribute), add);
    EXPECT_EQ(result, CUDA_SUCCESS) << attribute;
    Say("attribute " + std::to_string(attribute), value);
  }
  int value = 0;
  EXPECT_EQ(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX, add), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncGetAttribute(&value, static_cast<CUfunction_attribute>(-1), add), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncGetAttribute(nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, add), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, nullptr), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(FunctionTest, SettingAttributes) {
  const CUfunction add = Kernel("add");
  int value = 0;
  EXPECT_EQ(cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60'000), CUDA_SUCCESS);
  EXPECT_EQ(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, add), CUDA_SUCCESS);
  EXPECT_EQ(value, 60'000);
  EXPECT_EQ(cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50), CUDA_SUCCESS);
  EXPECT_EQ(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, add),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 50);
  for (const auto& [attribute, wrong] : std::vector<std::pair<CUfunction_attribute, int>>{
           {CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 30},
           {CU_FUNC_ATTRIBUTE_NUM_REGS, 8},
           {CU_FUNC_ATTRIBUTE_MAX, 1}}) {
    EXPECT_EQ(cuFuncSetAttribute(add, attribute, wrong), CUDA_ERROR_INVALID_VALUE) << attribute;
  }
  Say("carveout of 101", cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 101));
  Say("negative shared", cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, -1));
  EXPECT_EQ(cuFuncSetAttribute(nullptr, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024),
            CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(FunctionTest, SettingTheSameAgainIsLocal) {
  constexpr CUfunction_attribute kShared = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  CUlibrary library = nullptr;
  OK(cuLibraryLoadData(&library, kKernels, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  OK(cuLibraryGetKernel(&kernel, library, "add"));
  CUfunction add = nullptr;
  OK(cuKernelGetFunction(&add, kernel));
  const CUfunction other = Kernel("spin");
  OK(cuFuncSetAttribute(add, kShared, 60'000));
  const uint64_t before = RepliesAwaited();
  for (int i = 0; i < 5; ++i) OK(cuFuncSetAttribute(add, kShared, 60'000));
  int value = 0;
  EXPECT_EQ(cuFuncGetAttribute(&value, kShared, add), CUDA_SUCCESS);
  EXPECT_EQ(RepliesAwaited(), before);
  EXPECT_EQ(value, 60'000);
  // What was set by another handle in between is set back.
  OK(cuKernelSetAttribute(kShared, 50'000, kernel, 0));
  OK(cuFuncSetAttribute(add, kShared, 60'000));
  EXPECT_EQ(cuKernelGetAttribute(&value, kShared, kernel, 0), CUDA_SUCCESS);
  Say("of the kernel", value);
  OK(cuFuncSetAttribute(add, kShared, 40'000));
  EXPECT_EQ(cuFuncSetAttribute(add, kShared, 1 << 30), CUDA_ERROR_INVALID_VALUE);
  OK(cuFuncSetAttribute(add, kShared, 40'000));
  EXPECT_EQ(cuFuncGetAttribute(&value, kShared, add), CUDA_SUCCESS);
  EXPECT_EQ(value, 40'000);
  // Another kernel's attributes are its own.
  const uint64_t now = RepliesAwaited();
  OK(cuFuncSetAttribute(other, kShared, 30'000));
  const uint64_t for_other = RepliesAwaited() - now;
  OK(cuFuncSetAttribute(add, kShared, 40'000));
  EXPECT_EQ(RepliesAwaited(), now + for_other);
  OK(cuLibraryUnload(library));
}

TEST_F(FunctionTest, ClusterAttributes) {
  NEEDS_HARDWARE("thread block clusters");
  const CUfunction add = Kernel("add");
  for (const CUfunction_attribute attribute :
       {CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
        CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
        CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
        CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE}) {
    const CUresult set = cuFuncSetAttribute(add, attribute, 1);
    int value = -1;
    EXPECT_EQ(cuFuncGetAttribute(&value, attribute, add), CUDA_SUCCESS);
    Say("set " + std::to_string(attribute), std::to_string(set) + " then " + std::to_string(value));
  }
}

TEST_F(FunctionTest, NamesOfAnyLength) {
  for (const size_t bytes : {size_t{1}, size_t{300}, size_t{600}, size_t{5000}}) {
    const std::string name(bytes, 'n');
    CUmodule module;
    OK(cuModuleLoadData(&module, Text(name, 1).c_str()));
    CUfunction by_name = nullptr, listed = nullptr;
    OK(cuModuleEnumerateFunctions(&listed, 1, module));
    const char* text = nullptr;
    EXPECT_EQ(cuFuncGetName(&text, listed), CUDA_SUCCESS);
    EXPECT_EQ(std::string(text), name);
    OK(cuModuleGetFunction(&by_name, module, name.c_str()));
    EXPECT_EQ(by_name, listed);
    EXPECT_EQ(cuFuncGetName(&text, by_name), CUDA_SUCCESS);
    EXPECT_EQ(std::string(text), name);
    OK(cuModuleUnload(module));
  }
  const char* text = nullptr;
  EXPECT_EQ(cuFuncGetName(nullptr, Kernel("add")), CUDA_ERROR_INVALID_VALUE);
  Say("null function", cuFuncGetName(&text, nullptr));
}

TEST_F(FunctionTest, ParametersOfAnyNumber) {
  for (const int count : {0, 1, 1000}) {
    CUmodule module;
    OK(cuModuleLoadData(&module, Text("kernel", count).c_str()));
    CUfunction function;
    OK(cuModuleGetFunction(&function, module, "kernel"));
    size_t offset = 0, bytes = 0;
    for (int i = 0; i < count; ++i) {
      OK(cuFuncGetParamInfo(function, static_cast<size_t>(i), &offset, &bytes));
      EXPECT_EQ(offset, static_cast<size_t>(i));
      EXPECT_EQ(bytes, 1u);
    }
    EXPECT_EQ(cuFuncGetParamInfo(function, static_cast<size_t>(count), &offset, &bytes),
              CUDA_ERROR_INVALID_VALUE);
    std::vector<uint8_t> values(static_cast<size_t>(count) + 1);
    std::vector<void*> pointers;
    for (uint8_t& value : values) pointers.push_back(&value);
    EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, pointers.data(), nullptr), CUDA_SUCCESS);
    OK(cuModuleUnload(module));
  }
  size_t offset = 0, bytes = 0;
  EXPECT_EQ(cuFuncGetParamInfo(Kernel("add"), 0, &offset, nullptr), CUDA_SUCCESS);
  Say("no offset", cuFuncGetParamInfo(Kernel("add"), 0, nullptr, &bytes));
  Say("null function", cuFuncGetParamInfo(nullptr, 0, &offset, &bytes));
}

TEST_F(FunctionTest, ModuleOfAFunction) {
  const CUfunction add = Kernel("add");
  CUmodule module = nullptr;
  EXPECT_EQ(cuFuncGetModule(&module, add), CUDA_SUCCESS);
  EXPECT_EQ(module, module_);
  EXPECT_EQ(cuFuncGetModule(nullptr, add), CUDA_ERROR_INVALID_VALUE);
  Say("null function", cuFuncGetModule(&module, nullptr));
}

TEST_F(FunctionTest, Loading) {
  const CUfunction add = Kernel("add");
  CUfunctionLoadingState state{};
  EXPECT_EQ(cuFuncIsLoaded(&state, add), CUDA_SUCCESS);
  Say("before", static_cast<int>(state));
  EXPECT_EQ(cuFuncLoad(add), CUDA_SUCCESS);
  EXPECT_EQ(cuFuncIsLoaded(&state, add), CUDA_SUCCESS);
  EXPECT_EQ(state, CU_FUNCTION_LOADING_STATE_LOADED);
  EXPECT_EQ(cuFuncIsLoaded(nullptr, add), CUDA_ERROR_INVALID_VALUE);
  Say("null function loads", cuFuncLoad(nullptr));
}

TEST_F(FunctionTest, CacheAndSharedMemory) {
  const CUfunction add = Kernel("add");
  for (const CUfunc_cache cache : {CU_FUNC_CACHE_PREFER_NONE, CU_FUNC_CACHE_PREFER_SHARED,
                                   CU_FUNC_CACHE_PREFER_L1, CU_FUNC_CACHE_PREFER_EQUAL}) {
    EXPECT_EQ(cuFuncSetCacheConfig(add, cache), CUDA_SUCCESS);
  }
  EXPECT_EQ(cuFuncSetCacheConfig(add, static_cast<CUfunc_cache>(99)), CUDA_ERROR_INVALID_VALUE);
  Say("null function", cuFuncSetCacheConfig(nullptr, CU_FUNC_CACHE_PREFER_NONE));
  for (const CUsharedconfig config :
       {CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE, CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE,
        CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE}) {
    Say("bank size " + std::to_string(config), cuFuncSetSharedMemConfig(add, config));
  }
  Say("unknown bank size", cuFuncSetSharedMemConfig(add, static_cast<CUsharedconfig>(99)));
}

}  // namespace
}  // namespace causeway::driver_test
