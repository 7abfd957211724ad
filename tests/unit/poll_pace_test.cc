// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/session/poll_pace.h"

#include <gtest/gtest.h>

#include <vector>

namespace causeway::host {
namespace {

using End = PollPace::End;

TEST(PollPace, WhatIsDoneIsPolledEachTime) {
  PollPace pace;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(pace.Begin());
    pace.Note(End::kDone);
  }
}

TEST(PollPace, InVainLessAndLessOften) {
  PollPace pace;
  std::vector<int> polled;
  for (int i = 0; i < 200; ++i) {
    if (!pace.Begin()) continue;
    polled.push_back(i);
    pace.Note(End::kVain);
  }
  EXPECT_EQ(polled, (std::vector<int>{0, 3, 8, 17, 34, 67, 100, 133, 166, 199}));
}

TEST(PollPace, AfterOneThatWasNotInVainAsBefore) {
  PollPace pace;
  for (int i = 0; i < 100; ++i) {
    if (pace.Begin()) pace.Note(End::kVain);
  }
  while (!pace.Begin()) {
  }
  pace.Note(End::kDone);
  EXPECT_TRUE(pace.Begin());
}

TEST(PollPace, WhatWasCutShortSaysNothing) {
  PollPace pace;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(pace.Begin());
    pace.Note(End::kCutShort);
  }
  pace.Note(End::kVain);
  EXPECT_FALSE(pace.Begin());
  EXPECT_FALSE(pace.Begin());
  ASSERT_TRUE(pace.Begin());
  pace.Note(End::kCutShort);
  EXPECT_TRUE(pace.Begin());
}

// A program copies much and little in turns: the little that is done soon is polled, too.
TEST(PollPace, OfTwoThingsInTurnsBothArePolled) {
  PollPace pace;
  int small = 0;
  for (int i = 0; i < 1000; ++i) {
    if (!pace.Begin()) continue;
    const bool is_small = i % 2 == 1;
    small += is_small ? 1 : 0;
    pace.Note(is_small ? End::kDone : End::kVain);
  }
  EXPECT_GE(small, 200);
}

}  // namespace
}  // namespace causeway::host
