// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/session/device_gates.h"

#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <system_error>
#include <thread>

#include "host_backend/common/monotonic.h"
#include "host_backend/worker/driver/capture.h"
#include "host_backend/worker/driver/logs.h"
#include "ivshmem_ring/system/futex.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway::host {
namespace {

constexpr uint64_t kAskAgainNs = 1'000'000;           // a sleeping daemon
constexpr uint64_t kRegisterAgainNs = 1'000'000'000;  // where the driver did not take the page of turns

constinit thread_local DeviceGates::Place place;

// A stream that captures takes no mark: that would become a node of the program's graph.
bool IsCapturing(CUstream stream) {
  if (!Captures::Any()) return false;
  const OwnCalls own_calls;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const Driver& driver = TheDriver();
  return !Has(driver.cuStreamIsCapturing) || driver.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// Errors after which the context does no more work, and writes no more marks.
bool EndsContext(CUresult result) {
  return (result >= CUDA_ERROR_ILLEGAL_ADDRESS && result <= CUDA_ERROR_LAUNCH_TIMEOUT) ||
         result == CUDA_ERROR_CONTEXT_IS_DESTROYED || result == CUDA_ERROR_ASSERT ||
         (result >= CUDA_ERROR_HARDWARE_STACK_ERROR && result <= CUDA_ERROR_LAUNCH_FAILED) ||
         result == CUDA_ERROR_ECC_UNCORRECTABLE;
}

}  // namespace

// The gates of one device.
struct DeviceGates::Door final : Surroundings {
  Door(DeviceGates& all, Entrance& its_entrance, uint64_t device, TurnCell& cell, TurnWords& own,
       LinkWords& of_link)
      : gates(all),
        entrance(its_entrance),
        hash(device),
        page(cell),
        words(own),
        gate(kNobodyLooks, own, *this),
        link(kNobodyLooksAtLinks, of_link, *this) {
    entrance.gate = &gate;
  }

