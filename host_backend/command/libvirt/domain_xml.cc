// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/libvirt/domain_xml.h"

#include <algorithm>
#include <cstdlib>
#include <pugixml.hpp>
#include <set>
#include <sstream>

#include "host_backend/command/libvirt/snippets.h"
#include "host_backend/common/control_socket.h"

namespace causeway::command {
namespace {

constexpr const char* kOverride = "qemu:override";
constexpr const char* kNamespace = "xmlns:qemu";

std::string TextOf(const pugi::xml_node& node) {
  std::ostringstream text;
  node.print(text, "  ");
  return text.str();
}

// Appends the element that `xml` holds.
void AppendXml(pugi::xml_node parent, const std::string& xml) {
  parent.append_buffer(xml.data(), xml.size());
}

bool IsRegion(const pugi::xml_node& shmem) {
  return std::string(shmem.attribute("name").value()).starts_with(kRegionPrefix);
}

// Decimal, or hexadecimal behind 0x.
uint64_t NumberOf(const pugi::xml_attribute& attribute) {
  return std::strtoull(attribute.value(), nullptr, 0);
}

uint64_t ReserveOf(const pugi::xml_node& domain, const std::string& alias) {
  for (const auto& device : domain.child(kOverride).children("qemu:device")) {
    if (alias != device.attribute("alias").value()) continue;
    const auto property =
        device.child("qemu:frontend").find_child_by_attribute("qemu:property", "name", "pref64-reserve");
    return NumberOf(property.attribute("value"));
  }
  return 0;
}

bool HasDeviceBehind(const pugi::xml_node& devices, uint32_t bus) {
  const auto on_bus = [bus](const pugi::xml_node& device) {
    const auto address = device.child("address");
    return std::string(address.attribute("type").value()) == "pci" &&
           NumberOf(address.attribute("bus")) == bus && NumberOf(address.attribute("domain")) == 0;
  };
  const auto all = devices.children();
  return std::any_of(all.begin(), all.end(), on_bus);
}

}  // namespace

DomainXml::DomainXml(std::unique_ptr<pugi::xml_document> document) : document_(std::move(document)) {}
DomainXml::DomainXml(DomainXml&&) noexcept = default;
DomainXml& DomainXml::operator=(DomainXml&&) noexcept = default;
DomainXml::~DomainXml() = default;

Result<DomainXml> DomainXml::Parse(const std::string& text) {
  auto document = std::make_unique<pugi::xml_document>();
  const auto parsed = document->load_buffer(text.data(), text.size());
  if (!parsed || !document->child("domain"))
    return Error{std::string("libvirt's XML of the domain cannot be read: ") + parsed.description() + "."};
  return DomainXml(std::move(document));
}

std::string DomainXml::Name() const {
  return document_->child("domain").child_value("name");
}

std::string DomainXml::Arch() const {
  return document_->child("domain").child("os").child("type").attribute("arch").value();
}

std::string DomainXml::Machine() const {
  return document_->child("domain").child("os").child("type").attribute("machine").value();
}

bool DomainXml::IsQ35() const {
  const std::string machine = Machine();
  return machine == "q35" || machine.starts_with("pc-q35-");
}

bool DomainXml::IsPc() const {
  const std::string machine = Machine();
  return machine == "pc" || machine.starts_with("pc-i440fx-");
}

bool DomainXml::IsEmulated() const {
  return std::string(document_->child("domain").attribute("type").value()) == "qemu";
}

std::string DomainXml::DacLabel() const {
  return document_->child("domain").find_child_by_attribute("seclabel", "model", "dac").child_value("label");
}

std::string DomainXml::AppArmorProfile() const {
  return document_->child("domain")
      .find_child_by_attribute("seclabel", "model", "apparmor")
      .child_value("label");
}

std::vector<RegionDevice> DomainXml::Regions() const {
  std::vector<RegionDevice> regions;
  for (const auto& shmem : document_->child("domain").child("devices").children("shmem")) {
    if (!IsRegion(shmem)) continue;
    const auto size = shmem.child("size");
    RegionDevice device;
    device.region = shmem.attribute("name").value();
    if (std::string(size.attribute("unit").value()) == "M")
      device.mib = std::strtoull(size.child_value(), nullptr, 10);
    const std::string model = shmem.child("model").attribute("type").value();
    if (model == "ivshmem-doorbell") device.doorbell = shmem.child("server").attribute("path").value();
    device.usable = (model == "ivshmem-plain" || !device.doorbell.empty()) &&
                    std::string(shmem.attribute("role").value()) == "peer";
    device.xml = TextOf(shmem);
    regions.push_back(device);
  }
  return regions;
}

std::optional<uint32_t> DomainXml::FreePort(uint64_t reserve_bytes) const {
  const auto domain = document_->child("domain");
  const auto devices = domain.child("devices");
  for (const auto& controller : devices.children("controller")) {
    if (std::string(controller.attribute("model").value()) != "pcie-root-port") continue;
    const auto index = uint32_t(NumberOf(controller.attribute("index")));
    if (ReserveOf(domain, controller.child("alias").attribute("name").value()) < reserve_bytes) continue;
    if (!HasDeviceBehind(devices, index)) return index;
  }
  return std::nullopt;
}

bool DomainXml::HasFreeSlot() const {
  constexpr uint64_t kFirst = 3,
                     kEnd = 32;  // before are the chipset's and the place that libvirt keeps for a display
  std::set<uint64_t> used;
  for (const auto& device : document_->child("domain").child("devices").children()) {
    const auto address = device.child("address");
    if (std::string(address.attribute("type").value()) == "pci" && NumberOf(address.attribute("bus")) == 0)
      used.insert(NumberOf(address.attribute("slot")));
  }
  for (uint64_t slot = kFirst; slot < kEnd; ++slot) {
    if (used.count(slot) == 0) return true;
  }
  return false;
}

uint32_t DomainXml::AddPort(uint64_t reserve_bytes) {
  auto domain = document_->child("domain");
  auto devices = domain.child("devices");
  uint32_t index = 1;  // 0 is the root itself
  std::string alias = kPortAlias;
  for (const auto& controller : devices.children("controller")) {
    if (std::string(controller.attribute("type").value()) == "pci")
      index = std::max(index, uint32_t(NumberOf(controller.attribute("index"))) + 1);
    // One of before, whose window is too small.
    if (alias == controller.child("alias").attribute("name").value()) alias += "-" + std::to_string(index);
  }
  AppendXml(devices, PortXml(index, alias, false));
  if (!domain.attribute(kNamespace))
    domain.append_attribute(kNamespace).set_value("http://libvirt.org/schemas/domain/qemu/1.0");
  if (auto override = domain.child(kOverride)) {
    pugi::xml_document one;
    one.load_string(OverrideXml(alias, reserve_bytes).c_str());
    override.append_copy(one.child(kOverride).child("qemu:device"));
  } else {
    AppendXml(domain, OverrideXml(alias, reserve_bytes));
  }
  return index;
}

void DomainXml::AddDevice(const std::string& xml) {
  AppendXml(document_->child("domain").child("devices"), xml);
}

void DomainXml::RemoveRegion(const std::string& region) {
  auto devices = document_->child("domain").child("devices");
  while (auto shmem = devices.find_child_by_attribute("shmem", "name", region.c_str()))
    devices.remove_child(shmem);
}

std::string DomainXml::Text() const {
  return TextOf(document_->child("domain"));
}

std::string BaseDacLabel(const std::string& capabilities, const std::string& type) {
  pugi::xml_document document;
  document.load_buffer(capabilities.data(), capabilities.size());
  for (const auto& model : document.child("capabilities").child("host").children("secmodel")) {
    if (std::string(model.child_value("model")) == "dac")
      return model.find_child_by_attribute("baselabel", "type", type.c_str()).child_value();
  }
  return {};
}

bool HasSecurityModel(const std::string& capabilities, const std::string& wanted) {
  pugi::xml_document document;
  document.load_buffer(capabilities.data(), capabilities.size());
  const auto models = document.child("capabilities").child("host").children("secmodel");
  return std::any_of(models.begin(), models.end(),
                     [&](const pugi::xml_node& model) { return wanted == model.child_value("model"); });
}

}  // namespace causeway::command
