// SPDX-License-Identifier: Apache-2.0
// The figures that `causeway bench` prints, and what they should be: the one list that the command and its
// probe share. docs/measurements.md says how each is measured.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace causeway::bench {

enum class Better { kLess, kMore };

enum class Goal {
  kNone,
  kRatioAtMost,  // Causeway's figure over the native one
  kRatioAtLeast,
  kAtMost,  // Causeway's figure itself
  kAtLeast,
  kDifferenceAtMost,  // Causeway's figure less the native one
};

enum class Section { kCalls, kData, kManaged, kOther, kCurve, kCrowded };

// Who measures it.
enum class Runner {
  kProbe,     // one process that stays, asked for `id`
  kStartup,   // a new process each time
  kPair,      // two processes of one side at once
  kResident,  // a new process each time, which stays for a moment
  kIdle,      // many sessions that do nothing, once
  kCrowd,  // new processes each time that share a few processors; only if it is asked for by name (crowd.h)
};

struct Figure {
  std::string id;  // what the probe is asked for, words separated by ':'
  std::string name;
  const char* unit;
  Better better;
  Section section;
  Goal goal = Goal::kNone;
  double limit = 0;
  Runner runner = Runner::kProbe;
  bool guest_only = false;  // natively there is nothing to measure
};

// In the order of the tables. `curve`: with every size of the copies from 4 bytes to 1 GiB. `quick`: without
// what takes long on a GPU that is none.
std::vector<Figure> Figures(bool curve, bool quick);

// The sizes of the curve, from 4 bytes in steps of four.
std::vector<uint64_t> CurveSizes(bool quick);
std::string CopyId(bool to_device, bool pinned, uint64_t bytes);
// Of the processor time that a step takes, of the figure of a crowd's steps.
std::string CrowdCpuId(const std::string& id);
std::string SizeName(uint64_t bytes);
// "<= 1.03 x native" and the like; "" without a goal.
std::string GoalText(const Figure& figure);

inline constexpr uint32_t kIdleSessions = 100;

}  // namespace causeway::bench
