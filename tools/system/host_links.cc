// SPDX-License-Identifier: Apache-2.0
// The links of a host: programs, configuration, driver, device nodes, daemon, versions, workers, regions, libvirt's rules.
#include <fcntl.h>
#include <linux/types.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xen/gntalloc.h>

#include <toml++/toml.h>
#include <cstdlib>

#include "host_backend/command/command.h"
#include "host_backend/common/control_socket.h"
#include "host_backend/common/json.h"
#include "host_backend/common/unique_fd.h"
#include "tools/system/doctor.h"

namespace causeway::doctor {
namespace {

using machine::Trimmed;

constexpr int kCheckMs = 20'000;
constexpr char kReinstallHost[] = "apt-get install --reinstall causeway-host";

// What of the configuration the other links need.
struct Configuration {
  std::string driver_library = "libcuda.so.1";
  std::string socket;
  std::string socket_group;
};

// The folder of the daemon: beside this program, or where the package has it.
std::string ProgramsFolder(const machine::Machine& machine) {
  const std::string own = machine::OwnPath();
  const std::string beside = own.substr(0, own.rfind('/'));
  return machine.lives() && access((beside + "/causewayd").c_str(), F_OK) == 0 ? beside
                                                                               : "/usr/libexec/causeway";
}

bool CheckPrograms(const machine::Machine& machine, const std::string& folder, Chain* chain) {
  for (const char* name : {"causewayd", "causeway-launcher", "causeway-worker"}) {
    const auto found = machine.Stat(folder + "/" + name);
    if (found && (found->st_mode & 0111) != 0) continue;
    chain->Broken("programs", folder + "/" + name + (found ? " is not executable." : " is missing."),
                  kReinstallHost);
    return false;
  }
  chain->Fine("programs", "causewayd and its worker are in " + folder + ".");
  return true;
}

Configuration ReadConfiguration(const std::string& path) {
  Configuration read;
  try {
    const toml::table table = toml::parse_file(path);
    read.driver_library = table["driver_library"].value_or(read.driver_library);
    read.socket = table["socket"].value_or(read.socket);
    read.socket_group = table["socket_group"].value_or(read.socket_group);
  } catch (const toml::parse_error&) {
    // causewayd has said where.
  }
  return read;
}

bool CheckConfiguration(const machine::Machine& machine, const std::string& folder, const std::string& path,
                        Chain* chain) {
  constexpr char kLink[] = "configuration";
  if (!machine.Has(path)) {
    chain->Broken(kLink, "The configuration " + path + " is missing.",
                  "apt-get install --reinstall -o Dpkg::Options::=--force-confmiss causeway-host");
    return false;
  }
  if (!chain->IsFine("programs")) {
    chain->Skip(kLink, "causewayd, which checks it, is missing.");
    return true;
  }
  const std::string program = machine.At(folder) + "/causewayd";
  const auto checked = machine::RunProgram({program, "--check", "--config", machine.At(path)}, kCheckMs);
  if (checked.status == 0) {
    chain->Fine(kLink, path + " is correct.");
    return true;
  }
  std::string said = Trimmed(checked.output);
  if (said.starts_with("causewayd: ")) said = said.substr(11);
  chain->Broken(kLink, said.empty() ? "causewayd does not start." : said,
                "change that line, then: " + program + " --check --config " + path);
  return false;
}

void CheckDriver(const machine::Machine& machine, const Configuration& configuration, Chain* chain) {
  constexpr char kLink[] = "driver";
  const std::string& library = configuration.driver_library;
  if (library.find('/') != std::string::npos) {
    if (machine.Has(library)) {
      chain->Fine(kLink, "The driver library is " + library + ".");
    } else {
      chain->Broken(
          kLink,
          "The driver library " + library + " is missing, which driver_library of the configuration names.",
          "install it there, or name another one as driver_library");
    }
    return;
  }
  const auto found = machine.Cached(library);
  if (found.empty()) {
    chain->Broken(kLink, "The loader finds no " + library + ": NVIDIA's driver is not installed.",
                  "apt-get install nvidia-driver, or ldconfig if it is installed");
    return;
  }
  if (found.front().starts_with("/usr/lib/causeway/")) {
    chain->Broken(kLink,
                  "The loader finds " + found.front() + ", which is the guest's library and not NVIDIA's.",
                  "dpkg -r causeway-guest && ldconfig");
    return;
  }
  chain->Fine(kLink, library + " is " + found.front() + ".");
  for (const char* node : {"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"}) {
    if (machine.Has(node)) continue;
    chain->Broken("device nodes",
                  std::string(node) + " is missing: NVIDIA's kernel module is not loaded, or made no node.",
                  machine.HasSystemd() ? "systemctl start causeway-devices.service"
                                       : "nvidia-modprobe -c 0 && nvidia-modprobe -u -c 0");
    return;
  }
  chain->Fine("device nodes", "NVIDIA's device nodes are there.");
}

// How the daemon is started here, or started again; `first`: a command that has to be done before.
std::string StartDaemon(const machine::Machine& machine, const std::string& folder,
                        const DoctorOptions& options, bool again, const std::string& first = "") {
  const std::string before = first.empty() ? "" : first + " && ";
  if (machine.HasSystemd())
    return before + "systemctl " + (again ? "restart" : "start") + " causewayd.service";
  return (again ? "end causewayd, then: " : "") + before + folder + "/causewayd --config " + options.config +
         " &";
}

// The status; empty: the daemon does not answer, and the chain has why.
std::string CheckDaemon(const machine::Machine& machine, const std::string& folder,
                        const DoctorOptions& options, const Configuration& configuration, Chain* chain) {
  constexpr char kLink[] = "daemon";
  const std::string socket = !options.socket.empty()         ? options.socket
                             : !configuration.socket.empty() ? configuration.socket
                                                             : "/run/causeway/causeway.sock";
  if (!machine.Has(socket) && errno != EACCES) {
    chain->Broken(kLink, "causewayd does not run: there is no socket " + socket + ".",
                  StartDaemon(machine, folder, options, false));
    return {};
  }
  if (access(socket.c_str(), R_OK | W_OK) != 0 && errno == EACCES) {
    // That of the socket, which is the daemon's where the configuration names none. As the package starts it, that is causeway.
    const auto found = machine.Stat(socket);
    std::string group = found ? machine.GroupName(found->st_gid) : configuration.socket_group;
    if (group.empty()) group = "causeway";
    chain->Broken(
        "permission",
        "This user may not use the socket " + socket + ", which belongs to the group " + group + ".",
        "usermod -aG " + group + " \"$USER\" as root, then log in again");
    return {};
  }
  const auto status = command::QueryStatus(socket);
  if (!status.ok()) {
    chain->Broken(kLink, "causewayd does not answer. " + status.error(),
                  StartDaemon(machine, folder, options, false));
    return {};
  }
  chain->Fine(kLink, "causewayd answers at " + socket + ".");
  return status.value();
}

void CheckVersion(const machine::Machine& machine, const std::string& folder, const DoctorOptions& options,
                  const std::string& status, Chain* chain) {
  const std::string version = command::StatusValue(status, "", "version");
  if (version == CAUSEWAY_VERSION) {
    chain->Fine("versions", "causewayd is " + version + ", as what is installed.");
    return;
  }
  chain->Broken("versions",
                "causewayd that runs is " + version + ", and what is installed is " CAUSEWAY_VERSION ".",
                StartDaemon(machine, folder, options, true));
}

// What the daemon's workers found of driver and GPU.
void CheckWorkers(const std::string& status, const Configuration& configuration, Chain* chain) {
  const std::string problem = command::StatusValue(status, "workers", "problem");
  if (!problem.empty()) {
    chain->Broken(
        "GPU", "Workers cannot start: " + problem,
        "nvidia-smi says whether the driver sees the GPU; journalctl -u causewayd has the whole story");
    return;
  }
  const std::string devices = command::StatusValue(status, "driver", "devices");
  const std::string version = command::StatusValue(status, "driver", "version");
  if (version.empty() || version == "0") {
    chain->Skip("GPU", "No worker has started the driver yet.");
  } else if (devices == "0") {
    chain->Broken("GPU", "The driver " + configuration.driver_library + " sees no GPU.",
                  "nvidia-smi -L lists what the driver sees; CUDA_VISIBLE_DEVICES of causewayd may hide it");
  } else {
    chain->Fine("GPU", devices + " with driver API " + version + ".");
  }
}

// What is wrong with one VM's region, and what mends it; both empty: it is as the daemon made it. `restart` starts the daemon
// again, after a command that it is given.
template <class Restart>
std::pair<std::string, std::string> RegionFault(const machine::Machine& machine, const std::string& region,
                                                const Restart& restart) {
  const auto value = [&](const char* key) { return command::StatusValue(region, "", key); };
  const std::string name = value("file");
  // Memory that is granted to a domain of Xen is no file.
  if (name.starts_with("xen:"))
    return {value("problem"),
            value("problem").empty() ? "" : "causeway status, after what the sentence says"};
  const auto file = machine.Stat(name);
  if (!file) return {name + " is gone, so that the VM cannot start with it.", restart("")};
  // The daemon refuses a file of another size.
  if (std::to_string(file->st_size) != value("region_bytes")) {
    return {
        name + " has " + std::to_string(file->st_size) + " bytes instead of " + value("region_bytes") + ".",
        restart("rm " + name)};
  }
  if ((file->st_mode & 0600) != 0600 && (file->st_mode & 0060) != 0060)
    return {name + " can be opened by nobody: its mode was changed.", "chmod 0660 " + name};
  if (!value("problem").empty()) return {value("problem"), restart("")};
  return {};
}

void CheckRegions(const machine::Machine& machine, const std::string& folder, const DoctorOptions& options,
                  const std::string& status, Chain* chain) {
  const auto restart = [&](const std::string& first) {
    return StartDaemon(machine, folder, options, true, first);
  };
  const auto regions = command::JsonObjects(status, "regions");
  for (const std::string& region : regions) {
    const auto [sentence, mend] = RegionFault(machine, region, restart);
    if (sentence.empty()) continue;
    chain->Broken("region",
                  "The region of the VM " + command::StatusValue(region, "", "vm") + ": " + sentence, mend);
    return;
  }
  chain->Fine("region", regions.empty() ? "No VM has a region."
                                        : std::to_string(regions.size()) + " regions are there.");
}

void CheckSharedMemory(const machine::Machine& machine, Chain* chain) {
  constexpr uint64_t kLeast = uint64_t{16} << 20;
  struct statvfs found {};
  const std::string folder = machine.At("/dev/shm");
  if (statvfs(folder.c_str(), &found) != 0) {
    chain->Broken("shared memory", "/dev/shm is missing, where regions lie.",
                  "mount -t tmpfs none " + folder);
    return;
  }
  const uint64_t left = uint64_t{found.f_bavail} * found.f_frsize;
  if (left < kLeast) {
    chain->Broken(
        "shared memory",
        "/dev/shm is full: " + std::to_string(left >> 20) +
            " MiB are left, and regions fill as they are used.",
        "mount -o remount,size=75% " + folder + ", or remove what ls -l /dev/shm shows and nobody uses");
    return;
  }
  chain->Fine("shared memory", std::to_string(left >> 20) + " MiB are left in /dev/shm.");
}

constexpr unsigned long kGrantsPerFrame = 512;  // of Xen's table

// The pages that domain 0 can grant, less one frame of the table for others, as vm_configs/causeway-xen.service computes it; none:
// this user cannot ask Xen.
std::optional<unsigned long> RoomInXenTable(const machine::Machine& machine) {
  if (!machine.lives()) return {};
  const auto asked = machine::RunProgram({"xenhypfs", "cat", "/params/gnttab_max_frames"}, 5000);
  const unsigned long frames = asked.status == 0 ? std::strtoul(asked.output.c_str(), nullptr, 10) : 0;
  if (frames < 2) return {};
  return (frames - 1) * kGrantsPerFrame;
}

// Whether the kernel's allocator gives nobody a page, although nobody has any.
bool IsCountWrong(const machine::Machine& machine, const char* device) {
  if (!machine.lives() || Trimmed(machine.Read("/sys/module/xen_gntalloc/refcnt").value_or("")) != "0")
    return false;
  const UniqueFd fd(open(device, O_RDWR | O_CLOEXEC));
  ioctl_gntalloc_alloc_gref request{};  // of one page, which goes with the descriptor
  request.count = 1;
  return fd && ioctl(fd.get(), IOCTL_GNTALLOC_ALLOC_GREF, &request) != 0 && errno == ENOSPC;
}

// Domain 0 of Xen grants regions by a device of the kernel.
void CheckXen(const machine::Machine& machine, Chain* chain) {
  constexpr char kLink[] = "Xen", kDevice[] = "/dev/xen/gntalloc";
  constexpr char kLimit[] = "/sys/module/xen_gntalloc/parameters/limit";
  constexpr unsigned long kLeastPages = 16402;  // of a region of 64 MiB, and causewayd's own (docs/xen.md)
  constexpr unsigned long kUsualFrames = 64;
  if (machine.Read("/proc/xen/capabilities").value_or("").find("control_d") == std::string::npos) return;
  const auto known = RoomInXenTable(machine);
  const unsigned long room = known.value_or((kUsualFrames - 1) * kGrantsPerFrame);
  if (!machine.Has(kDevice)) {
    chain->Broken(kLink, std::string(kDevice) + ", by which domain 0 grants memory, is missing.",
                  "modprobe xen-gntalloc limit=" + std::to_string(room));
    return;
  }
  const unsigned long pages = std::strtoul(machine.Read(kLimit).value_or("0").c_str(), nullptr, 10);
  if (pages < kLeastPages) {
    chain->Broken(kLink,
                  "xen-gntalloc grants " + std::to_string(pages) +
                      " pages in all, and the smallest region takes " + std::to_string(kLeastPages) + ".",
                  "echo " + std::to_string(room) + " > " + machine.At(kLimit));
    return;
  }
  if (known && pages > room) {
    chain->Broken(kLink,
                  "xen-gntalloc may grant " + std::to_string(pages) +
                      " pages in all, and Xen's table has room for " + std::to_string(room) +
                      " (gnttab_max_frames= makes more): once it is full, Linux grants nothing until the "
                      "module is loaded anew.",
                  "echo " + std::to_string(room) + " > " + machine.At(kLimit));
    return;
  }
  if (IsCountWrong(machine, kDevice)) {
    chain->Broken(kLink,
                  "xen-gntalloc gives nobody a page, although none is taken: its count has been wrong since "
                  "Xen's table "
                  "of grants was full.",
                  "rmmod xen-gntalloc && modprobe xen-gntalloc");
    return;
  }
  chain->Fine(kLink, "xen-gntalloc grants " + std::to_string(pages) + " pages in all.");
}

// A VM of libvirt under AppArmor may open its region only with a rule.
void CheckAppArmor(const machine::Machine& machine, Chain* chain) {
  if (!machine.Read("/sys/module/apparmor/parameters/enabled").value_or("").starts_with("Y") ||
      !machine.Has("/etc/apparmor.d/abstractions/libvirt-qemu"))
    return;
  const std::string rule = std::string(kRegionFolder) + kRegionPrefix + "* rw,";
  const std::string local = "/etc/apparmor.d/local/abstractions/libvirt-qemu";
  for (const std::string& line : machine::Lines(machine.Read(local).value_or(""))) {
    if (Trimmed(line).starts_with(rule)) {
      chain->Fine("AppArmor", "VMs may open their regions.");
      return;
    }
  }
  chain->Broken("AppArmor", local + " does not let VMs open their regions.",
                "mkdir -p " + machine.At("/etc/apparmor.d/local/abstractions") + " && echo '  " + rule +
                    "' >> " + machine.At(local));
}

}  // namespace

void CheckHost(const machine::Machine& machine, const DoctorOptions& options, Chain* chain) {
  const std::string folder = ProgramsFolder(machine);
  CheckPrograms(machine, folder, chain);
  const bool readable = CheckConfiguration(machine, folder, options.config, chain);
  const Configuration configuration =
      readable ? ReadConfiguration(machine.At(options.config)) : Configuration();
  CheckDriver(machine, configuration, chain);
  CheckSharedMemory(machine, chain);
  CheckAppArmor(machine, chain);
  CheckXen(machine, chain);
  if (!machine.lives()) {
    chain->Skip("daemon", "A system that does not run has none.");
    return;
  }
  const std::string status = CheckDaemon(machine, folder, options, configuration, chain);
  if (status.empty()) {
    chain->Skip("GPU", "The daemon, which knows, comes first.");
    return;
  }
  CheckVersion(machine, folder, options, status, chain);
  CheckWorkers(status, configuration, chain);
  CheckRegions(machine, folder, options, status, chain);
}

}  // namespace causeway::doctor
