// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/staging/copy_plan.h"

namespace causeway::guest {
namespace {

CopyPlan::Post PlanPost(const CopyFacts& facts) {
  using Post = CopyPlan::Post;
  const bool returns_early =
      facts.form == CopyForm::kAsynchronous || (facts.form == CopyForm::kSynchronous && facts.quiet);
  if (!facts.to_device || !facts.known || !returns_early) return Post::kNot;
  if (facts.bytes < kLeastInLoneBuffer) return Post::kRecord;
  if (facts.bytes < kLeastInBuffer) return Post::kLoneBuffer;
  if (facts.bytes <= kMostInRecord) return Post::kBufferOrRecord;
  if (facts.bytes <= kMostCaptured) return facts.syncs_memops ? Post::kNot : Post::kBuffer;
  return facts.form == CopyForm::kSynchronous ? Post::kPieces : Post::kNot;
}

}  // namespace

CopyPlan PlanCopy(const CopyFacts& facts) {
  CopyPlan plan;
  plan.post = PlanPost(facts);
  if (facts.known && !CapturesSource(facts.to_device, facts.form, facts.bytes))
    plan.fence = facts.bytes <= kMostUncut ? CopyPlan::Fence::kWhole : CopyPlan::Fence::kPieces;
  plan.ask = facts.bytes <= kMostInRequest ? CopyPlan::Ask::kRequest : CopyPlan::Ask::kPieces;
  return plan;
}

}  // namespace causeway::guest
