// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/libvirt/host_link.h"

#include <cstdlib>
#include <utility>

namespace causeway::command {
namespace {

// Takes libvirt's text, which its caller has to free.
std::string Taken(char* text) {
  std::string copy = text != nullptr ? text : "";
  free(text);
  return copy;
}

// Of the call before: any other call forgets the error, virDomainGetName too, so `what` is made before it.
std::string LastError(const LibvirtLibrary& library, const std::string& what) {
  return what + ": " + library.virGetLastErrorMessage() + ".";
}

}  // namespace

Domain::~Domain() {
  if (domain_ != nullptr) library_->virDomainFree(domain_);
}

std::string Domain::name() const {
  return library_->virDomainGetName(domain_);
}

bool Domain::active() const {
  return library_->virDomainIsActive(domain_) == 1;
}

bool Domain::persistent() const {
  return library_->virDomainIsPersistent(domain_) == 1;
}

Result<DomainXml> Domain::Xml(bool next_start) const {
  // Secrets too: what is left out would be lost when the text is defined again.
  const unsigned flags = next_start ? VIR_DOMAIN_XML_INACTIVE | VIR_DOMAIN_XML_SECURE : 0;
  const std::string what = "libvirt does not show domain " + name();
  const std::string text = Taken(library_->virDomainGetXMLDesc(domain_, flags));
  if (text.empty()) return Error{LastError(*library_, what)};
  return DomainXml::Parse(text);
}

std::string Domain::Attach(const std::string& device) const {
  const std::string what = "libvirt cannot plug the region into the running domain " + name();
  if (library_->virDomainAttachDeviceFlags(domain_, device.c_str(), VIR_DOMAIN_AFFECT_LIVE) == 0) return {};
  return LastError(*library_, what);
}

std::string Domain::Detach(const std::string& device, bool* for_now) const {
  const std::string what = "libvirt cannot unplug the region from the running domain " + name();
  if (library_->virDomainDetachDeviceFlags(domain_, device.c_str(), VIR_DOMAIN_AFFECT_LIVE) == 0) return {};
  const int code = library_->virGetLastErrorCode();
  *for_now =
      code == VIR_ERR_OPERATION_FAILED || code == VIR_ERR_OPERATION_TIMEOUT || code == VIR_ERR_INTERNAL_ERROR;
  return LastError(*library_, what);
}

Result<HostLink> HostLink::Open(const std::string& uri) {
  const auto library = LoadLibvirt();
  if (!library.ok()) return Error{library.error()};
  const LibvirtLibrary& functions = *library.value();
  virConnectPtr connection = functions.virConnectOpen(uri.empty() ? nullptr : uri.c_str());
  if (connection == nullptr) {
    const int code = functions.virGetLastErrorCode();
    const bool refused = code == VIR_ERR_AUTH_FAILED || code == VIR_ERR_AUTH_UNAVAILABLE ||
                         code == VIR_ERR_AUTH_CANCELLED || code == VIR_ERR_OPERATION_DENIED;
    return Error{
        LastError(functions, refused ? "libvirt does not let you in; be root or join the group libvirt"
                                     : "libvirt cannot be reached; start it (`systemctl start libvirtd`, or "
                                       "virtqemud), or choose another by --connect")};
  }
  HostLink link(functions, connection);
  const char* type = functions.virConnectGetType(connection);
  if (type == nullptr || std::string(type) != "QEMU")
    return Error{
        "This libvirt drives " + std::string(type != nullptr ? type : "nothing") +
        ", and only VMs of QEMU can have a region; choose qemu:///system or qemu:///session by --connect."};
  // qemu+ssh://HOST/system: the region would have to be in that host's memory.
  const std::string where = link.Uri();
  const size_t host = where.find("://");
  if (host != std::string::npos && where.compare(host + 3, 1, "/") != 0) {
    return Error{"The libvirt at " + where +
                 " is another host's, and a region is memory of the host on which the VM runs; run this "
                 "command there."};
  }
  return link;
}

HostLink::~HostLink() {
  if (connection_ != nullptr) library_->virConnectClose(connection_);
}

std::string HostLink::Uri() const {
  return Taken(library_->virConnectGetURI(connection_));
}

bool HostLink::session() const {
  const std::string uri = Uri();
  return uri.substr(0, uri.find('?')).ends_with("/session");
}

std::string HostLink::Capabilities() const {
  return Taken(library_->virConnectGetCapabilities(connection_));
}

Result<Domain> HostLink::Find(const std::string& name) const {
  virDomainPtr found = library_->virDomainLookupByName(connection_, name.c_str());
  if (found == nullptr) found = library_->virDomainLookupByUUIDString(connection_, name.c_str());
  if (found != nullptr) return Domain(*library_, found);
  return Error{"libvirt at " + Uri() + " knows no domain " + name +
               "; see `virsh list --all`, choose another libvirt by --connect, or run this on the host that "
               "it runs on."};
}

std::vector<Domain> HostLink::All() const {
  std::vector<Domain> domains;
  virDomainPtr* list = nullptr;
  const int count = library_->virConnectListAllDomains(connection_, &list, 0);
  for (int each = 0; each < count; ++each) domains.emplace_back(*library_, list[each]);
  free(list);
  return domains;
}

std::string HostLink::Define(const DomainXml& xml) const {
  virDomainPtr domain = library_->virDomainDefineXML(connection_, xml.Text().c_str());
  if (domain == nullptr)
    return LastError(*library_, "libvirt does not take the changed domain " + xml.Name());
  library_->virDomainFree(domain);
  return {};
}

}  // namespace causeway::command
