// SPDX-License-Identifier: Apache-2.0
// Compiled code kept for NVRTC and nvJitLink: what is found again, what is taken for missing, what is
// evicted; and the table that they ask.
#include "guest_lib/runtime/compile_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace causeway::guest {
namespace {

namespace fs = std::filesystem;

ImageHash Key(uint8_t number) {
  ImageHash key{};
  key[0] = number;
  key[31] = 0xab;
  return key;
}

std::vector<std::byte> Bytes(size_t size, int value) {
  return std::vector<std::byte>(size, static_cast<std::byte>(value));
}

class CompileCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "compile_cache.XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    folder_ = root_ / "some" / "causeway";
  }
  void TearDown() override { fs::remove_all(root_); }

  // The size of what is found, or -1.
  static int64_t Find(const CompileCache& cache, uint8_t number, int value) {
    const auto code = cache.Find(Key(number));
    if (!code) return -1;
    const auto expected = Bytes(code->size, value);
    EXPECT_EQ(std::memcmp(code->bytes, expected.data(), code->size), 0);
    EXPECT_EQ(code->bytes[code->size], std::byte{0}) << "text ends";
    std::free(code->bytes);
    return code->size;
  }

  fs::path OnlyFile() const {
    const fs::path found = fs::directory_iterator(folder_)->path();
    EXPECT_EQ(found.filename().string(), "01" + std::string(60, '0') + "ab");
    return found;
  }

  fs::path root_, folder_;
};

TEST_F(CompileCacheTest, FindsWhatAnotherProcessKept) {
  CompileCache cache(folder_, 1 << 20);
  EXPECT_EQ(Find(cache, 1, 0), -1);
  EXPECT_FALSE(fs::exists(folder_)) << "looking makes no folder";
  EXPECT_TRUE(cache.Keep(Key(1), Bytes(1000, 7)));
  EXPECT_TRUE(cache.Keep(Key(2), {}));
  EXPECT_EQ(Find(CompileCache(folder_, 1 << 20), 1, 7), 1000);
  EXPECT_EQ(Find(cache, 2, 0), 0);
  EXPECT_EQ(Find(cache, 3, 0), -1);
  EXPECT_TRUE(cache.Keep(Key(1), Bytes(500, 8)));
  EXPECT_EQ(Find(cache, 1, 8), 500) << "the last one counts";
  EXPECT_EQ(fs::status(folder_).permissions(), fs::perms::owner_all);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2) << "nothing unfinished is left";
}

TEST_F(CompileCacheTest, DamagedFilesAreMissing) {
  CompileCache cache(folder_, 1 << 20);
  const auto damage = [&](const std::function<void(const fs::path&)>& change) {
    EXPECT_TRUE(cache.Keep(Key(1), Bytes(1000, 7)));
    EXPECT_EQ(Find(cache, 1, 7), 1000);
    change(OnlyFile());
    EXPECT_EQ(Find(cache, 1, 7), -1);
  };
  for (const int place : {0, 9, 20, 60, 1047}) {
    damage([&](const fs::path& path) {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(place);
      const int byte = file.get();
      file.seekp(place);
      file.put(static_cast<char>(byte ^ 1));
    });
  }
  for (const int size : {0, 47, 48, 1047, 1049, 5000})
    damage([&](const fs::path& path) { fs::resize_file(path, static_cast<uintmax_t>(size)); });
  damage([&](const fs::path& path) { fs::remove(path), mkfifo(path.c_str(), 0600); });
  damage([&](const fs::path& path) {
    fs::rename(path, root_ / "elsewhere");
    fs::create_symlink(root_ / "elsewhere", path);
  });
}

