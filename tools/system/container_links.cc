// SPDX-License-Identifier: Apache-2.0
// The link to containers: what their runtimes read of the GPU.
#include "host_backend/common/control_socket.h"
#include "host_backend/common/json.h"
#include "tools/system/cdi.h"
#include "tools/system/doctor.h"

namespace causeway::doctor {
namespace {

constexpr char kContainers[] = "containers";

bool HasRuntime(const machine::Machine& machine) {
  for (const char* program : {"podman", "docker", "containerd", "crun", "runc"}) {
    if (machine.Has(std::string("/usr/bin/") + program) || machine.Has(std::string("/usr/sbin/") + program))
      return true;
  }
  return false;
}

// The file that a runtime takes for this kind of device; empty: there is none.
std::string FindFile(const machine::Machine& machine) {
  for (const char* folder : cdi::kFolders) {
    for (const std::string& name : machine.List(folder)) {
      const std::string path = std::string(folder) + "/" + name;
      if (name.ends_with(".json") &&
          machine.Read(path).value_or("").find("causeway.org/gpu") != std::string::npos)
        return path;
    }
  }
  return {};
}

// Whether the socket is there that a container of a host gets.
bool HasSocket(const machine::Machine& machine, const std::string& specification) {
  const Json all = Json::parse(specification);
  const Json& edits = all.at("devices").at(0).at("containerEdits");
  if (!edits.contains("mounts")) return true;
  const std::string folder = edits.at("mounts").at(0).at("hostPath");
  const auto found = machine.Stat(folder.substr(0, folder.rfind('/')) + kContainerSocket);
  // A user of another group may not look into the folder.
  return (found && S_ISSOCK(found->st_mode)) || (!found && errno == EACCES);
}

}  // namespace

void CheckContainers(const machine::Machine& machine, bool guest, const std::string& config, Chain* chain) {
  const std::string file = FindFile(machine);
  const std::string write = std::string("causeway cdi --output ") + (file.empty() ? cdi::kUsualFile : file);
  if (file.empty()) {
    if (HasRuntime(machine))
      chain->Skip(kContainers, "No container can have the GPU until this is done: " + write + ".");
    return;
  }
  const auto wanted = cdi::Specification(machine, guest, config);
  if (!wanted.ok()) {
    chain->Broken(kContainers, "Containers cannot have the GPU. " + wanted.error(), "what the sentence says");
    return;
  }
  if (machine.Read(file).value_or("") != wanted.value()) {
    chain->Broken(kContainers,
                  file + " is not what this system needs, so that containers get no GPU or do not start.",
                  write);
    return;
  }
  if (machine.lives() && !HasSocket(machine, wanted.value())) {
    chain->Broken(
        kContainers, "The socket that containers get is not there: causewayd has not made it.",
        machine.HasSystemd() ? "systemctl restart causewayd.service" : "end causewayd and start it again");
    return;
  }
  chain->Fine(kContainers, "Containers get the GPU by " + file + ".");
}

}  // namespace causeway::doctor
