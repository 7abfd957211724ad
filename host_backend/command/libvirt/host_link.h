// SPDX-License-Identifier: Apache-2.0
// libvirt's objects as this command uses them. Every text that libvirt returns is copied, and every error of libvirt is a
// sentence.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "host_backend/command/libvirt/domain_xml.h"
#include "host_backend/command/libvirt/libvirt_library.h"

namespace causeway::command {

class Domain {
 public:
  Domain(const LibvirtLibrary& library, virDomainPtr domain) : library_(&library), domain_(domain) {}
  Domain(Domain&& other) noexcept
      : library_(other.library_), domain_(std::exchange(other.domain_, nullptr)) {}
  ~Domain();

  std::string name() const;
  bool active() const;
  bool persistent() const;
  // The XML of the running VM, or of its next start.
  Result<DomainXml> Xml(bool next_start) const;
  // Each is empty, or a sentence.
  std::string Attach(const std::string& device) const;  // to the running VM
  // From the running VM: asks its guest, which has to agree, and does not wait for long. `for_now`: it was refused for a reason that may
  // pass, such as a guest that is busy with the device.
  std::string Detach(const std::string& device, bool* for_now) const;

 private:
  const LibvirtLibrary* library_;
  virDomainPtr domain_;
};

class HostLink {
 public:
  // `uri` as virsh -c takes it; empty: libvirt's default, which is the system's for root and the session's for others.
  static Result<HostLink> Open(const std::string& uri);
  HostLink(HostLink&& other) noexcept
      : library_(other.library_), connection_(std::exchange(other.connection_, nullptr)) {}
  ~HostLink();

  // VMs run as the user of this process, not as one of libvirt's.
  bool session() const;
  std::string Capabilities() const;
  Result<Domain> Find(const std::string& name_or_uuid) const;
  std::vector<Domain> All() const;
  // The next start of that domain becomes `xml`. Empty, or a sentence.
  std::string Define(const DomainXml& xml) const;

 private:
  HostLink(const LibvirtLibrary& library, virConnectPtr connection)
      : library_(&library), connection_(connection) {}
  std::string Uri() const;
  const LibvirtLibrary* library_;
  virConnectPtr connection_;
};

}  // namespace causeway::command
