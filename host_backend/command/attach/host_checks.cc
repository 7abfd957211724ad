// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/attach/host_checks.h"

#include <grp.h>
#include <pwd.h>
#include <sys/xattr.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "host_backend/common/control_socket.h"
#include "host_backend/common/result.h"

namespace causeway::command {
namespace {

// A name, or a number behind a plus sign. Empty: neither.
template <class Lookup>
std::optional<uint32_t> IdOf(const std::string& text, const Lookup& lookup) {
  if (!text.empty() && text[0] != '+') {
    if (const auto named = lookup(text)) return named;
  }
  const std::string digits = text.substr(text.starts_with("+") ? 1 : 0);
  if (digits.empty() || digits.size() > 10 || digits.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return uint32_t(std::strtoul(digits.c_str(), nullptr, 10));
}

std::optional<uint32_t> UserNamed(const std::string& name) {
  const passwd* found = getpwnam(name.c_str());
  return found != nullptr ? std::optional<uint32_t>(found->pw_uid) : std::nullopt;
}

std::optional<uint32_t> GroupNamed(const std::string& name) {
  const group* found = getgrnam(name.c_str());
  return found != nullptr ? std::optional<uint32_t>(found->gr_gid) : std::nullopt;
}

// All files of that one's kind: "/dev/shm/causeway-*", "/run/causeway/doorbell-*".
std::string PatternOf(const std::string& file) {
  return file.substr(0, file.find('-', file.rfind('/')) + 1) + "*";
}

// Whether a rule of that file of AppArmor's lets a VM read and write the region, or one of `included`, if it includes that. Of
// AppArmor's language it knows as much as is written for this.
bool AllowsRegion(const std::string& profile, const std::string& region, const std::string& included) {
  std::ifstream file(profile);
  std::string line;
  while (std::getline(file, line)) {
    const size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos || line[begin] == '#') continue;
    const std::string name = std::filesystem::path(included).filename();
    const bool includes = !name.empty() && line.compare(begin, 7, "include") == 0 &&
                          line.find("<abstractions/" + name + ">") != std::string::npos;
    if (includes && AllowsRegion(included, region, "")) return true;
    const bool names = line.find(region + " ") != std::string::npos ||
                       line.find(PatternOf(region) + " ") != std::string::npos;
    if (names && line.find("rw") != std::string::npos) return true;
  }
  return false;
}

}  // namespace

std::optional<QemuUser> ParseDacLabel(const std::string& label) {
  const size_t colon = label.find(':');
  if (colon == std::string::npos) return std::nullopt;
  const auto user = IdOf(label.substr(0, colon), UserNamed);
  const auto group = IdOf(label.substr(colon + 1), GroupNamed);
  if (!user || !group) return std::nullopt;
  return QemuUser{*user, *group};
}

std::string GroupName(gid_t gid) {
  const group* found = getgrgid(gid);
  return found != nullptr ? found->gr_name : "";
}

std::string WhyNotUsable(const std::string& file, uint64_t bytes, const QemuUser& qemu) {
  struct stat found {};
  if (stat(file.c_str(), &found) != 0)
    return "The region " + file + " cannot be examined: " + ErrnoText() + ".";
  if (uint64_t(found.st_size) != bytes) {
    return "The region " + file + " has " + std::to_string(found.st_size) + " bytes instead of " +
           std::to_string(bytes) + "; detach it and attach it again.";
  }
  const mode_t mode = found.st_mode;
  const bool may = qemu.uid == 0 || (found.st_uid == qemu.uid && (mode & 0600) == 0600) ||
                   (found.st_gid == qemu.gid && (mode & 0060) == 0060);
  if (may) return {};
  return "The region " + file + " belongs to user " + std::to_string(found.st_uid) + " and group " +
         std::to_string(found.st_gid) + ", but QEMU runs as user " + std::to_string(qemu.uid) +
         " and group " + std::to_string(qemu.gid) +
         " and could not open it; name that group in attach_groups, or as region_group, in causewayd's "
         "configuration.";
}

std::string AppArmorReload(const std::string& profile) {
  return "`apparmor_parser -r /etc/apparmor.d/libvirt/" + profile + "`";
}

std::string WhyAppArmorRefuses(const std::string& file, const std::string& profile,
                               const AppArmorFiles& files) {
  char enabled = 'N';
  std::ifstream(files.enabled) >> enabled;
  if (enabled != 'Y') return {};
  if (AllowsRegion(files.local, file, files.packaged)) return {};
  return "AppArmor would keep the running VM from its region; add the line `  " + PatternOf(file) +
         " rw,` to " + files.local + " and run " + AppArmorReload(profile) +
         ", or attach the region for its next start by --config, which needs no such line.";
}

std::string WhySelinuxRefuses(const std::string& file, const std::string& label) {
  if (label.find(":svirt_tmpfs_t") != std::string::npos || label.find(":svirt_image_t") != std::string::npos)
    return {};
  return "SELinux would keep the VM from its region, whose label is " + (label.empty() ? "missing" : label) +
         "; run `chcon -t svirt_tmpfs_t " + file +
         "` now, and once `semanage fcontext -a -t svirt_tmpfs_t '" + kRegionFolder + kRegionPrefix + ".*'`.";
}

std::string SelinuxLabelOf(const std::string& file) {
  char label[256];
  const ssize_t bytes = getxattr(file.c_str(), "security.selinux", label, sizeof(label) - 1);
  if (bytes <= 0) return {};
  label[bytes] = '\0';
  return label;
}

}  // namespace causeway::command
