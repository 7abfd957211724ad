// SPDX-License-Identifier: Apache-2.0
// The ways of guest_lib/staging/copy_plan.h, one after the other.
#include "guest_lib/copy/pageable_copy.h"
#include "ivshmem_ring/protocol/maybe_result.h"

#include <cstring>

#include "guest_lib/memory/memory.h"
#include "guest_lib/staging/posted_copy.h"
#include "guest_lib/staging/staged_copy.h"
#include "guest_lib/staging/waited_copy.h"
#include "guest_lib/stream/inquiry.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/messages/copy_messages.h"

namespace causeway::guest {
namespace {

CopyBody Body(const LinearCopy& copy, const ResolvedStream& stream, BytesIn bytes_in) {
  return {copy.device, copy.bytes, stream.wire(), copy.form, bytes_in};
}

CUresult PostInRecord(const LinearCopy& copy, const ResolvedStream& stream) {
  const CopyBody body = Body(copy, stream, BytesIn::kMessage);
  Submission submission = stream.submission();
  submission.is_copy = copy.form == CopyForm::kSynchronous;
  submission.is_apart = IsApart(copy.device);
  PendingPost post(Op::kCopyToDevice, submission, sizeof body + copy.bytes);
  post.writer().Put(body);
  post.writer().PutBytes(copy.host, copy.bytes);
  return post.Finish();
}

MaybeResult Post(CopyPlan::Post way, const LinearCopy& copy, const ResolvedStream& stream) {
  using Post = CopyPlan::Post;
  if (way == Post::kNot) return {};
  if (way == Post::kPieces) {
    LinearCopy posted = copy;
    posted.leaves = true;
    return CopyPiecesByFences(&posted, stream);
  }
  if (way != Post::kRecord) {
    if (const auto posted = PostFromBuffer(copy, stream, way == Post::kLoneBuffer)) return posted;
    if (way == Post::kBuffer) return {};
  }
  return PostInRecord(copy, stream);
}

CUresult Ask(const LinearCopy& copy, const ResolvedStream& stream) {
  const Submission submission = stream.submission();
  PendingCall call(copy.to_device ? Op::kCopyToDevice : Op::kCopyToHost, submission);
  Writer& w = call.writer();
  w.Put(Body(copy, stream, BytesIn::kMessage));
  if (copy.to_device) w.PutBytes(copy.host, copy.bytes);
  const CUresult result = call.Finish();
  if (result != CUDA_SUCCESS || copy.to_device) return result;
  const std::byte* data = call.reader().Take(copy.bytes);
  if (data == nullptr) return CUDA_ERROR_UNKNOWN;
  std::memcpy(copy.host, data, copy.bytes);
  return CUDA_SUCCESS;
}

CUresult AskInPieces(const LinearCopy& copy, const ResolvedStream& stream) {
  CopyBody body = Body(copy, stream, BytesIn::kRequestBuffer);
  const HostRows rows{copy.host, copy.bytes, 1, 1, copy.bytes, copy.bytes};
  const Op op = copy.to_device ? Op::kCopyToDevice : Op::kCopyToHost;
  return CopyStaged(rows, copy.to_device, copy.form, op, stream.submission(),
                    [&](Writer& w, const Piece& piece) {
                      body.device = copy.device + piece.column;
                      body.bytes = piece.width;
                      w.Put(body);
                    });
}

// The synchronous form waits for the legacy stream's order, takes the source, and may return before the
// device has the bytes (the driver's manual, "API synchronization behavior": pageable memory to the device).
// Not where others could look before the posted copy is executed: the program at memory of the host, another
// process at shared memory.
bool MayReturnEarly(CUdeviceptr device) {
  return KindOfPointer(device) == PointerKind::kDevice && !SharesDeviceMemory() && !SyncsMemops(device);
}

// What is not posted: the caller waits, for the fence behind the copy or for the host's answer. `inquiry` has begun.
CUresult Await(LinearCopy& copy, const ResolvedStream& stream, const CopyPlan& plan, Inquiry& inquiry) {
  const bool ordered = copy.to_device && copy.form == CopyForm::kSynchronous;
  const bool captures = CapturesSource(copy.to_device, copy.form, copy.bytes);
  if (copy.form == CopyForm::kAsynchronous && !captures) copy.form = CopyForm::kStreamThenWait;
  if (plan.fence == CopyPlan::Fence::kWhole) {
    if (const auto result = CopyByFence(copy, stream)) return *result;
  } else if (plan.fence == CopyPlan::Fence::kPieces) {
    copy.idle = !copy.to_device && inquiry.IsDone();
    if (const auto result = CopyPiecesByFences(&copy, stream)) return inquiry.NoteWord(*result, copy.posts);
  }
  const CUresult result = plan.ask == CopyPlan::Ask::kRequest ? Ask(copy, stream) : AskInPieces(copy, stream);
  if (ordered) return inquiry.NoteCopy(result);
  return copy.to_device ? result : inquiry.Note(result);
}

// The plain call to the device, ordered by the legacy stream.
CUresult CopyInOrder(LinearCopy copy, bool known) {
  const ResolvedStream stream(copy.stream);
  CopyFacts facts{copy.to_device, copy.form, copy.bytes, known, false, false};
  Inquiry inquiry = Inquiry::BeforeCopy();
  if (known && MayReturnEarly(copy.device)) {
    const auto done = inquiry.Answer();
    if (done && *done != CUDA_SUCCESS) return *done;
    facts.quiet = done.has_value();
  }
  const CopyPlan plan = PlanCopy(facts);
  if (const auto posted = Post(plan.post, copy, stream)) return *posted;
  inquiry.Begin();
  return Await(copy, stream, plan, inquiry);
}

CUresult CopyInStream(LinearCopy copy, bool known) {
  const ResolvedStream stream(copy.stream);
  if (const CUresult error = stream.error()) return error;
  CopyFacts facts{copy.to_device, copy.form, copy.bytes, known, false, false};
  if (copy.to_device && copy.bytes > kMostInRecord) facts.syncs_memops = SyncsMemops(copy.device);
  const CopyPlan plan = PlanCopy(facts);
  if (const auto posted = Post(plan.post, copy, stream)) return *posted;
  Inquiry inquiry = Inquiry::OfStream(stream.handle());
  inquiry.Begin();
  return Await(copy, stream, plan, inquiry);
}

}  // namespace

CUresult CopyPageable(const LinearCopy& copy, bool known) {
  const bool ordered = copy.to_device && copy.form == CopyForm::kSynchronous;
  return ordered ? CopyInOrder(copy, known) : CopyInStream(copy, known);
}

}  // namespace causeway::guest
