// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/stream/inquiry.h"

#include <algorithm>

#include "guest_lib/session/captures.h"
#include "guest_lib/session/context.h"
#include "guest_lib/session/session.h"

namespace causeway::guest {
namespace {

using Kind = Subject::Kind;

Subject OfCurrentContext(Kind kind) {
  Object* current = CurrentContextObject();
  return current != nullptr ? Subject{kind, current} : Subject{};
}

}  // namespace

Inquiry Inquiry::OfStream(CUstream stream) {
  Inquiry inquiry;
  if (stream == CU_STREAM_PER_THREAD) stream = PerThreadStream();
  if (stream == nullptr || stream == CU_STREAM_LEGACY) {
    inquiry.subject_ = OfCurrentContext(Kind::kLegacyStream);
  } else if (Object* object = Find(stream)) {
    inquiry.subject_ = {Kind::kStream, object};
  }
  return inquiry;
}

Inquiry Inquiry::OfEvent(CUevent event) {
  Inquiry inquiry;
  Object* object = Find(event);
  if (object != nullptr && (object->flags & CU_EVENT_INTERPROCESS) == 0)
    inquiry.subject_ = {Kind::kEvent, object};
  return inquiry;
}

Inquiry Inquiry::OfContext() {
  Inquiry inquiry;
  inquiry.subject_ = OfCurrentContext(Kind::kContext);
  return inquiry;
}

Inquiry Inquiry::BeforeCopy() {
  Inquiry inquiry;
  inquiry.subject_ = OfCurrentContext(Kind::kCopies);
  return inquiry;
}

bool Inquiry::IsDone(Session& session) const {
  return submissions.IsDone(subject_, [&session] { return session.transport().main_sequence(); });
}

bool Inquiry::IsDone() const {
  Session* session = Session::Get();
  return session != nullptr && IsDone(*session);
}

MaybeResult Inquiry::Answer() {
  Session* session = Session::Get();
  if (session == nullptr) return {};
  stamp_ = submissions.Now(0);
  const Object* current = CurrentContextObject();
  const bool local = subject_.object != nullptr && current != nullptr &&
                     ContextOf(current).active.load(std::memory_order_relaxed) && !AnyCapture() &&
                     !AnyHeld() && IsDone(*session) && submissions.IsTrusted();
  if (!local) {
    Begin();
    return {};
  }
  submissions.NoteDoneAgain(subject_, stamp_);
  return session->Check();
}

void Inquiry::Begin() {
  if (Session* session = Session::Get()) stamp_ = submissions.Now(session->transport().main_sequence());
}

CUresult Inquiry::NoteCopy(CUresult result) {
  stamp_.calls += 2;  // the copy itself, its beginning and its end
  return submissions.calls() == stamp_.calls ? Note(result) : result;
}

CUresult Inquiry::NoteWait(CUresult result) {
  const CUresult noted = Note(result);
  Session* const session = Session::Get();
  return noted == CUDA_SUCCESS && session != nullptr ? session->Check() : noted;
}

CUresult Inquiry::Note(CUresult result, uint64_t posts, bool by_fence) {
  stamp_.posts = std::max(stamp_.posts, posts);
  submissions.NoteAnswer();
  if (result == CUDA_SUCCESS) submissions.NoteDone(subject_, stamp_, by_fence);
  return result;
}

}  // namespace causeway::guest
