// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/session/dispatcher.h"
#include "ivshmem_ring/protocol/maybe_result.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "host_backend/common/monotonic.h"
#include "host_backend/worker/driver/capture.h"
#include "host_backend/worker/driver/logs.h"
#include "ivshmem_ring/protocol/operation.h"
#include "ivshmem_ring/system/futex.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway::host {
namespace {

// What may be executed beside other posted records (those of no stream come after it: Lanes::Drain, Await).
bool MayLeaveDispatcher(const PostedHeader& header, size_t bytes) {
  return header.stream != 0 && header.stream != kLegacyStreamWire && (header.flags & kResultWanted) == 0 &&
         bytes <= Lanes::kMaxRecordBytes && TraitsOf(static_cast<Op>(header.op)).Has(traits::kInStream);
}

// Waits for copies on the legacy stream that the guest posted because nothing was left that they would have
// to wait for: what follows on other streams may rely on them. Something may have come in between, which must
// not hold up the main link, so not for long. Nothing: `more` became true before they were done.
MaybeResult AwaitPostedCopies(auto more) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kPatience = std::chrono::seconds(2);  // what came in between may hold them up
  constexpr int kSpins = 64;
  const Driver& driver = TheDriver();
  if (!Has(driver.cuStreamQuery)) return CUDA_SUCCESS;
  const OwnCalls own_calls;
  const RelaxedMode relaxed;  // another thread may have begun a capture meanwhile
  const auto end = Clock::now() + kPatience;
  bool interrupted = false;
  CUresult result = driver.cuStreamQuery(nullptr);
  for (int tries = 0; result == CUDA_ERROR_NOT_READY && Clock::now() < end; ++tries) {
    if ((interrupted = more())) break;
    if (tries > kSpins) sched_yield();
    result = driver.cuStreamQuery(nullptr);
  }
  if (interrupted) return MaybeResult();
  return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result;
}

}  // namespace

Dispatcher::Dispatcher(Session& session, ServerTransport& transport)
    : session_(session),
      transport_(transport),
      lanes_(
          LaneCount(), [this](std::span<const std::byte> record) { ExecuteInLane(record); },
          DeviceGates::TellLate) {}

[[gnu::hot]] void Dispatcher::Run() {
  constexpr uint32_t kMostUnsettled = 32;
  for (;;) {
    std::span<const std::byte> record;
    if (unsettled_ != 0) SettleBetween(unsettled_ < kMostUnsettled);
    if (unsettled_ == 0) {  // what copies are under way in must stay
      session_.gates().Settle(session_.objects(), [this] { return transport_.MainReady(); });
      session_.objects().EndRequest();
    }
    const ReceiveStatus status = transport_.ReceiveMain(&record);
    if (status == ReceiveStatus::kCorrupt) session_.Breach(transport_.CorruptReason());
    if (status != ReceiveStatus::kRecord) return;
    const auto header = ReadHeader<PostedHeader>(record);
    const bool more_copies = header.op == last_unsettled_.op && header.context == last_unsettled_.context;
    if (!more_copies) SettleBetween();
    const Handed handed = Hand(header, record);
    if (handed == Handed::kStopped) return;
    if (handed == Handed::kYes) continue;
    Reader in(record.subspan(sizeof header));
    Writer nothing({});
    Request request{.header = header, .in = in, .out = nothing, .channel = kChannelCount, .bulk = {}};
    const CUresult result = session_.Execute(request);
    if (result != CUDA_SUCCESS) NoteFailure(header, result);
    if (result == CUDA_SUCCESS && request.unsettled) {
      ++unsettled_;
      last_unsettled_ = header;
    } else {
      SettleBetween();
      session_.objects().RestRequest();
      SetDispatched(header.sequence + 1);
    }
    transport_.DoneMain();
  }
}

