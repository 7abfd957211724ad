// SPDX-License-Identifier: Apache-2.0
// The XML by which libvirt plugs a region in: what `causeway xml` prints and what `causeway attach` puts into a domain.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace causeway::command {

// The alias of the root port that is made for regions.
inline constexpr const char* kPortAlias = "ua-causeway";

// A root port hands out 64-bit addresses from a window that is fixed when the VM starts. A region needs a window of twice
// its size, because it has to be aligned in there.
inline uint64_t PortReserveBytes(uint64_t region_mib) {
  constexpr uint64_t kLeast = uint64_t{4} << 30;
  const uint64_t twice = region_mib << 21;
  return twice > kLeast ? twice : kLeast;
}

// <shmem>, of `region` in /dev/shm; `doorbell` is the socket where causewayd gives it to QEMU, or empty in plain mode; `bus` is
// the index of the root port that it is plugged into. In doorbell mode causewayd tells QEMU the size, and libvirt takes none.
std::string ShmemXml(const std::string& region, uint64_t mib, const std::string& doorbell,
                     std::optional<uint32_t> bus);
// <controller> of a root port for regions; libvirt chooses its place where `complete` is false.
std::string PortXml(uint32_t index, const std::string& alias, bool complete);
// <qemu:override>, which widens the window of that port.
std::string OverrideXml(const std::string& alias, uint64_t reserve_bytes);

struct XmlOptions {
  std::string name;
  uint64_t memory_mib = 1024;
  std::string machine = "pc";  // or "q35"
  std::string doorbell;        // the socket; empty: plain mode
  bool domain = false;         // a complete domain as an example
};
std::string SnippetText(const XmlOptions& options);

}  // namespace causeway::command
