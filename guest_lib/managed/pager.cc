// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/managed/pager.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "guest_lib/addresses/address_windows.h"
#include "guest_lib/addresses/mappings.h"
#include "guest_lib/managed/areas.h"
#include "guest_lib/page_watch/page_watch.h"
#include "guest_lib/process/lock_order.h"
#include "guest_lib/process/log.h"
#include "guest_lib/process/own_thread.h"
#include "guest_lib/session/context.h"
#include "guest_lib/session/submissions.h"
#include "ivshmem_ring/messages/registration.h"
#include "ivshmem_ring/system/futex.h"

namespace causeway::guest {
namespace {

// ---- requests to the serving thread ----

enum class Task : uint8_t { kFault, kAdd, kRemove, kGiveBack, kExchange, kRestore };

// Lies on the stack of the thread that waits for it.
struct Request {
  Task task;
  PageFault fault{};
  ManagedMemory memory{};
  bool read_compared = false;   // of kExchange, as in work::ManagedPages
  bool discard = false;         // of kRemove, as in ManagedAreas
  bool was_accessible = false;  // of kFault: the page was accessible when the thread looked, or is now
  bool result = false;
  Request* next = nullptr;
  std::atomic<uint32_t> done{0};  // released by the serving thread, acquired by the waiting one
};

// Everything here is reached from the signal handler: lock-free, and never destroyed.
std::atomic<Request*> requests{nullptr};  // newest first; released by Submit, acquired by the serving thread
std::atomic<size_t> restored_count{0};    // variables, pinned and registered memory
std::atomic<bool> any_pinned{false};      // there is or was pinned or registered memory
std::atomic<bool> serving{false};
// Whether the serving thread looks at compared bytes by itself, which it does while work is in flight. While it does not, whoever starts work
// rings for it.
std::atomic<bool> compares{false};
__attribute__((tls_model("initial-exec"))) thread_local bool is_server = false;
__attribute__((tls_model("initial-exec"))) thread_local uint32_t accessible_touches = 0;

// The serving thread always answers: it waits for the host only, whose death ends those waits.
bool Submit(Request* request) {
  request->next = requests.load(std::memory_order_relaxed);
  while (!requests.compare_exchange_weak(request->next, request, std::memory_order_release)) {
  }
  PageWatch::Get().Ring();
  while (request->done.load(std::memory_order_acquire) == 0)
    FutexWait(&request->done, 0, kFutexForEver, FutexOf::kThisProcess);
  return request->result;
}

bool ClaimManagedFault(const PageFault& fault) {
  if (!serving.load(std::memory_order_acquire) || is_server) return false;
  if (!IsDeviceAddress(fault.address) && !any_pinned.load()) return false;
  Request request{.task = Task::kFault, .fault = fault};
  const bool served = Submit(&request);
  if (!request.was_accessible) {
    accessible_touches = 0;
    return served;
  }
  // Where touches fail one after the other although their pages are accessible, they fail for another reason.
  constexpr uint32_t kMost = 16;
  return ++accessible_touches <= kMost;
}

// ---- the serving thread ----

// Nanoseconds between two looks while work is in flight. The longest is 1 ms while the program holds pages, and 8 ms where there are only
// compared bytes, which cost a round trip at each look whether or not anybody waits for them.
constexpr int64_t kShortestExchange = 250'000, kLongestExchange = 1'000'000, kLongestComparison = 8'000'000;

int64_t Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

class Server {
 public:
  Server(ManagedLink& link, PageWatch& watch) : watch_(watch), areas_(link, watch) {}
  [[noreturn]] void Run() {
    for (;;) {
      ServeAll();
      ServeFaults();
      accessible_chunks.store(areas_.accessible());
      if (areas_.ReadAhead()) continue;  // a thread may wait already
      if (const int64_t left = TimeToExchange()) watch_.Wait(left);
    }
  }

