// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/staging/staged_copy.h"

#include <sched.h>
#include <xmmintrin.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "guest_lib/addresses/private_host.h"
#include "guest_lib/memory/memory.h"
#include "guest_lib/process/copy_past_caches.h"
#include "guest_lib/process/copy_threads.h"
#include "guest_lib/session/captures.h"
#include "guest_lib/session/context.h"
#include "guest_lib/staging/posted_copy.h"
#include "guest_lib/staging/queued_copy.h"
#include "guest_lib/staging/staging_places.h"
#include "guest_lib/stream/completion.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/messages/registration.h"
#include "ivshmem_ring/transport/flight_recorder.h"

namespace causeway::guest {
namespace {

constexpr uint32_t kWindow = StagingPlaces::kMostPlaces;  // pieces of one copy that have a place
// A piece that the GPU tells the end of; how many of them it has or is about to have; in how many buffers.
// Beside its bytes each costs the device some 6 µs, of 16; a small copy of others waits for one of them.
constexpr uint64_t kWordPiece = 512u << 10;
constexpr uint32_t kMostPosted = 2;
constexpr uint32_t kWordBuffers = kBulkBuffers - 1;
constexpr uint32_t kFirstPieces = 4;   // until the first one is back
constexpr uint32_t kReplyBuffers = 6;  // of pieces that are requests, a buffer each
constexpr uint64_t kLeastWordPiece = 128u << 10;
constexpr uint64_t kStep = 32u << 10;             // some 3 µs of one thread
constexpr uint64_t kPastCaches = 4u << 20;        // copies to the host that an L2 cache would not hold
constexpr uint64_t kJudgedPieces = 16;            // after so many the number of helpers may change
constexpr uint64_t kBytesPerHelper = 512u << 10;  // fewer are copied before a helper has woken up

// Helpers that copies of either direction began or ended with: what the last one found to be enough.
std::atomic<uint32_t>& HelpersOf(bool to_device) {
  static std::atomic<uint32_t> helpers[] = {PipelineThreadCount() - 1, PipelineThreadCount() - 1};
  return helpers[to_device ? 1 : 0];
}

// The host starts the next piece before it answers this one. It must not where the driver has to say what a capture
// makes of the call, and need not for a single piece.
bool IsStaged(bool captures_source, uint64_t bytes) {
  return !captures_source && !AnyCapture() && bytes > kMostUncut;
}

// Copies the bytes [begin, end) of a packed piece, to or from the program's rows.
void CopyPart(const HostRows& rows, const Piece& piece, uint64_t begin, uint64_t end, std::byte* packed,
              bool to_packed, bool past_caches) {
  const auto copy = [=](std::byte* to, const std::byte* from, uint64_t bytes) {
    past_caches ? CopyPastCaches(to, from, bytes) : static_cast<void>(std::memcpy(to, from, bytes));
  };
  while (begin < end) {
    const uint64_t line = begin / piece.width, column = begin % piece.width;
    const uint64_t bytes = std::min(piece.width - column, end - begin);
    std::byte* own = rows.first + (piece.slice + line / piece.height) * rows.slice_pitch +
                     (piece.row + line % piece.height) * rows.pitch + piece.column + column;
    to_packed ? copy(packed + begin, own, bytes) : copy(own, packed + begin, bytes);
    begin += bytes;
  }
}

// How pieces travel: they are sent, and done, in order.
class PieceLink {
 public:
  PieceLink(Session& its_session, bool words, uint32_t most_sent)
      : session(its_session), by_words(words), most(most_sent) {}
  virtual ~PieceLink() = default;
  Session& session;
  const bool by_words;  // whose end the GPU tells
  const uint32_t most;  // sent and not yet done
  // The piece's bytes are at `offset` of the buffer.
  virtual CUresult Send(uint32_t buffer, uint32_t offset, const Piece& piece, bool last) = 0;
  // Whether Take would return at once.
  virtual bool Ready() = 0;
  // Waits for the oldest.
  virtual CUresult Take() = 0;
  // No more is sent, and nobody waits for what the device has of the buffer. True: it is not the caller's any
  // more. False: the device is done with it.
  virtual bool Leave(uint32_t buffer) = 0;
};

// Requests of one channel: several are sent ahead of their replies.
class ReplyLink final : public PieceLink {
 public:
  ReplyLink(ChannelLease& lease, bool to_device, Op op, bool staged, const Submission& submission,
            const std::function<void(Writer&, const Piece&)>& put)
      : PieceLink(lease.session(), false, kWindow),
        lease_(lease),
        to_device_(to_device),
        op_(op),
        staged_(staged),
        submission_(submission),
        put_(put) {}

