// SPDX-License-Identifier: Apache-2.0
// Which way a copy takes, at each size where it changes (guest_lib/staging/copy_plan.h).
#include "guest_lib/staging/copy_plan.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <utility>

namespace causeway::guest {
namespace {

using Post = CopyPlan::Post;
using Fence = CopyPlan::Fence;
using Ask = CopyPlan::Ask;

constexpr CopyForm kForms[] = {CopyForm::kAsynchronous, CopyForm::kSynchronous, CopyForm::kStreamThenWait};

CopyFacts ToDevice(CopyForm form, uint64_t bytes) {
  return {true, form, bytes, true, false, false};
}
CopyFacts ToHost(CopyForm form, uint64_t bytes) {
  return {false, form, bytes, true, false, false};
}

void ExpectPosts(CopyFacts facts, std::initializer_list<std::pair<uint64_t, Post>> sizes) {
  for (const auto& [bytes, post] : sizes) {
    facts.bytes = bytes;
    EXPECT_EQ(PlanCopy(facts).post, post) << bytes << " bytes";
  }
}

TEST(CopyPlanTest, AsynchronousCopiesArePostedWhileTheirSourceIsCaptured) {
  CopyFacts facts = ToDevice(CopyForm::kAsynchronous, 0);
  ExpectPosts(facts, {{1, Post::kRecord},
                      {kLeastInLoneBuffer - 1, Post::kRecord},
                      {kLeastInLoneBuffer, Post::kLoneBuffer},
                      {kLeastInBuffer, Post::kBufferOrRecord},
                      {kMostInRecord, Post::kBufferOrRecord},
                      {kMostInRecord + 1, Post::kBuffer},
                      {kMostCaptured, Post::kBuffer},
                      {kMostCaptured + 1, Post::kNot}});
  facts.syncs_memops = true;  // what the record cannot carry must be over when the call returns
  ExpectPosts(facts, {{kMostInRecord, Post::kBufferOrRecord}, {kMostInRecord + 1, Post::kNot}});
}

TEST(CopyPlanTest, SynchronousCopiesArePostedWhereNothingIsLeftToWaitFor) {
  CopyFacts facts = ToDevice(CopyForm::kSynchronous, 0);
  ExpectPosts(facts, {{1, Post::kNot}, {kMostCaptured, Post::kNot}});
  facts.quiet = true;
  ExpectPosts(facts,
              {{1, Post::kRecord}, {kMostCaptured, Post::kBuffer}, {kMostCaptured + 1, Post::kPieces}});
}

TEST(CopyPlanTest, NothingElseIsPosted) {
  for (const uint64_t bytes : {uint64_t{1}, kMostInRecord, kMostCaptured, kLeastQueuedLarge}) {
    EXPECT_EQ(PlanCopy(ToDevice(CopyForm::kStreamThenWait, bytes)).post, Post::kNot);
    for (const CopyForm form : kForms) EXPECT_EQ(PlanCopy(ToHost(form, bytes)).post, Post::kNot);
  }
}

TEST(CopyPlanTest, WhatTheHostMustJudgeIsAsked) {
  for (const CopyForm form : kForms) {
    for (const bool to_device : {false, true}) {
      for (const uint64_t bytes : {uint64_t{1}, kMostInRequest, kMostInRequest + 1, kLeastQueued}) {
        const CopyPlan plan = PlanCopy({to_device, form, bytes, false, true, false});
        EXPECT_EQ(plan.post, Post::kNot);
        EXPECT_EQ(plan.fence, Fence::kNot);
        EXPECT_EQ(plan.ask, bytes <= kMostInRequest ? Ask::kRequest : Ask::kPieces);
      }
    }
  }
}

TEST(CopyPlanTest, FencesTellTheEndOfWhatIsWaitedFor) {
  for (const CopyForm form : kForms) {
    EXPECT_EQ(PlanCopy(ToHost(form, kMostUncut)).fence, Fence::kWhole);
    EXPECT_EQ(PlanCopy(ToHost(form, kMostUncut + 1)).fence, Fence::kPieces);
  }
  EXPECT_EQ(PlanCopy(ToDevice(CopyForm::kSynchronous, kMostUncut)).fence, Fence::kWhole);
  EXPECT_EQ(PlanCopy(ToDevice(CopyForm::kStreamThenWait, kMostUncut + 1)).fence, Fence::kPieces);
  // A captured source is not waited for; a larger one is, as natively.
  EXPECT_EQ(PlanCopy(ToDevice(CopyForm::kAsynchronous, kMostCaptured)).fence, Fence::kNot);
  EXPECT_EQ(PlanCopy(ToDevice(CopyForm::kAsynchronous, kMostCaptured + 1)).fence, Fence::kPieces);
}

}  // namespace
}  // namespace causeway::guest