  uint64_t NowNs() override { return MonotonicNs(); }
  bool Mark(std::atomic<uint32_t>& word, uint32_t value) override {
    if (place.objects == nullptr && place.known == nullptr) return false;
    std::optional<Objects::OwnUse> use;
    if (place.known == nullptr) use.emplace(*place.objects);
    if (place.context != 0 && !use->Enter(place.context)) return false;
    CUstream stream = place.known != nullptr ? *place.known : nullptr;
    if (place.stream != 0 && (stream = use->FindStream(place.stream)) == nullptr) return false;
    const Driver& driver = TheDriver();
    if (!Has(driver.cuStreamWriteValue32_v2) || !Register()) return false;
    const auto none_begins = TheCaptures().HoldOff();
    return !IsCapturing(stream) &&
           driver.cuStreamWriteValue32_v2(stream, reinterpret_cast<CUdeviceptr>(&word), value,
                                          CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS;
  }
  void Wake() override {
    if (const GrantWords* own = gates.page_->GrantOn(hash)) {
      gate.Follow(*own);
      link.Follow(gates.page_->LinkOf(*own));
      if (own_grant.exchange(own, std::memory_order_acq_rel) == nullptr) gates.BeginWatching(*this);
    }
    const uint64_t now = MonotonicNs();
    uint64_t before = asked_ns.load(std::memory_order_relaxed);
    if (now - before > kAskAgainNs && asked_ns.compare_exchange_strong(before, now)) gates.wake_();
  }
  void Waited(uint64_t nanoseconds) override {
    const auto at = std::min<uint32_t>(std::bit_width(nanoseconds / 1000), kWaitPlaces - 1);
    page.waits[at].fetch_add(1, std::memory_order_relaxed);
  }
  void Sleep(const std::atomic<uint32_t>& grant, uint32_t seen, uint64_t nanoseconds) override {
    FutexWait(&grant, seen, static_cast<int64_t>(nanoseconds), FutexOf::kAllProcesses);
  }
  bool Register();

  static constinit inline GrantWords kNobodyLooks{};             // Grant::kAsleep
  static constinit inline LinkGrantWords kNobodyLooksAtLinks{};  // LinkGrant::kAsleep
  DeviceGates& gates;
  Entrance& entrance;
  const uint64_t hash;
  TurnCell& page;
  TurnWords& words;
  std::atomic<uint64_t> asked_ns{0}, refused_ns{0};
  std::atomic<const GrantWords*> own_grant{nullptr};  // once the gate follows the VM's own
  uint32_t seen_news = 0;                             // the watching thread's
  Gate gate;
  LinkGate link;
};

// Tells the driver of the page of turns, in the calling thread's context. A capture must not notice.
bool DeviceGates::Door::Register() {
  if (gates.registered_.load(std::memory_order_acquire) != nullptr) return true;
  const std::lock_guard lock(gates.registering_);
  if (gates.registered_.load(std::memory_order_relaxed) != nullptr) return true;
  const uint64_t now = MonotonicNs();
  const uint64_t refused = refused_ns.load(std::memory_order_relaxed);
  if (refused != 0 && now - refused < kRegisterAgainNs) return false;
  const Driver& driver = TheDriver();
  CUcontext context = nullptr;
  const RelaxedMode relaxed;
  driver.cuCtxGetCurrent(&context);
  const CUresult result =
      context == nullptr
          ? CUDA_ERROR_INVALID_CONTEXT
          : driver.cuMemHostRegister_v2(&page, sizeof page,
                                        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (result == CUDA_SUCCESS) {
    gates.registered_.store(context, std::memory_order_release);
  } else {
    refused_ns.store(now, std::memory_order_relaxed);
  }
  return result == CUDA_SUCCESS;
}

DeviceGates::DeviceGates() = default;
DeviceGates::~DeviceGates() = default;

void DeviceGates::Attach(AccountPage* page, uint32_t cell, const std::array<int, kAccountDevices>& places,
                         std::function<void()> wake) {
  page_ = page;
  wake_ = std::move(wake);
  TurnCell& own = page->turn_cell(cell);
  for (size_t device = 0; device < places.size(); ++device) {
    const int at = places[device];
    if (at != kNoDevice)
      doors_[device] = std::make_unique<Door>(*this, entrances_[device], page->cell(cell).device[at].load(),
                                              own, own.turns[at], own.links[at]);
  }
}

void DeviceGates::Prepare(CUcontext context) {
  const auto door =
      std::find_if(doors_.begin(), doors_.end(), [](const auto& each) { return each != nullptr; });
  if (door == doors_.end() || context == nullptr || TheDriver().cuCtxSetCurrent(context) != CUDA_SUCCESS)
    return;
  (*door)->Register();
  TheDriver().cuCtxSetCurrent(nullptr);
}

// Behind what the thread has submitted last, while it has another request. In that one's context the legacy stream is another.
DeviceGates::Place DeviceGates::PlaceInRequest(Objects& objects) {
  if (last_.stream == 0 && last_.context != Objects::whereabouts().context) return {};
  return {.objects = &objects, .stream = last_.stream};
}

bool DeviceGates::Await(const Entrance& at, Objects& objects, const std::atomic<bool>& stop) {
  place = last_.device == Objects::whereabouts().device ? PlaceInRequest(objects) : Place{};
  const bool passes = at.gate->Await(stop);
  place = {};
  return passes;
}

void DeviceGates::LeaveSlowly(Entrance& at, Objects& objects, bool goes_on, CUresult result) {
  const Whereabouts& here = Objects::whereabouts();
  const LastSubmission now{here.device, here.stream.wire, here.context, kSaidFor};
  if (goes_on && unsettled_ != nullptr && (last_.device != now.device || last_.stream != now.stream))
    MarkUnsettled(PlaceInRequest(objects));
  last_ = now;
  at.last_context.store(here.context, std::memory_order_relaxed);
  at.last_stream.store(now.stream, std::memory_order_relaxed);
  place = {.objects = &objects, .stream = now.stream};
  at.gate->Leave(goes_on);
  place = {};
  if (goes_on && at.gate->HasUnmarked()) unsettled_ = doors_[now.device].get();
  if (EndsContext(result)) ContextEnds(nullptr);
}

// Without that thread what was queued is known later, and slices stay.
void DeviceGates::BeginWatching(Door& door) {
  if (objects_ == nullptr) return;
  watched_.fetch_add(1);
  try {
    std::thread([this, &door] { WatchDoor(door); }).detach();
  } catch (const std::system_error&) {
  }
}

void DeviceGates::Watch(Objects& objects, TimeSlices& slices) {
  objects_ = &objects;
  slices_ = &slices;
}

// The process ends with the thread in its wait, or the daemon wakes it.
void DeviceGates::WatchDoor(Door& door) {
  const GrantWords& grant = *door.own_grant.load(std::memory_order_acquire);
  prctl(PR_SET_NAME, "causeway-news");
  for (;;) {
    FollowNews(door, grant);
    FutexWait(&grant.news, door.seen_news, kFutexForEver, FutexOf::kAllProcesses);
  }
}

// Captures are left alone, and so are contexts and streams that have ended meanwhile.
void DeviceGates::FollowNews(Door& door, const GrantWords& grant) {
  Objects& objects = *objects_;
  const uint32_t news = grant.news.load(std::memory_order_acquire);
  if (news == door.seen_news) return;
  door.seen_news = news;
  const WireHandle context = door.entrance.last_context.load(std::memory_order_relaxed);
  if (context != 0 && !Captures::Any()) {
    place = {.objects = &objects,
             .stream = door.entrance.last_stream.load(std::memory_order_relaxed),
             .context = context};
    door.gate.MarkQueued();
    place = {};
  }
  objects.EndRequest();
  // A slice is of all work of this process: one that uses several GPUs keeps the driver's, which no other GPU's arbiter has to know.
  const uint32_t slice_us = watched_.load() > 1 ? 0 : grant.slice_us.load(std::memory_order_relaxed);
  if (slice_us == door.words.slice_us.load(std::memory_order_relaxed)) return;
  door.words.slice_us.store(slices_->Set(slice_us) ? slice_us : 0, std::memory_order_relaxed);
}

bool DeviceGates::HasUnsettled() const {
  return unsettled_->gate.HasUnmarked();
}

// The guest's next record comes within some microseconds or not soon.
bool DeviceGates::WaitsOn(uint64_t* begin) {
  constexpr uint64_t kMostNs = 20'000;
  if (*begin != 0) return MonotonicNs() - *begin < kMostNs;
  *begin = MonotonicNs();
  return FreeProcessors() != kCrowded;
}

void DeviceGates::SettleBetween(Objects& objects) {
  MarkUnsettled({.objects = &objects, .stream = last_.stream, .context = last_.context});
}

void DeviceGates::MarkUnsettled(const Place& where) {
  place = where;
  unsettled_->gate.MarkRest();
  place = {};
  unsettled_ = nullptr;
}

void DeviceGates::TellOver() {
  const Whereabouts& here = Objects::whereabouts();
  if (unsettled_ == nullptr || last_.stream != here.stream.wire || last_.device != here.device) return;
  const auto mark = unsettled_->gate.TakeMark();
  if (!mark) return;
  unsettled_->words.done[mark->slot].store(mark->value, std::memory_order_release);
  unsettled_ = nullptr;
}

bool DeviceGates::OthersCopy() {
  Door* const door = DoorOfRequest();
  return door != nullptr && door->link.OthersCopy();
}

CUresult DeviceGates::WriteWord(bool goes_on, CUstream stream, CUdeviceptr word, uint64_t value) {
  const Driver& driver = TheDriver();
  Door* const door = goes_on ? unsettled_ : nullptr;
  std::optional<Gate::Mark> mark;
  if (door != nullptr && last_.stream == Objects::whereabouts().stream.wire &&
      last_.device == Objects::whereabouts().device && Has(driver.cuStreamBatchMemOp_v2) &&
      !Captures::Any() && door->Register())
    mark = door->gate.TakeMark();
  if (!mark) return driver.cuStreamWriteValue64_v2(stream, word, value, CU_STREAM_WRITE_VALUE_DEFAULT);
  unsettled_ = nullptr;
  CUstreamBatchMemOpParams both[2]{};
  both[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  both[0].writeValue.address = word;
  both[0].writeValue.value64 = value;
  both[1].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  both[1].writeValue.address = reinterpret_cast<CUdeviceptr>(&door->words.done[mark->slot]);
  both[1].writeValue.value = mark->value;
  const CUresult result = driver.cuStreamBatchMemOp_v2(stream, 2, both, 0);
  if (result != CUDA_SUCCESS) door->gate.DropMark(*mark);
  return result;
}

// What is captured is not copied now.
uint64_t DeviceGates::EnterLink(uint32_t direction, uint64_t bytes, bool whole, CUstream stream,
                                const std::atomic<bool>& stop) {
  Door* const door = DoorOfRequest();
  if (door == nullptr || IsCapturing(stream)) return bytes;
  place = {.known = &stream};
  LinkGate& gate = door->link;
  const uint64_t piece =
      whole ? (gate.EnterWhole(direction, bytes, stop) ? bytes : 0) : gate.Enter(direction, bytes, stop);
  place = {};
  return piece;
}

void DeviceGates::LeaveLink(uint32_t direction, uint64_t bytes, CUstream stream, bool done) {
  Door* const door = DoorOfRequest();
  if (door == nullptr || IsCapturing(stream)) return;
  place = {.known = &stream};
  door->link.Leave(direction, bytes, done);
  place = {};
}

void DeviceGates::ContextEnds(CUcontext context) {
  const std::lock_guard lock(registering_);
  if (context != nullptr && registered_.load() != context) return;
  registered_.store(nullptr);
  for (const auto& door : doors_) {
    if (door == nullptr) continue;
    door->gate.ForgetMarks();
    door->link.ForgetMarks();
  }
}

}  // namespace causeway::host
