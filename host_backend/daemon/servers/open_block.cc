// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/servers/open_block.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "host_backend/common/driver_variables.h"

namespace causeway::daemon {
namespace {

// The window lies above the driver's own mappings (upwards from 0x2aaa00000000) and below the stacks.
constexpr uint64_t kLowestWindow = std::min<uint64_t>(0x300000000000, kDefaultWindowAddress);
constexpr uint64_t kHighestWindowEnd = 0x7f0000000000;
constexpr uint64_t kPageBytes = 4096;

std::string Hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

std::string Version(uint32_t major, uint32_t minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

// Leaves out what a worker started by this daemon has anyway.
bool AlreadySet(const std::string& name, const std::string& value) {
  const char* own = std::getenv(name.c_str());
  return own != nullptr && value == own;
}

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> items;
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    items.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return items;
}

std::string Join(const std::vector<std::string>& items) {
  std::string list;
  for (const std::string& item : items) list += (list.empty() ? "" : ",") + item;
  return list;
}

// Where a guest has a list of devices, or the daemon itself runs with one, a guest chooses among those and
// gets no other: its numbers count in that list, names must stand in it. As for the driver, the list ends at
// the first item that names no device.
std::string VisibleDevices(const std::string& wanted, const std::vector<std::string>& gpus,
                           bool shares_environment) {
  const char* own = shares_environment ? nullptr : std::getenv("CUDA_VISIBLE_DEVICES");
  if (own == nullptr && gpus.empty()) return wanted;
  const std::vector<std::string> allowed = gpus.empty() ? Split(own) : gpus;
  std::string result;
  for (const std::string& item : Split(wanted)) {
    const bool is_number =
        !item.empty() && item.size() < 4 && item.find_first_not_of("0123456789") == item.npos;
    std::string chosen;
    if (is_number && size_t(std::stoi(item)) < allowed.size()) chosen = allowed[size_t(std::stoi(item))];
    if (!is_number && std::find(allowed.begin(), allowed.end(), item) != allowed.end()) chosen = item;
    if (chosen.empty()) break;
    result += (result.empty() ? "" : ",") + chosen;
  }
  return result;
}

Result<std::vector<std::string>> CheckEnvironment(const OpenBlock& block,
                                                  const std::vector<std::string>& gpus,
                                                  bool shares_environment) {
  if (block.environment_bytes > kOpenTextBytes ||
      (block.environment_bytes != 0 && block.environment[block.environment_bytes - 1] != '\0')) {
    return Error{
        "The guest process's environment block is malformed; its library and this host do not fit together."};
  }
  std::vector<std::string> variables;
  bool chosen = gpus.empty();  // which devices
  for (uint32_t at = 0; at < block.environment_bytes;) {
    std::string entry(block.environment + at);
    at += uint32_t(entry.size()) + 1;
    const size_t equals = entry.find('=');
    if (equals == 0 || equals == std::string::npos) continue;
    const std::string name = entry.substr(0, equals);
    if (name == kVisibleDevices) {
      entry = name + "=" + VisibleDevices(entry.substr(equals + 1), gpus, shares_environment);
      chosen = true;
    }
    if (MayReachDriver(name) && !AlreadySet(name, entry.substr(equals + 1))) variables.push_back(entry);
  }
  if (!chosen) variables.push_back(std::string(kVisibleDevices) + "=" + Join(gpus));
  return variables;
}

}  // namespace

std::string ReleaseOf(const OpenBlock& block) {
  return ReleaseText(
      block.abi_minor >= 1 ? std::string(block.release, strnlen(block.release, sizeof block.release)) : "");
}

Result<OpenRequest> CheckOpenBlock(const OpenBlock& block, const WorkerPrograms& workers,
                                   uint64_t region_bytes, const std::vector<std::string>& gpus,
                                   bool shares_environment) {
  if (block.magic != kRegionMagic) {
    return Error{"The guest process's opening message has the wrong magic " + Hex(block.magic) +
                 "; its library is not Causeway's or is damaged."};
  }
  if (block.abi_major != kAbiMajor) {
    return Error{"The guest library speaks version " + Version(block.abi_major, block.abi_minor) +
                 " of the region and this host " + Version(kAbiMajor, kAbiMinor) +
                 "; install the same Causeway release in the guest and on the host."};
  }
  OpenRequest request;
  request.pid = block.pid;
  request.kind = block.kind;
  request.window_address = region_bytes == 0 ? 0 : block.window_address;
  request.api_hash = block.api_hash;
  request.release = ReleaseOf(block);
  if (workers.PathOf(block.api_hash).empty()) return Error{workers.WhyNone(block.api_hash, request.release)};
  if (region_bytes != 0 && (block.window_address % kPageBytes != 0 || block.window_address < kLowestWindow ||
                            block.window_address > kHighestWindowEnd - region_bytes)) {
    return Error{"The guest process asks for its shared memory at " + Hex(block.window_address) +
                 ", which is not between " + Hex(kLowestWindow) + " and " + Hex(kHighestWindowEnd) +
                 " or not on a page boundary."};
  }
  if (block.kind == SessionKind::kManagement) {
    if (!gpus.empty()) request.environment.push_back(std::string(kVisibleDevices) + "=" + Join(gpus));
    return request;
  }
  if (block.kind != SessionKind::kCuda) {
    return Error{"The guest library asks for a session of kind " + std::to_string(uint32_t(block.kind)) +
                 ", which this host does not know; install the same Causeway release on both sides."};
  }
  auto environment = CheckEnvironment(block, gpus, shares_environment);
  if (!environment.ok()) return Error{environment.error()};
  request.environment = std::move(environment.value());
  return request;
}

}  // namespace causeway::daemon
