// SPDX-License-Identifier: Apache-2.0
// The pipeline of a copy in pieces.
#include "guest_lib/staged_copy.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "guest_lib/context.h"
#include "guest_lib/copy_threads.h"

namespace causeway::guest {
namespace {

constexpr uint32_t kWindow = 6;               // pieces of one copy on their way
constexpr uint64_t kUnitBytes = 64u << 10;    // what one thread copies at a time, some 5 µs
constexpr uint64_t kSmallPiece = 256u << 10;  // of a copy that is over in a few
constexpr uint64_t kLargePiece = 512u << 10;  // the window of them stays in the processor's cache
constexpr uint64_t kLargeCopy = 2u << 20;
constexpr uint64_t kBytesPerHelper = 512u << 10;  // fewer are copied before a helper has woken up

// Copies of the process that are under way: each may have its share of the buffers.
std::atomic<uint32_t> copies_under_way{0};

uint64_t DivideUp(uint64_t value, uint64_t by) {
  return (value + by - 1) / by;
}

// The host starts the next piece before it answers this one. It cannot where no memory is shared, must not
// where the driver has to say what a capture makes of the call, and need not for a single piece.
bool IsStaged(Session& session, bool captures_source, uint64_t bytes) {
  return session.transport().shares_memory() && !captures_source && !AnyCapture() && bytes > kSmallPiece;
}

// Copies the bytes [begin, end) of a packed piece, to or from the program's rows.
void CopyPart(const HostRows& rows, const Piece& piece, uint64_t begin, uint64_t end, std::byte* packed,
              bool to_packed) {
  while (begin < end) {
    const uint64_t line = begin / piece.width, column = begin % piece.width;
    const uint64_t bytes = std::min(piece.width - column, end - begin);
    std::byte* own = rows.first + (piece.slice + line / piece.height) * rows.slice_pitch +
                     (piece.row + line % piece.height) * rows.pitch + piece.column + column;
    to_packed ? std::memcpy(packed + begin, own, bytes) : std::memcpy(own, packed + begin, bytes);
    begin += bytes;
  }
}

// Each piece has a buffer from Open to Close. Counters of pieces, each behind the one before it:
//   to the device: opened_ (units offered), sent_ (all units copied), closed_ (answered)
//   to the host:   opened_ = sent_, answered_ (units offered), closed_ (all units copied)
class Pipeline final : public CopyJob {
 public:
  Pipeline(const HostRows& rows, const Cut& cut, bool to_device, Op op, bool staged,
           const std::function<void(Writer&, const Piece&)>& put)
      : rows_(rows), cut_(cut), to_device_(to_device), op_(op), staged_(staged), put_(put) {
    copies_under_way.fetch_add(1, std::memory_order_relaxed);
  }
  ~Pipeline() override;

  CUresult Run(uint64_t bytes);

 private:
  struct Slot {
    uint32_t buffer;
    Piece piece;
    std::atomic<uint32_t> units_left;
  };
  Slot& At(uint64_t index) { return slots_[index % kWindow]; }
  Session& session() { return lease_.session(); }
  void Do(uint64_t unit) override;
  bool Open();
  void OfferUnits(uint64_t index);
  bool Copied(uint64_t index) { return At(index).units_left.load(std::memory_order_acquire) == 0; }
  CUresult Send(uint64_t index);
  CUresult Collect();
  void Close() { session().ReleaseBulk(At(closed_++).buffer); }
  bool AdvanceToDevice();
  bool AdvanceToHost();
  void Pause();

