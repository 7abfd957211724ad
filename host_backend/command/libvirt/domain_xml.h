// SPDX-License-Identifier: Apache-2.0
// A domain's XML, read and edited. Pure: nothing here asks libvirt or the host.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host_backend/common/result.h"

namespace pugi {
class xml_document;
}

namespace causeway::command {

// A <shmem> that is one of Causeway's: its name begins with kRegionPrefix.
struct RegionDevice {
  std::string region;    // the file's name in /dev/shm
  uint64_t mib = 0;      // 0: it has no size in MiB, as in doorbell mode
  bool usable = false;   // role peer, and model ivshmem-plain, or ivshmem-doorbell with a server's path
  std::string doorbell;  // that path; empty: plain mode
  std::string xml;       // the element, as virDomainDetachDeviceFlags wants it
};

class DomainXml {
 public:
  static Result<DomainXml> Parse(const std::string& text);
  DomainXml(DomainXml&&) noexcept;
  DomainXml& operator=(DomainXml&&) noexcept;
  ~DomainXml();

  std::string Name() const;
  std::string Arch() const;
  // Such as pc-q35-7.2, as libvirt has resolved it.
  std::string Machine() const;
  // Its processors are QEMU's own work (type='qemu') and not KVM's.
  bool IsEmulated() const;
  bool IsPc() const;  // i440fx
  bool IsQ35() const;
  // "USER:GROUP" where the domain says as whom QEMU runs; otherwise empty.
  std::string DacLabel() const;
  // The name of the profile that confines the running VM; empty: AppArmor does not confine it.
  std::string AppArmorProfile() const;

  std::vector<RegionDevice> Regions() const;
  // The index of a root port that has nothing behind it and a 64-bit window of at least that many bytes.
  std::optional<uint32_t> FreePort(uint64_t reserve_bytes) const;

  // Whether a pc machine has a slot left on its first bus. Behind the bridges that libvirt adds where it has none, a region that
  // is plugged into a running VM gets no addresses from the guest, although libvirt says that all is well.
  bool HasFreeSlot() const;

  // Adds a root port with such a window and returns its index.
  uint32_t AddPort(uint64_t reserve_bytes);
  void AddDevice(const std::string& xml);
  void RemoveRegion(const std::string& region);
  std::string Text() const;

 private:
  explicit DomainXml(std::unique_ptr<pugi::xml_document> document);
  std::unique_ptr<pugi::xml_document> document_;
};

// From the host's capabilities: the user and group, as numbers, that QEMU runs as for domains of that type ("kvm", "qemu"), or empty.
std::string BaseDacLabel(const std::string& capabilities, const std::string& type);
// Whether the host's libvirt confines VMs by that model ("apparmor", "selinux").
bool HasSecurityModel(const std::string& capabilities, const std::string& model);

}  // namespace causeway::command
