// SPDX-License-Identifier: Apache-2.0
// Census category linker: two texts that need each other become one image; logs, options, files.
#include <unistd.h>

#include <cstring>
#include <vector>

#include "tests/driver/driver_test.h"
#include "tests/driver/images.h"

namespace causeway::driver_test {
namespace {

using LinkerTest = DriverTest;

// p[i] = scale(p[i]) + total
constexpr char kUser[] = R"(
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 result) scale(.param .b32 value);
.extern .global .align 4 .u32 total;
.visible .entry use(.param .u64 data)
{
  .reg .b32 %r<6>; .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [data];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd4, %rd1, %rd3;
  ld.global.u32 %r2, [%rd4];
  {
  .param .b32 given;
  .param .b32 taken;
  st.param.b32 [given+0], %r2;
  call.uni (taken), scale, (given);
  ld.param.b32 %r3, [taken+0];
  }
  ld.global.u32 %r4, [total];
  add.s32 %r5, %r4, %r3;
  st.global.u32 [%rd4], %r5;
  ret;
}
)";
constexpr char kProvider[] = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .global .align 4 .u32 total = 7;
.visible .func (.param .b32 result) scale(.param .b32 value)
{
  .reg .b32 %r<3>;
  ld.param.u32 %r1, [value];
  mul.lo.s32 %r2, %r1, 3;
  st.param.b32 [result+0], %r2;
  ret;
}
)";
constexpr char kBadPtx[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry broken()\n{\n  fly.u32 %r1;\n}\n";

CUresult AddText(CUlinkState link, const char* text, size_t bytes, const char* name = nullptr) {
  return cuLinkAddData(link, CU_JIT_INPUT_PTX, const_cast<char*>(text), bytes, name, 0, nullptr, nullptr);
}

void ExpectUses(const void* image) {
  CUmodule module;
  OK(cuModuleLoadData(&module, image));
  CUfunction use;
  OK(cuModuleGetFunction(&use, module, "use"));
  CUdeviceptr data;
  OK(cuMemAlloc(&data, 8));
  const uint32_t before[2] = {5, 100};
  uint32_t after[2] = {};
  OK(cuMemcpyHtoD(data, before, 8));
  void* parameters[] = {&data};
  OK(cuLaunchKernel(use, 1, 1, 1, 2, 1, 1, 0, nullptr, parameters, nullptr));
  OK(cuMemcpyDtoH(after, data, 8));
  EXPECT_EQ(after[0], 22u);
  EXPECT_EQ(after[1], 307u);
  OK(cuMemFree(data));
  OK(cuModuleUnload(module));
}

TEST_F(LinkerTest, LinksTwoTexts) {
  CUlinkState link = nullptr;
  OK(cuLinkCreate(0, nullptr, nullptr, &link));
  EXPECT_EQ(AddText(link, kUser, sizeof kUser, "user.ptx"), CUDA_SUCCESS);
  EXPECT_EQ(AddText(link, kProvider, sizeof kProvider), CUDA_SUCCESS);
  void* cubin = nullptr;
  size_t bytes = 0;
  OK(cuLinkComplete(link, &cubin, &bytes));
  EXPECT_GT(bytes, 0u);
  ASSERT_NE(cubin, nullptr);
  std::vector<char> kept(static_cast<char*>(cubin), static_cast<char*>(cubin) + bytes);
  kept.resize(bytes + 8);
  ExpectUses(cubin);
  ExpectUses(cubin);  // it stays until the link ends
  EXPECT_EQ(cuLinkDestroy(link), CUDA_SUCCESS);
  ExpectUses(kept.data());
}

TEST_F(LinkerTest, LinksFilesAndFatbins) {
  std::string path = ::testing::TempDir() + "causeway_linker_XXXXXX";
  const int file = mkstemp(path.data());
  ASSERT_GE(file, 0);
  ASSERT_EQ(write(file, kProvider, sizeof kProvider - 1), static_cast<ssize_t>(sizeof kProvider - 1));
  close(file);
  CUlinkState link = nullptr;
  OK(cuLinkCreate(0, nullptr, nullptr, &link));
  OK(AddText(link, kUser, sizeof kUser));
  EXPECT_EQ(cuLinkAddFile(link, CU_JIT_INPUT_PTX, path.c_str(), 0, nullptr, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuLinkAddFile(link, CU_JIT_INPUT_PTX, "/nowhere/at/all.ptx", 0, nullptr, nullptr),
            CUDA_ERROR_FILE_NOT_FOUND);
  EXPECT_EQ(cuLinkAddFile(link, CU_JIT_INPUT_PTX, nullptr, 0, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  void* cubin = nullptr;
  OK(cuLinkComplete(link, &cubin, nullptr));
  ExpectUses(cubin);
  OK(cuLinkDestroy(link));
  OK(cuLinkCreate(0, nullptr, nullptr, &link));
  Say("a fatbin", cuLinkAddData(link, CU_JIT_INPUT_FATBINARY, const_cast<unsigned char*>(image_zstd),
                                sizeof image_zstd, "fatbin", 0, nullptr, nullptr));
  OK(cuLinkDestroy(link));
  unlink(path.c_str());
}

TEST_F(LinkerTest, LinksRelocatableObjects) {
  NEEDS_HARDWARE("SASS");
  CUlinkState link = nullptr;
  OK(cuLinkCreate(0, nullptr, nullptr, &link));
  OK(cuLinkAddData(link, CU_JIT_INPUT_CUBIN, const_cast<unsigned char*>(image_relocatable_90),
                   sizeof image_relocatable_90, "cubin", 0, nullptr, nullptr));
  OK(AddText(link, kUser, sizeof kUser));
  OK(AddText(link, kProvider, sizeof kProvider));
  void* cubin = nullptr;
  size_t bytes = 0;
  OK(cuLinkComplete(link, &cubin, &bytes));
  ExpectUses(cubin);
  CUmodule module;
  OK(cuModuleLoadData(&module, cubin));
  CUfunction add;
  EXPECT_EQ(cuModuleGetFunction(&add, module, "add"), CUDA_SUCCESS);
  OK(cuLinkDestroy(link));
}

struct Logs {
  char info[4096], error[4096];
  CUjit_option options[6] = {CU_JIT_WALL_TIME,
                             CU_JIT_INFO_LOG_BUFFER,
                             CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                             CU_JIT_ERROR_LOG_BUFFER,
                             CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                             CU_JIT_LOG_VERBOSE};
  void* values[6] = {nullptr,
                     info,
                     reinterpret_cast<void*>(sizeof info),
                     error,
                     reinterpret_cast<void*>(sizeof error),
                     reinterpret_cast<void*>(uintptr_t{1})};
  Logs() {
    std::memset(info, 0, sizeof info);
    std::memset(error, 0, sizeof error);
  }
  void SayAll(const std::string& when) const {
    Say(when + " info", std::string(info, strnlen(info, sizeof info)));
    Say(when + " error", std::string(error, strnlen(error, sizeof error)));
    Say(when + " info size", reinterpret_cast<uintptr_t>(values[2]));
    Say(when + " error size", reinterpret_cast<uintptr_t>(values[4]));
  }
};

TEST_F(LinkerTest, LogsGrowUntilTheEnd) {
  Logs logs;
  CUlinkState link = nullptr;
  OK(cuLinkCreate(6, logs.options, logs.values, &link));
  logs.SayAll("created");
  OK(AddText(link, kUser, sizeof kUser, "user.ptx"));
  OK(AddText(link, kProvider, sizeof kProvider, "provider.ptx"));
  logs.SayAll("added");
  void* cubin = nullptr;
  size_t bytes = 0;
  OK(cuLinkComplete(link, &cubin, &bytes));
  logs.SayAll("completed");
  OK(cuLinkDestroy(link));
  logs.SayAll("destroyed");
  float milliseconds;
  std::memcpy(&milliseconds, &logs.values[0], sizeof milliseconds);
  EXPECT_GE(milliseconds, 0.0f);
  EXPECT_LT(milliseconds, 60'000.0f);
}

TEST_F(LinkerTest, BadInputIsExplained) {
  Logs logs;
  CUlinkState link = nullptr;
  OK(cuLinkCreate(6, logs.options, logs.values, &link));
  EXPECT_EQ(AddText(link, kBadPtx, sizeof kBadPtx, "bad.ptx"), CUDA_ERROR_INVALID_PTX);
  EXPECT_NE(logs.error[0], '\0');
  logs.SayAll("bad text");
  OK(cuLinkDestroy(link));
}

TEST_F(LinkerTest, WhatIsMissingIsExplained) {
  Logs logs;
  CUlinkState link = nullptr;
  OK(cuLinkCreate(6, logs.options, logs.values, &link));
  const CUresult added = AddText(link, kUser, sizeof kUser, "user.ptx");
  Say("added", added);
  void* cubin = nullptr;
  size_t bytes = 0;
  const CUresult completed = cuLinkComplete(link, &cubin, &bytes);
  EXPECT_NE(completed, CUDA_SUCCESS);
  Say("completed", completed);
  EXPECT_NE(logs.error[0], '\0');
  logs.SayAll("missing");
  OK(cuLinkDestroy(link));
}

TEST_F(LinkerTest, OptionsOfOneInput) {
  CUlinkState link = nullptr;
  OK(cuLinkCreate(0, nullptr, nullptr, &link));
  CUjit_option options[] = {CU_JIT_MAX_REGISTERS, CU_JIT_OPTIMIZATION_LEVEL};
  void* values[] = {reinterpret_cast<void*>(uintptr_t{32}), reinterpret_cast<void*>(uintptr_t{2})};
  EXPECT_EQ(cuLinkAddData(link, CU_JIT_INPUT_PTX, const_cast<char*>(kUser), sizeof kUser, "user", 2, options,
                          values),
            CUDA_SUCCESS);
  EXPECT_EQ(AddText(link, kProvider, sizeof kProvider), CUDA_SUCCESS);
  void* cubin = nullptr;
  size_t bytes = 0;
  OK(cuLinkComplete(link, &cubin, &bytes));
  ExpectUses(cubin);
  OK(cuLinkDestroy(link));
}

TEST_F(LinkerTest, RefusedArguments) {
  EXPECT_EQ(cuLinkCreate(0, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  CUlinkState link = nullptr;
  EXPECT_EQ(cuLinkCreate(1, nullptr, nullptr, &link), CUDA_ERROR_INVALID_VALUE);
  OK(cuLinkCreate(0, nullptr, nullptr, &link));
  Say("no data", cuLinkAddData(link, CU_JIT_INPUT_PTX, nullptr, 10, nullptr, 0, nullptr, nullptr));
  const unsigned char garbage[64] = {1, 2, 3, 4};
  Say("garbage", cuLinkAddData(link, CU_JIT_INPUT_CUBIN, const_cast<unsigned char*>(garbage), sizeof garbage,
                               nullptr, 0, nullptr, nullptr));
  size_t bytes = 0;
  OK(cuLinkDestroy(link));
  void* cubin = nullptr;
  EXPECT_EQ(cuLinkDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuLinkComplete(nullptr, &cubin, &bytes), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(AddText(nullptr, kUser, sizeof kUser), CUDA_ERROR_INVALID_HANDLE);
  if (!OnSoftwareGpu()) return;  // NVIDIA's driver follows a dead link's pointer
  EXPECT_EQ(cuLinkDestroy(link), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuLinkComplete(link, &cubin, &bytes), CUDA_ERROR_INVALID_HANDLE);
}

// The driver takes an option as often as it is given.
TEST_F(LinkerTest, AnOptionTwice) {
  for (const CUjit_option option : {CU_JIT_THREADS_PER_BLOCK, CU_JIT_MAX_REGISTERS}) {
    CUjit_option options[] = {option, option};
    void* values[] = {reinterpret_cast<void*>(uintptr_t{32}), reinterpret_cast<void*>(uintptr_t{32})};
    CUlinkState link = nullptr;
    OK(cuLinkCreate(2, options, values, &link));
    OK(cuLinkDestroy(link));
  }
}

TEST_F(LinkerTest, TextAsAnObject) {
  CUlinkState link = nullptr;
  OK(cuLinkCreate(0, nullptr, nullptr, &link));
  char text[8192] = "no image, and no PTX either";
  for (const CUjitInputType type : {CU_JIT_INPUT_OBJECT, CU_JIT_INPUT_LIBRARY})
    EXPECT_EQ(cuLinkAddData(link, type, text, sizeof text, "text", 0, nullptr, nullptr), CUDA_ERROR_UNKNOWN);
  OK(cuLinkDestroy(link));
}

TEST_F(LinkerTest, OlderNames) {
  NEEDS_HARDWARE("the names of CUDA 5.5");
  const auto create = SymbolAs<decltype(cuLinkCreate_v2)>("cuLinkCreate");
  const auto add = SymbolAs<decltype(cuLinkAddData_v2)>("cuLinkAddData");
  const auto add_file = SymbolAs<decltype(cuLinkAddFile_v2)>("cuLinkAddFile");
  ASSERT_NE(create, nullptr);
  ASSERT_NE(add, nullptr);
  ASSERT_NE(add_file, nullptr);
  CUlinkState link = nullptr;
  OK(create(0, nullptr, nullptr, &link));
  OK(add(link, CU_JIT_INPUT_PTX, const_cast<char*>(kUser), sizeof kUser, "user", 0, nullptr, nullptr));
  EXPECT_EQ(add_file(link, CU_JIT_INPUT_PTX, "/nowhere/at/all.ptx", 0, nullptr, nullptr),
            CUDA_ERROR_FILE_NOT_FOUND);
  OK(add(link, CU_JIT_INPUT_PTX, const_cast<char*>(kProvider), sizeof kProvider, nullptr, 0, nullptr,
         nullptr));
  void* cubin = nullptr;
  OK(cuLinkComplete(link, &cubin, nullptr));
  ExpectUses(cubin);
  OK(cuLinkDestroy(link));
}

}  // namespace
}  // namespace causeway::driver_test
