// SPDX-License-Identifier: Apache-2.0
// How much of a GPU's time each process took, as NVML's samples of processes say. The library is loaded at run time. One
// thread uses an object.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "host_backend/command/top/figures.h"

namespace causeway::command {

class GpuTimes {
 public:
  // `driver`: the daemon's driver library; NVML lies beside it where that is a path.
  explicit GpuTimes(const std::string& driver);
  ~GpuTimes();
  GpuTimes(const GpuTimes&) = delete;
  GpuTimes& operator=(const GpuTimes&) = delete;

  // Puts into each session how busy its worker kept GPUs since the last call: 1 is all of one GPU, 0 a worker that NVML lists among
  // the processes of a GPU and has no sample of. Left alone where NVML is missing, does not tell, or knows no such process. Where NVML has
  // no sample since the last call, that of the last 2 s counts.
  void Fill(StatusFigures* figures);

 private:
  struct Library;
  struct Reading {
    uint64_t newest_us = 0;  // the newest sample that was seen, by NVML's clock
    std::chrono::steady_clock::time_point read_at{};
    std::map<pid_t, double> shares;  // of processes, as samples said at `read_at`
  };
  // What NVML lists by `ask`, with as much room as it needs. Nothing: *result says why.
  template <class Entry, class Ask>
  static std::optional<std::vector<Entry>> List(uint32_t* result, const Ask& ask);
  // Brings readings_[device] up to date. False: NVML does not tell.
  bool ReadShares(size_t device);
  // The processes that compute on it, as far as NVML tells.
  std::set<pid_t> ProcessesOn(size_t device) const;

  const std::unique_ptr<Library> library_;
  std::vector<Reading> readings_;  // of each device
};

}  // namespace causeway::command
