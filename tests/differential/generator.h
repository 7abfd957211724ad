// SPDX-License-Identifier: Apache-2.0
// Chooses the calls of a program from its seed and from what exists when each call is about to run. As long as two libraries
// answer alike, they are asked the same.
#pragma once
#include "tests/differential/plan.h"

namespace causeway::differential {

class Generator {
 public:
  Generator(World& world, const std::vector<RowPlan>& plans);
  // Begins the program of that seed.
  void Begin(uint64_t seed);
  // How many calls it has.
  uint32_t length() const { return length_; }
  Call Next(uint32_t id);

 private:
  const RowPlan& SomeRow();
  Call CallOf(const RowPlan* plan, uint32_t id);
  Argument Make(const RowPlan& plan, size_t i, const Call& call);
  Argument MakeNumber(const RowPlan& plan, size_t i);
  Argument MakeHandle(const RowPlan& plan, size_t i);
  Argument MakeAddress(const RowPlan& plan, size_t i, const Call& call);
  Argument MakePointer(const RowPlan& plan, size_t i);
  Argument MakeNodes(const RowPlan& plan, const Call& call);
  Argument MakeFreed(const RowPlan& plan);
  void MatchCounts(const RowPlan& plan, Call& call);
  bool Likes(const RowPlan& plan) const;

  World& world_;
  const std::vector<RowPlan>& plans_;
  std::vector<uint32_t> rows_[kThemes];  // with weight, as often as it says
  std::vector<uint32_t> all_rows_;
  Random random_{0};
  uint32_t length_ = 0;
  int themes_[3] = {};
  bool threads_ = false, wrong_ = false;
  uint64_t stream_key_ = kLegacyKey;
};

}  // namespace causeway::differential
