// SPDX-License-Identifier: Apache-2.0
// What the driver says of captures before it looks at a call's arguments, for answers that are given in the guest. While a
// stream of the process captures, driver 580 asks first whether the call may be made at all, and a call that it refuses
// breaks the captures that it disturbs. Calls that reach the driver get that from it; refusals and answers that are found
// here get it from these functions. The rules of the calls were read off 580.159: tests/differential/README.md.
//
// Threads: any. AskCaptures sends messages; the other two do so while a stream captures, and cost one load otherwise.
#pragma once
#include "guest_lib/session/captures.h"
#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway::guest {

enum class CaptureRule {
  // The call works in the stream. The driver refuses it in a stream whose capture is broken (901). It refuses it in the legacy
  // stream, too, while a stream captures for which the legacy stream would have to wait (906), and breaks that capture.
  kInStream,
  // As kInStream; a call that is wrong by itself breaks the capture of its stream.
  kLaunches,
  // As kInStream; in a stream that does not capture the call is kUnsafe as well.
  kAllocates,
  // The driver refuses the call in a stream that captures (900), and breaks the capture. In the legacy stream as kInStream.
  kOutsideCaptures,
  // As kOutsideCaptures; in a stream that does not capture the call is kUnsafe as well.
  kUnsafeOutsideCaptures,
  // The modes of the captures and of the thread may forbid the call (900), which breaks the captures that forbid it.
  kUnsafe,
};

// What the driver says; CUDA_SUCCESS: nothing.
CUresult AskCaptures(CaptureRule rule, CUstream stream = nullptr);

// The same where nothing captures most of the time, before a call's arguments are looked at.
inline CUresult CaptureRefusal(CaptureRule rule, CUstream stream = nullptr) {
  return AnyCapture() ? AskCaptures(rule, stream) : CUDA_SUCCESS;
}

// After a call that was answered without the driver, with the answer that it has by itself: what the program gets. A missing
// context stays what it is, because the driver looks for that first.
CUresult AnswerBesideCaptures(CUresult own, CaptureRule rule, CUstream stream = nullptr);

}  // namespace causeway::guest
