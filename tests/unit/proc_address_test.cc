// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress: the rows against the toolkit's own typedefs, and every row's answers for the versions and
// flags around it.
#define __CUDA_API_VERSION_INTERNAL  // declares every ABI of every function, without renaming any

#include "guest_lib/api/proc_address.h"

#include <cudaProfilerTypedefs.h>
#include <cudaTypedefs.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <type_traits>
#include <vector>

namespace causeway::guest {
namespace {

// cudaTypedefs.h names a type for each function and version, PFN_cuMemAlloc_v3020, and only for those at
// which the function changed. A row with a wrong version does not compile; one with the wrong symbol has
// another signature.
#define ENTRY(name, version, symbol) \
  static_assert(std::is_same_v<PFN_##name##_v##version, decltype(&symbol)>, #symbol);
#define PER_THREAD(name, version, symbol, per_thread_version, suffix)                                  \
  ENTRY(name, version, symbol)                                                                         \
  static_assert(std::is_same_v<PFN_##name##_v##per_thread_version##suffix, decltype(&symbol##suffix)>, \
                #symbol);
#include "guest_lib/api/proc_versions.def"
#undef ENTRY
#undef PER_THREAD

struct Symbol {
  std::string name;
  int version;
  void* address;
  bool per_thread;
};

const std::vector<Symbol>& Symbols() {
  static const std::vector<Symbol> symbols = {
#define ENTRY(name, version, symbol) {#name, version, reinterpret_cast<void*>(&symbol), false},
#define PER_THREAD(name, version, symbol, per_thread_version, suffix) \
  ENTRY(name, version, symbol){#name, per_thread_version, reinterpret_cast<void*>(&symbol##suffix), true},
#include "guest_lib/api/proc_versions.def"
#undef ENTRY
#undef PER_THREAD
  };
  return symbols;
}

// What the rows say, the slow way: the newest symbol of the name and kind that the version reaches.
void* Expected(const Symbol& asked, int version, bool per_thread) {
  bool has_per_thread = false;
  for (const Symbol& symbol : Symbols()) has_per_thread |= symbol.name == asked.name && symbol.per_thread;
  const Symbol* newest = nullptr;
  for (const Symbol& symbol : Symbols()) {
    if (symbol.name != asked.name || symbol.per_thread != (per_thread && has_per_thread)) continue;
    if (symbol.version <= version && (newest == nullptr || newest->version < symbol.version))
      newest = &symbol;
  }
  return newest == nullptr ? nullptr : newest->address;
}

constexpr auto kUntouched = static_cast<CUdriverProcAddressQueryResult>(77);

TEST(ProcAddress, EverySymbolIsThereOnce) {
  std::set<void*> addresses;
  for (const Symbol& symbol : Symbols()) addresses.insert(symbol.address);
  EXPECT_EQ(Symbols().size(), 637u);
  EXPECT_EQ(addresses.size(), 637u);
}

TEST(ProcAddress, EveryRowAroundItsVersion) {
  for (const Symbol& symbol : Symbols()) {
    for (const int version : {symbol.version - 1, symbol.version, 13000}) {
      for (const cuuint64_t flags : {0, 1, 2, 3}) {
        SCOPED_TRACE(symbol.name + " version " + std::to_string(version) + " flags " + std::to_string(flags));
        void* const expected = Expected(symbol, version, flags >= 2);
        void* address = &address;
        CUdriverProcAddressQueryResult status = kUntouched;
        ASSERT_EQ(cuGetProcAddress_v2(symbol.name.c_str(), &address, version, flags, &status), CUDA_SUCCESS);
        ASSERT_EQ(address, expected);
        ASSERT_EQ(status, expected == nullptr ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                              : CU_GET_PROC_ADDRESS_SUCCESS);

        void* old_address = &address;
        ASSERT_EQ(cuGetProcAddress(symbol.name.c_str(), &old_address, version, flags),
                  expected == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS);
        ASSERT_EQ(old_address, expected == nullptr ? static_cast<void*>(&address) : expected);
      }
    }
  }
}

TEST(ProcAddress, RefusedQueriesTouchNothing) {
  for (const Symbol& symbol : Symbols()) {
    for (const auto& [version, flags] : {std::pair{13000, 4}, {13000, 5}, {13001, 0}, {99000, 0}}) {
      void* address = &address;
      CUdriverProcAddressQueryResult status = kUntouched;
      EXPECT_EQ(cuGetProcAddress_v2(symbol.name.c_str(), &address, version, static_cast<cuuint64_t>(flags),
                                    &status),
                CUDA_ERROR_INVALID_VALUE);
      EXPECT_EQ(cuGetProcAddress(symbol.name.c_str(), &address, version, static_cast<cuuint64_t>(flags)),
                CUDA_ERROR_INVALID_VALUE);
      EXPECT_EQ(address, &address);
      EXPECT_EQ(status, kUntouched);
    }
  }
}

TEST(ProcAddress, UnknownNames) {
  for (const char* name : {"", "cu", "cuMemAlloc_v2", "cuMemcpy_ptds", "cuStreamQuery_ptsz",
                           "cuGetProcAddress_v2", "cuMemAlloc ", "cumemalloc", "cudaMalloc"}) {
    void* address = &address;
    CUdriverProcAddressQueryResult status = kUntouched;
    EXPECT_EQ(cuGetProcAddress_v2(name, &address, 12000, 0, &status), CUDA_SUCCESS) << name;
    EXPECT_EQ(address, nullptr) << name;
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND) << name;
    address = &address;
    EXPECT_EQ(cuGetProcAddress(name, &address, 12000, 0), CUDA_ERROR_NOT_FOUND) << name;
    EXPECT_EQ(address, &address) << name;
  }
}

TEST(ProcAddress, ItselfByVersion) {
  void* address = nullptr;
  ASSERT_EQ(cuGetProcAddress("cuGetProcAddress", &address, 11030, 0), CUDA_SUCCESS);
  EXPECT_EQ(address, reinterpret_cast<void*>(&cuGetProcAddress));
  ASSERT_EQ(cuGetProcAddress("cuGetProcAddress", &address, 12000, 0), CUDA_SUCCESS);
  EXPECT_EQ(address, reinterpret_cast<void*>(&cuGetProcAddress_v2));
}

TEST(ProcAddress, OddArguments) {
  void* address = nullptr;
  EXPECT_EQ(cuGetProcAddress_v2("cuInit", &address, 12000, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(address, reinterpret_cast<void*>(&cuInit));
  EXPECT_EQ(cuGetProcAddress_v2("cuMemAlloc", &address, -1, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(address, reinterpret_cast<void*>(&cuMemAlloc_v2));
  EXPECT_EQ(cuGetProcAddress_v2("", &address, 0, 0, nullptr), CUDA_SUCCESS);  // the runtime's first question
  EXPECT_EQ(cuGetProcAddress_v2(nullptr, &address, 12000, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGetProcAddress_v2("cuInit", nullptr, 12000, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGetProcAddress(nullptr, &address, 12000, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGetProcAddress("cuInit", nullptr, 12000, 0), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace causeway::guest
