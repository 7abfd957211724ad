// SPDX-License-Identifier: Apache-2.0
// Which library a program of a guest gets: files, the loader's configuration and cache, what the environment changes.
#include <cstdlib>

#include "tools/system/doctor.h"

namespace causeway::doctor {
namespace {

constexpr char kFolder[] = "/usr/lib/causeway";
constexpr char kOwnFile[] = "00-causeway.conf";
constexpr char kReinstallGuest[] = "apt-get install --reinstall causeway-guest";

// Both libraries, and the names without a number, by which Numba asks.
bool CheckFiles(const machine::Machine& machine, Chain* chain) {
  for (const char* name : {"libcuda.so.1", "libnvidia-ml.so.1"}) {
    const std::string path = std::string(kFolder) + "/" + name;
    const auto text = machine.Read(path);
    if (!text) {
      chain->Broken("library", path + " is missing.", kReinstallGuest);
      return false;
    }
    if (!text->starts_with("\177ELF")) {
      chain->Broken("library", path + " is no library: its file is damaged.", kReinstallGuest);
      return false;
    }
  }
  for (const char* name : {"libcuda.so", "libnvidia-ml.so"}) {
    const std::string path = std::string(kFolder) + "/" + name;
    const std::string wanted = std::string(name) + ".1";
    if (machine.LinkTarget(path) != wanted) {
      chain->Broken("library",
                    path + " does not lead to " + wanted + ", so that programs which open " + name +
                        " find another library or none.",
                    "ln -sfn " + wanted + " " + machine.At(path));
      return false;
    }
  }
  chain->Fine("library", std::string("libcuda.so.1 and libnvidia-ml.so.1 are in ") + kFolder + ".");
  return true;
}

// The command by which that system's cache is made again.
std::string Ldconfig(const machine::Machine& machine) {
  return machine.lives() ? "ldconfig" : "ldconfig -r " + machine.At("");
}

bool CheckConfiguration(const machine::Machine& machine, Chain* chain) {
  constexpr char kLink[] = "loader";
  const std::string own = std::string("/etc/ld.so.conf.d/") + kOwnFile;
  if (machine.Read("/etc/ld.so.conf").value_or("").find("ld.so.conf.d/") == std::string::npos) {
    chain->Broken(kLink,
                  "/etc/ld.so.conf does not include ld.so.conf.d, so that the loader does not know " +
                      std::string(kFolder) + ".",
                  "echo 'include /etc/ld.so.conf.d/*.conf' >> " + machine.At("/etc/ld.so.conf") + " && " +
                      Ldconfig(machine));
    return false;
  }
  if (machine.Read(own).value_or("").find(kFolder) == std::string::npos) {
    chain->Broken(kLink, own + " is missing or does not name " + kFolder + ".",
                  std::string("echo ") + kFolder + " > " + machine.At(own) + " && " + Ldconfig(machine));
    return false;
  }
  return true;
}

void CheckCache(const machine::Machine& machine, Chain* chain) {
  constexpr char kLink[] = "loader";
  for (const char* name : {"libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"}) {
    const std::string wanted = std::string(kFolder) + "/" + name;
    const auto found = machine.Cached(name);
    if (!found.empty() && found.front() == wanted) continue;
    bool listed = false;
    for (const std::string& path : found) listed = listed || path == wanted;
    if (!listed) {
      chain->Broken(kLink, std::string("The loader's cache does not have ") + wanted + ".",
                    Ldconfig(machine));
      return;
    }
    // In the cache, but behind another: a file of ld.so.conf.d comes before 00-causeway.conf.
    const std::string folder = found.front().substr(0, found.front().rfind('/'));
    for (const std::string& file : machine.List("/etc/ld.so.conf.d")) {
      if (file >= kOwnFile) break;
      if (machine.Read("/etc/ld.so.conf.d/" + file).value_or("").find(folder) == std::string::npos) continue;
      const std::string path = machine.At("/etc/ld.so.conf.d/");
      chain->Broken(kLink,
                    "The loader finds " + found.front() + " before " + wanted + ", because " + file +
                        " is read before " + kOwnFile + ".",
                    "mv " + path + file + " " + path + "zz-" + file + " && " + Ldconfig(machine));
      return;
    }
    chain->Broken(kLink, "The loader finds " + found.front() + " before " + wanted + ".", Ldconfig(machine));
    return;
  }
  chain->Fine(kLink, std::string("libcuda.so.1 leads to ") + kFolder + ".");
}

std::vector<std::string> Folders(const char* list) {
  std::vector<std::string> folders;
  std::string text = list != nullptr ? list : "";
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    if (end > begin) folders.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return folders;
}

void CheckEnvironment(const machine::Machine& machine, Chain* chain) {
  constexpr char kLink[] = "environment";
  if (const char* way = std::getenv("CAUSEWAY"); way != nullptr && *way != '\0') {
    const std::string text = way;
    const bool known = text == "module" || text.starts_with("module:") || text.starts_with("local:") ||
                       text.starts_with("tcp://") || text.starts_with("tls://") || text.starts_with("hosts:");
    if (!known) {
      chain->Broken(
          kLink,
          "The variable CAUSEWAY is '" + text +
              "', which is none of local:/path, module, tls://host:port, tcp://host:port, hosts:/path.",
          "unset CAUSEWAY");
      return;
    }
  }
  for (const std::string& folder : Folders(std::getenv("LD_LIBRARY_PATH"))) {
    if (folder == kFolder) break;
    if (!machine.Has(folder + "/libcuda.so.1")) continue;
    chain->Broken(kLink,
                  "The variable LD_LIBRARY_PATH leads programs to " + folder + "/libcuda.so.1 instead of " +
                      kFolder + ".",
                  "unset LD_LIBRARY_PATH");
    return;
  }
  if (const char* preload = std::getenv("LD_PRELOAD");
      preload != nullptr && std::string(preload).find("libcuda.so") != std::string::npos) {
    chain->Broken(kLink,
                  std::string("The variable LD_PRELOAD puts ") + preload + " before Causeway's library.",
                  "unset LD_PRELOAD");
    return;
  }
  chain->Fine(kLink, "No variable leads programs to another library.");
}

}  // namespace

void CheckLoader(const machine::Machine& machine, Chain* chain) {
  if (!CheckFiles(machine, chain)) {
    chain->Skip("loader", "The library comes first.");
  } else if (CheckConfiguration(machine, chain)) {
    CheckCache(machine, chain);
  }
  CheckEnvironment(machine, chain);
}

}  // namespace causeway::doctor
