// SPDX-License-Identifier: Apache-2.0
// `causeway bench --sharing`: how VMs share one GPU, natively by time slices, by MPS and through Causeway, in one run and side by side
// (docs/sharing.md). Nothing that measures is in this process: the processes of each row are its children.
#pragma once
#include <string>
#include <vector>

#include "tools/bench/run.h"

namespace causeway::bench {

struct SharingOptions {
  bool wanted = false;
  std::vector<std::string> ways;  // empty: all that this host has
  std::vector<std::string> rows;  // names, parts of them or patterns; empty: all
  double seconds = 3;             // of each measurement
  uint32_t faults = 0;  // and deaths of each kind, in the rows that count them; 0: as many as the time allows
  uint32_t kills = 0;   // of the VM that faults; 0: as many as faults
  std::string pictures;  // a folder
};

// How long all of it may take where nothing else is said.
inline constexpr uint32_t kSharingLimitS = 540;

// The command's exit status, as causeway-bench has them.
int MeasureSharing(const BenchOptions& options, const SharingOptions& sharing);

}  // namespace causeway::bench
