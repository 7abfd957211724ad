// SPDX-License-Identifier: Apache-2.0
// The transport (transport.h) over the rings of a slot in shared memory: a VM's region, a local session's
// file, or, in tests, plain memory of one process. The contracts of the functions are in transport.h; this
// file adds what only rings have.
#pragma once
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ivshmem_ring/transport/flight_recorder.h"
#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/ring.h"
#include "ivshmem_ring/transport/transport.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway {

struct RingClientOptions {
  std::byte* slot = nullptr;   // where the slot's granule is mapped; it outlives the transport
  bool futex = false;          // both sides run on one kernel, so a futex wakes the peer
  const Bell* bell = nullptr;  // they do not, but wake each other by this one, which outlives the transport
  // Says why the host no longer serves this process; empty while it does. Waiting threads call it about
  // every 10 ms, several at once.
  std::function<std::string()> loss;
};

class RingClient : public ClientTransport {
 public:
  explicit RingClient(RingClientOptions options);

  void PublishMain(size_t bytes) override;
  void HurryMain() override;
  std::byte* ReserveRequest(uint32_t channel, size_t bytes) override;
  void PublishRequest(uint32_t channel, size_t bytes) override;
  std::span<const std::byte> AwaitReply(uint32_t channel, ReplyWait wait = {}) override;
  bool ReplyReady(uint32_t channel) override;
  std::string LossReason() override;

 protected:
  std::byte* AwaitMainRoom(size_t bytes, std::unique_lock<std::mutex>& lock) override;

 private:
  struct Channel {
    RingProducer requests;
    RingConsumer replies;
    std::vector<std::byte> reply_buffer;
    std::vector<std::byte> request;  // a request is put together here and then written in one go
    bool reply_held = false;         // the room of the last reply was not returned yet
    WaitHistory history{};
  };
  Channel& At(uint32_t index) {
    if (index >= kChannelCount) abort();
    return channels_[index] != nullptr ? *channels_[index] : Make(index);
  }
  Channel& Make(uint32_t index);
  bool AwaitRoom(uint32_t index, size_t bytes);
  void WakeDispatcher(size_t bytes);  // after so many were posted
  // A ring that went astray costs the host's thread no more than this one's next look.
  void WakeHostAgain(uint32_t index) const;
  std::span<const std::byte> AwaitLonger(uint32_t index, const ReplyWait& wait, uint64_t* waited_us);
  bool Lost();
  void Lose(std::string reason);

  RingClientOptions options_;
  const bool wakes_;  // each side wakes the other
  GuestControl* guest_;
  HostControl* host_;
  RingProducer main_;
  // Every thread reads these; they are on other lines than what each posted record writes.
  alignas(kHotBytes) FlightRecorder flight_;
  std::unique_ptr<Channel> channels_[kChannelCount];
  std::atomic<bool> lost_{false};
  std::mutex reason_mutex_;
  std::string reason_;  // not empty: why the session was lost. Under reason_mutex_
};

struct RingServerOptions {
  std::byte* slot = nullptr;
  bool futex = false;  // both sides run on one kernel, so a futex wakes the peer
  // They do not, but a thread of the daemon polls the rings and wakes this side's threads that sleep
  // (host_backend/daemon/region/idle_watch.h).
  bool watched = false;
  // What this side's threads sleep by where they cannot on the rings' words; null: futex. It outlives the transport.
  const Bell* sleep = nullptr;
  const Bell* bell =
      nullptr;  // what wakes the guest where it is in a VM and can be woken; it outlives the transport
  // Gives the address of bytes of the region, or null if the session does not own all of them. Any thread.
  std::function<std::byte*(uint64_t offset, uint64_t bytes)> resolve;
  FlightImage* flight = nullptr;  // where the server notes the times of messages; null: nowhere
};

class RingServer : public ServerTransport {
 public:
  explicit RingServer(RingServerOptions options);

