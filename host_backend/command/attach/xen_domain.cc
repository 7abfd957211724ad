// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/attach/xen_domain.h"

#include <bit>
#include <fstream>

#include "host_backend/command/attach/control_client.h"

namespace causeway::command {
namespace {

constexpr uint64_t kDefaultXenMib = 64;  // needs no option of Xen itself (docs/xen.md)

// causewayd's name for the VM, which `attach --name` may have chosen; the domain's if causewayd has no such domain.
Result<std::string> VmOf(const std::string& domain, const std::string& socket) {
  const auto answer = AskControl(socket, {{"do", "list"}});
  if (!answer.ok()) return Error{answer.error()};
  for (const Json& vm : answer.value()["vms"])
    if (vm.value("xen_domain", "") == domain) return vm.value("name", domain);
  return domain;
}

}  // namespace

bool IsXenHost(const HostOptions& host) {
  if (!host.connect.empty()) return host.connect.starts_with("xen:");
  std::string capabilities;
  std::getline(std::ifstream("/proc/xen/capabilities"), capabilities);
  return capabilities.find("control_d") != std::string::npos;
}

Result<std::string> AttachXenDomain(const AttachOptions& options) {
  if (options.config)
    return Error{"--config changes a domain's XML, which a Xen domain does not need; leave it out."};
  if (options.mode != RegionMode::kChoose) {
    return Error{
        "--doorbell and --plain are for VMs of QEMU, and Xen has interrupts of its own; leave them out."};
  }
  const uint64_t mib = options.memory_bytes != 0 ? options.memory_bytes / kMib : kDefaultXenMib;
  if (options.memory_bytes % kMib != 0 || !std::has_single_bit(mib)) {
    return Error{"The region's size must be a power of two, in MiB or GiB, and is " +
                 std::to_string(options.memory_bytes) + " bytes; correct --memory, for example to 256M."};
  }
  const std::string name = options.name.empty() ? options.domain : options.name;
  Json request = {{"do", "add"}, {"name", name}, {"memory_mib", mib}, {"xen_domain", options.domain}};
  if (!options.gpus.empty()) request["gpus"] = options.gpus;
  const auto answer = AskControl(options.host.control_socket, request);
  if (!answer.ok()) return Error{answer.error()};
  return "Domain " + options.domain +
         (answer.value().value("added", false) ? " has a region of " : " already has its region of ") +
         std::to_string(mib) + " MiB while it runs, and again whenever it starts." + NoteOf(answer.value());
}

Result<std::string> DetachXenDomain(const DetachOptions& options) {
  const auto name = VmOf(options.domain, options.host.control_socket);
  if (!name.ok()) return Error{name.error()};
  const auto removed = AskControl(options.host.control_socket,
                                  {{"do", "remove"}, {"name", name.value()}, {"force", options.force}});
  if (!removed.ok()) return Error{removed.error()};
  return "Domain " + options.domain + " has no region any more.";
}

}  // namespace causeway::command
