// SPDX-License-Identifier: Apache-2.0
// Who should be woken by a guest's ring: the daemon's thread, which wakes the worker's thread (DoorbellWatch, as it is), or
// the worker's thread itself, by an eventfd of its own. Each iteration is one way there and back: a thread in the guest's
// place rings, the worker's thread wakes and rings back, and the first thread wakes. What QEMU and a guest's interrupt
// add is the same in both, and is not there.
#include <benchmark/benchmark.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "host_backend/daemon/doorbell/doorbell_watch.h"
#include "tests/yield_until.h"

namespace causeway::daemon {
namespace {

// The thread of a worker, and what it and the guest share: words of the slot, and the two eventfds.
class Session {
 public:
  explicit Session(bool direct) : direct_(direct) {
    auto made = Region::Create(kMinRegionBytes);
    if (!made.ok()) return;
    region_ = std::move(made.value());
    region_->Format(NewIdentity(), false);
    void* base = mmap(nullptr, kMinRegionBytes, PROT_READ | PROT_WRITE, MAP_SHARED, region_->fd(), 0);
    if (base == MAP_FAILED) return;
    base_ = static_cast<std::byte*>(base);
    if (!direct_) watch_.Add(region_, kSlot, work_.get());
    worker_ = std::thread([this] { direct_ ? ServeRings() : ServeWord(); });
  }
  ~Session() {
    if (base_ == nullptr) return;
    stop_ = true;
    Ring(work_);
    Store(guest().main_tail, LoadAcquire(guest().main_tail.value) + 1);
    syscall(SYS_futex, &guest().main_tail.value, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    worker_.join();
    watch_.Remove(*region_, kSlot);
    munmap(base_, kMinRegionBytes);
  }

  bool ready() const { return base_ != nullptr; }
  // The worker's thread is given time to sleep, so that each round trip wakes it.
  void Rest() const {
    test::YieldUntil([this] { return LoadAcquire(host().main_waiting.value) != 0; });
    usleep(200);
  }
  void RoundTrip() {
    Store(guest().main_tail, LoadAcquire(guest().main_tail.value) + 1);
    Ring(work_);
    Take(back_);
  }

 private:
  static constexpr uint32_t kSlot = 0;
  GuestControl& guest() const {
    return *reinterpret_cast<GuestControl*>(base_ + SlotOffset(kSlot) + kGuestControlOffset);
  }
  HostControl& host() const {
    return *reinterpret_cast<HostControl*>(base_ + SlotOffset(kSlot) + kHostControlOffset);
  }
  static void Store(HotWord& word, uint64_t value) { __atomic_store_n(&word.value, value, __ATOMIC_RELEASE); }
  static void Ring(const UniqueFd& event) {
    const uint64_t one = 1;
    if (write(event.get(), &one, sizeof one) != ssize_t{sizeof one}) abort();
  }
  static void Take(const UniqueFd& event) {
    uint64_t rung = 0;
    pollfd asked{event.get(), POLLIN, 0};
    while (read(event.get(), &rung, sizeof rung) < 0) poll(&asked, 1, -1);
  }
  void Answer() {
    Store(host().main_waiting, 0);
    Store(host().main_head, LoadAcquire(guest().main_tail.value));
    Ring(back_);
  }
  void ServeRings() {
    while (!stop_) {
      Store(host().main_waiting, 1);
      Take(work_);
      Answer();
    }
  }
  void ServeWord() {
    while (!stop_) {
      const uint64_t head = LoadAcquire(host().main_head.value);
      Store(host().main_waiting, 1);
      while (LoadAcquire(guest().main_tail.value) == head)
        syscall(SYS_futex, &guest().main_tail.value, FUTEX_WAIT, uint32_t(head), nullptr, nullptr, 0);
      Answer();
    }
  }

  const bool direct_;
  std::shared_ptr<Region> region_;
  std::byte* base_ = nullptr;
  const UniqueFd work_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)}, back_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::atomic<bool> stop_{false};
  DoorbellWatch watch_;
  std::thread worker_;
};

void WakeAfterRest(benchmark::State& state, bool direct) {
  Session session(direct);
  if (!session.ready()) return state.SkipWithError("no region can be made here");
  for (auto _ : state) {
    state.PauseTiming();
    session.Rest();
    state.ResumeTiming();
    session.RoundTrip();
  }
}
BENCHMARK_CAPTURE(WakeAfterRest, over_the_daemon, false)->UseRealTime()->MeasureProcessCPUTime();
BENCHMARK_CAPTURE(WakeAfterRest, the_worker_itself, true)->UseRealTime()->MeasureProcessCPUTime();

}  // namespace
}  // namespace causeway::daemon

BENCHMARK_MAIN();
