// SPDX-License-Identifier: Apache-2.0
// What of this host would make QEMU fail although libvirt's XML is right: who owns the region, AppArmor, SELinux.
#pragma once
#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace causeway::command {

struct QemuUser {
  uid_t uid = 0;
  gid_t gid = 0;
};
// From a label such as "+64055:+64055" or "qemu:qemu"; empty: it is no such label.
std::optional<QemuUser> ParseDacLabel(const std::string& label);
// The group's name; empty: it has none.
std::string GroupName(gid_t gid);

// Each returns "", or one sentence: why QEMU could not use the region, and what to do.

// The file is there, has that size, and QEMU may read and write it.
std::string WhyNotUsable(const std::string& file, uint64_t bytes, const QemuUser& qemu);

// Where AppArmor's settings lie.
struct AppArmorFiles {
  std::string enabled = "/sys/module/apparmor/parameters/enabled";
  std::string local = "/etc/apparmor.d/local/abstractions/libvirt-qemu";  // the administrator's
  std::string packaged =
      "/etc/apparmor.d/abstractions/causeway";  // the package's, which that one may include
};
// A running VM's profile has no line for a region that is plugged in: libvirt writes one when a VM starts, and at no
// other time. So the rule has to be one that all VMs have. `profile` is the VM's; `file` is what QEMU opens: the region, or
// the socket of its doorbell.
std::string WhyAppArmorRefuses(const std::string& file, const std::string& profile,
                               const AppArmorFiles& files);
// Makes the kernel's copy of the profile of a VM that runs what its files say now.
std::string AppArmorReload(const std::string& profile);

// `label` is the file's SELinux label; a VM may use one of type svirt_tmpfs_t or svirt_image_t.
std::string WhySelinuxRefuses(const std::string& file, const std::string& label);
// Empty where the file has none.
std::string SelinuxLabelOf(const std::string& file);

}  // namespace causeway::command
