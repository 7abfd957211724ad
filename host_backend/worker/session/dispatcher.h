// SPDX-License-Identifier: Apache-2.0
// The submission queue on the host. The thread that calls Run, the dispatcher, executes posted records in
// their order, or hands them to worker queues, which keep the order that a program can rely on
// (host_backend/worker/process/lanes.h). A channel's request is executed after all that was posted before.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>

#include "host_backend/worker/process/lanes.h"
#include "host_backend/worker/session/poll_pace.h"
#include "host_backend/worker/session/session.h"
#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/transport/transport.h"

namespace causeway::host {

class Dispatcher : public SessionPart {
 public:
  Dispatcher(Session& session, ServerTransport& transport);

  // Takes and executes records until the guest ends, breaks the format, or the session stops.
  void Run();
  void Stop() override { lanes_.Stop(); }
  void Join() override { lanes_.Join(); }

  // ---- the dispatcher alone

  // Within a request: waits for the posted copies before it that the driver was given.
  void Settle();
  // Whether the stream is done within some 20 us, before another record is there and before a request is seen that waits for the
  // record of that sequence, which is being executed. Looks without sleeping, so only where nobody else wants the processor; and after
  // looks that were in vain it answers false most of the time without looking.
  bool IsDoneSoon(CUstream stream, uint64_t sequence);

  // ---- any thread

  // Waits until all that was posted before the request is executed. False: the session stops, perhaps because
  // the request states an impossible number.
  bool WaitFor(const RecordHeader& request);
  // The result of the posted record of that sequence, which is given once.
  CUresult TakePostedResult(uint64_t sequence);

 private:
  // Gives the record to a worker queue if that is wanted and possible.
  enum class Handed { kNo, kYes, kStopped };
  Handed Hand(const PostedHeader& header, std::span<const std::byte> record);
  void ExecuteInLane(std::span<const std::byte> record);
  // As Settle, when the dispatcher has no request or is done with it; with `or_more` only until another record is there.
  void SettleBetween(bool or_more = false);
  bool AwaitUnsettled(bool or_more);  // whether there were some, which are over now
  // All records before this one are executed, or in a worker queue.
  void SetDispatched(uint64_t sequence);
  // A part of WaitFor that costs no processor time: until dispatched_ is at least `sequence`, or the session stops.
  bool AwaitAsleep(uint64_t sequence);
  void NoteFailure(const PostedHeader& header, CUresult result);
  void LogFailure(uint16_t op, CUresult result);
  // Keeps the failure of a posted record if its caller will ask for it. False: it will not.
  bool KeepResult(const PostedHeader& header, CUresult result);

  Session& session_;
  ServerTransport& transport_;
  std::atomic<uint32_t> failures_{0};
  uint32_t unsettled_ = 0;  // copies that were not waited for; only the dispatcher uses it
  PostedHeader last_unsettled_ = {};
  PollPace poll_pace_;  // of IsDoneSoon
  std::mutex results_mutex_;
  std::map<uint64_t, CUresult> results_;  // failures alone
  // Main records that were executed or handed to a lane; released in Run, acquired in WaitFor. On a line of
  // its own: it changes while other threads look at the rest.
  alignas(kHotBytes) std::atomic<uint64_t> dispatched_{0};
  // For threads in AwaitAsleep: the lowest number that any of them waits for, and how often they were woken, which they sleep on.
  static constexpr uint64_t kNobodySleeps = UINT64_MAX;
  std::atomic<uint64_t> wake_at_{kNobodySleeps};
  std::atomic<uint32_t> wakes_{0};
  // The number of records for which the newest request in WaitFor waits. Only a hint: of two requests that come at once either may stay. It
  // has a line of its own, because requests write it and would otherwise take the dispatcher's line away.
  alignas(kHotBytes) std::atomic<uint64_t> awaited_{0};
  Lanes lanes_;  // last: its threads use all the rest
};

}  // namespace causeway::host