TEST_F(CompileCacheTest, WhatWasUsedLatelyStays) {
  CompileCache cache(folder_, 16 << 10);
  for (uint8_t number = 0; number < 10; ++number) {
    EXPECT_TRUE(cache.Keep(Key(number), Bytes(1500, number)));
    const timespec used[2] = {{1000 + number, 0}, {1000 + number, 0}};
    utimensat(
        AT_FDCWD,
        (folder_ / (std::string{'0', static_cast<char>('0' + number)} + std::string(60, '0') + "ab")).c_str(),
        used, 0);
  }
  EXPECT_EQ(Find(cache, 0, 0), 1500);
  EXPECT_TRUE(cache.Keep(Key(99), Bytes(1500, 99)));
  EXPECT_EQ(Find(cache, 0, 0), 1500) << "it was found a moment ago";
  for (const uint8_t number : {1, 2, 3, 4}) EXPECT_EQ(Find(cache, number, number), -1) << +number;
  for (const uint8_t number : {5, 9, 99}) EXPECT_EQ(Find(cache, number, number), 1500) << +number;
  EXPECT_FALSE(cache.Keep(Key(5), Bytes((16 << 10) + 1, 1))) << "more than the limit";
  EXPECT_EQ(Find(cache, 5, 5), 1500);
}

TEST_F(CompileCacheTest, AbandonedFilesGo) {
  fs::create_directories(folder_);
  for (const char* name : {".new-aaaaaa", ".new-bbbbbb", "of another"}) std::ofstream(folder_ / name) << "x";
  const timespec old[2] = {{1000, 0}, {1000, 0}};
  utimensat(AT_FDCWD, (folder_ / ".new-aaaaaa").c_str(), old, 0);
  EXPECT_TRUE(CompileCache(folder_, 1 << 20).Keep(Key(1), Bytes(10, 1)));
  EXPECT_FALSE(fs::exists(folder_ / ".new-aaaaaa"));
  EXPECT_TRUE(fs::exists(folder_ / ".new-bbbbbb")) << "somebody may be writing it";
  EXPECT_TRUE(fs::exists(folder_ / "of another"));
}

TEST_F(CompileCacheTest, NoPlace) {
  CompileCache none("", 1 << 20);
  EXPECT_FALSE(none.enabled());
  EXPECT_FALSE(none.Keep(Key(1), Bytes(10, 1)));
  EXPECT_EQ(Find(none, 1, 1), -1);
  std::ofstream(root_ / "file") << "x";
  CompileCache impossible(root_ / "file" / "causeway", 1 << 20);
  EXPECT_FALSE(impossible.Keep(Key(1), Bytes(10, 1)));
  EXPECT_EQ(Find(impossible, 1, 1), -1);
}

TEST_F(CompileCacheTest, ManyWriters) {
  CompileCache cache(folder_, 64 << 10);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        const auto number = static_cast<uint8_t>(round % 8);
        EXPECT_TRUE(cache.Keep(Key(number), Bytes(4000, number)));
        const int64_t found = Find(cache, number, number);
        EXPECT_TRUE(found == 4000 || found == -1) << found;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CompileCacheTest, EnvironmentOfTheProgram) {
  const auto with = [](const std::vector<std::pair<const char*, const char*>>& variables) {
    for (const char* name : {"CUDA_CACHE_PATH", "CUDA_CACHE_MAXSIZE", "CUDA_CACHE_DISABLE"}) unsetenv(name);
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    return CompileCache::FromEnvironment().enabled();
  };
  const char* const home = getenv("HOME");
  const std::string home_before = home == nullptr ? "" : home;
  setenv("HOME", "", 1);
  EXPECT_FALSE(with({}));
  EXPECT_TRUE(with({{"CUDA_CACHE_PATH", "/x"}}));
  setenv("HOME", root_.c_str(), 1);
  EXPECT_TRUE(with({}));
  EXPECT_FALSE(with({{"CUDA_CACHE_DISABLE", "1"}}));
  EXPECT_TRUE(with({{"CUDA_CACHE_DISABLE", "0"}}));
  EXPECT_TRUE(CompileCache::FromEnvironment().Keep(Key(1), Bytes(10, 1)));
  EXPECT_TRUE(fs::exists(root_ / ".nv/ComputeCache/causeway"));
  EXPECT_TRUE(with({{"CUDA_CACHE_MAXSIZE", "9"}}));
  EXPECT_FALSE(CompileCache::FromEnvironment().Keep(Key(1), Bytes(10, 1)));
  with({});
  setenv("HOME", home_before.c_str(), 1);
}