  bool Ready() override { return lease_.ReplyReady(); }
  bool Leave(uint32_t) override {
    while (taken_ < sent_) Take();
    return false;
  }

  // Whole buffers: elsewhere they are not known by their offset.
  CUresult Send(uint32_t buffer, uint32_t, const Piece& piece, bool last) override {
    return SendFrom(buffer, nullptr, piece, last);
  }
  // `own` not null: the bytes are there, in the program's memory, and the buffer is but a name.
  CUresult SendFrom(uint32_t buffer, std::byte* own, const Piece& piece, bool last) {
    Writer w = lease_.Begin(sizeof(BoxBody));
    if (w.ok()) put_(w, piece);
    uint16_t flags = to_device_ ? kBulkToHost : kBulkToGuest;
    if (staged_) flags |= last ? kStaged | kStagedLast : kStaged;
    const auto bytes = static_cast<uint32_t>(piece.bytes());
    if (own != nullptr && w.ok()) lease_.LendOwn(own);
    const CUresult result = lease_.Send(op_, w, flags, session.bulk(buffer).offset, bytes, submission_);
    if (result == CUDA_SUCCESS) asked_[sent_++ % kWindow] = bytes;
    return result;
  }

  CUresult Take() override {
    Reader none;
    uint32_t bytes = 0;
    const uint32_t asked = asked_[taken_++ % kWindow];
    const CUresult result = lease_.Await(&none, &bytes);
    return result == CUDA_SUCCESS && !to_device_ && bytes != asked ? CUDA_ERROR_UNKNOWN : result;
  }

 private:
  ChannelLease& lease_;
  const bool to_device_;
  const Op op_;
  const bool staged_;
  const Submission& submission_;
  const std::function<void(Writer&, const Piece&)>& put_;
  uint32_t asked_[kWindow] = {};
  uint64_t sent_ = 0, taken_ = 0;
};

// Posted records, whose end the GPU tells. A word is looked at for as long as a waiting thread spins, and
// once a piece is through, so that the next ones follow, somewhat longer; then the host is asked for the
// stream, which sleeps for as long as that has other work, and tells what went wrong.
class WordLink final : public PieceLink {
 public:
  WordLink(Session& its_session, const ResolvedStream& stream, LinearCopy& copy)
      : PieceLink(its_session, true, kMostPosted), stream_(stream), copy_(copy) {
    // Copies that nobody waits for leave nothing behind that others would have to wait for.
    if (copy.form != CopyForm::kSynchronous) submission_ = stream.submission();
    submission_.is_copy = copy.to_device && copy.form == CopyForm::kSynchronous;
    submission_.is_apart = true;  // CopyPiecesByFences has seen to that
  }

  bool Ready() override { return taken_ < known_done_ || IsBack(Oldest()); }

  CUresult Send(uint32_t buffer, uint32_t offset, const Piece& piece, bool last) override {
    LentBuffer lent{buffer, offset};
    const CopyBody body{copy_.device + piece.column, piece.width, 0, copy_.form, BytesIn::kRegion};
    const CUresult result =
        PostLent(session, body, stream_, submission_, copy_.to_device, copy_.leaves && last, &lent);
    if (result != CUDA_SUCCESS) return result;
    copy_.posts = std::max(copy_.posts, lent.mark);
    lent_[sent_++ % kWindow] = lent;
    if (copy_.form == CopyForm::kSynchronous) Hurry();  // this thread goes on with the next piece
    return CUDA_SUCCESS;
  }

  CUresult Take() override {
    CUresult result = CUDA_SUCCESS;
    constexpr uint64_t kPatienceUs = 20'000;
    if (!Ready() && !AwaitBack(Oldest(), taken_ > 0 ? kPatienceUs : 0)) {
      result = AskForStream(stream_.handle());
      if (result == CUDA_SUCCESS) {
        if (!Ready()) NoteUselessWords();
        known_done_ = sent_;
      }
    }
    ++taken_;
    return result;
  }

  bool Leave(uint32_t buffer) override {
    for (uint64_t i = sent_; i-- > taken_;) {
      const LentBuffer& lent = lent_[i % kWindow];
      if (lent.index != buffer) continue;
      if (LeaveLent(session, lent)) return true;
      break;
    }
    // What others have left takes all that may be left.
    while (taken_ < sent_) Take();
    return false;
  }

