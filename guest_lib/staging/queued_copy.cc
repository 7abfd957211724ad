// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/staging/queued_copy.h"

#include <xmmintrin.h>

#include <algorithm>
#include <atomic>

#include "guest_lib/process/copy_past_caches.h"
#include "guest_lib/process/copy_threads.h"
#include "guest_lib/session/captures.h"
#include "guest_lib/session/context.h"
#include "guest_lib/staging/copy_plan.h"
#include "guest_lib/staging/pieces.h"
#include "guest_lib/staging/posted_copy.h"
#include "guest_lib/staging/staging_places.h"
#include "guest_lib/stream/completion.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/messages/copy_messages.h"
#include "ivshmem_ring/transport/ring.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway::guest {
namespace {

constexpr uint64_t kFirstPiece = 128u << 10;
constexpr uint32_t kShares = 2;  // a piece is at most half of what is left
// Large copies have pieces of 1 MiB, which cost the device less for each byte, and let the worker's threads
// sleep between records. In others threads share the work better with half of that; the worker gets a record
// often enough to look for the next, also at the end, since its thread would take 50 us and more to wake up.
constexpr uint64_t kPiece = 512u << 10, kLargePiece = 1u << 20;
// Of one record. Meanwhile nobody else who wants the buffers gets one.
constexpr uint64_t kRecordBytes = 6u << 20, kLargeRecordBytes = 16u << 20;
constexpr uint32_t kAhead = 8;  // pieces to the host that are posted and not taken when more are posted
constexpr uint32_t kMostBuffers = kBulkBuffers - 1;  // one is left to small copies
constexpr uint32_t kLeastBuffers = kBulkBuffers / 2;
static_assert(kMostBuffers * (kBulkBytes / kPiece) <= kQueuedPlaces && kBulkBytes / kPiece <= kMostAwaited);

// The words of a direction, which one copy has at a time.
struct Words {
  std::atomic<bool> taken{false};
  uint64_t uses[kQueuedPlaces] = {};  // what a place's words count
  uint32_t next_place = 0;            // whose lines processors have had for the longest
  uint64_t context = 0;               // id of one whose streams the worker has made
};
std::atomic<bool> refused{false};  // the worker has none, or the GPU cannot wait
Words& WordsOf(bool to_device) {
  static auto* words = new Words[2];
  return words[to_device ? 1 : 0];
}

// Pieces are taken in order, each by one thread: filled, once the one before it in its place is done, or,
// once it is done itself, emptied. Then its place gets its turn. A thread waits for the GPU alone, and the
// GPU for pieces that are taken already.
class QueuedCopy final : public CopyJob {
 public:
  QueuedCopy(Session& session, const LinearCopy& copy)
      : session_(session),
        copy_(copy),
        is_large_(copy.bytes >= kLeastQueuedLarge),
        piece_bytes_(is_large_ ? kLargePiece : kPiece),
        cut_({copy.host, copy.bytes, 1, 1, copy.bytes, copy.bytes}, kFirstPiece, piece_bytes_, kShares),
        words_(WordsOf(copy.to_device)),
        place_words_(session.connection().callback_words()->queued[copy.to_device ? 1 : 0]) {}
  ~QueuedCopy() override;

  // False: too few buffers are free, another copy has the words, the worker cannot, or there is an error.
  bool Begin();
  CUresult result() const { return result_; }
  CUresult Run(uint64_t* moved);

 private:
  struct Piece {
    uint64_t column, bytes;
  };
  // More than are posted and not yet taken.
  static constexpr uint64_t kPieces = 4 * kMostQueued;

  Piece& At(uint64_t index) { return pieces_[index % kPieces]; }
  uint32_t PlaceOf(uint64_t index) const { return static_cast<uint32_t>((first_place_ + index) % places_); }
  uint64_t UseOf(uint64_t index) const { return words_.uses[PlaceOf(index)] + index / places_ + 1; }
  QueuedPlace& WordsAt(uint64_t index) const { return place_words_[PlaceOf(index)]; }
  uint64_t offset(uint32_t place) const { return place % each_ * piece_bytes_; }
  std::byte* BytesOf(uint64_t index) const {
    return session_.bulk(buffers_[PlaceOf(index) / each_]).bytes + offset(PlaceOf(index));
  }
  uint64_t FirstOfLast(uint64_t end) const { return end > places_ ? end - places_ : 0; }

