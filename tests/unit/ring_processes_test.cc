// SPDX-License-Identifier: Apache-2.0
// The ring between two processes that map one memfd, as guest and host do.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <new>

#include "tests/unit/ring_stream.h"

namespace causeway {
namespace {

class RingProcesses : public ::testing::TestWithParam<bool> {};

TEST_P(RingProcesses, MillionsOfRecordsArriveExactly) {
  const bool futex = GetParam();
  const uint64_t records = 2'000'000 / test::kLongRunDivisor;
  test::SharedMemory memory(sizeof(test::StreamRing));
  auto* ring = new (memory.data()) test::StreamRing{};
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // Another address for the same memory: nothing in it may depend on where it is mapped.
    auto* theirs = reinterpret_cast<test::StreamRing*>(memory.Map());
    test::ProduceStream(*theirs, records, 12, futex);
    _exit(0);
  }
  EXPECT_EQ(test::ConsumeStream(*ring, records, 12, futex), "");
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

INSTANTIATE_TEST_SUITE_P(Waking, RingProcesses, ::testing::Bool(),
                         [](const auto& tested) { return tested.param ? "Futex" : "Polling"; });

}  // namespace
}  // namespace causeway
