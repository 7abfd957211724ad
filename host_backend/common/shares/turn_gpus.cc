// SPDX-License-Identifier: Apache-2.0
#include "host_backend/common/shares/turn_gpus.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>

#include "host_backend/common/shares/account_page.h"
#include "ivshmem_ring/system/gpu_uuid.h"
#include "ivshmem_ring/tls/hexadecimal.h"

namespace causeway {
namespace {

namespace fs = std::filesystem;

// The digits of a UUID or of its beginning, as lower-case letters and figures.
std::string DigitsOf(const std::string& name) {
  std::string digits;
  for (size_t at = name.find('-'); at < name.size(); ++at) {
    if (name[at] != '-') digits += static_cast<char>(std::tolower(static_cast<unsigned char>(name[at])));
  }
  return digits;
}

}  // namespace

bool TurnGpus::Allows(uint64_t hash) const {
  return any || std::find(hashes.begin(), hashes.end(), hash) != hashes.end();
}

void TurnGpus::Add(const TurnGpus& other) {
  any = any || other.any;
  for (const uint64_t hash : other.hashes) {
    if (std::find(hashes.begin(), hashes.end(), hash) == hashes.end()) hashes.push_back(hash);
  }
}

TurnGpus TurnGpusOf(const std::vector<std::string>& gpus, const std::vector<NamedDevice>& shown,
                    bool has_parts) {
  TurnGpus all{.any = false};
  for (const std::string& name : gpus) {
    const DeviceUuid whole = UuidOf(name);
    // A GPU that is divided is known to its workers by one of its parts.
    if (has_parts && !name.starts_with("MIG-")) return {};
    if (whole != DeviceUuid{}) {
      all.hashes.push_back(DeviceHash(whole.data()));
      continue;
    }
    const std::string beginning = DigitsOf(name);
    const size_t before = all.hashes.size();
    for (const NamedDevice& device : shown) {
      if (HexadecimalText(device).starts_with(beginning)) all.hashes.push_back(DeviceHash(device.data()));
    }
    if (all.hashes.size() == before) return {};
  }
  if (!gpus.empty()) return all;
  if (shown.empty() || has_parts) return {};
  for (const NamedDevice& device : shown) all.hashes.push_back(DeviceHash(device.data()));
  return all;
}

bool HostHasParts(const std::string& capabilities) {
  std::error_code error;
  for (fs::directory_iterator gpu(capabilities, error), end; !error && gpu != end; gpu.increment(error)) {
    std::error_code none;
    for (fs::directory_iterator part(gpu->path() / "mig", none); !none && part != end; part.increment(none)) {
      if (part->path().filename().string().starts_with("gi")) return true;
    }
  }
  return false;
}

}  // namespace causeway
