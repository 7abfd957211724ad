// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/worker_setup.h"

#include <sys/mman.h>

#include <new>
#include <utility>

#include "host_backend/common/monotonic.h"
#include "host_backend/worker/accounting/accounting.h"
#include "host_backend/worker/driver/capture.h"
#include "host_backend/worker/driver/host_nodes.h"
#include "host_backend/worker/driver/user_objects.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_region.h"

namespace causeway::fuzz {

// In place of host::Populate (tests/fuzz/CMakeLists.txt): that is half of an execution, and changes nothing
// but time.
void DoNotPopulate(std::byte*, uint64_t) asm("__wrap__ZN8causeway4host8PopulateEPSt4bytem");
void DoNotPopulate(std::byte*, uint64_t) {}

// In place of eventfd: the alarm of CallCounter, which no thread looks at here. To open and close one for each input
// took a thirtieth of it.
extern "C" int __wrap_eventfd(unsigned initial, int flags);
extern "C" int __wrap_eventfd(unsigned, int) {
  return -1;
}

namespace {

template <class T, class... Arguments>
void Renew(T& whole, Arguments... arguments) {
  whole.~T();
  new (&whole) T(arguments...);
}

constexpr uint32_t kOwnCell = 0, kOtherCell = 1;

AccountPage& MakePage() {
  void* mapped = mmap(nullptr, sizeof(AccountPage), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  Require(mapped != MAP_FAILED);
  auto& made = *static_cast<AccountPage*>(mapped);
  made.Open(kOwnCell);
  made.Open(kOtherCell);
  return made;
}
// Of the whole VM: this worker's cell and another's.
AccountPage& ThePage() {
  static AccountPage& page = MakePage();
  return page;
}
// What a worker counts on while it has no session: to map one for each input took a tenth of it.
AccountPage& ThePageOfNoSession() {
  static AccountPage& page = MakePage();
  return page;
}

}  // namespace

OneWorker::OneWorker(const ScriptPrefix& prefix) : seed_(prefix.seed) {
  AccountPage& page = ThePage();
  page.Begin(uint64_t{prefix.limited} << 20);
  if (prefix.limited == 0) return;
  // One in some VMs has a limit, which another worker's memory has nearly reached or not.
  host::TheAccounting().Attach(&page, kOwnCell);
  if (prefix.limited % 2 == 0) page.Add(kOtherCell, MemoryKind::kDevice, 0, uint64_t{prefix.limited} << 19);
}

OneWorker::~OneWorker() {
  Renew(host::TheHostNodes());
  Renew(host::TheCaptures());
  Renew(host::TheUserObjects());
  Renew(host::TheAccounting(), &ThePageOfNoSession());
  ThePage().Close(kOwnCell);
  ThePage().Close(kOtherCell);
  ThePageOfNoSession().Close(kOwnCell);
  TheRegion().EndInput();
}

// A record that waits passes when the daemon was last seen too long ago, which is soon. An input that waits takes up to 5 ms for that, so
// only one in sixteen does.
void OneWorker::TakeTurns(host::Session& session) const {
  uint64_t choice = seed_ * 0x9e3779b97f4a7c15u >> 32;
  const auto choose = [&choice](uint32_t of) { return std::exchange(choice, choice / of) % of; };
  if (choose(2) == 0) return;
  static constexpr Grant kGrants[] = {Grant::kAsleep, Grant::kOpen, Grant::kTurn, Grant::kBeside};
  static constexpr LinkGrant kLinkGrants[] = {LinkGrant::kAsleep, LinkGrant::kOpen, LinkGrant::kWindow};
  const bool waits = choose(16) == 0;
  const Grant turn = waits ? (choose(2) == 0 ? Grant::kClosed : Grant::kSoon) : kGrants[choose(4)];
  const LinkGrant copies = waits ? LinkGrant::kClosed : kLinkGrants[choose(3)];
  AccountPage& page = ThePage();
  host::TheAccounting().Attach(&page, kOwnCell);
  constexpr uint64_t kSoonNs = 200'000;
  const uint64_t seen_ns = MonotonicNs() - (waits ? kGrantLifeNs - kSoonNs : 0);
  for (const int place : host::TheAccounting().places()) {
    if (place == kNoDevice) continue;
    GrantWords* const grant = page.MakeGrantOn(page.cell(kOwnCell).device[place].load());
    Require(grant != nullptr);
    grant->grant = uint32_t(turn);
    grant->seen_ns = seen_ns;
    grant->queue_us = uint32_t(choose(2)) * 1000;
    ++grant->openings;
    LinkGrantWords& link = page.LinkOf(*grant);
    for (const uint32_t direction : {kToDevice, kToHost}) {
      link.grant[direction] = uint32_t(copies);
      link.window_kib[direction] = uint32_t(choose(2)) * 64;
      link.others_copy[direction] = uint32_t(choose(3));
    }
    link.seen_ns = seen_ns;
  }
  session.gates().Attach(&page, kOwnCell, host::TheAccounting().places(), [] {});
}

bool IsMarkWord(CUdeviceptr address) {
  const TurnCell& cell = ThePage().turn_cell(kOwnCell);
  const auto begin = reinterpret_cast<CUdeviceptr>(&cell);
  if (address < begin || address >= begin + sizeof cell || address % sizeof(uint32_t) != 0) return false;
  const auto in = [address](const auto& words) {
    const auto at = reinterpret_cast<CUdeviceptr>(&words);
    return address >= at && address < at + sizeof words;
  };
  for (const TurnWords& turn : cell.turns)
    if (in(turn.done)) return true;
  for (const LinkWords& link : cell.links)
    if (in(link.done)) return true;
  return false;
}

}  // namespace causeway::fuzz