[[gnu::hot]] Dispatcher::Handed Dispatcher::Hand(const PostedHeader& header,
                                                 std::span<const std::byte> record) {
  // Where others want the processors, handing over costs more wake-ups than it gains. It pays nevertheless where many threads post:
  // natively each of them would get a share of the processors, while one dispatcher gets the share of one thread.
  constexpr uint32_t kMany = 3;
  const auto more_ready = [this] {
    return transport_.MainReady() && (FreeProcessors() == KnownProcessors() || lanes_.Posting() >= kMany);
  };
  if (!lanes_.Wanted(header.thread, more_ready)) return Handed::kNo;
  if (!MayLeaveDispatcher(header, record.size())) return lanes_.Drain() ? Handed::kNo : Handed::kStopped;
  SettleBetween();  // its stream may be one that does not wait for the others
  const Lanes::Names names{header.thread, header.stream, header.event};
  if (!lanes_.Hand(names, record)) return Handed::kStopped;
  SetDispatched(header.sequence + 1);
  transport_.HandedMain();
  return Handed::kYes;
}

void Dispatcher::ExecuteInLane(std::span<const std::byte> record) {
  const auto header = ReadHeader<PostedHeader>(record);
  Reader in(record.subspan(sizeof header));
  Writer nothing({});
  Request request{.header = header, .in = in, .out = nothing, .channel = kChannelCount, .bulk = {}};
  request.in_lane = true;
  const CUresult result = session_.Execute(request);
  if (result != CUDA_SUCCESS) NoteFailure(header, result);
  session_.objects().RestRequest();
  transport_.ExecutedMain(header.sequence);
  session_.objects().EndRequest();
}

// Several copies one after the other are waited for together: before anything else that might rely on them.
bool Dispatcher::AwaitUnsettled(bool or_more) {
  if (unsettled_ == 0) return false;
  const auto more = [&] { return or_more && transport_.MainReady(); };
  if (more()) return false;
  const MaybeResult result = AwaitPostedCopies(more);
  if (!result) return false;
  if (*result != CUDA_SUCCESS) NoteFailure(last_unsettled_, *result);
  unsettled_ = 0;
  return true;
}

// The request goes on to use what it has found.
void Dispatcher::Settle() {
  if (AwaitUnsettled(false)) SetDispatched(last_unsettled_.sequence + 1);
}

void Dispatcher::SettleBetween(bool or_more) {
  if (!AwaitUnsettled(or_more)) return;
  session_.objects().RestRequest();
  SetDispatched(last_unsettled_.sequence + 1);
}

// The request that waits for this record may be the guest's synchronisation behind the mark. When it is answered, the guest has to find its
// word written: otherwise it takes the GPU for one that writes no words. So the record does not count as executed while this function polls.
bool Dispatcher::IsDoneSoon(CUstream stream, uint64_t sequence) {
  constexpr uint64_t kMostNs = 20'000;
  const Driver& driver = TheDriver();
  if (!Has(driver.cuStreamQuery) || Captures::Any() || FreeProcessors() == kCrowded) return false;
  if (!poll_pace_.Begin()) return false;
  const auto is_wanted = [&] {
    return transport_.MainReady() || awaited_.load(std::memory_order_relaxed) > sequence;
  };
  const OwnCalls own_calls;
  const RelaxedMode relaxed;  // another thread may have begun a capture meanwhile
  const uint64_t begin = MonotonicNs();
  CUresult result = driver.cuStreamQuery(stream);
  bool is_cut = false;
  while (result == CUDA_ERROR_NOT_READY && MonotonicNs() - begin < kMostNs && !(is_cut = is_wanted()))
    result = driver.cuStreamQuery(stream);
  poll_pace_.Note(result == CUDA_SUCCESS ? PollPace::End::kDone
                  : is_cut               ? PollPace::End::kCutShort
                                         : PollPace::End::kVain);
  return result == CUDA_SUCCESS;
}

// A sleeper that states its number at this very moment may be missed, since nothing keeps the load behind the store, or another
// sleeper's number may have been the lower one; its sleeps are short for that reason (AwaitAsleep). A barrier here would cost each
// posted record more.
[[gnu::hot]] void Dispatcher::SetDispatched(uint64_t sequence) {
  dispatched_.store(sequence, std::memory_order_release);  // partner: WaitFor
  if (sequence < wake_at_.load(std::memory_order_relaxed)) return;
  wake_at_.store(kNobodySleeps, std::memory_order_relaxed);
  wakes_.fetch_add(1);
  FutexWakeAll(&wakes_, FutexOf::kThisProcess);
}

