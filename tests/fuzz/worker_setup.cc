// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/worker_setup.h"

#include <sys/mman.h>

#include <new>

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

OneWorker::OneWorker(const ScriptPrefix& prefix) {
  if (prefix.limited == 0) return;
  // One in some VMs has a limit, which another worker's memory has nearly reached or not.
  AccountPage& page = ThePage();
  page.Begin(uint64_t{prefix.limited} << 20);
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

}  // namespace causeway::fuzz
