// SPDX-License-Identifier: Apache-2.0
// Graphs that the driver holds together (relatives.h): one name for all of them, through joins and ends.
#include "host_backend/worker/objects/relatives.h"

#include <gtest/gtest.h>

namespace causeway::host {
namespace {

const char kGraphs[6] = {};

TEST(Relatives, AGraphByItselfHasNone) {
  Relatives relatives;
  EXPECT_EQ(relatives.NameOf(&kGraphs[0]), 0u);
  relatives.Join(&kGraphs[0], 10, &kGraphs[0]);
  EXPECT_EQ(relatives.NameOf(&kGraphs[0]), 0u);
}

TEST(Relatives, TwoFamiliesBecomeOneByTheFirstName) {
  Relatives relatives;
  relatives.Join(&kGraphs[0], 10, &kGraphs[1]);
  relatives.Join(&kGraphs[2], 12, &kGraphs[3]);
  EXPECT_EQ(relatives.NameOf(&kGraphs[1]), 10u);
  EXPECT_EQ(relatives.NameOf(&kGraphs[3]), 12u);
  EXPECT_EQ(relatives.Join(&kGraphs[1], 10, &kGraphs[3]), 10u);
  for (const int i : {0, 1, 2, 3}) EXPECT_EQ(relatives.NameOf(&kGraphs[i]), 10u) << i;
}

TEST(Relatives, TheFewerGetTheNameOfTheMore) {
  Relatives relatives;
  for (const int i : {1, 2, 3}) EXPECT_EQ(relatives.Join(&kGraphs[0], 10, &kGraphs[i]), 10u);
  EXPECT_EQ(relatives.Join(&kGraphs[4], 14, &kGraphs[5]), 14u);
  EXPECT_EQ(relatives.Join(&kGraphs[4], 14, &kGraphs[2]), 10u);
  for (const char& graph : kGraphs) EXPECT_EQ(relatives.NameOf(&graph), 10u);
}

TEST(Relatives, OneThatEndsLeavesTheOthersTogether) {
  Relatives relatives;
  relatives.Join(&kGraphs[0], 10, &kGraphs[1]);
  relatives.Join(&kGraphs[0], 10, &kGraphs[2]);
  relatives.Forget(&kGraphs[0]);
  EXPECT_EQ(relatives.NameOf(&kGraphs[0]), 0u);
  EXPECT_EQ(relatives.NameOf(&kGraphs[1]), 10u);
  relatives.Forget(&kGraphs[1]);
  relatives.Forget(&kGraphs[2]);
  relatives.Forget(&kGraphs[2]);
  // The number is another graph's by now, which starts a family by it.
  relatives.Join(&kGraphs[3], 10, &kGraphs[4]);
  EXPECT_EQ(relatives.NameOf(&kGraphs[2]), 0u);
  EXPECT_EQ(relatives.NameOf(&kGraphs[4]), 10u);
}

// The first graph of a family has ended, and its number names another family's first graph.
TEST(Relatives, ANameThatIsUsedTwiceKeepsEverybody) {
  Relatives relatives;
  relatives.Join(&kGraphs[0], 10, &kGraphs[1]);
  relatives.Forget(&kGraphs[0]);
  relatives.Join(&kGraphs[2], 10, &kGraphs[3]);
  for (const int i : {1, 2, 3}) EXPECT_EQ(relatives.NameOf(&kGraphs[i]), 10u) << i;
  relatives.Join(&kGraphs[2], 10, &kGraphs[1]);
  relatives.Forget(&kGraphs[2]);
  for (const int i : {1, 3}) EXPECT_EQ(relatives.NameOf(&kGraphs[i]), 10u) << i;
}

}  // namespace
}  // namespace causeway::host