bool Dispatcher::AwaitAsleep(uint64_t sequence) {
  constexpr int64_t kFirstNs = 50'000, kNextNs = 10'000'000;
  int64_t bound_ns = kFirstNs;
  for (;;) {
    const uint32_t seen = wakes_.load();
    uint64_t lowest = wake_at_.load(std::memory_order_relaxed);
    while (sequence < lowest && !wake_at_.compare_exchange_weak(lowest, sequence)) {
    }
    if (session_.stopped()) return false;
    if (dispatched_.load(std::memory_order_acquire) >= sequence) return true;  // partner: SetDispatched
    const bool woken = FutexWait(&wakes_, seen, bound_ns, FutexOf::kThisProcess);
    bound_ns = !woken && errno == ETIMEDOUT ? kNextNs : kFirstNs;
  }
}

void Dispatcher::NoteFailure(const PostedHeader& header, CUresult result) {
  if (KeepResult(header, result)) return;
  LogFailure(header.op, result);
  transport_.PostAsyncError(result);
}

// The guest sees the error at a later call; which call it came from only the log can tell.
void Dispatcher::LogFailure(uint16_t op, CUresult result) {
  constexpr uint32_t kLines = 20;
  if (failures_.fetch_add(1, std::memory_order_relaxed) >= kLines) return;
  const char* name = "";
  TheDriver().cuGetErrorName(result, &name);
  dprintf(Output::LogFd(), "causeway-worker[%d]: posted %s failed: %s (%d)\n", getpid(), OpName(op), name,
          result);
}

bool Dispatcher::KeepResult(const PostedHeader& header, CUresult result) {
  constexpr size_t kMostKept = kChannelCount;  // each thread asks before it goes on
  if ((header.flags & kResultWanted) == 0) return false;
  const std::lock_guard lock(results_mutex_);
  if (results_.size() >= kMostKept) return false;
  results_[header.sequence] = result;
  return true;
}

CUresult Dispatcher::TakePostedResult(uint64_t sequence) {
  const std::lock_guard lock(results_mutex_);
  const auto found = results_.find(sequence);
  if (found == results_.end()) return CUDA_SUCCESS;
  const CUresult result = found->second;
  results_.erase(found);
  return result;
}

// A channel request runs only after everything its process posted before it. A number that no guest can have
// reached would make this wait for ever.
[[gnu::hot]] bool Dispatcher::WaitFor(const RecordHeader& request) {
  constexpr uint64_t kMostInFlight = uint64_t{1} << 20;  // far more than rings and sockets hold
  const uint64_t sequence = request.main_sequence;
  const uint64_t dispatched = dispatched_.load(std::memory_order_acquire);  // partner: Run
  if (dispatched >= sequence) return lanes_.Await(sequence);
  if (sequence - dispatched > kMostInFlight) {
    session_.Breach("a request waits for posted record " + std::to_string(sequence) + " of " +
                    std::to_string(dispatched));
    return false;
  }
  awaited_.store(sequence, std::memory_order_relaxed);
  const uint32_t processors = FreeProcessors();
  WaitPolicy policy = OrderPolicy(processors);
  const bool at_once =
      (request.flags & kBlockingWait) != 0 || (processors == kCrowded && KnownProcessors() == 1);
  if (at_once) policy.spin_us = policy.yield_us = 0;  // the dispatcher wakes up, and wants the processor
  const uint64_t patience_us = policy.spin_us + policy.yield_us;
  // It sleeps below, where it is woken, and not by a timer.
  (policy.yield_us != 0 ? policy.yield_us : policy.spin_us) += 1'000'000;
  if (policy.yield_us == 0) policy.ask_us = 0;
  Waiter waiter(policy, nullptr, nullptr, false);
  while (dispatched_.load(std::memory_order_acquire) < sequence) {
    if (session_.stopped()) return false;
    if (waiter.waited_us() >= patience_us) {
      if (!AwaitAsleep(sequence)) return false;
      break;
    }
    waiter.Step(0);
  }
  return lanes_.Await(sequence);
}

}  // namespace causeway::host
