// SPDX-License-Identifier: Apache-2.0
// Wakes the workers' threads that sleep until a VM's process sends something, where the VM rings for that
// (idle_watch.h is for the others). One thread waits for the rings of all such VMs, and uses no processor time until one
// comes.
#pragma once
#include <poll.h>

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "host_backend/common/unique_fd.h"
#include "host_backend/daemon/loop/pace.h"
#include "host_backend/daemon/region/region.h"

namespace causeway::daemon {

class DoorbellWatch {
 public:
  DoorbellWatch() = default;
  ~DoorbellWatch();
  DoorbellWatch(const DoorbellWatch&) = delete;
  DoorbellWatch& operator=(const DoorbellWatch&) = delete;

  // From now on until Remove, which is repeatable; a look that has begun goes on. `event`: the VM's
  // Bells::work(), of which a copy is kept. The first call starts the thread. Neither call waits for a look.
  void Add(std::shared_ptr<Region> region, uint32_t slot, int event);
  void Remove(const Region& region, uint32_t slot);

 private:
  struct Vm;
  using List = std::vector<std::shared_ptr<Vm>>;
  void Watch();
  bool Look(Vm& vm);
  bool TakeList(List& vms, std::vector<pollfd>& asked);
  void Tell() const;

  std::mutex mutex_;
  UniqueFd changed_;  // an eventfd: the list has changed, or the end has come
  List vms_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace causeway::daemon
