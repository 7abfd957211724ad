// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/doorbell/doorbell_watch.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "host_backend/daemon/doorbell/doorbell.h"
#include "host_backend/granted/event_channel.h"

namespace causeway::daemon {

// One VM with sessions. The mutex guards `slots`; the thread alone uses what follows them.
struct DoorbellWatch::Vm {
  Vm(std::shared_ptr<Region> r, int e) : region(std::move(r)), event(fcntl(e, F_DUPFD_CLOEXEC, 0)) {}
  const std::shared_ptr<Region> region;
  const UniqueFd event;
  std::vector<uint32_t> slots;
  // A guest that rings without a pause is looked at so often; its processes' calls come from sleep less often.
  Pace pace{256, 20};
  // Wake-ups that wake nobody: a guest causes them by writing into its region that threads sleep which do not.
  Pace vain{128, 4};
  bool unfinished = false;  // a look ended before the last slot
};

DoorbellWatch::~DoorbellWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    Tell();
  }
  if (thread_.joinable()) thread_.join();
}

void DoorbellWatch::Tell() const {
  const uint64_t one = 1;
  if (changed_) [[maybe_unused]]
    const ssize_t written = write(changed_.get(), &one, sizeof one);
}

void DoorbellWatch::Add(std::shared_ptr<Region> region, uint32_t slot, int event) {
  const std::lock_guard lock(mutex_);
  if (!changed_) changed_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  auto vm = std::find_if(vms_.begin(), vms_.end(), [&](const auto& each) { return each->region == region; });
  if (vm == vms_.end()) vm = vms_.insert(vm, std::make_shared<Vm>(std::move(region), event));
  (*vm)->slots.push_back(slot);
  if (!thread_.joinable()) thread_ = std::thread([this] { Watch(); });
  Tell();
}

void DoorbellWatch::Remove(const Region& region, uint32_t slot) {
  std::shared_ptr<Vm> gone;  // the end of a region is not the lock's matter
  const std::lock_guard lock(mutex_);
  const auto vm =
      std::find_if(vms_.begin(), vms_.end(), [&](const auto& each) { return each->region.get() == &region; });
  if (vm == vms_.end() || std::erase((*vm)->slots, slot) == 0 || !(*vm)->slots.empty()) return;
  gone = std::move(*vm);
  vms_.erase(vm);
  Tell();
}

// False: it rang too often, and what it rang for is looked at after a pause.
bool DoorbellWatch::Look(Vm& vm) {
  const auto now = std::chrono::steady_clock::now();
  if (!vm.vain.Has(now) || !vm.pace.Take(now)) return false;
  const bool rang = vm.region->granted() ? TakeEvents(vm.event.get()) : TakeRings(vm.event.get());
  if (!rang && !std::exchange(vm.unfinished, false)) return true;
  std::vector<uint32_t> slots;
  {
    const std::lock_guard lock(mutex_);
    slots = vm.slots;
  }
  for (const uint32_t slot : slots) {
    vm.vain.Charge(vm.region->WakeSleepers(slot).vain);
    if (vm.vain.Has(now)) continue;
    vm.unfinished = true;  // the sleepers of this VM's other sessions are found after a pause
    return false;
  }
  return true;
}

// What to wait for from now on: a change of the list, and each VM's rings. False: the end has come.
bool DoorbellWatch::TakeList(List& vms, std::vector<pollfd>& asked) {
  const std::lock_guard lock(mutex_);
  uint64_t told = 0;
  [[maybe_unused]] const ssize_t got = read(changed_.get(), &told, sizeof told);
  vms = vms_;
  asked.assign(1, {changed_.get(), POLLIN, 0});
  for (const auto& vm : vms) asked.push_back({vm->event.get(), POLLIN, 0});
  return !stop_;
}

void DoorbellWatch::Watch() {
  constexpr int kPauseMs = 1, kNone = -1;
  prctl(PR_SET_TIMERSLACK, 1000);  // ns, of this thread
  std::vector<pollfd> asked;
  List vms;
  int pause_ms = kNone;
  while (TakeList(vms, asked)) {
    do {
      const int count = poll(asked.data(), asked.size(), pause_ms);
      // A pause that other VMs' rings cut short is over as well: the pace, not the pause, is the bound.
      pause_ms = kNone;
      for (size_t i = 0; i < vms.size(); ++i) asked[i + 1].fd = vms[i]->event.get();
      for (size_t i = 0; count > 0 && i < vms.size(); ++i) {
        if (asked[i + 1].revents == 0 || Look(*vms[i])) continue;
        asked[i + 1].fd = kNone;
        pause_ms = kPauseMs;
      }
    } while (asked[0].revents == 0);
  }
}

}  // namespace causeway::daemon
