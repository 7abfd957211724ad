// SPDX-License-Identifier: Apache-2.0
// What a session's requests that submit work to a GPU pass: the gate of their device
// (host_backend/worker/gate/gate.h). This is what the gates need of the driver: the GPU writes marks into the worker's
// own page of turns (host_backend/common/shares/account_page.h) in the stream of what they stand behind.
//
// Threads: the dispatcher, which goes on with the next record and marks several together; its lanes and the threads
// of channels, each of whose requests has a mark of its own.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "host_backend/common/shares/account_page.h"
#include "host_backend/worker/driver/driver.h"
#include "host_backend/worker/gate/gate.h"
#include "host_backend/worker/gate/link_gate.h"
#include "host_backend/worker/objects/objects.h"
#include "host_backend/worker/slices/time_slices.h"

namespace causeway::host {

// What a thread submitted last: where a mark behind it goes.
struct LastSubmission {
  int device = -1;
  WireHandle stream = 0;  // 0: the legacy stream
  WireHandle context = 0;
  uint32_t left = 0;  // how many more records may pass before the thread writes to Entrance again
};

class DeviceGates {
 public:
  DeviceGates();
  ~DeviceGates();

  // Before anything is submitted: the worker's cell on the page of its VM, which outlives this, and the place in it of
  // each device (kNoDevice: none). `wake` tells the daemon that this worker submits; any thread calls it. Without this
  // everything passes.
  void Attach(AccountPage* page, uint32_t cell, const std::array<int, kAccountDevices>& places,
              std::function<void()> wake);

  // From the first submission on a thread follows what the daemon says, for as long as the process lives, and so long both
  // must live: where another VM comes, what is still to be done gets a mark, and where the VM's kernels run on for long, the
  // process gets the time slice that the daemon says. Before anything is submitted.
  void Watch(Objects& objects, TimeSlices& slices);

  // Tells the driver of the page of turns now, in that context, so that no record waits for it. On a thread that serves no
  // requests.
  void Prepare(CUcontext context);

  // What each record that submits work to a device looks at.
  struct Entrance {
    Gate* gate = nullptr;  // null: nothing waits there
    // The context and stream of one of the last records, for a mark behind all that passed while nobody else wanted the GPU. A
    // thread writes them when its records go to another stream than before, and again after kSaidFor records. It does not write them
    // with each record, because threads that submit to streams of their own would then take the cache line from each other each time.
    alignas(kHotBytes) std::atomic<WireHandle> last_context{0}, last_stream{0};
  };
  static constexpr uint32_t kSaidFor = 64;
  // Where a request of the calling thread submits work, when its context is known. Null: nothing waits there.
  Entrance* Find() {
    const int device = Objects::whereabouts().device;
    if (device < 0 || device >= static_cast<int>(kAccountDevices)) return nullptr;
    return entrances_[device].gate != nullptr ? &entrances_[device] : nullptr;
  }
  // Before that request. False: `stop` became true.
  bool Enter(const Entrance& at, Objects& objects, const std::atomic<bool>& stop) {
    return at.gate->EnterOpen() || Await(at, objects, stop);
  }
  // The same for one of several threads that submit side by side. It tells the daemon of its first record and of each sixteenth one
  // after that, so that the threads take the gate's cache line from each other less often. The thread calls TellLate before it
  // waits for another record, which tells of those in between.
  bool EnterLate(const Entrance& at, Objects& objects, const std::atomic<bool>& stop) {
    constexpr uint32_t kTold = 16;
    if (late_ != at.gate || late_count_++ % kTold == 0) {
      TellLate();
      late_ = at.gate;
      late_count_ = 1;
      return Enter(at, objects, stop);
    }
    return at.gate->IsOpen() || Await(at, objects, stop);
  }
  static void TellLate() {
    if (late_ != nullptr) late_->Tell();
    late_ = nullptr;
  }
  // After it, with its result. `goes_on`: the thread calls Settle before it waits for a request.
  // `is_over`: what the thread has submitted to the request's stream is known to be done.
  void Leave(Entrance& at, Objects& objects, bool goes_on, CUresult result, bool is_over) {
    if (result == CUDA_SUCCESS && at.gate->IsOpen() && !at.gate->HasUnmarked() && WentHere()) [[likely]]
      return;
    LeaveSlowly(at, objects, goes_on, result);
    if (is_over && goes_on) TellOver();
  }
  // The dispatcher: all work in the stream of its request is done. What it has submitted there before needs no mark of the GPU's.
  void TellOver();
  // Of a thread that goes on, between two requests: puts a mark behind what it has submitted, unless `more` says soon that another
  // record is there, which may take a mark along. The thread's context may be another one afterwards.
  template <class More>
  void Settle(Objects& objects, More more) {
    if (unsettled_ == nullptr) return;
    for (uint64_t begin = 0; HasUnsettled() && WaitsOn(&begin);) {
      if (more()) return;
    }
    SettleBetween(objects);
  }

