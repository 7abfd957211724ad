// SPDX-License-Identifier: Apache-2.0
#include "tools/system/cdi.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <toml++/toml.h>
#include <cstdio>

#include "host_backend/common/control_socket.h"
#include "host_backend/common/json.h"
#include "host_backend/common/unique_fd.h"
#include "tools/system/doctor.h"

namespace causeway::cdi {
namespace {

// The lowest version that has the fields below: mounts without a type (0.4.0), nodes without a path of the host's own (0.5.0),
// no annotations (0.6.0), no further groups (0.7.0).
constexpr char kVersion[] = "0.3.0";
constexpr char kKind[] = "causeway.org/gpu";
constexpr char kContainerLibraries[] = "/usr/lib/causeway";
constexpr char kLoaderFile[] = "loader.conf";  // in the libraries' folder
constexpr char kContainerLoaderFile[] = "/etc/ld.so.conf.d/00-causeway.conf";
constexpr char kRunFolder[] = "/run/causeway";  // of the container
constexpr char kDevice[] = "/dev/causeway";
// The hook needs no variable; but where a hook has none of its own, runc before 1.3.0 gives it those of the image.
constexpr char kHookPath[] = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
constexpr int kReadWrite = 0666;

// Where things are on this system.
struct Places {
  std::string libraries;
  std::string hook;
  std::string socket_folder;  // of a host
};

Json Mount(const std::string& from, const std::string& to, bool programs) {
  Json options = {"ro", "nosuid", "nodev", "bind"};
  if (!programs) options.push_back("noexec");
  return {{"hostPath", from}, {"containerPath", to}, {"options", options}};
}

// Programs beside this one, in a build folder, or where the package has them.
Places FindPlaces(const machine::Machine& machine, bool guest) {
  const std::string own = machine::OwnPath();
  const std::string beside = own.substr(0, own.rfind('/'));
  constexpr char kHook[] = "causeway-container-hook";
  Places places;
  const bool built = machine.lives() && machine.Has(beside + "/" + kHook);
  places.hook = (built ? beside : "/usr/libexec/causeway") + "/" + kHook;
  places.libraries = guest ? kContainerLibraries : "/usr/libexec/causeway/guest_lib";
  if (!guest && built && machine.Has(beside + "/guest_lib")) places.libraries = beside + "/guest_lib";
  if (!guest && built && machine.Has(beside + "/../guest_lib/libcuda.so.1"))
    places.libraries = beside.substr(0, beside.rfind('/')) + "/guest_lib";
  return places;
}

// The folder of the configuration's socket for containers.
Result<std::string> SocketFolder(const machine::Machine& machine, const std::string& config) {
  try {
    const std::string folder =
        toml::parse_file(machine.At(config))["container_folder"].value_or(std::string());
    if (!folder.empty()) return folder;
  } catch (const toml::parse_error& error) {
    return Error{"The configuration " + config + " cannot be read: " + std::string(error.description()) +
                 "; causewayd --check --config " + config + " says more."};
  }
  return Error{"The configuration " + config +
               " has no container_folder, so that no container reaches causewayd; add the line: "
               "container_folder = \"/run/causeway/containers\", and restart causewayd."};
}

std::string Missing(const machine::Machine& machine, const Places& places, bool guest) {
  const std::string package = guest ? "causeway-guest" : "causeway-host";
  for (const std::string& file :
       {places.hook, places.libraries + "/libcuda.so.1", places.libraries + "/libnvidia-ml.so.1",
        places.libraries + "/" + kLoaderFile}) {
    if (!machine.Has(file)) return file + " is missing; install the package " + package + " again.";
  }
  return {};
}

std::string WriteWhole(const std::string& text, const std::string& path) {
  const std::string intro = "The file " + path + " cannot be written: ";
  const std::string temporary = path + ".new-by-causeway";
  UniqueFd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
  bool done = file && write(file.get(), text.data(), text.size()) == ssize_t(text.size()) &&
              fchmod(file.get(), 0644) == 0 && fsync(file.get()) == 0;
  done = done && rename(temporary.c_str(), path.c_str()) == 0;
  if (done) return {};
  const std::string reason = ErrnoText();
  if (file) unlink(temporary.c_str());
  return intro + reason + "; nothing was changed.";
}

}  // namespace

Result<std::string> Specification(const machine::Machine& machine, bool guest, const std::string& config) {
  Places places = FindPlaces(machine, guest);
  if (std::string text = Missing(machine, places, guest); !text.empty()) return Error{text};
  Json edits;
  if (guest) {
    // Within a container whoever runs there may use what the container was given.
    edits["deviceNodes"] = Json::array({{{"path", kDevice}, {"fileMode", kReadWrite}}});
  } else {
    auto folder = SocketFolder(machine, config);
    if (!folder.ok()) return Error{folder.error()};
    edits["mounts"] = Json::array({Mount(folder.value() + kContainerRun, kRunFolder, false)});
  }
  const std::string hook = places.hook;
  const Json all = {
      {"cdiVersion", kVersion},
      {"kind", kKind},
      {"devices", Json::array({{{"name", "all"}, {"containerEdits", edits}}})},
      {"containerEdits",
       {{"mounts", Json::array({Mount(places.libraries, kContainerLibraries, true),
                                Mount(places.libraries + "/" + kLoaderFile, kContainerLoaderFile, false)})},
        {"hooks", Json::array({{{"hookName", "createContainer"},
                                {"path", hook},
                                {"args", {hook.substr(hook.rfind('/') + 1)}},
                                {"env", {kHookPath}}}})}}}};
  return all.dump(2) + "\n";
}

int RunCdi(const CdiOptions& options) {
  const machine::Machine machine("");
  const auto text = Specification(machine, doctor::IsGuest(machine, options.side), options.config);
  std::string failed = text.ok() ? "" : text.error();
  if (failed.empty() && options.output.empty()) {
    std::printf("%s", text.value().c_str());
    return 0;
  }
  if (failed.empty()) {
    mkdir(options.output.substr(0, options.output.rfind('/')).c_str(), 0755);
    failed = WriteWhole(text.value(), options.output);
  }
  if (failed.empty()) return 0;
  std::fprintf(stderr, "causeway: %s\n", failed.c_str());
  return 1;
}

}  // namespace causeway::cdi
