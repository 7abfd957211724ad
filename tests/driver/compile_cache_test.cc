// SPDX-License-Identifier: Apache-2.0
// The driver's memory of compiled code, by its private table, as NVRTC and nvJitLink use it.
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

struct Table {
  size_t bytes;
  CUresult (*make)(void** key, int kind, const void* source, uint32_t source_bytes, const char* options,
                   const char* host, const char* compiler, uint32_t architecture, uint32_t flag);
  CUresult (*destroy)(void* key);
  CUresult (*find)(void* key, void* unused, void** code, uint32_t* bytes);
  CUresult (*keep)(void* key, void* unused, const void* code, uint32_t bytes);
  void* other;
  CUresult (*free)(void* code);
};

class CompileCacheTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    const char* const disabled = std::getenv("CUDA_CACHE_DISABLE");
    if (disabled != nullptr && *disabled == '1') GTEST_SKIP() << "CUDA_CACHE_DISABLE is set";
    CUuuid id{};
    std::memcpy(id.bytes, "\xda\x91\x51\xd3\x3a\xe6\xcc\x41\xa5\xc0\x4f\x26\xd5\x33\xe3\x28",
                sizeof id.bytes);
    const void* table = nullptr;
    OK(cuGetExportTable(&table, &id));
    table_ = static_cast<const Table*>(table);
    if (table_->bytes < sizeof(Table)) GTEST_SKIP() << "an older driver, whose table frees nothing";
  }

  void* Key(int kind, const std::string& source, const char* options = "-arch=sm_90") {
    void* key = nullptr;
    EXPECT_EQ(table_->make(&key, kind, source.data(), static_cast<uint32_t>(source.size()), options, "HOST64",
                           "Aug 20 202514:13:52", 90, 0),
              CUDA_SUCCESS);
    EXPECT_NE(key, nullptr);
    return key;
  }

  // What is kept, or "missing".
  std::string Find(int kind, const std::string& source, const char* options = "-arch=sm_90") {
    void* const key = Key(kind, source, options);
    void* code = nullptr;
    uint32_t bytes = 0;
    std::string found = "missing";
    if (table_->find(key, nullptr, &code, &bytes) == CUDA_SUCCESS) {
      found.assign(static_cast<char*>(code), bytes);
      table_->free(code);
    }
    EXPECT_EQ(table_->destroy(key), CUDA_SUCCESS);
    return found;
  }

  // As compilers do: what is missing is compiled and handed over.
  void Keep(int kind, const std::string& source, const std::string& code) {
    if (Find(kind, source) != "missing") return;
    void* const key = Key(kind, source);
    EXPECT_EQ(table_->keep(key, nullptr, code.data(), static_cast<uint32_t>(code.size())), CUDA_SUCCESS);
    EXPECT_EQ(table_->destroy(key), CUDA_SUCCESS);
  }

  // The same in each run: whoever keeps it in files is not to have one more each time.
  const std::string source_ = "extern \"C\" __global__ void of_causeways_compile_cache_test() {}";
  const std::string code_ = std::string("\x7f") + "ELF, as it were" + std::string(5000, '\0') + "end";
  const Table* table_ = nullptr;
};

TEST_F(CompileCacheTest, WhatWasKeptIsFound) {
  Keep(1, source_, code_);
  EXPECT_EQ(Find(1, source_), code_);
  EXPECT_EQ(Find(1, source_), code_) << "more than once";
}

TEST_F(CompileCacheTest, WhatDiffersIsMissing) {
  Keep(1, source_, code_);
  EXPECT_EQ(Find(1, source_ + "\n"), "missing");
  EXPECT_EQ(Find(1, source_, "-arch=sm_90 -O0"), "missing");
}

TEST_F(CompileCacheTest, Threads) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([this, thread] {
      for (int round = 0; round < 10; ++round) {
        const std::string source = source_ + std::to_string((thread + round) % 4);
        Keep(1, source, code_ + source);
        EXPECT_EQ(Find(1, source), code_ + source);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace causeway::driver_test
