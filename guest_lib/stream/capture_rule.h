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
  // Work in the stream. Refused: in a stream whose capture is broken (901), and in the legacy stream while a stream captures
  // for which it would have to wait (906; that breaks the captures).
  kInStream,
  // The same; a call that is wrong by itself breaks the capture of its stream.
  kLaunches,
  // The same; where the stream itself does not capture, the call is kUnsafe as well.
  kAllocates,
  // What a stream that captures refuses (900, which breaks the capture); the legacy stream as above.
  kOutsideCaptures,
  // The same; where the stream itself does not capture, the call is kUnsafe as well.
  kUnsafeOutsideCaptures,
  // What the modes of captures forbid (900, which breaks all captures).
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