// The table as NVRTC uses it.
TEST_F(CompileCacheTest, Table) {
  setenv("CUDA_CACHE_PATH", root_.c_str(), 1);
  CUuuid uuid{};
  std::memcpy(uuid.bytes, "\xda\x91\x51\xd3\x3a\xe6\xcc\x41\xa5\xc0\x4f\x26\xd5\x33\xe3\x28", 16);
  const void* address = nullptr;
  ASSERT_EQ(cuGetExportTable(&address, &uuid), CUDA_SUCCESS);
  void* const* const table = static_cast<void* const*>(address);
  EXPECT_EQ(reinterpret_cast<size_t>(table[0]), 7u * 8);
  const auto make = reinterpret_cast<CUresult (*)(void**, int, const char*, uint32_t, const char*,
                                                  const char*, const char*, uint32_t, uint32_t)>(table[1]);
  const auto destroy = reinterpret_cast<CUresult (*)(void*)>(table[2]);
  const auto find = reinterpret_cast<CUresult (*)(void*, void*, void**, uint32_t*)>(table[3]);
  const auto keep = reinterpret_cast<CUresult (*)(void*, void*, const void*, uint32_t)>(table[4]);
  const auto free_code = reinterpret_cast<CUresult (*)(void*)>(table[6]);

  void* key = nullptr;
  void* code = &key;
  uint32_t bytes = 9;
  ASSERT_EQ(make(&key, 1, "source", 6, "-O3", "HOST64", "build", 90, 0), CUDA_SUCCESS);
  EXPECT_NE(find(key, nullptr, &code, &bytes), CUDA_SUCCESS);
  EXPECT_EQ(code, nullptr) << "nvJitLink takes any other address for the code";
  EXPECT_EQ(bytes, 0u);
  EXPECT_EQ(keep(key, nullptr, "compiled", 8), CUDA_SUCCESS);
  EXPECT_EQ(destroy(key), CUDA_SUCCESS);

  ASSERT_EQ(make(&key, 1, "source", 6, "-O3", "HOST64", "build", 90, 0), CUDA_SUCCESS);
  ASSERT_EQ(find(key, nullptr, &code, &bytes), CUDA_SUCCESS);
  EXPECT_EQ(std::string(static_cast<char*>(code), bytes), "compiled");
  EXPECT_EQ(free_code(code), CUDA_SUCCESS);
  EXPECT_NE(free_code(code), CUDA_SUCCESS) << "it is not freed twice";
  EXPECT_EQ(destroy(key), CUDA_SUCCESS);

  // Each argument matters, and none flows into its neighbour.
  const auto differs = [&](auto... arguments) {
    ASSERT_EQ(make(&key, arguments...), CUDA_SUCCESS);
    EXPECT_NE(find(key, nullptr, &code, &bytes), CUDA_SUCCESS);
    EXPECT_EQ(destroy(key), CUDA_SUCCESS);
  };
  differs(2, "source", 6, "-O3", "HOST64", "build", 90, 0);
  differs(1, "Source", 6, "-O3", "HOST64", "build", 90, 0);
  differs(1, "source", 5, "-O3", "HOST64", "build", 90, 0);
  differs(1, "source", 6, "-O2", "HOST64", "build", 90, 0);
  differs(1, "source", 6, nullptr, "HOST64", "build", 90, 0);
  differs(1, "source", 6, "-O3", "HOST32", "build", 90, 0);
  differs(1, "source", 6, "-O3H", "OST64", "build", 90, 0);
  differs(1, "source", 6, "-O3", "HOST64", "Build", 90, 0);
  differs(1, "source", 6, "-O3", "HOST64", "build", 80, 0);
  differs(1, "source", 6, "-O3", "HOST64", "build", 90, 1);
  EXPECT_EQ(make(&key, 1, nullptr, 0, "", "", "", 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(find(nullptr, nullptr, &code, &bytes), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(keep(nullptr, nullptr, "x", 1), CUDA_ERROR_INVALID_VALUE);
  unsetenv("CUDA_CACHE_PATH");
}

}  // namespace
}  // namespace causeway::guest
