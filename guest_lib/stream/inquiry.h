// SPDX-License-Identifier: Apache-2.0
// Whether a stream, an event or a context is known to be done (guest_lib/session/progress.h), so that the
// host need not be asked.
//
// A session that is lost, and a fault of another's making, show within some 20 ms: after so long without an
// answer of the host's it is asked again.
//
// Never answered here: events that other processes can record, and anything while a stream captures. Pages of
// managed memory come and go with waits, by messages or not (work::QuietWait).
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>
#include <optional>

#include "guest_lib/session/handles.h"
#include "guest_lib/session/progress.h"
#include "guest_lib/session/work.h"

namespace causeway::guest {

class Session;

// One question after a stream, an event or a context:
//   Inquiry inquiry = Inquiry::OfStream(stream);
//   if (const auto known = inquiry.Answer()) return *known;
//   return inquiry.Note(Wait<...>());
class Inquiry {
 public:
  static Inquiry OfStream(CUstream stream);
  static Inquiry OfEvent(CUevent event);
  static Inquiry OfContext();
  // What a synchronous copy waits for: the stream, but not earlier copies, which are executed before it.
  static Inquiry BeforeCopy(CUstream stream);

  // What the host need not be asked for: done, or an error that is known already. None: it must be asked.
  std::optional<CUresult> Answer();
  // Whether the subject is still known to be done, after Answer or Note said so.
  bool IsDone() const;
  // The host's answer. Returns its argument.
  CUresult Note(CUresult result) { return Note(result, 0); }
  // What a word of the GPU's told: all up to so many posts is done; 0: all that was sent before Begin.
  CUresult NoteWord(CUresult result, uint64_t posts);
  // For a call that waits for its subject and is worth sending anyway: Begin, the call, Note.
  void Begin();
  // The same after BeforeCopy, for a copy made by one call. The device may still be taking its bytes, so that
  // nothing but copies may count on its end.
  CUresult NoteCopy(CUresult result);

 private:
  using Subject = work::QuietWait::Subject;
  // `session` is what the caller found: another thread may be ending the process.
  bool IsDone(Session& session) const;
  void Is(Subject subject, Object* object) {
    waited_ = subject;
    object_ = object;
  }
  CUresult Note(CUresult result, uint64_t posts);

  Progress* subject_ = nullptr;        // null: nothing is known of it
  const Progress* context_ = nullptr;  // of the context that a stream belongs to
  bool everything_ = false;            // the subject is done only when all that was sent is
  const Progress* legacy_ = nullptr;   // before a copy: of the stream proper
  Stamp stamp_;
  Subject waited_ = Subject::kNothing;
  const Object* object_ = nullptr;  // as QuietWait::Begin
  work::QuietWait wait_;
};

}  // namespace causeway::guest
