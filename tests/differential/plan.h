// SPDX-License-Identifier: Apache-2.0
// What each row means to the generator and the executor: the role of each parameter, what the call does to what exists,
// how often it is generated. All of it follows from types, directions and the names in cuda.h; plan.cc has the rules.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "tests/differential/builders.h"

namespace causeway::differential {

enum class Role : uint8_t {
  kNull,    // always null or zero
  kNumber,  // an integer that means nothing more here
  kFlags,
  kCount,  // of elements in an array of the call: a few
  kSize,   // bytes, within every region
  kOffset,
  kDevice,
  kEnum,
  kFloat,
  kGrid,
  kBlock,
  kShared,
  kStream,
  kHandle,
  kEndedHandle,  // the call ends it
  kLaunched,     // a function whose parameters are known
  kNodes,        // pointer to handles of nodes of the call's graph
  kAddress,      // device address
  kFreedAddress,
  kWord,       // address of a word that streams wait for and write
  kWaited,     // value that such a word has already, so that no stream waits for ever
  kWaitFlags,  // the comparisons that hold for it
  kWritten,    // value that leaves it so
  kHostMemory,
  kPages,  // whole pages of ordinary memory
  kText,
  kSymbol,      // name of a kernel or variable
  kEntryPoint,  // name of a driver function
  kImage,
  kCallback,
  kCounter,
  kBuilt,
  kOut,  // pointer to scratch that the call writes
};

enum class Effect : uint8_t {
  kNone,
  kAllocates,
  kFrees,
  kBeginsCapture,
  kEndsCapture,
  kLosesEdges,  // of the graph, or of the captures under way
  kAddsNode,
  kChangesNode,
  kInheritsGraph,  // a new graph or executable graph that is as ordered as the one it is made of
  kUpdatesExec,
  kLaunchesGraph,
  kWaitsForEvent,
  kEndsPrimary,  // the primary context and what is in it
  kSetsPool,
};

struct ParameterPlan {
  Role role = Role::kNumber;
  HandleKind handle = HandleKind::kNone;
  Builder builder = nullptr;
  bool allocation = false;                                   // out: the address of new memory
  bool no_null = false, no_wild = false, no_output = false;  // left out
};

struct RowPlan {
  const Row* row = nullptr;
  Effect effect = Effect::kNone;
  uint32_t weight = 0;      // 0: never generated
  int theme = 0;            // rows of one theme are generated together
  int stream = -1;          // the parameter that is the call's stream
  bool per_thread = false;  // stream 0 is the thread's own
  bool query = false;       // success and "not ready" are one answer
  bool lasting = false;     // what it names may be used after the call: only permanent objects and memory
  std::vector<std::pair<int, int>> same;  // a result, and the one that it counts as
  std::vector<ParameterPlan> parameters;
};

// What is left out: whole rows, and kinds of argument of single parameters (left_out.txt).
class LeftOut {
 public:
  // Lines as left_out.txt explains them. False: a line is wrong.
  bool Read(const char* path);
  bool Whole(const Row& row) const { return lines_.contains(std::string(row.name) + " * *"); }
  bool Has(const Row& row, size_t parameter, const char* kind) const;
  std::vector<std::pair<int, int>> Same(const Row& row) const;

 private:
  std::set<std::string> lines_;
};

// Plans of all rows that the library has and that are not left out; the others have weight 0.
std::vector<RowPlan> MakePlans(const LeftOut& left_out);
inline constexpr int kThemes = 16;

}  // namespace causeway::differential
