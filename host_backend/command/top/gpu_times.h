// SPDX-License-Identifier: Apache-2.0
// How much of a GPU's time each process took, as NVML's samples of processes say. The library is loaded at run time. One
// thread uses an object.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
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

  // Puts into each session how busy its worker kept GPUs since the last call: 1 is all of one GPU. Left alone where NVML is
  // missing or does not tell.
  void Fill(StatusFigures* figures);

 private:
  struct Library;
  // The share of each process on one device; nothing: NVML does not tell.
  std::optional<std::map<pid_t, double>> SharesOf(size_t device);

  const std::unique_ptr<Library> library_;
  std::vector<uint64_t> last_us_;  // of each device: the newest sample that was seen
};

}  // namespace causeway::command
