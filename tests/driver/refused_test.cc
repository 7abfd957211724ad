// SPDX-License-Identifier: Apache-2.0
// Every name that Causeway refuses, called by its exact name: it answers CUDA_ERROR_NOT_SUPPORTED and touches
// nothing. The list is that of the rows.
#include "tests/driver/array_helpers.h"

namespace causeway::driver_test {
namespace {

struct Refusal {
  const char* name;
  const char* reason;
};
constexpr Refusal kRefusals[] = {
#define REFUSE(fn, why) {#fn, why},
#include "ivshmem_ring/calls.def"
    {nullptr, nullptr}};

// Causeway exports every name; the software GPU lacks those that need a display.
bool OnCauseway() {
  return !OnNvidiaLibrary() && Symbol("cuGraphicsMapResources") != nullptr;
}

TEST(RefusedTest, EveryRefusedNameSaysSo) {
  if (!OnCauseway()) GTEST_SKIP() << "this library is not Causeway's";
  EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
  for (const Refusal* refusal = kRefusals; refusal->name != nullptr; ++refusal) {
    // Enough zeros for the longest parameter list.
    using Function =
        CUresult(void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*, void*);
    auto* function = SymbolAs<Function>(refusal->name);
    ASSERT_NE(function, nullptr) << refusal->name;
    void* const no = nullptr;
    EXPECT_EQ(function(no, no, no, no, no, no, no, no, no, no, no, no), CUDA_ERROR_NOT_SUPPORTED)
        << refusal->name;
    EXPECT_GE(std::strlen(refusal->reason), 10u) << refusal->name;
  }
}

TEST(RefusedTest, AlsoBeforeTheStart) {
  if (!OnCauseway()) GTEST_SKIP() << "this library is not Causeway's";
  auto* function = SymbolAs<CUresult(unsigned, CUgraphicsResource*, CUstream)>("cuGraphicsMapResources");
  EXPECT_EQ(function(0, nullptr, nullptr), CUDA_ERROR_NOT_SUPPORTED);
}

}  // namespace
}  // namespace causeway::driver_test
