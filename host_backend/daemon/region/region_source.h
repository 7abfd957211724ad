// SPDX-License-Identifier: Apache-2.0
// Where the region of a VM comes from, as far as the VM's server cares: a file that QEMU maps (region_file.h), or
// pages that are granted to a domain of Xen (../xen/granted_region.h).
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "host_backend/daemon/region/bells.h"
#include "host_backend/daemon/region/region.h"

namespace causeway::daemon {

class RegionSource {
 public:
  virtual ~RegionSource() = default;
  RegionSource(const RegionSource&) = delete;
  RegionSource& operator=(const RegionSource&) = delete;

  Region& region() { return *region_; }
  std::shared_ptr<Region> shared_region() { return region_; }

  enum class State {
    kGood,
    kWarning,  // sessions go on, but the next start of the VM needs something
    kLost,     // the VM does not share this memory any more
  };
  struct Finding {
    State state = State::kGood;
    std::string text;  // one sentence's end, unless it is good
  };
  // Looks again; once a second.
  virtual Finding Check() = 0;
  // The region has been formatted and is served from now on. Text: why the VM cannot learn of it. The loop calls `rung`
  // when the VM rings bells() for the daemon itself, and `look` when Check may have a new answer.
  virtual std::string Offer(const std::function<void()>& rung, const std::function<void()>& look) {
    (void)rung, (void)look;
    return {};
  }
  // Bells that come with the memory; null: it has none.
  virtual const Bells* bells() const { return nullptr; }
  // The VM is served no more, and the daemon goes on: what ends with this is then waited for by no thread that serves others.
  virtual void Leave() { region_->SetState(HostState::kStopped); }
  // The region of a VM that is removed for good, after Leave. False: something of it is left.
  virtual bool Delete() = 0;
  // Whether the launcher can find the VM's process by the region's descriptor.
  virtual bool HasVmProcess() const { return true; }
  // For the log: "region /dev/shm/x".
  virtual std::string Name() const = 0;

 protected:
  explicit RegionSource(std::shared_ptr<Region> region) : region_(std::move(region)) {}

 private:
  const std::shared_ptr<Region> region_;
};

}  // namespace causeway::daemon