  ReceiveStatus ReceiveMain(std::span<const std::byte>* record) override;
  void DoneMain() override;
  void HandedMain() override;
  void ExecutedMain(uint64_t sequence) override;
  bool MainReady() override;
  ReceiveStatus ReceiveRequest(uint32_t channel, std::span<const std::byte>* record) override;
  bool RequestReady(uint32_t channel) override;
  void DoneRequest(uint32_t channel) override;
  std::byte* ReserveReply(uint32_t channel, size_t bytes = kMaxChannelRecordBytes) override;
  void PublishReply(uint32_t channel, size_t bytes) override;
  void PostAsyncError(uint32_t result) override;
  std::span<std::byte> BulkOf(uint32_t channel, const RecordHeader& header) override;
  bool shares_memory() const override { return true; }
  void Stop() override;
  const char* CorruptReason() const override { return corrupt_reason_.load(std::memory_order_acquire); }

 private:
  struct Channel;
  // How long it pays a thread to spin for work, and, where others want the processors and nobody rings for it, to look for work by a timer.
  struct Budgets {
    SpinBudget spin{MostSpinUs()};
    SpinBudget timed{kMostTimedUs};
  };
  static constexpr uint32_t kMostTimedUs = 500;  // after which the daemon looks as often
  // Waits for the next record of `ring`. `frugal`: the sender of the record before this one sleeps in a
  // no-spin wait, so this thread must not spin for the next record. `now` is in ticks: on entry when this
  // thread was done with the record before, on return when it saw this one.
  ReceiveStatus Receive(RingConsumer& ring, HotWord& waiting, Budgets& budgets, bool frugal,
                        std::span<const std::byte>* record, uint64_t* now);
  ReceiveStatus ReceiveLater(RingConsumer& ring, HotWord& waiting, Budgets& budgets, bool frugal,
                             std::span<const std::byte>* record, uint64_t* now);
  // Sleeps while posted records gather: for so long at most, until 16 KiB are there or a guest thread waits for them (docs/waiting.md).
  void Gather(uint32_t us);
  // How long a thread may spin for work while nobody else wants the processors.
  static uint32_t MostSpinUs() { return IdlePolicy(KnownProcessors()).spin_us; }
  // Whether what the guest sends wakes this side's threads at once.
  bool IsRungFor() const { return options_.futex || options_.bell != nullptr; }
  // Whether a dispatcher that is going to sleep announces it before it executes the record that it has.
  bool SaysSoAhead() const { return (options_.futex || options_.watched) && KnownProcessors() > 1; }
  Channel& At(uint32_t index);

  RingServerOptions options_;
  const bool wakes_guest_;
  GuestControl* guest_;
  HostControl* host_;
  std::vector<std::byte> main_buffer_;
  RingConsumer main_;
  FlightRecorder flight_;
  uint64_t main_sequence_ = 0;  // the sequence of the record that the dispatcher executes
  uint64_t main_ticks_ = 0;     // when it was done with the record before
  Budgets main_budgets_;
  // Whether the newest request came from a thread in a no-spin wait; then no thread here spins for more work.
  std::atomic<bool> frugal_{false};
  // Whether the newest posted record did; then the dispatcher goes to sleep at once.
  bool main_frugal_ = false;
  uint64_t main_flag_up_us_ = 0;  // since when host_->main_waiting announces a sleep
  GatherPace gather_pace_;        // the dispatcher's
  // Posted records with a lower sequence are not in the flight recorder any more. Worker queues need not look
  // for those, which would touch a line that the dispatcher writes.
  alignas(kHotBytes) std::atomic<uint64_t> flight_from_{0};
  alignas(kHotBytes) std::unique_ptr<Channel> channels_[kChannelCount];
  std::atomic<bool> stop_{false};
  std::mutex async_mutex_;
  uint64_t async_errors_ = 0;
  std::atomic<const char*> corrupt_reason_{""};

 public:
  ~RingServer() override;
};

}  // namespace causeway
