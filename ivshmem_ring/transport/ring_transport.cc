// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/transport/ring_transport.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "ivshmem_ring/system/futex.h"

namespace causeway {
namespace {

// So many bytes of records are enough for one waking of the dispatcher: some sixty launches, which are work for the GPU.
constexpr uint32_t kMostGathered = 16u << 10;

std::byte* RequestRing(std::byte* slot, uint32_t channel) {
  return slot + kChannelRingsOffset + 2 * kChannelRingBytes * channel;
}
std::byte* ReplyRing(std::byte* slot, uint32_t channel) {
  return RequestRing(slot, channel) + kChannelRingBytes;
}

constexpr uint64_t kPostLines = 4;  // of a launch

bool Is(const HotWord& waiting, DispatcherSleep sleep) {
  return LoadAcquire(waiting) == static_cast<uint64_t>(sleep);
}

uint32_t Low(const HotWord& word) {
  return static_cast<uint32_t>(LoadAcquire(word));
}

}  // namespace

RingClient::RingClient(RingClientOptions options)
    : ClientTransport(reinterpret_cast<HostControl*>(options.slot + kHostControlOffset)->async_error, true),
      options_(std::move(options)),
      wakes_(options_.futex || options_.bell != nullptr),
      guest_(reinterpret_cast<GuestControl*>(options_.slot + kGuestControlOffset)),
      host_(reinterpret_cast<HostControl*>(options_.slot + kHostControlOffset)),
      main_(options_.slot + kMainRingOffset, kMainRingBytes, &guest_->main_tail, &host_->main_head),
      flight_(reinterpret_cast<FlightImage*>(options_.slot + kGuestFlightOffset)) {}

bool RingClient::Lost() {
  if (lost_.load(std::memory_order_relaxed)) return true;
  std::string reason = options_.loss();
  if (reason.empty()) return false;
  Lose(std::move(reason));
  return true;
}

// The first reason is kept, for where asking again gives none.
void RingClient::Lose(std::string reason) {
  {
    const std::lock_guard lock(reason_mutex_);
    if (!reason_.empty()) return;
    reason_ = std::move(reason);
  }
  lost_.store(true);
  if (!options_.futex) return;
  for (const HostChannelWords& words : host_->channel) WakeSleepers(words.reply_tail);  // other threads
}

std::string RingClient::LossReason() {
  std::string reason = options_.loss();
  if (!reason.empty()) Lose(reason);
  const std::lock_guard lock(reason_mutex_);
  return reason.empty() ? reason_ : reason;
}

std::byte* RingClient::AwaitMainRoom(size_t bytes, std::unique_lock<std::mutex>& lock) {
  std::byte* reserved = main_.Reserve(bytes);
  main_room_ = main_.known_room();
  if (reserved != nullptr) return reserved;
  // Nobody wakes us: the host has the whole ring to execute meanwhile. Whose record is small sleeps until
  // there is room for many: threads that spin for each take the processors from those that make room.
  constexpr size_t kSmallBytes = 4096, kManyBytes = kMainRingBytes / 8;
  WaitPolicy policy = ReplyPolicy(options_.futex);
  policy.max_sleep_us = 100;
  if (bytes <= kSmallBytes) policy = {.spin_us = 0, .first_sleep_us = 50, .max_sleep_us = 200};
  const size_t wanted = bytes <= kSmallBytes ? kManyBytes : bytes;
  HurryMain();
  Waiter waiter(policy, &host_->main_head, nullptr, false);
  for (;;) {
    const uint32_t seen = Low(host_->main_head);
    if (main_.Room() >= wanted) reserved = main_.Reserve(bytes);
    main_room_ = main_.known_room();
    if (reserved != nullptr) return reserved;
    lock.unlock();
    bool lost = false;
    do {
      waiter.Step(seen);
      if (!waiter.TimeToCheckPeer()) continue;
      lost = Lost();
      Wake(guest_->main_tail, host_->main_waiting, options_.bell != nullptr, options_.bell);
    } while (!lost && Low(host_->main_head) == seen);
    LockBriefly(lock);
    if (lost) return nullptr;
  }
}

void RingClient::PublishMain(size_t bytes) {
  const uint64_t sequence = main_sequence_.load(std::memory_order_relaxed);
  const FlightMessage message{ReadHeader<RecordPrefix>(main_room_).op, static_cast<uint32_t>(bytes),
                              sequence};
  const uint64_t now = FlightTicks();
  main_.Publish(bytes);
  main_room_ = main_.known_room();
  // partner: acquire in main_sequence(), which stamps channel requests of any thread
  main_sequence_.store(sequence + 1, std::memory_order_release);
  if (wakes_) WakeDispatcher(bytes);
  main_.Prepare(kPostLines);
  flight_.Begin(FlightRecorder::kMainLink, message, FlightThread(), now);
}

// One that gathers is woken for kMostGathered of records as well. Where that many come about with a pad at the ring's end it sleeps on, for a
// millisecond at most.
void RingClient::WakeDispatcher(size_t bytes) {
  const uint64_t sleep = LoadAcquire(host_->main_waiting);
  if (sleep == static_cast<uint64_t>(DispatcherSleep::kAwake)) return;
  const uint64_t tail = LoadAcquire(guest_->main_tail);
  const uint64_t come = tail - LoadAcquire(host_->main_head);
  const bool gathered = come >= kMostGathered && come - std::min<uint64_t>(bytes, come) < kMostGathered;
  if (sleep == static_cast<uint64_t>(DispatcherSleep::kUntilRecord) || gathered)
    WakePeer(guest_->main_tail, options_.bell);
}

// Only where something was posted that the dispatcher has not taken.
void RingClient::HurryMain() {
  if (!wakes_ || !Is(host_->main_waiting, DispatcherSleep::kGathers)) return;
  if (LoadAcquire(guest_->main_tail) != LoadAcquire(host_->main_head))
    WakePeer(guest_->main_tail, options_.bell);
}

RingClient::Channel& RingClient::Make(uint32_t index) {
  std::vector<std::byte> buffer(kMaxChannelRecordBytes);
  const std::span<std::byte> view(buffer);
  GuestChannelWords& ours = guest_->channel[index];
  HostChannelWords& theirs = host_->channel[index];
  channels_[index].reset(new Channel{RingProducer(RequestRing(options_.slot, index), kChannelRingBytes,
                                                  &ours.request_tail, &theirs.request_head),
                                     RingConsumer(ReplyRing(options_.slot, index), kChannelRingBytes,
                                                  &theirs.reply_tail, &ours.reply_head, view),
                                     std::move(buffer), std::vector<std::byte>(kMaxChannelRecordBytes)});
  return *channels_[index];
}

std::byte* RingClient::ReserveRequest(uint32_t index, size_t bytes) {
  Channel& channel = At(index);
  if (bytes > channel.request.size()) abort();  // no caller may ask for more than a record holds
  if (lost_.load(std::memory_order_relaxed)) return nullptr;
  channel.requests.Prepare(1);
  return channel.request.data();
}

void RingClient::PublishRequest(uint32_t index, size_t bytes) {
  Channel& channel = At(index);
  const FlightMessage message{ReadHeader<RecordPrefix>(channel.request).op, static_cast<uint32_t>(bytes),
                              channel.requests.sequence()};
  const bool put = channel.requests.Put(channel.request.data(), bytes);
  const uint64_t now = FlightTicks();  // after Put, so that the worker need not wait for this read
  if (!put && !AwaitRoom(index, bytes)) return;
  HurryMain();  // first: the request is executed after what was posted
  Wake(guest_->channel[index].request_tail, host_->channel[index].waiting, wakes_, options_.bell);
  flight_.Begin(index, message, FlightThread(), now);  // while the other side has it already
}

// Requests were sent ahead of their replies. False: the session is lost, as the wait for the reply shows.
bool RingClient::AwaitRoom(uint32_t index, size_t bytes) {
  Channel& channel = At(index);
  Waiter waiter(ReplyPolicy(options_.futex), &host_->channel[index].request_head, nullptr, false);
  do {
    waiter.Step(0);
    if (!waiter.TimeToCheckPeer()) continue;
    if (Lost()) return false;
    WakeHostAgain(index);
  } while (!channel.requests.Put(channel.request.data(), bytes));
  return true;
}

std::span<const std::byte> RingClient::AwaitReply(uint32_t index, ReplyWait wait) {
  Channel& channel = At(index);
  if (channel.reply_held) channel.replies.Release();
  channel.reply_held = false;
  std::span<const std::byte> record;
  uint64_t waited_us = 0;
  if (!ComesAtOnce([&] { return channel.replies.Ready(); }) ||
      channel.replies.Next(&record) != RingConsumer::Status::kRecord) {
    record = AwaitLonger(index, wait, &waited_us);
    if (record.empty()) return {};
  }
  channel.reply_held = true;
  if (wait.kind != 0) channel.history.Note(wait.kind, waited_us);
  flight_.End(index, ReadHeader<RecordPrefix>(record).sequence, FlightTicks());  // each request has one reply
  return record;
}

std::span<const std::byte> RingClient::AwaitLonger(uint32_t index, const ReplyWait& wait,
                                                   uint64_t* waited_us) {
  Channel& channel = At(index);
  const WaitPolicy policy = wait.blocking  ? BlockingPolicy()
                            : wait.patient ? PatientPolicy(wakes_)
                                           : ReplyPolicy(wakes_);
  Waiter waiter(policy, &host_->channel[index].reply_tail, &guest_->channel[index].waiting, wakes_,
                wait.blocking ? 0 : channel.history.Expected(wait.kind), options_.bell);
  for (;;) {
    std::span<const std::byte> record;
    const auto status = channel.replies.Next(&record);
    *waited_us = waiter.waited_us();
    if (status == RingConsumer::Status::kRecord) return record;
    if (status == RingConsumer::Status::kCorrupt)
      Lose(std::string("the host broke the ring's format: ") + channel.replies.reason());
    if (lost_.load(std::memory_order_relaxed)) return {};
    waiter.Step(channel.replies.seen_tail());
    if (!waiter.TimeToCheckPeer()) continue;
    if (Lost()) return {};
    WakeHostAgain(index);
  }
}

void RingClient::WakeHostAgain(uint32_t index) const {
  if (options_.bell == nullptr) return;
  Wake(guest_->main_tail, host_->main_waiting, true, options_.bell);
  Wake(guest_->channel[index].request_tail, host_->channel[index].waiting, true, options_.bell);
}

bool RingClient::ReplyReady(uint32_t index) {
  return lost_.load(std::memory_order_relaxed) || At(index).replies.Ready();
}

struct RingServer::Channel {
  std::vector<std::byte> request_buffer;
  RingConsumer requests;
  RingProducer replies;
  Budgets budgets;
  uint64_t sequence = 0;  // of the request that its thread has
  bool frugal = false;    // whoever made that request sleeps meanwhile
  bool open = false;      // in HostControl::open_channels
};

RingServer::RingServer(RingServerOptions options)
    : options_(std::move(options)),
      wakes_guest_(options_.futex || options_.bell != nullptr),
      guest_(reinterpret_cast<GuestControl*>(options_.slot + kGuestControlOffset)),
      host_(reinterpret_cast<HostControl*>(options_.slot + kHostControlOffset)),
      main_buffer_(kMaxMainRecordBytes),
      main_(options_.slot + kMainRingOffset, kMainRingBytes, &guest_->main_tail, &host_->main_head,
            main_buffer_),
      flight_(options_.flight) {
  // All channels at once: two threads may never race to make one.
  for (uint32_t i = 0; i < kChannelCount; ++i) {
    std::vector<std::byte> buffer(kMaxChannelRecordBytes);
    const std::span<std::byte> view(buffer);
    GuestChannelWords& theirs = guest_->channel[i];
    HostChannelWords& ours = host_->channel[i];
    channels_[i].reset(new Channel{
        std::move(buffer),
        RingConsumer(RequestRing(options_.slot, i), kChannelRingBytes, &theirs.request_tail,
                     &ours.request_head, view),
        RingProducer(ReplyRing(options_.slot, i), kChannelRingBytes, &ours.reply_tail, &theirs.reply_head),
        {}});
  }
}

RingServer::~RingServer() = default;

inline RingServer::Channel& RingServer::At(uint32_t index) {
  if (index >= kChannelCount) abort();  // callers bound guest-supplied numbers
  return *channels_[index];
}

// Whatever the shared words say of who sleeps. Twice: a thread may have been about to fall asleep.
void RingServer::Stop() {
  stop_.store(true, std::memory_order_release);
  if (!options_.futex && !options_.watched) return;
  for (int round = 0; round < 2; ++round) {
    if (round != 0) usleep(1000);
    if (options_.sleep != nullptr) options_.sleep->Ring();
    WakeSleepers(guest_->main_tail);
    for (uint32_t i = 0; i < kChannelCount; ++i) WakeSleepers(guest_->channel[i].request_tail);
  }
}

[[gnu::hot]] ReceiveStatus RingServer::Receive(RingConsumer& ring, HotWord& waiting, Budgets& budgets,
                                               bool frugal, std::span<const std::byte>* record,
                                               uint64_t* now) {
  // First, so that a peer that never pauses cannot keep a stopped session alive.
  if (stop_.load(std::memory_order_acquire)) return ReceiveStatus::kStopped;
  const bool there = ring.Ready();
  if ((!there && (frugal || !ComesAtOnce([&] { return ring.Ready(); }))) ||
      ring.Next(record) != RingConsumer::Status::kRecord)
    return ReceiveLater(ring, waiting, budgets, frugal, record, now);
  if (there) ring.Prefetch();
  if (!there || *now == 0) *now = FlightTicks();
  return ReceiveStatus::kRecord;
}

ReceiveStatus RingServer::ReceiveLater(RingConsumer& ring, HotWord& waiting, Budgets& budgets, bool frugal,
                                       std::span<const std::byte>* record, uint64_t* now) {
  const uint32_t processors = FreeProcessors();
  const bool crowded = processors != KnownProcessors();
  // Waking a thread that serves a VM costs its guest a system call and an exit, or is late: longer than yields beside threads that take turns.
  const bool takes_turns = !options_.futex && crowded && processors != kCrowded;
  WaitPolicy policy = IdlePolicy(processors);
  // Where the guest rings for nobody, the daemon finds who sleeps late.
  if (crowded && !IsRungFor()) policy.timed_us = budgets.timed.us();
  if (takes_turns) policy.yield_us = std::max(policy.yield_us, budgets.spin.us());
  const bool meets = !crowded && !frugal && !frugal_.load(std::memory_order_relaxed);
  const uint64_t expected_us = meets ? budgets.spin.expected_us() : 0;
  policy.nap_after_us = budgets.spin.us();
  policy.spin_us = expected_us != 0 ? SpinBudget::kMeetUs : std::min(policy.spin_us, budgets.spin.us());
  if (frugal) policy.spin_us = policy.yield_us = 0;
  Waiter waiter(policy, ring.tail_word(), &waiting, options_.futex || options_.watched, expected_us,
                options_.sleep);
  if (frugal && &ring == &main_ && SaysSoAhead()) waiter.FlagIsUp(main_flag_up_us_);
  if (&ring == &main_ && !frugal && IsRungFor() && options_.sleep == nullptr &&
      (crowded || processors == 1)) {
    if (const uint32_t us = gather_pace_.Begin(main_sequence_)) Gather(us);
  }
  for (;;) {
    if (stop_.load(std::memory_order_acquire)) return ReceiveStatus::kStopped;
    switch (ring.Next(record)) {
      case RingConsumer::Status::kRecord:
        *now = FlightTicks();
        if (!crowded || takes_turns) budgets.spin.Note(waiter.waited_us());
        if (policy.timed_us != 0) budgets.timed.Note(waiter.waited_us());
        return ReceiveStatus::kRecord;
      case RingConsumer::Status::kCorrupt:
        corrupt_reason_.store(ring.reason(), std::memory_order_release);
        return ReceiveStatus::kCorrupt;
      case RingConsumer::Status::kEmpty:
        break;
    }
    waiter.Step(ring.seen_tail());
  }
}

// A missed HurryMain costs a millisecond at most, so nobody looks on before this sleep (Waiter::SleepFor).
void RingServer::Gather(uint32_t us) {
  StoreRelease(host_->main_waiting, static_cast<uint64_t>(DispatcherSleep::kGathers));
  const bool woken = FutexWait(&main_.tail_word()->value, static_cast<uint32_t>(main_.seen_tail()),
                               int64_t{us} * 1000, FutexOf::kAllProcesses);
  const int why = woken ? 0 : errno;
  StoreRelease(host_->main_waiting, static_cast<uint64_t>(DispatcherSleep::kAwake));
  using End = GatherPace::End;
  const bool full = Low(*main_.tail_word()) - main_.seen_tail() >= kMostGathered;
  const End woken_by = full ? End::kFull : End::kHurried;
  gather_pace_.Note(why == 0 ? woken_by : why == ETIMEDOUT ? End::kTime : End::kNoSleep, main_.Ready());
}

[[gnu::hot]] ReceiveStatus RingServer::ReceiveMain(std::span<const std::byte>* record) {
  const ReceiveStatus status =
      Receive(main_, host_->main_waiting, main_budgets_, main_frugal_, record, &main_ticks_);
  if (status == ReceiveStatus::kRecord) {
    const auto header = ReadHeader<RecordPrefix>(*record);
    main_sequence_ = header.sequence;
    const bool was_up = std::exchange(main_frugal_, (header.flags & kBlockingWait) != 0);
    if (main_frugal_ && SaysSoAhead()) {
      // By the time that it is executed the guest has seen this, and nobody needs to look on.
      StoreRelease(host_->main_waiting, static_cast<uint64_t>(DispatcherSleep::kUntilRecord));
      main_flag_up_us_ = NowUs();
    } else if (was_up) {
      StoreRelease(host_->main_waiting, static_cast<uint64_t>(DispatcherSleep::kAwake));
    }
    constexpr uint64_t kStep = 64;
    if (main_sequence_ % kStep == 0 && main_sequence_ > kFlightMainRecords)
      flight_from_.store(main_sequence_ - kFlightMainRecords, std::memory_order_relaxed);
    flight_.Begin(FlightRecorder::kMainLink, {header.op, header.bytes, header.sequence}, 0, main_ticks_);
  }
  return status;
}

[[gnu::hot]] void RingServer::DoneMain() {
  HandedMain();
  flight_.End(FlightRecorder::kMainLink, main_sequence_, main_ticks_);
}

void RingServer::ExecutedMain(uint64_t sequence) {
  if (sequence < flight_from_.load(std::memory_order_relaxed)) return;  // another has its place
  flight_.End(FlightRecorder::kMainLink, sequence, FlightTicks());
}

void RingServer::HandedMain() {
  main_ticks_ = FlightTicks();
  constexpr uint64_t kHeldBytes = 4096;  // some twenty launches, less than a guest thread spins for room
  main_.Release(kHeldBytes);
}

[[gnu::hot]] bool RingServer::MainReady() {
  return stop_.load(std::memory_order_acquire) || main_.Ready();
}

[[gnu::hot]] ReceiveStatus RingServer::ReceiveRequest(uint32_t index, std::span<const std::byte>* record) {
  Channel& channel = At(index);
  if (!std::exchange(channel.open, true)) {
    // Only threads of this side write it. partner: the daemon's Region::WakeSleepers
    std::atomic_ref<uint64_t>(host_->open_channels.value)
        .fetch_or(uint64_t{1} << index, std::memory_order_release);
  }
  uint64_t now = 0;
  const ReceiveStatus status =
      Receive(channel.requests, host_->channel[index].waiting, channel.budgets, channel.frugal, record, &now);
  if (status == ReceiveStatus::kRecord) {
    const auto header = ReadHeader<RecordHeader>(*record);
    const bool frugal = channel.frugal = (header.flags & kBlockingWait) != 0;
    if (frugal != frugal_.load(std::memory_order_relaxed)) frugal_.store(frugal, std::memory_order_relaxed);
    channel.sequence = header.sequence;
    channel.replies.Prepare(1);
    flight_.Begin(index, {header.op, header.bytes, header.sequence},
                  static_cast<uint32_t>(header.main_sequence), now);
  }
  return status;
}

bool RingServer::RequestReady(uint32_t index) {
  return stop_.load(std::memory_order_acquire) || At(index).requests.Ready();
}

[[gnu::hot]] void RingServer::DoneRequest(uint32_t index) {
  At(index).requests.Release();
}

[[gnu::hot]] std::byte* RingServer::ReserveReply(uint32_t index, size_t bytes) {
  Channel& channel = At(index);
  std::byte* reserved = channel.replies.Reserve(bytes);
  if (reserved != nullptr) return reserved;
  Waiter waiter(IdlePolicy(), &guest_->channel[index].reply_head, nullptr, false);
  do {
    if (stop_.load(std::memory_order_acquire)) return nullptr;
    waiter.Step(0);
    reserved = channel.replies.Reserve(bytes);
  } while (reserved == nullptr);
  return reserved;
}

[[gnu::hot]] void RingServer::PublishReply(uint32_t index, size_t bytes) {
  Channel& channel = At(index);
  channel.replies.Publish(bytes);
  const uint64_t done = FlightTicks();  // as in PublishRequest; before Wake, or the guest could end first
  Wake(host_->channel[index].reply_tail, guest_->channel[index].waiting, wakes_guest_, options_.bell);
  flight_.End(index, channel.sequence, done);
}

void RingServer::PostAsyncError(uint32_t result) {
  std::lock_guard lock(async_mutex_);  // or an older error could replace a newer one
  const uint64_t count = ++async_errors_;
  StoreRelease(host_->async_error, count << 32 | result);  // partner: RingClient::AsyncError
}

[[gnu::hot]] std::span<std::byte> RingServer::BulkOf(uint32_t, const RecordHeader& header) {
  if (header.bulk_bytes == 0 || header.bulk_bytes > kBulkBytes) return {};
  std::byte* bytes = options_.resolve(header.bulk_offset, header.bulk_bytes);
  if (bytes == nullptr) return {};
  return {bytes, header.bulk_bytes};
}

}  // namespace causeway
