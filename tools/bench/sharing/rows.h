// SPDX-License-Identifier: Apache-2.0
// What `causeway bench --sharing` measures: the one list of its rows, with what the processes of each do and the goal of each
// figure (docs/sharing.md). A user stands for a VM: its processes are one scope of the daemon.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace causeway::bench::sharing {

// How the processes share the GPU.
enum Way {
  kAlone,     // natively, and only those of the first load
  kSlices,    // natively, by the time slices of NVIDIA's driver
  kMps,       // as clients of NVIDIA's MPS
  kCauseway,  // through Causeway
  kWays
};
inline constexpr const char* kWayNames[kWays] = {"native", "slices", "mps", "causeway"};
// The goal of the row `deaths`: without an arbiter a wait lasts for 50 ms and one of the GPU's own slices at most.
inline constexpr double kMostDeathWaitMs = 52;
inline constexpr unsigned kEveryWay = 0xf, kCausewayAlone = 1u << kCauseway;

enum class Work {
  kWait,       // launches a kernel and waits for it, at most once in gap_us
  kFull,       // has always some milliseconds of kernels queued
  kCopy,       // copies `bytes` of pinned memory to the device, over and over
  kInference,  // requests at random times, each a chain of short kernels with a wait for each token
  kTraining,   // steps of many kernels, with a wait at the end of each and gap_us of the processor between
  kProgram,    // what the script does (program.h)
};

// One process of a user.
struct Load {
  int user = 0;
  Work work = Work::kWait;
  double kernel_us = 0;  // how long a kernel takes on the idle GPU; 0: it does nothing
  double gap_us = 0;
  uint64_t bytes = 0;
  std::string script = {};  // of kProgram: "inference" or "training"
};
inline bool AnswersRequests(const Load& load) {
  return load.work == Work::kInference || load.script == "inference";
}

enum class Goal {
  kNone,
  kAtMost,  // `limit`
  kAtLeast,
  kTimesAtMost,  // `limit` times the same figure of the way `beside`
  kTimesAtLeast,
  kOverAtMost,  // that figure and `limit`
};

struct FigureGoal {
  std::string id;  // as in Figures (measure.h)
  std::string name;
  const char* unit;
  int digits;
  Goal goal = Goal::kNone;
  double limit = 0;
  Way beside = kAlone;
};

// What is asked of the daemon while the row goes on.
struct Change {
  double after = 0;  // in parts of the row's time; 0: nothing is asked
  std::string key,
      value;       // as for `causeway set`, of the first user; key "pause": it is resumed at twice that time
  double due = 0;  // the first user's share afterwards
};

enum class Runner { kLoads, kSharingOnAndOff, kFaults, kDeaths, kSessions };

struct Row {
  std::string id, name;
  std::vector<Load> loads;
  std::vector<FigureGoal> figures;
  std::map<int, std::string> terms = {};  // lines of each user's table in the daemon's configuration
  Change change = {};
  unsigned ways = kEveryWay;  // which measure it, as bits
  Runner runner = Runner::kLoads;
  double lengths = 1;       // so many times --seconds
  bool only_named = false;  // not measured unless it is asked for
  double start_s = 0;       // of each way, beside that; 0: as processes usually take
};

std::vector<Row> SharingRows();
// How many seconds a row takes in that way, about, on a GPU.
double ExpectedOf(const Row& row, Way way, double seconds);
// The weight that `terms` give the user, or the usual one.
double WeightOf(const Row& row, int user);
// How many users there are.
int UsersOf(const Row& row);
// "<= 1.3 x native" and the like; "" without a goal.
std::string GoalText(const FigureGoal& figure);

}  // namespace causeway::bench::sharing