  // Whether others copy much over the link of the device that the calling thread's request names (LinkGate::OthersCopy). What the
  // GPU writes behind a copy then comes late: its copy engine serves the others in between (6 us on an H200, docs/sharing.md).
  bool OthersCopy();
  // Has the GPU write the word in that stream, and a mark in the same call if one is due and the thread `goes_on`. What
  // the driver answers.
  CUresult WriteWord(bool goes_on, CUstream stream, CUdeviceptr word, uint64_t value);

  // Before a copy of the calling thread between host and device in that stream: how many of its bytes may go now, from the first
  // on; with `whole` all of them at once. 0: `stop` became true.
  uint64_t EnterLink(uint32_t direction, uint64_t bytes, bool whole, CUstream stream,
                     const std::atomic<bool>& stop);
  // After each piece. `done`: it is copied already, or has failed.
  void LeaveLink(uint32_t direction, uint64_t bytes, CUstream stream, bool done);

  // The driver is about to end that context, or has lost it.
  void ContextEnds(CUcontext context);

  // The stream in which a mark goes that this thread places now. By default there is none, and nothing to mark.
  struct Place {
    Objects* objects = nullptr;       // has `stream` among its handles
    WireHandle stream = 0;            // 0: the legacy stream of `context`
    WireHandle context = 0;           // between requests; 0: that of the thread's request
    const CUstream* known = nullptr;  // or it is this one, behind a copy; it may itself be null
  };

 private:
  struct Door;
  static Place PlaceInRequest(Objects& objects);
  Door* DoorOfRequest() {
    const Entrance* const at = Find();
    return at != nullptr ? doors_[static_cast<size_t>(at - entrances_.data())].get() : nullptr;
  }
  // Whether the calling thread's last record went to the stream of its request, and the thread wrote that to Entrance at most
  // kSaidFor records ago.
  static bool WentHere() {
    const Whereabouts& here = Objects::whereabouts();
    if (last_.stream != here.stream.wire || last_.device != here.device || last_.context != here.context)
      return false;
    return last_.left-- != 0;
  }
  static bool Await(const Entrance& at, Objects& objects, const std::atomic<bool>& stop);
  void LeaveSlowly(Entrance& at, Objects& objects, bool goes_on, CUresult result);
  bool HasUnsettled() const;
  static bool WaitsOn(uint64_t* begin);
  void SettleBetween(Objects& objects);
  void MarkUnsettled(const Place& where);
  void BeginWatching(Door& door);
  [[noreturn]] void WatchDoor(Door& door);
  void FollowNews(Door& door, const GrantWords& grant);

  static constinit thread_local inline LastSubmission last_;
  // The gate of the records that EnterLate has let pass since it last told the daemon, for TellLate; null: there are none.
  static constinit thread_local inline Gate* late_ = nullptr;
  static constinit thread_local inline uint32_t late_count_ = 0;

  // By the driver's number of the device: what each record looks at, and the rest.
  std::array<Entrance, kAccountDevices> entrances_;
  std::array<std::unique_ptr<Door>, kAccountDevices> doors_;
  // The dispatcher's alone: through which it has submitted what may have no mark.
  Door* unsettled_ = nullptr;
  std::function<void()> wake_;
  Objects* objects_ = nullptr;  // where the watching threads look up what the last record has named
  TimeSlices* slices_ = nullptr;
  const AccountPage* page_ = nullptr;
  std::atomic<uint32_t> watched_{0};  // doors whose thread has begun
  std::mutex registering_;            // taken before a gate's lock, never after it
  // The context in which the driver was told of the page of turns.
  std::atomic<CUcontext> registered_{nullptr};
};

}  // namespace causeway::host
