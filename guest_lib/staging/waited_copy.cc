// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/staging/waited_copy.h"

#include <cstring>

#include "guest_lib/memory/memory.h"
#include "guest_lib/session/context.h"
#include "guest_lib/staging/posted_copy.h"
#include "guest_lib/staging/staged_copy.h"
#include "guest_lib/stream/completion.h"
#include "guest_lib/stream/inquiry.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/messages/copy_messages.h"

namespace causeway::guest {
namespace {

constexpr uint64_t kBytesPerUs = 16u << 10;  // of a slow link: so long a copy is looked for

Submission SubmissionOf(const ResolvedStream& stream) {
  Submission submission = stream.submission();
  submission.is_copy = submission.stream == nullptr;
  submission.is_apart = true;  // the callers have seen to that
  return submission;
}

bool MayGoByWord(const LinearCopy& copy, const ResolvedStream& stream) {
  return MayWatchWords() && MayLend(stream) && IsApart(copy.device);
}

// What the end of a copy shows: all that its stream had before is done. So is all of the context if it has no
// other stream, or if it was done before the copy and nothing else came.
class Shown {
 public:
  Shown(Session& session, const ResolvedStream& stream)
      : posts_before_(session.transport().main_sequence()),
        stream_(Inquiry::OfStream(stream.handle())),
        context_(Inquiry::OfContext()),
        legacy_(stream.IsLegacy()) {
    stream_.Begin();
    context_.Begin();
    was_done_ = context_.IsDone();
  }
  // `posts`: up to the copy; 0: it was no posted record after all.
  CUresult Note(CUresult result, uint64_t posts) {
    if (posts == 0) return stream_.Note(result);
    const bool alone = was_done_ && posts == posts_before_ + 1;
    stream_.NoteWord(result, posts);
    if (result == CUDA_SUCCESS && (alone || (legacy_ && IsLegacyAlone()))) context_.NoteWord(result, posts);
    return result;
  }

 private:
  const uint64_t posts_before_;
  Inquiry stream_, context_;
  const bool legacy_;
  bool was_done_ = false;
};

// Posts `post`, behind whose work the mark comes, and waits for it.
CUresult Await(Session& session, Mark& mark, PendingPost& post, const ResolvedStream& stream,
               uint64_t expected_us) {
  CUresult result = post.writer().ok() ? mark.Post(post) : post.writer().error();
  if (result != CUDA_SUCCESS) return result;
  if (mark.Look(expected_us)) return session.Check();
  result = AskForStream(stream.handle());
  if (result == CUDA_SUCCESS) mark.MustHaveCome();
  return result;
}

// The bytes go with the record, and the driver takes them from there.
CUresult CopyInMessage(Session& session, Mark& mark, const LinearCopy& copy, const ResolvedStream& stream) {
  Shown shown(session, stream);
  const CopyBody body{copy.device, copy.bytes, stream.wire(), copy.form, BytesIn::kFencedMessage};
  const Submission submission = SubmissionOf(stream);
  PendingPost post(Op::kCopyToDevice, submission, sizeof body + sizeof(uint64_t) + copy.bytes);
  Writer& w = post.writer();
  w.Put(body);
  w.Put(mark.offset());
  w.PutBytes(copy.host, copy.bytes);
  const CUresult result = Await(session, mark, post, stream, 0);
  return shown.Note(result, mark.posts());
}

CUresult CopyThroughBuffer(Session& session, LentBuffer& buffer, const LinearCopy& copy,
                           const ResolvedStream& stream) {
  Shown shown(session, stream);
  std::byte* bytes = session.bulk(buffer.index).bytes;
  if (copy.to_device) std::memcpy(bytes, copy.host, copy.bytes);
  const CopyBody body{copy.device, copy.bytes, 0, copy.form, BytesIn::kRegion};
  CUresult result = PostLent(session, body, stream, SubmissionOf(stream), copy.to_device, false, &buffer);
  if (result == CUDA_SUCCESS && AwaitBack(buffer, 0)) {
    result = session.Check();
  } else if (result == CUDA_SUCCESS) {
    result = AskForStream(stream.handle());
    if (result == CUDA_SUCCESS && !IsBack(buffer)) NoteUselessWords();
  }
  if (result == CUDA_SUCCESS && !copy.to_device) std::memcpy(copy.host, bytes, copy.bytes);
  // After an error the GPU may have it still.
  if (result == CUDA_SUCCESS || !LeaveLent(session, buffer)) session.ReleaseBulk(buffer.index);
  return shown.Note(result, buffer.mark);
}

}  // namespace

MaybeResult CopyPinnedByFence(const LinearCopy& copy, const ResolvedStream& stream) {
  Session* session = Session::Get();
  if (session == nullptr || copy.bytes > kMostPinnedByFence || !MayGoByWord(copy, stream)) return {};
  Shown shown(*session, stream);
  Mark mark;
  if (!mark.Take(*session, stream)) return {};
  const Submission submission = SubmissionOf(stream);
  PendingPost post(copy.to_device ? Op::cuMemcpyHtoDAsync_v2 : Op::cuMemcpyDtoHAsync_v2, submission);
  Writer& w = post.writer();
  const auto host = reinterpret_cast<uint64_t>(copy.host);
  w.Put(PinnedBody{copy.device, host, copy.bytes, stream.wire(), mark.offset()});
  const CUresult result = Await(*session, mark, post, stream, copy.bytes / kBytesPerUs);
  return shown.Note(result, mark.posts());
}

MaybeResult CopyByFence(const LinearCopy& copy, const ResolvedStream& stream) {
  Session* session = Session::Get();
  if (session == nullptr || copy.bytes > kMostUncut || !MayGoByWord(copy, stream)) return {};
  if (copy.to_device && copy.bytes < kLeastInBuffer) {
    Mark mark;
    if (!mark.Take(*session, stream)) return {};
    return CopyInMessage(*session, mark, copy, stream);
  }
  LentBuffer buffer;
  if (!session->TryAcquireBulk(&buffer.index)) return {};
  return CopyThroughBuffer(*session, buffer, copy, stream);
}

}  // namespace causeway::guest
