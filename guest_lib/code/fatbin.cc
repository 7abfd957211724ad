// SPDX-License-Identifier: Apache-2.0
// The rules by which CUDA finds code for a device: the CUDA programming guide, "binary compatibility" and
// "PTX compatibility"; the layout as nvcc 13.0 writes it, which older ones share.
#include "guest_lib/code/fatbin.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace causeway::guest {
namespace {

constexpr uint16_t kPtx = 1;
constexpr uint16_t kElf = 2;
constexpr uint16_t kLtoIr = 8;
constexpr uint64_t kForOneArchitecture = 0x100000;  // sm_90a: runs on 9.0 and nowhere else

// Generations whose rules are known. A later one may bring rules of its own.
bool IsKnown(Capability device) {
  constexpr int kMajors[] = {5, 6, 7, 8, 9, 10, 12};
  return std::find(std::begin(kMajors), std::end(kMajors), device.major) != std::end(kMajors);
}

// True in doubt. Code for a family (sm_100f) is not told apart here: it runs on less than the rule says.
bool MayUse(const FatbinEntry& entry, Capability device) {
  const auto own = static_cast<uint32_t>(device.major * 10 + device.minor);
  if (entry.kind != kPtx && entry.kind != kElf && entry.kind != kLtoIr) return true;
  if ((entry.flags & kForOneArchitecture) != 0) return entry.architecture == own;
  if (entry.kind == kElf && entry.architecture / 10 != own / 10) return false;
  return entry.architecture <= own;
}

}  // namespace

std::vector<std::span<const std::byte>> UsableEntries(const std::byte* fatbin,
                                                      std::span<const Capability> devices) {
  FatbinHeader header;
  std::memcpy(&header, fatbin, sizeof header);
  if (header.magic != kFatbinMagic || header.version != 1 || header.header_bytes != sizeof header) return {};
  if (devices.empty() || !std::all_of(devices.begin(), devices.end(), IsKnown)) return {};
  std::vector<std::span<const std::byte>> runs;
  bool has_code = false;
  const std::byte* at = fatbin + sizeof header;
  for (uint64_t left = header.entries_bytes; left != 0;) {
    FatbinEntry entry;
    if (left < sizeof entry) return {};
    std::memcpy(&entry, at, sizeof entry);
    if (entry.header_bytes < sizeof entry || entry.header_bytes > left ||
        entry.payload_bytes > left - entry.header_bytes) {
      return {};
    }
    const uint64_t bytes = entry.header_bytes + entry.payload_bytes;
    if (std::any_of(devices.begin(), devices.end(), [&](Capability d) { return MayUse(entry, d); })) {
      const bool follows = !runs.empty() && runs.back().data() + runs.back().size() == at;
      if (follows) {
        runs.back() = {runs.back().data(), runs.back().size() + bytes};
      } else {
        runs.emplace_back(at, bytes);
      }
      has_code = has_code || entry.kind == kPtx || entry.kind == kElf;
    }
    at += bytes;
    left -= bytes;
  }
  const bool all = runs.size() == 1 && runs[0].size() == header.entries_bytes;
  if (!has_code || all) return {};
  return runs;
}

bool MayPrint(std::span<const std::byte> image, std::span<const Capability> devices) {
  constexpr std::string_view kName = "vprintf";
  constexpr uint64_t kCompressed = 0x2000 | 0x8000;  // LZ4, zstd
  const auto names = [&](std::span<const std::byte> bytes) {
    return memmem(bytes.data(), bytes.size(), kName.data(), kName.size()) != nullptr;
  };
  FatbinHeader header{};
  std::memcpy(&header, image.data(), std::min(sizeof header, image.size()));
  if (header.magic != kFatbinMagic) return names(image);
  if (header.version != 1 || header.header_bytes != sizeof header ||
      header.entries_bytes > image.size() - sizeof header) {
    return true;
  }
  const bool for_us = devices.size() == 1;
  bool texts = false, cubins = false, has_cubin = false;
  for (std::span<const std::byte> rest = image.subspan(sizeof header, header.entries_bytes); !rest.empty();) {
    FatbinEntry entry;
    if (rest.size() < sizeof entry) return true;
    std::memcpy(&entry, rest.data(), sizeof entry);
    if (entry.header_bytes < sizeof entry || entry.header_bytes > rest.size() ||
        entry.payload_bytes > rest.size() - entry.header_bytes) {
      return true;
    }
    const uint64_t bytes = entry.header_bytes + entry.payload_bytes;
    const bool prints = entry.kind == kLtoIr || (entry.flags & kCompressed) != 0 || names(rest.first(bytes));
    const bool is_ours = for_us && entry.kind == kElf && MayUse(entry, devices[0]);
    (is_ours ? cubins : texts) |= prints;
    has_cubin |= is_ours;
    rest = rest.subspan(bytes);
  }
  return cubins || (texts && !has_cubin) || (texts && std::getenv("CUDA_FORCE_PTX_JIT") != nullptr);
}

}  // namespace causeway::guest
