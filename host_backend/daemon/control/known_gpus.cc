// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/control/known_gpus.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

namespace causeway::daemon {
namespace {

// As nvidia-smi -L writes it.
std::string NameOf(const NamedDevice& device) {
  std::string name = "GPU-";
  for (size_t at = 0; at < device.size(); ++at) {
    if (at == 4 || at == 6 || at == 8 || at == 10) name += '-';
    char byte[3];
    std::snprintf(byte, sizeof byte, "%02x", device[at]);
    name += byte;
  }
  return name;
}

bool IsShown(std::string wanted, const std::vector<NamedDevice>& shown) {
  std::transform(wanted.begin() + 4, wanted.end(), wanted.begin() + 4,
                 [](unsigned char c) { return std::tolower(c); });
  return std::any_of(shown.begin(), shown.end(),
                     [&](const NamedDevice& device) { return NameOf(device).starts_with(wanted); });
}

}  // namespace

GpuAnswer LookUpGpus(const std::vector<std::string>& wanted, const std::vector<NamedDevice>& shown) {
  GpuAnswer answer;
  for (const std::string& gpu : wanted) {
    if (shown.empty() || !gpu.starts_with("GPU-")) {
      answer.note =
          "Whether this host has " + gpu + " could not be looked up; nvidia-smi -L lists what it has.";
    } else if (!IsShown(gpu, shown)) {
      answer.refusal = "causewayd's driver has no GPU " + gpu + "; it has";
      for (const NamedDevice& device : shown)
        answer.refusal += (&device == shown.data() ? " " : ", ") + NameOf(device);
      answer.refusal += ": correct --gpu.";
    }
  }
  return answer;
}

}  // namespace causeway::daemon
