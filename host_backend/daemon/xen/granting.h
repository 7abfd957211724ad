// SPDX-License-Identifier: Apache-2.0
// Grants memory to a domain of Xen in a thread of its own, because the kernel takes a second for each GiB and the event
// loop waits for nobody. The loop's thread calls all of this.
#pragma once
#include <functional>
#include <memory>

#include "host_backend/daemon/loop/aside.h"
#include "host_backend/daemon/xen/granted_region.h"

namespace causeway::daemon {

// Of one VM.
class Granting {
 public:
  using Source = Result<std::unique_ptr<RegionSource>>;
  Granting(EventLoop& loop, Vault& vault) : loop_(loop), vault_(vault) {}

  // The region that a daemon of before has left, or a new one, at once: while the daemon starts it serves nobody else.
  Source Now(const VmConfig& vm);
  // `done` comes from the loop, unless this object ends before. Nothing happens while one is under way, or after Stop.
  void Begin(const VmConfig& vm, std::function<void(Source)> done);
  // `idle` comes once, after the `done` of what is under way, or now.
  void WhenIdle(std::function<void()> idle);
  // Waits for what is under way; its `done` does not come.
  void Stop();

 private:
  EventLoop& loop_;
  Vault& vault_;
  bool busy_ = false;
  std::function<void()> idle_;
  std::unique_ptr<Aside> aside_;
};

}  // namespace causeway::daemon
