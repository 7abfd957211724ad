// SPDX-License-Identifier: Apache-2.0
#include "host_backend/sandbox/file_rules.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/landlock.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "host_backend/common/unique_fd.h"

// Newer than the headers of the oldest system that builds this.
#ifndef LANDLOCK_ACCESS_FS_REFER
#define LANDLOCK_ACCESS_FS_REFER (1ULL << 13)
#endif
#ifndef LANDLOCK_ACCESS_FS_TRUNCATE
#define LANDLOCK_ACCESS_FS_TRUNCATE (1ULL << 14)
#endif
#ifndef LANDLOCK_ACCESS_FS_IOCTL_DEV
#define LANDLOCK_ACCESS_FS_IOCTL_DEV (1ULL << 15)
#endif

namespace causeway::sandbox {
namespace {

struct RulesetAttributes {  // struct landlock_ruleset_attr, as of version 6
  uint64_t files, network, scoped;
};

constexpr uint64_t kRead = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
constexpr uint64_t kFirstVersion = (uint64_t{1} << 13) - 1;
constexpr uint64_t kScopes = 3;  // abstract UNIX sockets and signals

uint64_t FileRights(int version) {
  uint64_t rights = kFirstVersion;
  if (version >= 2) rights |= LANDLOCK_ACCESS_FS_REFER;
  if (version >= 3) rights |= LANDLOCK_ACCESS_FS_TRUNCATE;
  if (version >= 5) rights |= LANDLOCK_ACCESS_FS_IOCTL_DEV;
  return rights;
}

void Allow(int ruleset, const std::string& path, uint64_t rights) {
  const UniqueFd place(open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat info {};
  if (!place || fstat(place.get(), &info) != 0) return;
  if (!S_ISDIR(info.st_mode)) {
    rights &= LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_TRUNCATE |
              LANDLOCK_ACCESS_FS_IOCTL_DEV;
  }
  landlock_path_beneath_attr rule{rights, place.get()};
  syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
}

void AddFolderOf(const std::string& file, std::vector<std::string>* folders) {
  char path[PATH_MAX];
  for (const char* found : {file.c_str(), static_cast<const char*>(realpath(file.c_str(), path))}) {
    const char* end = found != nullptr ? strrchr(found, '/') : nullptr;
    if (end != nullptr && end != found) folders->emplace_back(found, end);
  }
}

std::vector<std::string> NamesIn(const char* folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename());
  return names;
}

// The minor numbers of those GPUs, as nodes are named, by /proc/driver/nvidia/gpus/ADDRESS/information.
std::set<std::string> MinorsOf(const std::string& gpus) {
  std::set<std::string> minors;
  for (const std::string& address : NamesIn("/proc/driver/nvidia/gpus")) {
    std::ifstream information("/proc/driver/nvidia/gpus/" + address + "/information");
    std::string uuid, minor;
    for (std::string line; std::getline(information, line);) {
      const size_t value = line.find_first_not_of(" \t", line.find(':') + 1);
      if (value == std::string::npos) continue;
      if (line.starts_with("GPU UUID:")) uuid = line.substr(value);
      if (line.starts_with("Device Minor:")) minor = line.substr(value);
    }
    if (!uuid.empty() && ("," + gpus + ",").find("," + uuid + ",") != std::string::npos) minors.insert(minor);
  }
  return minors;
}

}  // namespace

FileRules WorkerRules(const std::string& library, const std::string& gpus) {
  FileRules rules;
  rules.readable = {"/usr",
                    "/lib",
                    "/lib64",
                    "/etc/ld.so.cache",
                    "/etc/ld.so.preload",
                    "/etc/nvidia",
                    "/sys",
                    "/proc/driver",
                    "/proc/sys",
                    "/proc/devices",
                    "/proc/cpuinfo",
                    "/proc/meminfo",
                    "/proc/modules",
                    "/proc/stat",
                    "/proc/version",
                    "/proc/filesystems"};
  AddFolderOf(library, &rules.readable);
  const char* search = getenv("LD_LIBRARY_PATH");
  std::istringstream folders(search != nullptr ? search : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (!folder.empty() && folder != "/") rules.readable.push_back(folder);
  }
  rules.devices = {"/dev/null",   "/dev/zero",        "/dev/urandom",
                   "/dev/random", "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels"};
  // Which GPU a MIG device is of is not known before the driver runs; its own nodes are nvidia-caps.
  const bool parts = gpus.find("MIG-") != std::string::npos;
  const std::set<std::string> minors = gpus.empty() || parts ? std::set<std::string>() : MinorsOf(gpus);
  if (parts) rules.gpus = "; device nodes of all GPUs, because `gpus` names MIG devices";
  for (const std::string& name : NamesIn("/dev")) {
    const bool gpu = name.rfind("nvidia", 0) == 0 && name.size() > 6 &&
                     name.find_first_not_of("0123456789", 6) == std::string::npos;
    const bool lent = gpu && (gpus.empty() || parts || minors.contains(name.substr(6)));
    if (lent || name == "nvidiactl" || name == "nvidia-uvm" || name == "nvidia-uvm-tools")
      rules.devices.push_back("/dev/" + name);
  }
  return rules;
}

int ApplyFileRules(const FileRules& rules) {
  const long found = syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  if (found <= 0) return 0;
  const int version = int(found);
  RulesetAttributes attributes{FileRights(version), 0, kScopes};
  if (version >= 4) attributes.network = 3;  // bind and connect
  const size_t bytes = version >= 6   ? sizeof attributes
                       : version >= 4 ? 2 * sizeof(uint64_t)
                                      : sizeof(uint64_t);
  const UniqueFd ruleset(int(syscall(SYS_landlock_create_ruleset, &attributes, bytes, 0)));
  if (!ruleset) return 0;
  constexpr uint64_t kWrite = LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG |
                              LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE |
                              LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REFER |
                              LANDLOCK_ACCESS_FS_TRUNCATE;
  constexpr uint64_t kDevice = kRead | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_IOCTL_DEV;
  const uint64_t handled = attributes.files;
  for (const auto& path : rules.readable) Allow(ruleset.get(), path, kRead & handled);
  for (const auto& path : rules.writable) Allow(ruleset.get(), path, (kRead | kWrite) & handled);
  constexpr uint64_t kFolders =
      LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REFER;
  for (const auto& path : rules.flat) Allow(ruleset.get(), path, (kRead | kWrite) & ~kFolders & handled);
  for (const auto& path : rules.devices) Allow(ruleset.get(), path, kDevice & handled);
  // /proc of this process is found by its directory entry, which must not be forgotten meanwhile.
  static const int own = open(("/proc/" + std::to_string(getpid())).c_str(), O_PATH | O_CLOEXEC);
  landlock_path_beneath_attr rule{
      (kRead | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_TRUNCATE) & handled, own};
  syscall(SYS_landlock_add_rule, ruleset.get(), LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  return syscall(SYS_landlock_restrict_self, ruleset.get(), 0) == 0 ? version : 0;
}

}  // namespace causeway::sandbox