  void Do(uint64_t index) override;
  // What we post may have to wait until the device has done what it has, so that must not wait for us.
  // Pieces to the host may be on their way while others are emptied, as long as the device needs no more
  // turns.
  bool MayPost() const { return taken() + (copy_.to_device ? 0 : std::min(places_, kAhead)) >= posted_; }
  void PostNext();
  CUresult Post(uint64_t end, uint32_t flags);
  bool AllAreDone() const;
  template <class Ready>
  bool Await(Ready ready);
  bool IsDone(uint64_t index) const;
  bool IsDropped(uint64_t index) const { return index >= dropped_.load(std::memory_order_acquire); }
  bool AwaitDone(uint64_t index);
  CUresult Ask(uint32_t flags);
  void AskHost();
  void NoteError(CUresult result);
  bool LeavesBuffer(uint32_t slot);

  const CopyUnderWay under_way_;
  Session& session_;
  const LinearCopy& copy_;
  const bool is_large_;
  const uint64_t piece_bytes_;
  Cut cut_;
  Words& words_;
  QueuedPlace* const place_words_;
  bool has_words_ = false;
  uint32_t buffers_[kBulkBuffers] = {};
  uint32_t buffer_count_ = 0;
  uint32_t each_ = 0, places_ = 0;  // places of a buffer, and all
  uint32_t first_place_ = 0;
  Piece pieces_[kPieces];
  uint64_t cut_pieces_ = 0, posted_ = 0, posted_bytes_ = 0;
  bool ends_ = false;  // nothing more is posted
  bool left_ = false;  // the program's stream waits for the pieces
  CUresult result_ = CUDA_SUCCESS;
  std::atomic<bool> failed_{false};              // no word will come any more
  std::atomic<uint64_t> finished_{0};            // pieces that threads are done with
  std::atomic<uint64_t> known_done_{0};          // pieces, whatever their words say
  std::atomic<uint64_t> dropped_{~uint64_t{0}};  // from here on pieces are never posted
};

bool QueuedCopy::Begin() {
  if (words_.taken.exchange(true, std::memory_order_acquire)) return false;  // partner: ~QueuedCopy
  has_words_ = true;
  const uint64_t context = CurrentContextObject()->id;
  if (words_.context != context) {
    const CUresult made = Ask(kQueueMakes);
    if (made == CUDA_ERROR_NOT_SUPPORTED) refused.store(true, std::memory_order_relaxed);
    if (made != CUDA_SUCCESS) {
      if (made != CUDA_ERROR_NOT_SUPPORTED) NoteError(made);
      return false;
    }
    words_.context = context;
  }
  while (buffer_count_ < kMostBuffers && session_.TryAcquireBulk(&buffers_[buffer_count_])) ++buffer_count_;
  each_ = static_cast<uint32_t>(kBulkBytes / piece_bytes_);
  places_ = std::min(buffer_count_ * each_, kQueuedPlaces);
  if (buffer_count_ < kLeastBuffers) return false;
  first_place_ = words_.next_place % places_;
  return true;
}

QueuedCopy::~QueuedCopy() {
  CopyJob::Leave();
  for (uint32_t slot = 0; slot < buffer_count_; ++slot) {
    if (!LeavesBuffer(slot)) session_.ReleaseBulk(buffers_[slot]);
  }
  if (!has_words_) return;
  for (uint64_t i = 0; i < std::min<uint64_t>(places_, cut_pieces_); ++i)
    words_.uses[PlaceOf(i)] += (cut_pieces_ - i + places_ - 1) / places_;
  if (places_ != 0) words_.next_place = PlaceOf(cut_pieces_);
  words_.taken.store(false, std::memory_order_release);  // partner: Begin
}

// Whether the GPU keeps it for a while.
bool QueuedCopy::LeavesBuffer(uint32_t slot) {
  AwaitedWord awaited[kQueuedPlaces];
  uint32_t count = 0;
  for (uint64_t i = FirstOfLast(posted_); i < posted_; ++i) {
    if (PlaceOf(i) / each_ == slot && !IsDone(i)) awaited[count++] = {&WordsAt(i).done, UseOf(i)};
  }
  if (count == 0 || (left_ && LeaveBuffer(session_, buffers_[slot], {awaited, count}))) return count != 0;
  for (uint64_t i = FirstOfLast(posted_); i < posted_; ++i) {
    if (PlaceOf(i) / each_ == slot) AwaitDone(i);
  }
  return false;
}

void QueuedCopy::Do(uint64_t index) {
  const Piece& piece = At(index);
  std::byte *own = copy_.host + piece.column, *packed = BytesOf(index);
  const bool waits = !copy_.to_device || index >= places_;
  if ((!waits || AwaitDone(copy_.to_device ? index - places_ : index)) && !IsDropped(index))
    copy_.to_device ? CopyPastCaches(packed, own, piece.bytes) : CopyPastCaches(own, packed, piece.bytes);
  StoreRelease(WordsAt(index).turn, UseOf(index));    // partner: the GPU's wait
  finished_.fetch_add(1, std::memory_order_release);  // partner: AllAreDone
}

// Pieces to the device are offered before they are posted: places are free before the worker wakes up.
void QueuedCopy::PostNext() {
  uint64_t bytes = 0;
  while (cut_pieces_ < posted_ + kMostQueued && bytes < (is_large_ ? kLargeRecordBytes : kRecordBytes) &&
         !cut_.done()) {
    const guest::Piece piece = cut_.Next();
    At(cut_pieces_++) = {piece.column, piece.width};
    bytes += piece.width;
  }
  if (copy_.to_device) Offer(cut_pieces_);
  // What the stream had is done, but for copies that nobody has waited for, which are left out of what is
  // known of streams of the program's own.
  const bool begins = posted_ == 0 && (copy_.leaves || (copy_.idle && copy_.stream != nullptr));
  NoteError(Post(cut_pieces_, begins ? kQueueBegins : 0));
  if (!copy_.to_device && posted_ == cut_pieces_) Offer(cut_pieces_);
  if (posted_ != cut_pieces_) dropped_.store(posted_, std::memory_order_release);
  if (posted_ != cut_pieces_ || cut_.done()) ends_ = true;
}

// Pieces up to `end`. Without any of it where a capture has begun meanwhile.
CUresult QueuedCopy::Post(uint64_t end, uint32_t flags) {
  const ResolvedStream stream(copy_.stream);
  if (const CUresult error = stream.error()) return error;
  QueuedCopyBody body{};
  body.device = copy_.device + (posted_ < end ? At(posted_).column : 0);
  body.stream = stream.wire();
  body.to_device = copy_.to_device ? 1 : 0;
  body.count = static_cast<uint32_t>(end - posted_);
  body.flags = flags;
  // Others need not wait for it: who waits, waits for each piece.
  constexpr Submission kApart{.is_copy = true, .is_apart = true};  // CopyPiecesByFences has seen to that
  PendingPost post(Op::kQueuedCopy, kApart, sizeof body + kMostQueued * sizeof(QueuedPiece));
  if (!post.writer().ok()) return post.writer().error();
  if (post.waits()) return CUDA_SUCCESS;
  post.writer().Put(body);
  for (uint64_t i = posted_; i < end; ++i) {
    const Bulk buffer = session_.bulk(buffers_[PlaceOf(i) / each_]);
    QueuedPiece piece{};
    piece.offset = buffer.offset + offset(PlaceOf(i));
    piece.bytes = static_cast<uint32_t>(At(i).bytes);
    piece.place = static_cast<uint16_t>(PlaceOf(i));
    piece.stream = static_cast<uint16_t>(i % kQueueStreams);
    piece.done = UseOf(i);
    if (copy_.to_device) piece.turn = piece.done;
    if (!copy_.to_device && i >= places_) piece.turn = piece.done - 1;
    post.writer().Put(piece);
  }
  uint64_t sequence = 0;
  if (const CUresult result = post.Finish(&sequence, is_large_ ? kBlockingWait : 0)) return result;
  for (uint64_t i = posted_; i < end; ++i) posted_bytes_ += At(i).bytes;
  posted_ = end;
  if ((flags & kQueueEnds) != 0) left_ = true;
  Hurry();
  return CUDA_SUCCESS;
}

// Whether threads are done with all pieces that they were offered. Their words do not tell: when no word
// comes any more two pieces of one place may be done in any order, and the earlier one's number then stays.
bool QueuedCopy::AllAreDone() const {
  return finished_.load(std::memory_order_acquire) == (copy_.to_device ? cut_pieces_ : posted_);
}

// Only the owner asks the host what keeps the GPU. False: it will never be.
template <class Ready>
bool QueuedCopy::Await(Ready ready) {
  constexpr uint32_t kLooks = 64;
  constexpr uint64_t kPatienceUs = 20'000;
  for (uint32_t i = 0; i < kLooks; ++i, _mm_pause()) {
    if (ready()) return true;
  }
  const bool owner = CopyThreadNumber() == 0;
  Hurry();
  constexpr uint32_t kSpinUs = 200;  // the GPU is some microseconds late, and who naps some fifty
  WaitPolicy policy = DevicePolicy();
  if (policy.spin_us != 0) policy.spin_us = kSpinUs;
  Waiter waiter(policy, nullptr, nullptr, false);
  for (uint64_t patience_us = kPatienceUs; !ready(); waiter.Step(0)) {
    if (failed_.load(std::memory_order_acquire)) return false;
    if (!owner || waiter.waited_us() < patience_us) continue;
    AskHost();
    patience_us = waiter.waited_us() + kPatienceUs;
  }
  return true;
}

bool QueuedCopy::IsDone(uint64_t index) const {
  // partner: the GPU's write, which comes behind its copy
  return LoadAcquire(WordsAt(index).done) >= UseOf(index) ||
         index < known_done_.load(std::memory_order_acquire);
}

bool QueuedCopy::AwaitDone(uint64_t index) {
  return Await([&] { return IsDone(index) || IsDropped(index); });
}

CUresult QueuedCopy::Ask(uint32_t flags) {
  const RelaxedCaptures relaxed;
  PendingCall call(Op::kQueuedCopy);
  QueuedCopyBody body{};
  body.to_device = copy_.to_device ? 1 : 0;
  body.flags = flags;
  call.writer().Put(body);
  return call.Finish();
}

// The first is the call's. Nothing more is posted.
void QueuedCopy::NoteError(CUresult result) {
  if (result == CUDA_SUCCESS) return;
  if (result_ == CUDA_SUCCESS) result_ = result;
  ends_ = true;
}

// An error may be told once, of something that was posted before: pieces then go on, and the buffers are the
// GPU's. One that is told again has ended them.
void QueuedCopy::AskHost() {
  CUresult result = CUDA_SUCCESS;
  for (int tries = 0; tries < 2; ++tries) {
    result = Ask(0);
    if (result == CUDA_ERROR_NOT_READY) return;
    if (result == CUDA_SUCCESS) break;
    NoteError(result);
  }
  if (result != CUDA_SUCCESS) {
    failed_.store(true, std::memory_order_release);
    return;
  }
  NoteError(session_.Check());  // a piece that the driver refused, whose word does not come
  for (uint64_t i = FirstOfLast(posted_); i < posted_ && result_ == CUDA_SUCCESS; ++i) {
    if (IsDone(i)) continue;
    NoteUselessWords();
    ends_ = true;
    break;
  }
  known_done_.store(posted_, std::memory_order_release);
}

CUresult QueuedCopy::Run(uint64_t* moved) {
  Join(PipelineThreadCount() - 1);
  PostNext();
  while (!ends_ || !AllAreDone()) {
    if (!ends_ && MayPost()) {
      if (session_.IsBulkAwaited() || CopyUnderWay::Count() != 1 || AnyCapture()) {
        ends_ = true;
      } else {
        PostNext();
      }
    } else if (!DoOne()) {
      Await([&] { return ends_ ? AllAreDone() : MayPost(); });
    }
  }
  CopyJob::Leave();
  if (result_ == CUDA_SUCCESS && copy_.leaves && known_done_.load() < posted_)
    NoteError(Post(posted_, kQueueEnds));
  if (!left_ && !is_large_) NoteError(Post(posted_, 0));  // whoever copies again meets the worker awake
  // Those in the last buffers may be left to the GPU.
  const uint64_t kept = left_ ? std::min<uint64_t>(posted_, (kMostLent - 1) * each_) : 0;
  for (uint64_t i = FirstOfLast(posted_); i < posted_ - kept; ++i) AwaitDone(i);
  *moved = posted_bytes_;
  return result_;
}

}  // namespace

bool MayQueue(Session& session, const LinearCopy& copy) {
  return copy.bytes >= kLeastQueued && CopyUnderWay::Count() == 0 && MayWatchWords() &&
         session.connection().callback_words() != nullptr && !refused.load(std::memory_order_relaxed);
}

CUresult CopyQueued(Session& session, const LinearCopy& copy, uint64_t* moved) {
  *moved = 0;
  QueuedCopy queued(session, copy);
  return queued.Begin() ? queued.Run(moved) : queued.result();
}

}  // namespace causeway::guest
