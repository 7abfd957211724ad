// SPDX-License-Identifier: Apache-2.0
// The seam over a slot's rings in shared memory: VM region, local memfd, or plain memory of one process
// (tests).
#pragma once
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "ivshmem_ring/transport/flight_recorder.h"
#include "ivshmem_ring/transport/layout.h"
#include "ivshmem_ring/transport/ring.h"
#include "ivshmem_ring/transport/transport.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway {

struct RingClientOptions {
  std::byte* slot = nullptr;  // the slot's granule
  bool futex = false;         // both sides run on one kernel
  std::function<std::string()>
      loss;  // why the host no longer serves us; empty while it does. Called while waiting.
};

class RingClient : public ClientTransport {
 public:
  explicit RingClient(RingClientOptions options);

  std::byte* ReserveMain(size_t bytes, std::unique_lock<std::mutex>& lock) override;
  void PublishMain(size_t bytes) override;
  uint64_t main_sequence() const override { return main_sequence_.load(std::memory_order_acquire); }
  std::byte* ReserveRequest(uint32_t channel, size_t bytes) override;
  void PublishRequest(uint32_t channel, size_t bytes) override;
  std::span<const std::byte> AwaitReply(uint32_t channel, ReplyWait wait = {}) override;
  bool ReplyReady(uint32_t channel) override;
  uint64_t AsyncError() const override { return LoadAcquire(host_->async_error); }
  bool shares_memory() const override { return true; }
  std::string LossReason() override;

 private:
  struct Channel {
    RingProducer requests;
    RingConsumer replies;
    std::vector<std::byte> reply_buffer;
    std::vector<std::byte> request;  // put together here
    bool reply_held = false;
    WaitHistory history{};
  };
  Channel& At(uint32_t index) {
    if (index >= kChannelCount) abort();
    return channels_[index] != nullptr ? *channels_[index] : Make(index);
  }
  Channel& Make(uint32_t index);
  bool AwaitRoom(uint32_t index, size_t bytes);
  std::span<const std::byte> AwaitLonger(uint32_t index, const ReplyWait& wait, uint64_t* waited_us);
  bool Lost();

  RingClientOptions options_;
  GuestControl* guest_;
  HostControl* host_;
  RingProducer main_;
  std::byte* main_reserved_ = nullptr;
  FlightRecorder flight_;
  std::atomic<uint64_t> main_sequence_{0};
  // What every thread reads, apart from what each posted record writes.
  alignas(kHotBytes) std::unique_ptr<Channel> channels_[kChannelCount];
  std::atomic<bool> lost_{false};
  const WaitPolicy policy_;
};

struct RingServerOptions {
  std::byte* slot = nullptr;
  bool futex = false;  // both sides run on one kernel
  bool watched =
      false;  // they don't, but somebody watches the rings and wakes this side's threads that sleep
  // Bytes of the region that the session owns and the server has mapped; null if it does not own all of them.
  std::function<std::byte*(uint64_t offset, uint64_t bytes)> resolve;
  FlightImage* flight = nullptr;  // where the server notes its times; null: nowhere
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
  // `frugal`: whoever sent the record before sleeps, and wants nobody to spin for the next one.
  // `now`: in, when this thread was done with the record before; out, when it saw this one.
  ReceiveStatus Receive(RingConsumer& ring, HotWord& waiting, SpinBudget& budget, bool frugal,
                        std::span<const std::byte>* record, uint64_t* now);
  ReceiveStatus ReceiveLater(RingConsumer& ring, HotWord& waiting, SpinBudget& budget, bool frugal,
                             std::span<const std::byte>* record, uint64_t* now);
  // Whether the flag of a dispatcher that will sleep goes up before it does the work that it has.
  bool SaysSoAhead() const { return (options_.futex || options_.watched) && KnownProcessors() > 1; }
  Channel& At(uint32_t index);

  RingServerOptions options_;
  GuestControl* guest_;
  HostControl* host_;
  std::vector<std::byte> main_buffer_;
  RingConsumer main_;
  FlightRecorder flight_;
  uint64_t main_sequence_ = 0;  // of the record that the dispatcher has
  uint64_t main_ticks_ = 0;
  const WaitPolicy policy_ = IdlePolicy();
  SpinBudget main_budget_{policy_.spin_us};
  // The newest request was of a caller who sleeps meanwhile: then nobody here spins to meet the next work.
  std::atomic<bool> frugal_{false};
  // The newest posted record was: then who executes them goes to sleep at once.
  bool main_frugal_ = false;
  uint64_t main_flag_up_us_ = 0;  // since when host_->main_waiting has said so
  // Older main records are not in the recorder any more: so far the lanes need not look for theirs, a line
  // that the dispatcher writes.
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