 private:
  const LentBuffer& Oldest() const { return lent_[taken_ % kWindow]; }

  const ResolvedStream stream_;
  LinearCopy& copy_;
  Submission submission_;
  LentBuffer lent_[kWindow] = {};
  uint64_t sent_ = 0, taken_ = 0, known_done_ = 0;
};

// Each piece has a place in a buffer from Open to Close. Counters of pieces, each behind the one before it:
//   to the device: opened_ (units offered), sent_ (all units copied), answered_ = closed_
//   to the host:   opened_ = sent_, answered_ (units offered), closed_ (all units copied)
class Pipeline final : public CopyJob {
 public:
  Pipeline(PieceLink& link, const HostRows& rows, Cut cut, bool to_device, bool leaves)
      : link_(link),
        rows_(rows),
        cut_(cut),
        to_device_(to_device),
        leaves_(leaves),
        past_caches_(to_device || rows.width * rows.height * rows.depth >= kPastCaches),
        units_(to_device && link.by_words ? 1 : 16),
        places_(link.session, link.by_words ? kWordBuffers : kReplyBuffers,
                link.by_words ? kWordPiece : kBulkBytes) {}
  ~Pipeline() override;

  CUresult Run(uint64_t bytes);

 private:
  struct Slot {
    uint32_t place;
    bool last;
    Piece piece;
    std::atomic<uint32_t> units_left;
  };
  Slot& At(uint64_t index) { return slots_[index % kWindow]; }
  void Do(uint64_t unit) override;
  bool IsOver() const { return cut_.done() && (leaves_ ? sent_ : closed_) == opened_; }
  bool Open();
  void OfferUnits(uint64_t index);
  bool Copied(uint64_t index) { return At(index).units_left.load(std::memory_order_acquire) == 0; }
  bool MaySend() const { return sent_ < opened_ && sent_ - answered_ < link_.most; }
  void Send();
  void Take();
  void Close() { places_.Give(At(closed_++).place); }
  bool Advance();
  void Pause();
  void Judge();