  const HostRows& rows_;
  const Cut& cut_;
  const bool to_device_;
  const Op op_;
  const bool staged_;
  const std::function<void(Writer&, const Piece&)>& put_;
  ChannelLease lease_;
  CUresult result_ = CUDA_SUCCESS;
  uint64_t count_ = 0, units_per_piece_ = 1;
  uint64_t opened_ = 0, sent_ = 0, answered_ = 0, closed_ = 0;
  uint32_t idle_ = 0;
  Slot slots_[kWindow] = {};
};

Pipeline::~Pipeline() {
  Leave();
  while (answered_ < sent_) Collect();
  while (closed_ < opened_) Close();
  copies_under_way.fetch_sub(1, std::memory_order_relaxed);
}

void Pipeline::Do(uint64_t unit) {
  Slot& slot = At(unit / units_per_piece_);
  const uint64_t bytes = slot.piece.bytes(), part = DivideUp(DivideUp(bytes, units_per_piece_), 64) * 64;
  const uint64_t begin = std::min(unit % units_per_piece_ * part, bytes), end = std::min(begin + part, bytes);
  CopyPart(rows_, slot.piece, begin, end, session().bulk(slot.buffer).bytes, to_device_);
  slot.units_left.fetch_sub(1, std::memory_order_release);  // partner: Copied
}

// The next piece gets a buffer. False: none is left, or this copy has its share.
bool Pipeline::Open() {
  const uint32_t share = std::max(1u, kBulkBuffers / copies_under_way.load(std::memory_order_relaxed));
  if (opened_ == count_ || opened_ - closed_ >= std::min(kWindow, share)) return false;
  Slot& slot = At(opened_);
  if (opened_ == closed_) {
    slot.buffer = session().AcquireBulk();
  } else if (!session().TryAcquireBulk(&slot.buffer)) {
    return false;
  }
  slot.piece = cut_.At(opened_++);
  if (to_device_) OfferUnits(opened_ - 1);
  return true;
}

void Pipeline::OfferUnits(uint64_t index) {
  // Seen by whoever takes the units that Offer publishes.
  At(index).units_left.store(static_cast<uint32_t>(units_per_piece_), std::memory_order_relaxed);
  Offer((index + 1) * units_per_piece_);
}

CUresult Pipeline::Send(uint64_t index) {
  const Slot& slot = At(index);
  Writer w = lease_.Begin(sizeof(BoxBody));
  if (w.ok()) put_(w, slot.piece);
  uint16_t flags = to_device_ ? kBulkToHost : kBulkToGuest;
  if (staged_) flags |= index + 1 == count_ ? kStaged | kStagedLast : kStaged;
  const CUresult result = lease_.Send(op_, w, flags, session().bulk(slot.buffer).offset,
                                      static_cast<uint32_t>(slot.piece.bytes()));
  if (result == CUDA_SUCCESS) ++sent_;
  return result;
}

CUresult Pipeline::Collect() {
  Reader none;
  uint32_t bytes = 0;
  const uint64_t asked = At(answered_++).piece.bytes();
  const CUresult result = lease_.Await(&none, &bytes);
  return result == CUDA_SUCCESS && !to_device_ && bytes != asked ? CUDA_ERROR_UNKNOWN : result;
}

// True: something went on.
bool Pipeline::AdvanceToDevice() {
  bool moved = false;
  for (; result_ == CUDA_SUCCESS && sent_ < opened_ && Copied(sent_); moved = true) result_ = Send(sent_);
  for (; result_ == CUDA_SUCCESS && answered_ < sent_ && lease_.ReplyReady(); moved = true) {
    result_ = Collect();
    Close();
  }
  return moved;
}

bool Pipeline::AdvanceToHost() {
  bool moved = false;
  for (; result_ == CUDA_SUCCESS && sent_ < opened_; moved = true) result_ = Send(sent_);
  for (; result_ == CUDA_SUCCESS && answered_ < sent_ && lease_.ReplyReady(); moved = true) {
    result_ = Collect();
    if (result_ == CUDA_SUCCESS) OfferUnits(answered_ - 1);
  }
  for (; closed_ < answered_ && Copied(closed_); moved = true) Close();
  return moved;
}

// Nothing to do for this thread: the device has all, or helpers have.
void Pipeline::Pause() {
  constexpr uint32_t kSpins = 1000;
  const bool helped = to_device_ ? sent_ < opened_ : closed_ < answered_;
  if (helped) {
    ++idle_ < kSpins ? _mm_pause() : static_cast<void>(sched_yield());
  } else if (to_device_) {
    result_ = Collect();
    Close();
  } else {
    result_ = Collect();
    if (result_ == CUDA_SUCCESS) OfferUnits(answered_ - 1);
  }
}

CUresult Pipeline::Run(uint64_t bytes) {
  count_ = cut_.count();
  units_per_piece_ = DivideUp(cut_.At(0).bytes(), kUnitBytes);
  result_ = lease_.error();
  if (result_ != CUDA_SUCCESS) return result_;
  Join(static_cast<uint32_t>(std::min<uint64_t>(bytes / kBytesPerHelper, PipelineThreadCount() - 1)));
  while (result_ == CUDA_SUCCESS && closed_ < count_) {
    bool moved = false;
    while (Open()) moved = true;
    moved |= to_device_ ? AdvanceToDevice() : AdvanceToHost();
    if (!moved) moved = DoOne();
    if (moved) {
      idle_ = 0;
    } else if (result_ == CUDA_SUCCESS && closed_ < count_) {
      Pause();
    }
  }
  return result_;
}

}  // namespace

Cut::Cut(const HostRows& rows, uint64_t most_bytes) : rows_(rows) {
  const uint64_t slice = rows.width * rows.height;
  width_ = std::min(rows.width, most_bytes);
  height_ = std::clamp<uint64_t>(most_bytes / rows.width, 1, rows.height);
  depth_ = slice <= most_bytes ? std::clamp<uint64_t>(most_bytes / slice, 1, rows.depth) : 1;
  across_ = DivideUp(rows.width, width_);
  down_ = DivideUp(rows.height, height_);
  deep_ = DivideUp(rows.depth, depth_);
}

Piece Cut::At(uint64_t index) const {
  Piece piece{};
  piece.column = index % across_ * width_;
  piece.row = index / across_ % down_ * height_;
  piece.slice = index / across_ / down_ * depth_;
  piece.width = std::min(width_, rows_.width - piece.column);
  piece.height = std::min(height_, rows_.height - piece.row);
  piece.depth = std::min(depth_, rows_.depth - piece.slice);
  return piece;
}

CUresult CopyStaged(const HostRows& rows, bool to_device, CopyForm form, Op op,
                    const std::function<void(Writer&, const Piece&)>& put) {
  const uint64_t bytes = rows.width * rows.height * rows.depth;
  Session* session = Session::Get();
  if (session == nullptr) return InitialisedOrError();
  const bool staged = IsStaged(*session, CapturesSource(to_device, form, bytes), bytes);
  const uint64_t piece = !staged ? kBulkBytes : bytes <= kLargeCopy ? kSmallPiece : kLargePiece;
  const Cut cut(rows, piece);
  Pipeline pipeline(rows, cut, to_device, op, staged, put);
  return pipeline.Run(bytes);
}

}  // namespace causeway::guest
