// SPDX-License-Identifier: Apache-2.0
// causeway-system: the part of the command `causeway` that is the same in guests and on hosts, and looks at the system that it
// runs on. On a host the command becomes this program; in a guest it is the command. It runs on systems as old as the guest's
// libraries do (docs/packages.md).
#include <CLI/CLI.hpp>

#include "host_backend/common/option_table.h"
#include "tools/system/cdi.h"
#include "tools/system/doctor.h"
#include "tools/system/pool.h"

namespace causeway {
namespace {

constexpr int kUsage = 2;

CLI::App* AddCdi(CLI::App& app, cdi::CdiOptions& options) {
  auto* added = app.add_subcommand(
      "cdi", "Print the CDI file by which container runtimes give a container the GPU (tried with podman)");
  options.config = "/etc/causeway/causewayd.toml";
  added
      ->add_option("--output", options.output,
                   "Write it to this file instead, usually /etc/cdi/causeway.json")
      ->type_name("FILE");
  added
      ->add_option("--side", options.side,
                   "What this system is (default: a host where causewayd is installed)")
      ->check(CLI::IsMember({"host", "guest"}));
  added->add_option("--config", options.config, "The daemon's configuration")
      ->type_name("FILE")
      ->capture_default_str();
  return added;
}

CLI::App* AddPool(CLI::App& app, pool::PoolOptions& options) {
  auto* added = app.add_subcommand(
      "pool", "List the remote hosts that this machine may use, their GPUs, load and free memory");
  added
      ->add_option("HOST", options.hosts,
                   "tls://HOST:PORT (default: those of the variable CAUSEWAY or of /etc/causeway/hosts)")
      ->expected(0, int(kMaxHosts));
  added->add_flag("--json", options.json, "As JSON");
  return added;
}

int Main(int argc, char** argv) {
  CLI::App app{"causeway: CUDA for virtual machines; what looks at this system.", "causeway"};
  app.set_version_flag("--version", "causeway " CAUSEWAY_VERSION);
  doctor::DoctorOptions doctor;
  auto* doctor_app = app.add_subcommand(
      "doctor", "Look at every link between a program and the GPU, and name what is broken");
  doctor_app->add_flag("--json", doctor.json, "As JSON");
  doctor_app
      ->add_option("--side", doctor.side,
                   "What this system is (default: a host where causewayd is installed)")
      ->check(CLI::IsMember({"host", "guest"}));
  doctor.config = "/etc/causeway/causewayd.toml";
  doctor_app->add_option("--config", doctor.config, "The daemon's configuration")
      ->type_name("FILE")
      ->capture_default_str();
  doctor_app
      ->add_option("--socket", doctor.socket, "The daemon's socket (default: that of the configuration)")
      ->type_name("SOCKET");
  doctor_app
      ->add_option("--root", doctor.root,
                   "The root folder of a system that does not run, instead of this system")
      ->type_name("FOLDER")
      ->check(CLI::ExistingDirectory);
  cdi::CdiOptions cdi;
  auto* cdi_app = AddCdi(app, cdi);
  pool::PoolOptions pool;
  auto* pool_app = AddPool(app, pool);
  bool try_cuda = false;
  app.add_flag("--try-cuda", try_cuda)->group("");
  AddOptionTable(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  if (try_cuda) return doctor::TryCuda();
  if (cdi_app->parsed()) return cdi::RunCdi(cdi);
  if (pool_app->parsed()) return pool::RunPool(pool);
  if (doctor_app->parsed()) return doctor::RunDoctor(doctor);
  std::fprintf(stderr, "%s", app.help().c_str());
  return kUsage;
}

}  // namespace
}  // namespace causeway

int main(int argc, char** argv) {
  return causeway::Main(argc, argv);
}