  PieceLink& link_;
  const HostRows& rows_;
  Cut cut_;
  const bool to_device_, leaves_;
  // The device reads at half of its rate what lies changed in processors' caches.
  const bool past_caches_;
  // Of a piece, each done by one thread. A piece to the device is filled by one thread while others fill
  // others; of one to the host all threads take parts as soon as it is there.
  const uint32_t units_;
  StagingPlaces places_;
  CUresult result_ = CUDA_SUCCESS;
  uint64_t opened_ = 0, sent_ = 0, answered_ = 0, closed_ = 0;
  uint32_t idle_ = 0;
  uint64_t idle_ticks_ = 0;  // of this thread, waiting for others
  uint32_t starved_ = 0;     // how often the device had nothing left when it got a piece
  struct {
    uint64_t answered = 0, ticks = 0, idle_ticks = 0;
    uint32_t starved = 0;
  } judged_;
  Slot slots_[kWindow] = {};
};

Pipeline::~Pipeline() {
  CopyJob::Leave();
  places_.DropBuffers([&](uint32_t buffer) {
    if (!link_.Leave(buffer)) link_.session.ReleaseBulk(buffer);
  });
}

void Pipeline::Do(uint64_t unit) {
  Slot& slot = At(unit / units_);
  const bool owner = CopyThreadNumber() == 0;
  const uint64_t bytes = slot.piece.bytes(), part = DivideUp(DivideUp(bytes, units_), 64) * 64;
  const uint64_t begin = std::min(unit % units_ * part, bytes), end = std::min(begin + part, bytes);
  std::byte* packed = places_.bytes(slot.place);
  for (uint64_t at = begin; at < end; at += kStep) {
    if (at > begin && owner) Advance();  // looks after the device meanwhile
    CopyPart(rows_, slot.piece, at, std::min(at + kStep, end), packed, to_device_, past_caches_);
  }
  slot.units_left.fetch_sub(1, std::memory_order_release);  // partner: Copied
}

// The next piece gets a place. False: none is left, or this copy has its share.
bool Pipeline::Open() {
  if (cut_.done()) return false;
  if (!to_device_ && opened_ - answered_ >= link_.most) return false;  // it could not be sent
  // The stream may have other work for long, while others need buffers.
  if (answered_ == 0 && opened_ == kFirstPieces) return false;
  Slot& slot = At(opened_);
  if (opened_ - closed_ == kWindow || !places_.Take(&slot.place)) return false;
  slot.piece = cut_.Next();
  slot.last = cut_.done();
  ++opened_;
  if (to_device_) OfferUnits(opened_ - 1);
  return true;
}

void Pipeline::OfferUnits(uint64_t index) {
  // Seen by whoever takes the units that Offer publishes.
  At(index).units_left.store(units_, std::memory_order_relaxed);
  Offer((index + 1) * units_);
}

void Pipeline::Send() {
  const Slot& slot = At(sent_);
  if (sent_ == answered_) ++starved_;
  result_ = link_.Send(places_.buffer(slot.place), places_.offset(slot.place), slot.piece, slot.last);
  if (result_ == CUDA_SUCCESS) ++sent_;
}

void Pipeline::Take() {
  result_ = link_.Take();
  if (++answered_ - judged_.answered >= kJudgedPieces) Judge();
  if (to_device_) {
    Close();
  } else if (result_ == CUDA_SUCCESS) {
    OfferUnits(answered_ - 1);
  }
}

// True: something went on.
bool Pipeline::Advance() {
  bool moved = false;
  while (result_ == CUDA_SUCCESS && answered_ < sent_ && link_.Ready()) {
    Take();
    moved = true;
  }
  while (result_ == CUDA_SUCCESS && MaySend() && (!to_device_ || Copied(sent_))) {
    Send();
    moved = true;
  }
  for (; !to_device_ && closed_ < answered_ && Copied(closed_); moved = true) Close();
  return moved;
}

// One helper more while the device waits for pieces, one less if all threads together have waited for longer
// than the pieces took. What was seen while the copy began does not count.
void Pipeline::Judge() {
  const uint64_t now = FlightTicks(), idle = idle_ticks_ + helpers_idle_ticks();
  const uint64_t took = now - judged_.ticks;
  const bool first = judged_.ticks == 0;
  uint32_t wanted = helpers();
  if (!first && starved_ - judged_.starved > kJudgedPieces / 2) {
    wanted = std::min(wanted + 1, MostPipelineThreads() - 1);
  } else if (!first && wanted > 0 && idle - judged_.idle_ticks > took + took / 8) {
    --wanted;
  }
  if (wanted != helpers() && CopyUnderWay::Count() == 1) {
    ChangeHelpers(wanted);
    HelpersOf(to_device_).store(wanted, std::memory_order_relaxed);
  }
  judged_ = {answered_, now, idle, starved_};
}

// Nothing to do for this thread: helpers have it, or the device.
void Pipeline::Pause() {
  constexpr uint32_t kSpins = 1000;
  const uint64_t since = FlightTicks();
  const bool helped = to_device_ ? MaySend() : closed_ < answered_;
  if (helped) {
    ++idle_ < kSpins ? _mm_pause() : static_cast<void>(sched_yield());
  } else if (answered_ < sent_) {
    Take();
  } else {
    sched_yield();  // other copies have all buffers
  }
  idle_ticks_ += FlightTicks() - since;
}

CUresult Pipeline::Run(uint64_t bytes) {
  const uint32_t wanted = HelpersOf(to_device_).load(std::memory_order_relaxed);
  Join(static_cast<uint32_t>(std::min<uint64_t>(bytes / kBytesPerHelper, wanted)));
  while (result_ == CUDA_SUCCESS && !IsOver()) {
    bool moved = false;
    while (Open()) moved = true;
    moved |= Advance();
    if (!moved) moved = DoOne();
    if (moved) {
      idle_ = 0;
    } else if (result_ == CUDA_SUCCESS && !IsOver()) {
      Pause();
    }
  }
  return result_;
}

// Whether the program's bytes lie without gaps, so that each piece does.
bool IsWhole(const HostRows& rows) {
  return (rows.height == 1 || rows.pitch == rows.width) &&
         (rows.depth == 1 || rows.slice_pitch == rows.width * rows.height);
}

// What the program cannot read or write faults here, in its own call, and not in the thread that sends or receives. Bytes stay as
// they are.
void TouchPages(std::byte* first, uint64_t bytes, bool writes) {
  std::byte* const end = first + bytes;
  for (std::byte* at = first; at < end; at += kPageBytes - reinterpret_cast<uintptr_t>(at) % kPageBytes) {
    const std::atomic_ref<uint8_t> byte(*reinterpret_cast<uint8_t*>(at));
    writes ? byte.fetch_or(0) : byte.load(std::memory_order_relaxed);
  }
}

// Over a connection nothing is gained by staging buffers of this process: pieces are sent from the program's memory and received in
// it, and the buffers' numbers say which of the host's they come to. The host copies one piece to or from the device while others are
// under way.
CUresult CopyOwnMemory(ReplyLink& link, const HostRows& rows, Cut cut, bool to_device) {
  StagingPlaces places(link.session, kReplyBuffers, kBulkBytes);
  uint32_t sent[kWindow];
  uint64_t begun = 0, done = 0;
  CUresult result = CUDA_SUCCESS;
  while (done < begun || (result == CUDA_SUCCESS && !cut.done())) {
    uint32_t place = 0;
    if (result == CUDA_SUCCESS && !cut.done() && begun - done < kReplyBuffers && places.Take(&place)) {
      const Piece piece = cut.Next();
      std::byte* own = rows.first + piece.slice * rows.slice_pitch + piece.row * rows.pitch + piece.column;
      TouchPages(own, piece.bytes(), !to_device);
      result = link.SendFrom(places.buffer(place), own, piece, cut.done());
      if (result == CUDA_SUCCESS) {
        sent[begun++ % kWindow] = place;
      } else {
        places.Give(place);
      }
      continue;
    }
    if (done == begun) continue;  // another place comes when one is asked for again
    if (const CUresult taken = link.Take(); result == CUDA_SUCCESS) result = taken;
    places.Give(sent[done++ % kWindow]);
  }
  places.DropBuffers([&](uint32_t buffer) { link.session.ReleaseBulk(buffer); });
  return result;
}

}  // namespace

CUresult CopyStaged(const HostRows& rows, bool to_device, CopyForm form, Op op, const Submission& submission,
                    const std::function<void(Writer&, const Piece&)>& put) {
  const uint64_t bytes = rows.width * rows.height * rows.depth;
  ChannelLease lease;
  if (lease.error() != CUDA_SUCCESS) return lease.error();
  const bool staged = IsStaged(CapturesSource(to_device, form, bytes), bytes);
  ReplyLink link(lease, to_device, op, staged, submission, put);
  const Cut cut(rows, kMostUncut, kBulkBytes, 2);
  if (!link.session.transport().shares_memory() && IsWhole(rows)) {
    const PrivateHostLoan loan(rows.first, bytes);
    if (loan.given()) return CopyOwnMemory(link, rows, cut, to_device);
  }
  Pipeline pipeline(link, rows, cut, to_device, false);
  return pipeline.Run(bytes);
}

namespace {

// A part of it, piece by piece.
CUresult CopyPieces(Session& session, const ResolvedStream& stream, LinearCopy* copy, uint64_t begin,
                    uint64_t bytes) {
  LinearCopy part = *copy;
  part.device += begin;
  part.host += begin;
  part.bytes = bytes;
  part.leaves = copy->leaves && begin + bytes == copy->bytes;
  const HostRows rows{part.host, bytes, 1, 1, bytes, bytes};
  WordLink link(session, stream, part);
  Pipeline pipeline(link, rows, Cut(rows, kLeastWordPiece, kWordPiece, part.to_device ? 4 : 2),
                    part.to_device, part.leaves);
  const CUresult result = pipeline.Run(bytes);
  copy->posts = std::max(copy->posts, part.posts);
  return result;
}

}  // namespace

MaybeResult CopyPiecesByFences(LinearCopy* copy, const ResolvedStream& stream) {
  Session* session = Session::Get();
  if (session == nullptr || copy->bytes <= kMostUncut) return {};
  if (!MayLend(stream) || !(copy->leaves || MayWatchWords()) || !IsApart(copy->device)) return {};
  CUresult result = CUDA_SUCCESS;
  uint64_t done = 0;
  if (MayQueue(*session, *copy)) {
    // The stream may have other work for long.
    if (!copy->idle && !copy->leaves) result = CopyPieces(*session, stream, copy, 0, done = kLeastWordPiece);
    LinearCopy rest = *copy;
    rest.device += done;
    rest.host += done;
    rest.bytes -= done;
    uint64_t moved = 0;
    if (result == CUDA_SUCCESS) result = CopyQueued(*session, rest, &moved);
    done += moved;
  }
  if (result == CUDA_SUCCESS && done < copy->bytes)
    result = CopyPieces(*session, stream, copy, done, copy->bytes - done);
  // A piece that the driver refused.
  return result == CUDA_SUCCESS && !copy->leaves ? session->Check() : result;
}

}  // namespace causeway::guest
