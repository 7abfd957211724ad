// SPDX-License-Identifier: Apache-2.0
// Completion queries: whether a stream, an event or a context is known to be done
// (guest_lib/session/submissions.h), so that the host need not be asked.
//
// After some 20 ms without an answer of the host's, the host is asked again, so that a lost session, or a
// fault that another thread's work made, is found that soon. Two questions are never answered here: those
// about events that other processes can record, and all while a stream captures. Waits move pages of managed
// memory, whether a message was needed or not.
//
// A query belongs to the calling thread.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/protocol/maybe_result.h"

#include <cstdint>

#include "guest_lib/session/context.h"
#include "guest_lib/session/submissions.h"

namespace causeway::guest {

class Session;

// One question about a stream, an event or a context. Its use:
//   Inquiry inquiry = Inquiry::OfStream(stream);
//   if (const auto known = inquiry.Answer()) return *known;
//   return inquiry.Note(Wait<...>());
class Inquiry {
 public:
  static Inquiry OfStream(CUstream stream);
  static Inquiry OfEvent(CUevent event);
  static Inquiry OfContext();
  // The question of a synchronous copy: whether the stream is done, but for earlier copies, which are
  // executed before it anyway.
  static Inquiry BeforeCopy();

  // The answer, if it is known: CUDA_SUCCESS if the subject is done, or an error. None: the host must be
  // asked, and Note be called.
  MaybeResult Answer();
  // Whether the subject is still known to be done, after Answer or Note said so.
  bool IsDone() const;
  // Takes the host's answer. Returns its argument.
  CUresult Note(CUresult result) { return Note(result, 0, false); }
  // Takes what a fence value showed: the first `posts` posts are done; 0: all that was sent before Begin.
  CUresult NoteWord(CUresult result, uint64_t posts) { return Note(result, posts, true); }
  // For a call that waits for the subject and is sent in any case: Begin, then the call, then Note.
  void Begin();
  // Note for BeforeCopy, after a copy that was one call. The device may still be reading its bytes, so only
  // later copies may count on its end.
  CUresult NoteCopy(CUresult result);

  // Of a wait that the host has answered: it also tells what failed of the records that were posted before, as one for a fence value does.
  CUresult NoteWait(CUresult result);
  // The wait of a call: answered by what is known, by a fence value that `post` awaits with the fence (Mark),
  // or by the host, which `ask` asks.
  template <class Fence, class Post, class Ask>
  CUresult Await(Fence& fence, Post post, Ask ask) {
    if (const auto known = Answer()) return *known;
    if (const auto came = post()) return NoteWord(*came, fence.posts());
    const BlockingWaits waits;
    const CUresult result = ask();
    if (result == CUDA_SUCCESS) fence.MustHaveCome();
    return NoteWait(result);
  }

 private:
  // `session` is the one that the caller found, since another thread may be ending the process.
  bool IsDone(Session& session) const;
  CUresult Note(CUresult result, uint64_t posts, bool by_fence);

  Subject subject_;
  Stamp stamp_;
};

}  // namespace causeway::guest
