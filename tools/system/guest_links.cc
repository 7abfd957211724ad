// SPDX-License-Identifier: Apache-2.0
// The links of a guest: kernel, ivshmem device, module, node, cache mode, slots, library, the host behind them.
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <set>

#include "ivshmem_ring/hosts/ask_hosts.h"
#include "ivshmem_ring/release/other_release.h"
#include "tools/system/doctor.h"
#include "tools/system/pool.h"

namespace causeway::doctor {
namespace {

using machine::Trimmed;

constexpr char kPciDevices[] = "/sys/bus/pci/devices/";
constexpr char kClass[] = "/sys/class/causeway/";
constexpr char kNode[] = "/dev/causeway";
constexpr int kTryMs = 60'000;
// As the guest library says it (guest_lib/tls/guest_tls.cc).
constexpr char kNoEncryptedConnection[] = "no encrypted connection with the key";

// Of the running kernel; of a root folder, as its /proc says.
std::string KernelRelease(const machine::Machine& machine) {
  return Trimmed(machine.Read("/proc/sys/kernel/osrelease").value_or(""));
}

// "6.1.0-18-amd64": 601.
int KernelNumber(const std::string& release) {
  char* end = nullptr;
  const long major = std::strtol(release.c_str(), &end, 10);
  const long minor = *end == '.' ? std::strtol(end + 1, nullptr, 10) : 0;
  return int(major * 100 + minor);
}

void CheckKernel(const std::string& release, Chain* chain) {
  constexpr int kOldest = 510;
  if (KernelNumber(release) < kOldest) {
    chain->Broken(
        "kernel",
        "The kernel is " + (release.empty() ? "unknown" : release) + ", and the module needs 5.10 or later.",
        "apt-get install linux-image-amd64 linux-headers-amd64, then start this machine again");
    return;
  }
  chain->Fine("kernel", "Linux " + release + ".");
}

// The device behind which the region is, by its bus and name in sysfs.
struct Device {
  std::string bus = "/sys/bus/pci/";
  std::string name;  // empty: there is none
};

// The name of the ivshmem device; empty: there is none.
std::string FindIvshmem(const machine::Machine& machine) {
  for (const std::string& name : machine.List(kPciDevices)) {
    const std::string folder = kPciDevices + name;
    if (Trimmed(machine.Read(folder + "/vendor").value_or("")) == "0x1af4" &&
        Trimmed(machine.Read(folder + "/device").value_or("")) == "0x1110")
      return name;
  }
  return {};
}

// In a domain of Xen, domain 0 offers the device by xenstore.
Device CheckXenDevice(const machine::Machine& machine, Chain* chain) {
  constexpr char kXenBus[] = "/sys/bus/xen/", kXenDevice[] = "causeway-0";
  if (machine.Has(std::string(kXenBus) + "devices/" + kXenDevice)) {
    chain->Fine("device", std::string("The Xen device is ") + kXenDevice + ".");
    return {kXenBus, kXenDevice};
  }
  chain->Broken("device", "This domain of Xen has no device causeway, which domain 0 offers.",
                "in domain 0: causeway attach DOMAIN");
  return {};
}

Device CheckDevice(const machine::Machine& machine, Chain* chain) {
  const std::string device = FindIvshmem(machine);
  if (device.empty() && Trimmed(machine.Read("/sys/hypervisor/type").value_or("")) == "xen")
    return CheckXenDevice(machine, chain);
  if (device.empty()) {
    chain->Broken("device", "This machine has no ivshmem device, which its host plugs in.",
                  "on the host: causeway attach DOMAIN");
    return {};
  }
  const auto resources = machine::Lines(machine.Read(kPciDevices + device + "/resource").value_or(""));
  if (resources.size() < 3 || resources[2].starts_with("0x0000000000000000 0x0000000000000000")) {
    chain->Broken(
        "device",
        "The ivshmem device " + device +
            " has no memory: the firmware or the kernel found no room for its BAR 2.",
        "on the host: causeway detach DOMAIN, then causeway attach DOMAIN --memory SIZE with a smaller size");
    return {};
  }
  chain->Fine("device", "The ivshmem device is " + device + ".");
  return {"/sys/bus/pci/", device};
}

// The first file of modprobe's configuration that keeps the module from being loaded.
std::string BlockedBy(const machine::Machine& machine) {
  for (const char* folder : {"/etc/modprobe.d/", "/lib/modprobe.d/", "/run/modprobe.d/"}) {
    for (const std::string& file : machine.List(folder)) {
      for (const std::string& line : machine::Lines(machine.Read(folder + file).value_or(""))) {
        const std::string words = Trimmed(line);
        if (words == "blacklist causeway" || words.starts_with("install causeway ")) return folder + file;
      }
    }
  }
  return {};
}

bool HasModuleFile(const machine::Machine& machine, const std::string& release) {
  const std::string modules = "/lib/modules/" + release;
  for (const char* folder : {"/updates/dkms/", "/updates/", "/extra/", "/kernel/drivers/misc/"}) {
    for (const std::string& name : machine.List(modules + folder)) {
      if (name.starts_with("causeway.ko")) return true;
    }
  }
  return machine.Read(modules + "/modules.dep").value_or("").find("/causeway.ko") != std::string::npos;
}

void CheckModule(const machine::Machine& machine, const std::string& release, Chain* chain) {
  constexpr char kLink[] = "module";
  if (machine.Has("/sys/module/causeway")) {
    chain->Fine(kLink, "The module causeway is loaded.");
    return;
  }
  if (!HasModuleFile(machine, release)) {
    const bool has_headers = machine.Has("/lib/modules/" + release + "/build");
    chain->Broken(kLink,
                  "The module causeway was not built for the running kernel " + release +
                      (has_headers ? "." : ", whose headers are missing."),
                  has_headers ? "dkms autoinstall -k " + release + " && modprobe causeway"
                              : "apt-get install linux-headers-" + release + " && dkms autoinstall -k " +
                                    release + " && modprobe causeway");
    return;
  }
  if (const std::string file = BlockedBy(machine); !file.empty()) {
    chain->Broken(kLink, file + " keeps the module causeway from being loaded.",
                  "sed -i '/causeway/d' " + machine.At(file) + " && modprobe causeway");
    return;
  }
  chain->Broken(kLink, "The module causeway is built and is not loaded.", "modprobe causeway");
}

// The device's driver, and the node that it makes.
bool CheckNode(const machine::Machine& machine, const Device& of, Chain* chain) {
  constexpr char kLink[] = "node";
  const std::string& device = of.name;
  const std::string driver = machine.LinkTarget(of.bus + "devices/" + device + "/driver");
  const std::string name = driver.substr(driver.rfind('/') + 1);
  if (name != "causeway") {
    const std::string bind = "echo " + device + " > " + of.bus + "drivers/causeway/bind";
    chain->Broken(
        "region",
        name.empty() ? "The module did not take the device " + device +
                           ": its memory is no region of Causeway, because causewayd does not run on the "
                           "host or has not made it; `dmesg | grep causeway` says which."
                     : "The device " + device + " belongs to the driver " + name + ".",
        name.empty() ? "on the host: systemctl start causewayd.service; then here: " + bind
                     : "echo " + device + " > " + of.bus + "drivers/" + name + "/unbind && " + bind);
    return false;
  }
  // The Xen device's driver stays bound while domain 0 offers nothing that can be mapped.
  if (!machine.Has(std::string(kClass) + "causeway")) {
    chain->Broken("region",
                  "The module has no region: causewayd does not run on the host, or what it offers cannot be "
                  "mapped; `dmesg | grep causeway` says which.",
                  "on the host: systemctl start causewayd.service");
    return false;
  }
  chain->Fine("region",
              "The module has taken the region, of " +
                  Trimmed(machine.Read(std::string(kClass) + "causeway/region_bytes").value_or("?")) +
                  " bytes.");
  if (machine.Has(kNode)) return true;
  chain->Broken(kLink, "/dev/causeway is missing, though the module has made its device.",
                "udevadm trigger --subsystem-match=causeway");
  return false;
}

void CheckPermission(const machine::Machine& machine, Chain* chain) {
  constexpr char kLink[] = "permission";
  const auto node = machine.Stat(kNode);
  const auto render = machine.GroupId("render");
  if (!render) {
    chain->Broken(kLink, "There is no group render, whose members may use the GPU.",
                  "groupadd --system render && udevadm trigger --subsystem-match=causeway");
    return;
  }
  if (!node || node->st_gid != *render || (node->st_mode & 0060) != 0060) {
    const bool has_rule = machine.Has("/usr/lib/udev/rules.d/70-causeway.rules") ||
                          machine.Has("/etc/udev/rules.d/70-causeway.rules");
    chain->Broken(kLink,
                  std::string("/dev/causeway is not readable and writable for the group render") +
                      (has_rule ? "." : ", because the rule 70-causeway.rules of udev is missing."),
                  (has_rule ? std::string() : "apt-get install --reinstall causeway-guest && ") +
                      "chgrp render " + machine.At(kNode) + " && chmod 0660 " + machine.At(kNode));
    return;
  }
  if (machine.lives() && access(kNode, R_OK | W_OK) != 0) {
    chain->Broken(kLink, "This user is no member of the group render, which /dev/causeway belongs to.",
                  "usermod -aG render \"$USER\" as root, then log in again");
    return;
  }
  chain->Fine(kLink, "/dev/causeway belongs to the group render.");
}

void CheckCacheMode(const machine::Machine& machine, Chain* chain) {
  const std::string mode = Trimmed(machine.Read(std::string(kClass) + "causeway/cache_mode").value_or(""));
  if (mode != "WB") {  // the module's words: causeway_cache_mode in kernel_module/causeway.h
    chain->Broken("cache mode",
                  "The region is mapped " + (mode.empty() ? "in an unknown way" : mode) +
                      " instead of write-back (WB), so that every access is slow.",
                  "apt-get install --reinstall causeway-dkms && rmmod causeway && modprobe causeway");
    return;
  }
  chain->Fine("cache mode", "The region is mapped write-back.");
}

void CheckSlots(const machine::Machine& machine, Chain* chain) {
  const auto number = [&](const char* name) {
    return std::strtoul(machine.Read(std::string(kClass) + "causeway/" + name).value_or("0").c_str(), nullptr,
                        10);
  };
  const unsigned long total = number("slots_total"), used = number("slots_used");
  if (total != 0 && used >= total) {
    chain->Broken("slots", "All " + std::to_string(total) + " slots of the region are in use.",
                  "end a program that uses the GPU: fuser /dev/causeway lists them");
    return;
  }
  if (number("slices_free") == 0) {
    chain->Broken("slots", "The region's memory is all in use.",
                  "end a program that uses the GPU, or on the host: causeway attach DOMAIN --memory SIZE "
                  "with a larger size");
    return;
  }
  chain->Fine("slots", std::to_string(used) + " of " + std::to_string(total) + " slots are in use.");
}

// The key for one remote host; where there are several hosts, those of the rest may differ.
void CheckKey(const machine::Machine& machine, const HostAddress& host, Chain* chain) {
  constexpr char kLink[] = "key";
  constexpr char kLibrary[] = "/usr/lib/causeway/libcauseway-tls.so.1";
  if (!machine.Has(kLibrary)) {
    chain->Broken(kLink, std::string(kLibrary) + " is missing, which tls:// needs.",
                  "apt-get install --reinstall causeway-guest");
    return;
  }
  const std::string file = KeyFileFor(host);
  if (!machine.Has(file)) {
    chain->Broken(kLink, "The key " + file + " is missing, by which the host knows this guest.",
                  "on the host: causeway keys create NAME --output FILE, then copy that file to " + file);
    return;
  }
  if (!machine.Read(file)) {
    chain->Broken(
        kLink, "This user may not read the key " + file + ".",
        "chgrp render " + file + " && chmod 0640 " + file + " as root, for members of the group render");
    return;
  }
  chain->Fine(kLink, "The key " + file + " is there.");
}

// Which of several hosts answer; a program needs one of them.
void CheckHosts(const machine::Machine& machine, const std::vector<HostAddress>& hosts, Chain* chain) {
  constexpr char kLink[] = "hosts";
  if (!machine.lives()) return chain->Skip(kLink, "A system that does not run asks none.");
  if (!chain->IsFine("key")) return chain->Skip(kLink, "The key comes first.");
  std::vector<HostAnswer> answers = AskHosts(hosts, true);
  std::string others;
  for (size_t i = 0; i < hosts.size(); ++i) {
    if (answers[i].state == HostAnswer::State::kUp) continue;
    others +=
        " " + hosts[i].text + " is " + pool::StateName(answers[i].state) + ": " + answers[i].reason + ".";
  }
  const std::vector<size_t> order = OrderHosts(answers, "");
  if (order.empty())
    return chain->Broken(kLink,
                         "None of " + std::to_string(hosts.size()) + " hosts serves a program now." + others,
                         "on each of the hosts: causeway doctor");
  chain->Fine(kLink, "A program would use " + hosts[order.front()].text + " of " +
                         std::to_string(hosts.size()) + " hosts." + others);
}

// What a guest of other hosts needs (docs/remote.md): the list of hosts, a key for each, and one that answers.
void CheckRemote(const machine::Machine& machine, Chain* chain) {
  std::vector<HostAddress> hosts;
  const std::string problem = pool::NamedHosts(machine.At(kHostsFile), &hosts);
  if (!problem.empty())
    return chain->Broken("hosts", "It is not known which hosts to use: " + problem + ".",
                         "write lines such as tls://host:7471 into " + machine.At(kHostsFile) +
                             ", or correct the variable CAUSEWAY");
  std::set<std::string> seen;
  for (const HostAddress& host : hosts)
    if (host.encrypted && seen.insert(KeyFileFor(host)).second) CheckKey(machine, host, chain);
  if (seen.empty()) chain->Skip("key", "No host is reached by tls://, which needs one.");
  if (hosts.size() > 1) return CheckHosts(machine, hosts, chain);
  chain->Fine("hosts", "Programs use " + hosts.front().text + ".");
}

// What a program does: through library, node and region to the host's driver.
void CheckHostBehind(const machine::Machine& machine, Chain* chain) {
  constexpr char kLink[] = "GPU";
  if (!machine.lives()) {
    chain->Skip(kLink, "A system that does not run has none.");
    return;
  }
  for (const Finding& finding : chain->findings()) {
    if (finding.state != State::kBroken) continue;
    chain->Skip(kLink, "Not tried while another link is broken: " + finding.link + ".");
    return;
  }
  const auto tried = machine::RunProgram({machine::OwnPath(), "--try-cuda"}, kTryMs);
  const auto lines = machine::Lines(tried.output);
  const std::string said = lines.empty() ? "nothing" : Trimmed(lines.front());
  if (tried.status == 0) {
    chain->Fine(kLink, Trimmed(lines.back()) + ".");
    return;
  }
  const bool no_key = tried.output.find(kNoEncryptedConnection) != std::string::npos;
  const bool differs = tried.output.find(kSameReleaseNeeded) != std::string::npos ||
                       tried.output.find(kWorkerNeeded) != std::string::npos;
  chain->Broken(differs ? "versions" : kLink, "A program does not reach the GPU; the library says: " + said,
                differs  ? "on the host, install the causeway-worker package that it names; or here, the "
                           "causeway-guest package of the host's version, which `causeway status` shows there"
                : no_key ? "on the host: causeway keys list, and causeway doctor"
                         : "on the host: causeway doctor");
}

}  // namespace

void CheckGuest(const machine::Machine& machine, Chain* chain) {
  const std::string release = KernelRelease(machine);
  CheckKernel(release, chain);
  const char* way = std::getenv("CAUSEWAY");
  // A process that is told another way needs no module.
  const std::string chosen = way == nullptr ? "" : way;
  if (chosen.starts_with("local:") || IsRemote(chosen) || chosen.starts_with("hosts:")) {
    chain->Skip("device", "The variable CAUSEWAY leads elsewhere: " + chosen + ".");
    if (!chosen.starts_with("local:")) CheckRemote(machine, chain);
  } else if (chosen.empty() && machine.Has(kHostsFile) && !machine.Has(kNode)) {
    chain->Skip("device", std::string("There is no ") + kNode + ", so that programs use the hosts of " +
                              kHostsFile + ".");
    CheckRemote(machine, chain);
  } else {
    const Device device = CheckDevice(machine, chain);
    CheckModule(machine, release, chain);
    if (device.name.empty() || !chain->IsFine("module")) {
      chain->Skip("node", "Device and module come first.");
    } else if (CheckNode(machine, device, chain)) {
      CheckPermission(machine, chain);
      CheckCacheMode(machine, chain);
      CheckSlots(machine, chain);
    }
  }
  CheckLoader(machine, chain);
  CheckHostBehind(machine, chain);
}

}  // namespace causeway::doctor