 private:
  void ServeAll() {
    Request* newest = requests.exchange(nullptr, std::memory_order_acquire);
    Request* oldest = nullptr;
    while (newest != nullptr) {
      Request* next = newest->next;
      newest->next = oldest;
      oldest = newest;
      newest = next;
    }
    while (oldest != nullptr) {
      Request* next = oldest->next;
      oldest->result = Serve(*oldest);
      accessible_chunks.store(areas_.accessible());
      oldest->done.store(1, std::memory_order_release);
      FutexWake(&oldest->done, 1,
                FutexOf::kThisProcess);  // its thread may be gone already: then nobody is woken
      oldest = next;
    }
  }

  // Of those that no request brings: none stays longer than a request.
  void ServeFaults() {
    PageFault faults[16];
    const size_t count = watch_.TakeFaults(faults, std::size(faults));
    for (size_t i = 0; i < count; ++i) {
      // Of the program's own: it has it again, and meets what is there.
      bool was_accessible = false;
      if (!ServeFault(faults[i], &was_accessible) || was_accessible)
        watch_.TryAgain(faults[i].address, faults[i].address + kPageBytes);
      areas_.BuryGone();
    }
  }

  // Whether the touch succeeds when it is done again: its page may have been given back to the program for good since, or have been moved with
  // the rest of the memory that the program had registered.
  bool ServeFault(const PageFault& fault, bool* was_accessible) {
    if (areas_.Serve(fault)) return true;
    if (!any_pinned.load()) return false;
    areas_.ForgetGone(true);
    std::vector<Mapping> page;
    const uint64_t begin = PageFloor(fault.address);
    const int needed = fault.write ? PROT_WRITE : PROT_READ;
    *was_accessible =
        ReadMappings(begin, begin + kPageBytes, &page) && (page.front().protection & needed) != 0;
    return *was_accessible;
  }

  bool Serve(Request& request) {
    const bool result = request.task == Task::kFault ? ServeFault(request.fault, &request.was_accessible)
                                                     : ServeOther(request);
    areas_.BuryGone();
    return result;
  }

  bool ServeOther(const Request& request) {
    switch (request.task) {
      case Task::kFault:
        return false;
      case Task::kAdd:
        return areas_.Add(request.memory);
      case Task::kRemove:
        areas_.Remove(request.memory.address, request.discard);
        return true;
      case Task::kGiveBack:
        areas_.GiveBack();
        break;
      case Task::kExchange:
        areas_.Exchange(request.read_compared);
        break;
      case Task::kRestore:
        areas_.Restore();
        return true;
    }
    // The program may have installed a handler of its own since.
    watch_.Arm(ClaimManagedFault);
    return true;
  }

  // Nanoseconds until pages lent while work is under way, or compared bytes, must be looked at; negative: there are none.
  int64_t TimeToExchange() {
    const bool only_compared = areas_.borrowed() == 0;
    const bool any_compared = !TheComparedBytes().empty();
    compares.store(false);
    if ((only_compared && !any_compared) || !work::under_way.load()) {
      due_ = 0;
      return -1;
    }
    compares.store(any_compared);
    const int64_t longest = only_compared ? kLongestComparison : kLongestExchange;
    if (interval_ > longest) {  // pages were lent since
      interval_ = kShortestExchange;
      due_ = 0;
    }
    const int64_t now = Now();
    if (due_ == 0) due_ = now + interval_;
    if (now < due_) return due_ - now;
    interval_ = areas_.Exchange(true) ? kShortestExchange : std::min(2 * interval_, longest);
    areas_.BuryGone();
    due_ = 0;
    return 0;
  }

