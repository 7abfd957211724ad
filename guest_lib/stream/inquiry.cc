// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/stream/inquiry.h"

#include <algorithm>
#include <utility>

#include "guest_lib/session/captures.h"
#include "guest_lib/session/context.h"
#include "guest_lib/session/session.h"

namespace causeway::guest {
namespace {

bool Covers(const Progress& progress, const Stamp& sent) {
  return progress.done_calls.load(std::memory_order_acquire) == sent.calls &&
         progress.done_posts.load(std::memory_order_acquire) >= sent.posts;
}

bool IsActive(const Object* context) {
  return context != nullptr && ContextOf(context).active.load(std::memory_order_relaxed);
}

}  // namespace

Inquiry Inquiry::OfStream(CUstream stream) {
  Inquiry inquiry;
  if (stream == CU_STREAM_PER_THREAD) stream = PerThreadStream();
  if (stream == nullptr || stream == CU_STREAM_LEGACY) {
    Object* current = CurrentContextObject();
    if (current == nullptr) return inquiry;
    inquiry.subject_ = &ContextOf(current).legacy_stream;
    inquiry.context_ = &current->progress;
    inquiry.everything_ = true;
    inquiry.Is(Subject::kLegacyStream, current);
  } else if (Object* object = Find(stream)) {
    inquiry.subject_ = &object->progress;
    inquiry.Is(Subject::kStream, object);
    if (object->context != nullptr) inquiry.context_ = &object->context->progress;
  }
  return inquiry;
}

Inquiry Inquiry::OfEvent(CUevent event) {
  Inquiry inquiry;
  Object* object = Find(event);
  if (object == nullptr || (object->flags & CU_EVENT_INTERPROCESS) != 0) return inquiry;
  inquiry.subject_ = &object->progress;
  inquiry.Is(Subject::kEvent, object);
  return inquiry;
}

Inquiry Inquiry::OfContext() {
  Inquiry inquiry;
  if (Object* current = CurrentContextObject()) {
    inquiry.subject_ = &current->progress;
    inquiry.Is(Subject::kContext, current);
  }
  inquiry.everything_ = true;
  return inquiry;
}

Inquiry Inquiry::BeforeCopy(CUstream stream) {
  Inquiry inquiry = OfStream(stream);
  Object* current = CurrentContextObject();
  if (!inquiry.everything_ || current == nullptr) return {};
  inquiry.legacy_ = std::exchange(inquiry.subject_, &ContextOf(current).copies);
  return inquiry;
}

bool Inquiry::IsDone(Session& session) const {
  // What was sent that may work there: later than this, nothing was.
  Stamp sent = session.activity().Now(0);
  if (everything_) {
    sent.posts =
        legacy_ != nullptr ? session.activity().beyond_copies() : session.transport().main_sequence();
  } else {
    sent.posts = std::max(session.activity().elsewhere(), subject_->work.load(std::memory_order_acquire));
  }
  return Covers(*subject_, sent) || (context_ != nullptr && Covers(*context_, sent)) ||
         (legacy_ != nullptr && Covers(*legacy_, sent));
}

bool Inquiry::IsDone() const {
  Session* session = Session::Get();
  return session != nullptr && subject_ != nullptr && IsDone(*session);
}

std::optional<CUresult> Inquiry::Answer() {
  Session* session = Session::Get();
  if (session == nullptr) return {};
  wait_.Begin(waited_, object_);
  const bool local = subject_ != nullptr && IsActive(CurrentContextObject()) && !AnyCapture() && !AnyHeld() &&
                     IsDone(*session) && session->activity().IsTrusted();
  if (!local) {
    Begin();
    return {};
  }
  // Before a copy it is not the stream that is known to be done: copies to managed memory may be left in it.
  if (legacy_ == nullptr) wait_.WasOver();
  return session->Check();
}

void Inquiry::Begin() {
  wait_.Begin(waited_, object_);
  if (Session* session = Session::Get())
    stamp_ = session->activity().Now(session->transport().main_sequence());
}

CUresult Inquiry::NoteCopy(CUresult result) {
  Session* session = Session::Get();
  stamp_.calls += 2;  // the copy itself, its beginning and its end
  const bool alone = session != nullptr && session->activity().Now(0).calls == stamp_.calls;
  return alone ? Note(result) : result;
}

CUresult Inquiry::NoteWord(CUresult result, uint64_t posts) {
  if (result == CUDA_SUCCESS) wait_.Ended();  // before others may learn here that it is done
  return Note(result, posts);
}

CUresult Inquiry::Note(CUresult result, uint64_t posts) {
  stamp_.posts = std::max(stamp_.posts, posts);
  if (Session* session = Session::Get()) session->activity().NoteAnswer();
  if (result == CUDA_SUCCESS && subject_ != nullptr) {
    subject_->done_posts.store(stamp_.posts, std::memory_order_release);
    subject_->done_calls.store(stamp_.calls, std::memory_order_release);
  }
  return result;
}

}  // namespace causeway::guest
