// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/libvirt/snippets.h"

#include <fmt/format.h>

#include <string_view>

#include "host_backend/common/control_socket.h"

namespace causeway::command {
namespace {

constexpr uint32_t kExamplePort = 9;

// Every line of the text behind `depth` more blanks.
std::string Indented(const std::string& text, size_t depth) {
  std::string indented;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    indented += std::string(depth, ' ') + text.substr(at, end + 1 - at);
    at = end + 1;
  }
  return indented;
}

constexpr std::string_view kDomain = R"(<domain type='kvm'{namespace}>
  <name>{name}</name>
  <memory unit='GiB'>8</memory>
  <vcpu>4</vcpu>
  <os{firmware}>
    <type arch='x86_64' machine='{machine}'>hvm</type>
    <boot dev='hd'/>
  </os>
  <features>
    <acpi/>
    <apic/>
  </features>
  <cpu mode='host-passthrough'/>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2'/>
      <source file='/var/lib/libvirt/images/{name}.qcow2'/>
      <target dev='vda' bus='virtio'/>
    </disk>
    <interface type='network'>
      <source network='default'/>
      <model type='virtio'/>
    </interface>
{port}    <serial type='pty'/>
    <console type='pty'/>
{shmem}  </devices>
{override}</domain>
)";

std::string DomainText(const XmlOptions& options, const std::string& shmem) {
  const bool q35 = options.machine == "q35";
  const std::string intro =
      q35 ? "<!-- A complete q35 VM with UEFI, prepared so that a region can be plugged in while it runs "
            "(attach-q35.xml):\n"
            "     a root port of its own whose 64-bit window is widened, because the default one has no room "
            "for the\n"
            "     region. Adapt disk and network. -->\n"
          : "<!-- A complete VM with the region plugged in from the start; adapt disk and network. -->\n";
  return intro +
         fmt::format(
             kDomain, fmt::arg("name", options.name), fmt::arg("machine", options.machine),
             fmt::arg("namespace", q35 ? " xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'" : ""),
             fmt::arg("firmware", q35 ? " firmware='efi'" : ""),
             fmt::arg("port", q35 ? Indented("<controller type='pci' index='0' model='pcie-root'/>\n" +
                                                 PortXml(kExamplePort, kPortAlias, true),
                                             4)
                                  : ""),
             fmt::arg("shmem", q35 ? "" : Indented(shmem, 4)),
             fmt::arg("override",
                      q35 ? Indented(OverrideXml(kPortAlias, PortReserveBytes(options.memory_mib)), 2) : ""));
}

}  // namespace

std::string ShmemXml(const std::string& region, uint64_t mib, const std::string& doorbell,
                     std::optional<uint32_t> bus) {
  const std::string address =
      bus ? fmt::format("  <address type='pci' domain='0x0000' bus='0x{:02x}' slot='0x00' function='0x0'/>\n",
                        *bus)
          : "";
  const std::string how =
      doorbell.empty() ? fmt::format("  <model type='ivshmem-plain'/>\n  <size unit='M'>{}</size>\n", mib)
                       : fmt::format(
                             "  <model type='ivshmem-doorbell'/>\n"
                             "  <server path='{}'/>\n"
                             "  <msi vectors='2' ioeventfd='on'/>\n",
                             doorbell);
  return fmt::format("<shmem name='{}' role='peer'>\n{}{}</shmem>\n", region, how, address);
}

std::string PortXml(uint32_t index, const std::string& alias, bool complete) {
  return fmt::format(
      "<controller type='pci' index='{0}' model='pcie-root-port'>\n"
      "{1}"
      "  <alias name='{2}'/>\n"
      "{3}</controller>\n",
      index, complete ? fmt::format("  <target chassis='{}' port='0x60'/>\n", index) : "", alias,
      complete ? "  <address type='pci' domain='0x0000' bus='0x00' slot='0x0c' function='0x0'/>\n" : "");
}

std::string OverrideXml(const std::string& alias, uint64_t reserve_bytes) {
  return fmt::format(
      "<qemu:override>\n"
      "  <qemu:device alias='{}'>\n"
      "    <qemu:frontend>\n"
      "      <qemu:property name='pref64-reserve' type='unsigned' value='{}'/>\n"
      "    </qemu:frontend>\n"
      "  </qemu:device>\n"
      "</qemu:override>\n",
      alias, reserve_bytes);
}

std::string SnippetText(const XmlOptions& options) {
  const bool q35 = options.machine == "q35";
  const std::string region = kRegionPrefix + options.name;
  const std::string shmem = ShmemXml(region, options.memory_mib, options.doorbell,
                                     q35 ? std::optional<uint32_t>(kExamplePort) : std::nullopt);
  if (options.domain) return DomainText(options, shmem);
  if (!options.doorbell.empty()) {
    return "<!-- Doorbell mode: causewayd gives the region to QEMU at that socket (doorbell_socket), and has "
           "to run when the "
           "VM\n     starts. -->\n" +
           shmem;
  }
  const std::string intro = q35 ? "<!-- For a running q35 machine with a prepared root port, here the one of "
                                  "domain-q35.xml (bus 9). -->\n"
                                : "<!-- For a machine of type pc, running or shut off, or a q35 machine that "
                                  "is shut off: virsh attach-device. Name and\n"
                                  "     size are those of the region in /dev/shm. -->\n";
  return intro + shmem;
}

}  // namespace causeway::command