  PageWatch& watch_;
  ManagedAreas areas_;
  int64_t due_ = 0, interval_ = kShortestExchange;
};

// Both live as long as the process.
ManagedLink& the_link = *new ManagedLink;

void* ServeForever(void*) {
  is_server = true;
  (*new Server(the_link, PageWatch::Get())).Run();
}

// Nobody serves there, and nobody waits for it.
void InForkedChild() {
  serving.store(false);
  accessible_chunks.store(0);
  restored_count.store(0);
  any_pinned.store(false);
  TheComparedBytes().Abandon();
  work::watch.store(0);
}

CUresult StartServing() {
  static auto& mutex = *new Mutex<Lock::kServePages>;
  const std::lock_guard lock(mutex);
  if (serving.load()) return CUDA_SUCCESS;
  if (const CUresult result = the_link.Open()) return result;
  static const int registered = pthread_atfork(nullptr, nullptr, InForkedChild);
  (void)registered;
  const int failed = StartOwnThread(ServeForever, false);
  if (failed != 0) {
    Complain("no thread can be started for managed memory: " + std::string(strerror(failed)));
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  PageWatch::Get().Arm(ClaimManagedFault);
  serving.store(true, std::memory_order_release);
  return CUDA_SUCCESS;
}

// ---- what is known of the memory ----

struct Known {
  HostAllocation allocation;
  WireHandle owner;
};
struct Registry {
  SharedMutex<Lock::kManagedPages> mutex;
  std::map<uint64_t, Known> known;     // by address
  uint64_t changes = 0;                // under way: pages come or go
  std::vector<DefaultStream> streams;  // one for each context that has such memory
};
Registry& registry = *new Registry;
std::atomic<size_t> known_count{0};

// While pages come or go. A watch begins before the first ones come, and ends when the last are gone.
class PagesChange {
 public:
  PagesChange() {
    const std::unique_lock lock(registry.mutex);
    ++registry.changes;
    if (!work::IsWatched()) work::BeginWatch();
  }
  ~PagesChange() {
    const std::unique_lock lock(registry.mutex);
    if (--registry.changes == 0 && registry.known.empty()) work::EndWatch();
  }
  PagesChange(const PagesChange&) = delete;
  PagesChange& operator=(const PagesChange&) = delete;
};

// The caller holds the mutex.
void CountKnown() {
  const auto& known = registry.known;
  size_t pinned = 0, variables = 0;
  for (const auto& [address, one] : known) {
    variables += one.owner != 0 ? 1 : 0;
    pinned += one.allocation.kind != HostKind::kManaged ? 1 : 0;
  }
  restored_count.store(variables + pinned);
  known_count.store(known.size(), std::memory_order_release);
}

// The stream on which the host copies in the current context.
CUresult CopyStream(Object* context, WireHandle* wire) {
  {
    const std::shared_lock lock(registry.mutex);
    for (const DefaultStream& own : registry.streams) {
      if (own.context != context || !own.alive()) continue;
      *wire = WireOf(own.stream);
      return CUDA_SUCCESS;
    }
  }
  CUstream made = nullptr;
  if (const CUresult result = cuStreamCreate(&made, CU_STREAM_NON_BLOCKING)) return result;
  the_link.ComeAfterPosted();  // the stream's creation
  Object* stream = Find(made);
  *wire = WireOf(stream);
  const std::unique_lock lock(registry.mutex);
  std::erase_if(registry.streams, [](const DefaultStream& own) { return !own.alive(); });
  registry.streams.push_back({context, stream, stream->id});
  return CUDA_SUCCESS;
}

template <class Match>
void ForgetIf(Match match, bool discard = false) {
  if (known_count.load(std::memory_order_acquire) == 0) return;
  const PagesChange change;
  std::vector<uint64_t> gone;
  {
    const std::unique_lock lock(registry.mutex);
    for (auto at = registry.known.begin(); at != registry.known.end();) {
      const auto here = at++;
      if (!match(here->second)) continue;
      gone.push_back(here->first);
      registry.known.erase(here);
    }
    CountKnown();
  }
  for (const uint64_t address : gone) {
    Request request{.task = Task::kRemove, .discard = discard};
    request.memory.address = address;
    Submit(&request);
  }
}

void ExchangePages(bool read_compared) {
  if (is_server) return;
  const bool compared = read_compared ? !TheComparedBytes().empty() : TheComparedBytes().Changed();
  if (accessible_chunks.load() == 0 && !compared) return;
  Request request{.task = Task::kExchange, .read_compared = read_compared};
  Submit(&request);
}

void RestorePages() {
  if (restored_count.load(std::memory_order_acquire) == 0 || is_server) return;
  if (PageWatch::Get().serves_system_calls()) return;
  Request request{.task = Task::kRestore};
  Submit(&request);
}

[[gnu::constructor]] void SetHooks() {
  const auto holds = [](uint64_t address) {
    HostAllocation known;
    return FindMigrating(address, &known, false);
  };
  work::managed_pages = {GiveBackManagedPages, ExchangePages, RestorePages, holds};
}

}  // namespace

void GiveBackManagedPages() {
  // under_way was set before this. So either TimeToExchange sees it, or this load sees that the thread does not compare, and rings.
  if (!TheComparedBytes().empty() && !compares.load()) PageWatch::Get().Ring();
  if (is_server || (accessible_chunks.load() == 0 && !TheComparedBytes().Changed())) return;
  Request request{.task = Task::kGiveBack};
  Submit(&request);
}

CUresult AddMigrating(const HostAllocation& allocation, WireHandle owner, bool fresh) {
  if (const CUresult result = StartServing()) return result;
  const PagesChange change;
  Request request{.task = Task::kAdd};
  request.memory = {
      .address = allocation.address, .bytes = allocation.bytes, .context = 0, .stream = 0, .fresh = fresh};
  request.memory.is_restored = owner != 0;
  if (owner == 0) {
    if (const CUresult result = CopyStream(allocation.context, &request.memory.stream)) return result;
    request.memory.context = WireOf(allocation.context);
  }
  if (!Submit(&request)) return CUDA_ERROR_NOT_SUPPORTED;
  const std::unique_lock lock(registry.mutex);
  registry.known[allocation.address] = {allocation, owner};
  CountKnown();
  return CUDA_SUCCESS;
}

CUresult AddPinned(const HostAllocation& allocation, uint64_t bytes, int file, uint64_t offset) {
  if (const CUresult result = StartServing()) return result;
  const PagesChange change;
  Request request{.task = Task::kAdd};
  using Form = ManagedMemory::Form;
  request.memory = {.address = allocation.address, .bytes = bytes, .context = 0, .stream = 0, .fresh = true};
  const bool is_kept = allocation.kind == HostKind::kRegistered || allocation.kind == HostKind::kPooled;
  request.memory.form = is_kept ? Form::kKept : Form::kPinned;
  request.memory.file = file;
  request.memory.offset = offset;
  request.memory.is_restored = allocation.kind != HostKind::kInternal;
  any_pinned.store(true);
  if (!Submit(&request)) return CUDA_ERROR_NOT_SUPPORTED;
  const std::unique_lock lock(registry.mutex);
  registry.known[allocation.address] = {allocation, 0};
  CountKnown();
  return CUDA_SUCCESS;
}

bool FindMigrating(uint64_t address, HostAllocation* allocation, bool variables) {
  if (known_count.load(std::memory_order_acquire) == 0) return false;
  const std::shared_lock lock(registry.mutex);
  const auto next = registry.known.upper_bound(address);
  if (next == registry.known.begin()) return false;
  const Known& known = std::prev(next)->second;
  if (address - known.allocation.address >= known.allocation.bytes) return false;
  if (known.owner != 0 && !variables) return false;
  *allocation = known.allocation;
  return true;
}

bool SetMigratingSyncMemops(uint64_t address, bool value) {
  HostAllocation allocation;
  if (!FindMigrating(address, &allocation, true)) return false;
  const std::unique_lock lock(registry.mutex);
  const auto found = registry.known.find(allocation.address);
  if (found != registry.known.end()) found->second.allocation.sync_memops = value;
  return found != registry.known.end();
}

void ForgetMigrating(uint64_t address, bool discard) {
  ForgetIf([address](const Known& known) { return known.allocation.address == address; }, discard);
}
// A module's variables go with its context; a library's outlast it.
void ForgetMigratingOf(const Object* context) {
  ForgetIf([context](const Known& known) {
    if (known.owner == 0) return known.allocation.context == context;
    const Object* owner = ObjectOf(known.owner);
    return owner == nullptr || (WireKind(known.owner) == HandleKind::kModule && owner->context == context);
  });
}
void ForgetMigratingOf(WireHandle owner) {
  ForgetIf([owner](const Known& known) { return known.owner == owner; });
}

}  // namespace causeway::guest
