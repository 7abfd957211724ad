// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/process/worker_programs.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "ivshmem_ring/release/build_stamp.h"
#include "ivshmem_ring/release/other_release.h"

namespace causeway::daemon {
namespace {

constexpr size_t kDigits = 16;
constexpr size_t kMostListed = 8;

bool MayRun(const std::string& path) {
  return access(path.c_str(), X_OK) == 0;
}

std::string ReadRelease(const std::string& path) {
  std::ifstream file(path);
  char text[kReleaseBytes] = {};
  file.getline(text, sizeof text);
  return ReleaseText(text);
}

}  // namespace

std::string HashText(uint64_t api_hash) {
  char text[kDigits + 1];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(api_hash));
  return text;
}

std::string ReleaseText(const std::string& said) {
  const bool plain = std::all_of(said.begin(), said.end(), [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '.' ||
           c == '+' || c == '~' || c == '-';
  });
  return plain && !said.empty() && said.size() < kReleaseBytes ? said : "unknown";
}

std::string OwnWorker(const std::string& folder, const std::string& beside) {
  const std::string installed = folder + "/" + HashText(kBuildStamp.api_hash) + "/causeway-worker";
  return MayRun(installed) ? installed : beside;
}

std::string WorkerPrograms::InFolder(uint64_t api_hash) const {
  return folder_ + "/" + HashText(api_hash) + "/causeway-worker";
}

std::string WorkerPrograms::PathOf(uint64_t api_hash) const {
  if (api_hash == kBuildStamp.api_hash) return own_;
  const std::string path = InFolder(api_hash);
  return MayRun(path) ? path : "";
}

uint64_t WorkerPrograms::LauncherNameOf(uint64_t api_hash) const {
  return api_hash == kBuildStamp.api_hash && own_ != InFolder(api_hash) ? 0 : api_hash;
}

std::vector<InstalledWorker> WorkerPrograms::All() const {
  std::vector<InstalledWorker> all = {{kBuildStamp.api_hash, kBuildStamp.release}};
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(folder_.c_str()), closedir);
  while (const dirent* entry = folder != nullptr ? readdir(folder.get()) : nullptr) {
    const std::string name = entry->d_name;
    const uint64_t api_hash = std::strtoull(name.c_str(), nullptr, 16);
    if (name != HashText(api_hash) || api_hash == kBuildStamp.api_hash || !MayRun(InFolder(api_hash)))
      continue;
    all.push_back({api_hash, ReadRelease(folder_ + "/" + name + "/release")});
    if (all.size() > kMostListed) break;
  }
  std::sort(all.begin() + 1, all.end(), [](const InstalledWorker& one, const InstalledWorker& other) {
    return one.release > other.release;
  });
  return all;
}

std::string WorkerPrograms::WhyNone(uint64_t api_hash, const std::string& release) const {
  std::string others;
  for (const InstalledWorker& each : All()) others += (others.empty() ? "" : ", ") + each.release;
  constexpr size_t kMostText = 100;
  if (others.size() > kMostText) others = others.substr(0, kMostText) + "...";
  return "The guest's Causeway library is of release " + release + " (rows " + HashText(api_hash) +
         "), for which this host, of release " + std::string(kBuildStamp.release) + " (rows " +
         HashText(kBuildStamp.api_hash) + "), has no worker: " + kWorkerNeeded + HashText(api_hash) +
         " or a later Causeway on the host, or one of these releases in the guest: " + others + ".";
}

}  // namespace causeway::daemon
