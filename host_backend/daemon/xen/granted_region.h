// SPDX-License-Identifier: Apache-2.0
// The region of a domain of Xen: memory of domain 0 that is granted to it, and offered to it by keys in xenstore which
// the guest's kernel module reads (kernel_module/causeway_xen.c says which). One object lives as long as one life of
// the domain: a domain that starts again has another number, to which other pages are granted.
#pragma once
#include <memory>
#include <string>

#include "host_backend/daemon/process/config.h"
#include "host_backend/daemon/region/region_source.h"
#include "host_backend/daemon/xen/xenstore.h"

namespace causeway::daemon {

// The region's file, or "xen:" and the domain to which it is granted: no two VMs have the same.
inline std::string PlaceOf(const VmConfig& vm) {
  return vm.xen_domain.empty() ? vm.region_file : "xen:" + vm.xen_domain;
}

class GrantedRegion final : public RegionSource {
 public:
  // Grants memory to the domain that has the configured name now. It is not formatted yet.
  static Result<std::unique_ptr<RegionSource>> Open(const VmConfig& vm);
  // Whether it is a VM of Xen whose domain does not run, so that Open cannot succeed yet.
  static bool IsAwaited(const VmConfig& vm);
  // If the domain still lives it is asked to take its mappings away, and the pages are kept until it has or is gone:
  // aside if the VM was removed, else, when the daemon ends, for three seconds at most.
  ~GrantedRegion() override;

  // Whether the domain lives.
  Finding Check() override;
  // Writes the keys.
  std::string Offer() override;
  bool Delete() override;
  bool HasVmProcess() const override { return false; }  // the domain's end is seen by Check
  std::string Name() const override;

 private:
  GrantedRegion(const VmConfig& vm, std::unique_ptr<XenStore> store, uint16_t domain, uint32_t directory,
                std::shared_ptr<Region> region);
  std::string Ours() const;    // folder of the keys that we write
  std::string Guests() const;  // folder of the guest's

  const std::string name_;
  const std::unique_ptr<XenStore> store_;
  const uint16_t domain_;
  const uint32_t directory_;
  bool offered_ = false;
  bool removed_ = false;
};

}  // namespace causeway::daemon
