// SPDX-License-Identifier: Apache-2.0
// The region of a domain of Xen: memory of domain 0 that is granted to it, and offered to it by keys in xenstore which
// the guest's kernel module reads (kernel_module/causeway_xen.c says which). One object lives as long as one life of
// the domain: a domain that starts again has another number, to which other pages are granted.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "host_backend/daemon/loop/aside.h"
#include "host_backend/daemon/loop/event_loop.h"
#include "host_backend/daemon/loop/pace.h"
#include "host_backend/daemon/process/config.h"
#include "host_backend/daemon/region/region_source.h"
#include "host_backend/daemon/takeover/vault.h"
#include "host_backend/daemon/xen/grant_memory.h"
#include "host_backend/daemon/xen/xen_values.h"
#include "host_backend/daemon/xen/xenstore.h"
#include "host_backend/granted/event_channel.h"

namespace causeway::daemon {

// The region's file, or "xen:" and the domain to which it is granted: no two VMs have the same.
inline std::string PlaceOf(const VmConfig& vm) {
  return vm.xen_domain.empty() ? vm.region_file : "xen:" + vm.xen_domain;
}

class GrantedRegion final : public RegionSource {
 public:
  struct Memory {
    uint16_t domain = 0;
    GrantMemory pages;
  };
  // Grants memory to the domain that has the configured name now, once it has let go of what it had before: it is asked
  // to, and waited for as long as `patience`. Granting may take a second for each GiB. Any thread.
  static Result<Memory> Grant(const VmConfig& vm, std::chrono::milliseconds patience);
  // The region that it becomes, not formatted yet. A record of it is kept for the next daemon.
  static Result<std::unique_ptr<RegionSource>> Open(EventLoop& loop, Vault& vault, const VmConfig& vm,
                                                    Memory memory);
  // The one that a daemon of before has granted to the domain, which has it still. Null: there is none.
  static std::unique_ptr<RegionSource> Resume(EventLoop& loop, Vault& vault, const VmConfig& vm);
  // Whether it is a VM of Xen whose domain does not run, so that Open cannot succeed yet.
  static bool IsAwaited(const VmConfig& vm);
  // If the domain still lives it is asked to take its mappings away, and the pages are kept until it has or is gone:
  // aside if the VM was removed, else, when the daemon ends, for three seconds at most.
  ~GrantedRegion() override;

  // Whether the domain lives, as it was when it was last looked at. It is looked at anew aside; `look` of Offer comes when that
  // finds something else.
  Finding Check() override;
  // Writes the keys, unless the domain has them. `look` comes when Check may have a new answer.
  std::string Offer(const std::function<void()>& rung, const std::function<void()>& look) override;
  const Bells* bells() const override { return channels_ ? &*channels_ : nullptr; }
  void Leave() override;
  bool Delete() override { return true; }
  bool HasVmProcess() const override { return false; }  // the domain's end is seen by Check
  std::string Name() const override;

 private:
  // Event channels are bound by the guest's module when it likes; a ring that nobody hears does no harm.
  struct Channels final : Bells {
    EventChannel work_channel, control, interrupt;
    bool connected() const override { return true; }
    int work() const override { return work_channel.fd.get(); }
    int guest() const override { return interrupt.fd.get(); }
    uint32_t guest_port() const override { return interrupt.port; }
  };
  GrantedRegion(EventLoop& loop, Vault& vault, const VmConfig& vm, std::unique_ptr<XenStore> store,
                uint16_t domain, std::shared_ptr<Region> region);
  void OpenChannels();
  void TakeChannels(Vault::Record& record);
  void KeepRecord(const VmConfig& vm);
  void OnRung();
  void WatchRings();
  void BeginLook();
  std::string Ours() const;    // folder of the keys that we write
  std::string Guests() const;  // folder of the guest's

  EventLoop& loop_;
  Vault& vault_;
  uint64_t key_ = 0;  // of the record
  const std::string name_;
  const std::unique_ptr<XenStore> store_;
  const uint16_t domain_;
  uint32_t directory_ = 0;
  uint64_t epoch_ = 0;  // of the keys: another one means other pages
  std::optional<Channels> channels_;
  struct Seen {
    bool lives = true;
    XenbusState guests = XenbusState::kUnknown;
  };
  Seen seen_;
  bool looking_ = false;
  std::chrono::steady_clock::time_point looked_;
  std::unique_ptr<Aside> aside_;  // asks xenstored
  std::function<void()> rung_, look_;
  Pace rings_{256, 1};
  EventLoop::WatchId ring_watch_ = 0, domain_watch_ = 0;
  EventLoop::TimerId ring_timer_ = 0;
  bool offered_ = false;  // the domain has the keys
  bool daemon_goes_on_ = false;
};

}  // namespace causeway::daemon
