// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/attach_options.h"

#include "host_backend/common/control_socket.h"
#include "ivshmem_ring/messages/local_protocol.h"

namespace causeway::command {
namespace {

constexpr const char* kMemoryHelp = "Size of the region, a power of two such as 512M or 1G (default 1G)";

void AddHostOptions(CLI::App& app, HostOptions& host) {
  host.control_socket = ControlSocketOf(kDefaultSocketPath);
  app.add_option("-c,--connect", host.connect,
                 "libvirt's URI, as of virsh (default: the system's for root, else your own); in Xen's "
                 "domain 0 xen:///, without libvirt")
      ->type_name("URI");
  app.add_option("--control-socket", host.control_socket, "causewayd's control socket")
      ->type_name("SOCKET")
      ->capture_default_str();
}

void AddXml(CLI::App& app, XmlOptions& options) {
  auto* xml = app.add_subcommand("xml", "Print the XML that plugs a region into a domain");
  xml->add_option("NAME", options.name, "causewayd's name of the VM")->required();
  xml->add_option_function<uint64_t>(
         "--memory", [&](const uint64_t& bytes) { options.memory_mib = bytes >> 20; }, kMemoryHelp)
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE");
  xml->add_option("--machine", options.machine, "pc, or q35 for one that runs and has a prepared port")
      ->check(CLI::IsMember({"pc", "q35"}))
      ->capture_default_str();
  xml->add_option_function<std::string>(
         "--doorbell", [&](const std::string& socket) { options.doorbell = socket; },
         "Doorbell mode: the doorbell_socket of the VM in causewayd's configuration")
      ->type_name("SOCKET");
  xml->add_flag("--domain", options.domain,
                "A complete domain as an example; of q35 one with a prepared port");
}

}  // namespace

void AddAttachCommands(CLI::App& app, AttachCommands& options) {
  auto* attach =
      app.add_subcommand("attach", "Give a VM of libvirt the host's GPUs, now and for its next starts");
  attach->add_option("DOMAIN", options.attach.domain, "The domain's name or UUID")->required();
  attach->add_option("--memory", options.attach.memory_bytes, kMemoryHelp)
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE");
  attach
      ->add_option("--gpu", options.attach.gpus,
                   "UUID of a GPU that it sees, as nvidia-smi -L shows it; repeatable (default all)")
      ->type_name("UUID")
      ->allow_extra_args(false);
  attach->add_option("--name", options.attach.name, "causewayd's name of the VM (default: the domain's)")
      ->type_name("VM");
  auto* doorbell = attach->add_flag_callback(
      "--doorbell", [&] { options.attach.mode = RegionMode::kDoorbell; },
      "Guest and host wake each other by interrupts (default where the VM is shut off)");
  attach
      ->add_flag_callback(
          "--plain", [&] { options.attach.mode = RegionMode::kPlain; },
          "causewayd looks at the VM's rings now and then (default where the VM runs)")
      ->excludes(doorbell);
  attach->add_flag("--config", options.attach.config, "For the next start alone, also where the VM runs");
  AddHostOptions(*attach, options.attach.host);

  auto* detach = app.add_subcommand("detach", "Take them away again, with the region");
  detach
      ->add_option("DOMAIN", options.detach.domain,
                   "The domain's name or UUID, or causewayd's name of the VM")
      ->required();
  detach->add_flag("--force", options.detach.force,
                   "Also while programs of the VM use the GPU, which ends them, and where QEMU without KVM "
                   "may crash afterwards");
  detach
      ->add_option("--timeout", options.detach.timeout_s,
                   "Seconds that the guest has to let go of the region")
      ->check(CLI::Range(1, 3600))
      ->type_name("SECONDS")
      ->capture_default_str();
  AddHostOptions(*detach, options.detach.host);

  auto* list = app.add_subcommand(
      "list", "Show the domains that have a region, and whether libvirt and causewayd agree");
  list->add_flag("--json", options.list.json, "As JSON");
  AddHostOptions(*list, options.list.host);
  AddXml(app, options.xml);
}

int RunAttachCommand(const CLI::App& app, const AttachCommands& options) {
  if (app.got_subcommand("attach")) return RunAttach(options.attach);
  if (app.got_subcommand("detach")) return RunDetach(options.detach);
  if (app.got_subcommand("list")) return RunList(options.list);
  if (app.got_subcommand("xml")) return RunXml(options.xml);
  return -1;
}

}  // namespace causeway::command
