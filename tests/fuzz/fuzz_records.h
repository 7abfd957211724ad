// SPDX-License-Identifier: Apache-2.0
// Records of a daemon's state for fuzz_vault.cc: as daemon/takeover/ has them, but for a field, a number or a descriptor here and there.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "host_backend/common/unique_fd.h"
#include "tests/fuzz/fuzz_input.h"

namespace causeway::fuzz {

inline constexpr uint64_t kRecordRegionMib = 32;

struct Record {
  uint64_t key = 0;
  pid_t worker = 0;
  std::vector<UniqueFd> descriptors;  // the first is its text
  bool ends = true;                   // what it tells of can: each descriptor is what its name says
  UniqueFd lives;  // of a worker whose process has ended, for its daemon, when this is closed
};

Record SomeRecord(Input& input);
// Of all sockets that records have had.
void EndPeers();

}  // namespace causeway::fuzz
