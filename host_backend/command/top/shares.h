// SPDX-License-Identifier: Apache-2.0
// What the daemon's status says of shares: what each VM, user and peer is to have of the GPUs' time, what it had of each GPU, and
// what two such readings say of the time between them. One thread uses all this.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host_backend/common/json.h"

namespace causeway::command {

struct ScopeShare {
  std::string scope, share_class;
  uint64_t sessions = 0, weight = 0, cap_percent = 0, reserve_percent = 0, pcie_mib_per_s = 0;
  bool paused = false, until_reload = false;
  uint64_t worker_deaths = 0;
};

// Of one scope on one GPU; seconds since its first session of those that live. Nothing: it was not measured.
struct GpuShareFigures {
  std::string scope, gpu;
  bool in_turns = false;
  std::optional<double> had_s, due_s, waited_s, throttled_s, turns, wait_p50_us, wait_p99_us;
  std::optional<double> to_device_bytes, to_host_bytes, link_throttled_s;
};

struct GpuInUse {
  std::string gpu;
  std::string enforced_by;  // "turns" or "slices": what divides its time among VMs now
  double turn_ms = 0;
};

struct ShareReport {
  std::vector<ScopeShare> scopes;
  std::vector<GpuShareFigures> shares;
  std::vector<GpuInUse> gpus;
};

// Of the status. What another daemon's version lacks is empty.
ShareReport ReadShares(const Json& status);

// A scope on a GPU, or one that uses none.
struct ShareRow {
  ScopeShare scope;
  std::string gpu, enforced_by;  // empty: it uses none
  // Parts of the GPU's time between the readings, 0 to 1. Nothing: it was not measured in both.
  std::optional<double> had, due, waited, throttled;
  std::optional<double> wait_p50_us, wait_p99_us;
  std::optional<double> to_device_bytes_per_s, to_host_bytes_per_s;
  uint64_t memory_bytes = 0;  // of the scope, on all GPUs
};

// In the order of scopes and GPUs.
std::vector<ShareRow> ShareRows(const ShareReport& before, const ShareReport& now, double seconds);
// The line of the heads, then a line for each row. No line has an end of line.
std::vector<std::string> ShareLines(const std::vector<ShareRow>& rows);
Json JsonOf(const ShareRow& row);

// "weight 200, cap 30 %, reserve 10 %, class latency, copies 500 MiB/s, paused"
std::string TermsText(const ScopeShare& scope);
// What `causeway status` prints of all of them.
std::vector<std::string> ShareTexts(const ShareReport& report);

}  // namespace causeway::command
