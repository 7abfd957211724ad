// SPDX-License-Identifier: Apache-2.0
#include <liburing.h>
#include <sys/socket.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "tests/bench/payload/ends.h"

namespace causeway::payload {
namespace {

// Of Linux 6.2, which the headers of liburing 2.3 do not have yet: a notice says whether the kernel has copied.
constexpr unsigned kReportUsage = 1u << 3;   // IORING_SEND_ZC_REPORT_USAGE
constexpr unsigned kUsageCopied = 1u << 31;  // IORING_NOTIF_USAGE_ZC_COPIED

constexpr unsigned kEntries = 64;
// Requests that are handed over together. Two of one socket that run side by side would mix their bytes, so that the second is linked: it begins
// when the first has all of its own.
constexpr size_t kTogether = 2;

bool KernelReportsUsage() {
  utsname names{};
  unsigned major = 0, minor = 0;
  uname(&names);
  if (std::sscanf(names.release, "%u.%u", &major, &minor) != 2) return false;
  return major > 6 || (major == 6 && minor >= 2);
}

class Ring {
 public:
  ~Ring() {
    if (open_) io_uring_queue_exit(&ring_);
  }
  Outcome Open() {
    // What completes is worked on when this thread waits for it, without an interrupt: since Linux 6.1.
    int error =
        io_uring_queue_init(kEntries, &ring_, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
    if (error == -EINVAL) error = io_uring_queue_init(kEntries, &ring_, 0);
    if (error != 0) return Refused("io_uring_setup", -error);
    open_ = true;
    return {};
  }
  io_uring* get() { return &ring_; }
  io_uring_sqe* Next() { return io_uring_get_sqe(&ring_); }  // never null: no more than kTogether wait
  // Hands over what waits, and waits for so many completions.
  Outcome Submit(size_t wait_for) {
    const int submitted = io_uring_submit_and_wait(&ring_, static_cast<unsigned>(wait_for));
    if (submitted < 0 && submitted != -EINTR) return Refused("io_uring_enter", -submitted);
    return {};
  }
  // Null: nothing has completed within the time, or *outcome says why nothing will.
  io_uring_cqe* Await(int64_t seconds, Outcome* outcome) {
    io_uring_cqe* completed = nullptr;
    __kernel_timespec patience{seconds, 0};
    int error;
    do error = io_uring_wait_cqe_timeout(&ring_, &completed, &patience);
    while (error == -EINTR);
    if (error != 0 && error != -ETIME) *outcome = Refused("io_uring_enter", -error);
    return error == 0 ? completed : nullptr;
  }
  void Seen(io_uring_cqe* completed) { io_uring_cqe_seen(&ring_, completed); }

 private:
  io_uring ring_{};
  bool open_ = false;
};

constexpr int64_t kPatienceS = 60, kNoticePatienceS = 5;

class UringSender final : public SendingEnd {
 public:
  UringSender(Sends sends, int fd, std::span<std::byte> memory) : sends_(sends), fd_(fd), memory_(memory) {}

  Outcome Open() {
    if (Outcome outcome = ring_.Open(); !outcome.done()) return outcome;
    notices_.tells_copies = KernelReportsUsage();
    if (sends_ != Sends::kUringRegistered) return {};
    std::vector<iovec> buffers;
    for (size_t at = 0; at < memory_.size(); at += kBufferBytes)
      buffers.push_back({&memory_[at], std::min(kBufferBytes, memory_.size() - at)});
    const int error =
        io_uring_register_buffers(ring_.get(), buffers.data(), static_cast<unsigned>(buffers.size()));
    if (error != 0) return Refused("io_uring_register_buffers (ulimit -l bounds it)", -error);
    return {};
  }

  Outcome Send(std::span<const std::span<const std::byte>> pieces) override {
    for (size_t at = 0; at < pieces.size(); at += kTogether) {
      const auto chain = pieces.subspan(at, std::min(kTogether, pieces.size() - at));
      for (const auto& piece : chain) Prepare(piece, &piece == &chain.back());
      unanswered_ = chain.size();
      Outcome outcome = ring_.Submit(chain.size());
      while (outcome.done() && unanswered_ > 0) outcome = TakeOne(kPatienceS);
      if (!outcome.done()) return outcome;
    }
    return {};
  }

  Outcome AwaitUnused() override {
    Outcome outcome;
    while (outcome.done() && unused_later_ > 0) outcome = TakeOne(kNoticePatienceS);
    return outcome;
  }

  Notices notices() const override { return notices_; }

 private:
  static constexpr size_t kBufferBytes = 512u << 20;  // the kernel registers a GiB at most at once

  void Prepare(std::span<const std::byte> piece, bool is_last) {
    io_uring_sqe* const request = ring_.Next();
    const unsigned usage = notices_.tells_copies ? kReportUsage : 0;
    const int flags = MSG_WAITALL | MSG_NOSIGNAL;
    const auto index =
        static_cast<unsigned>(static_cast<size_t>(piece.data() - memory_.data()) / kBufferBytes);
    if (sends_ == Sends::kUringSend)
      io_uring_prep_send(request, fd_, piece.data(), piece.size(), flags);
    else if (sends_ == Sends::kUringZeroCopy)
      io_uring_prep_send_zc(request, fd_, piece.data(), piece.size(), flags, usage);
    else
      io_uring_prep_send_zc_fixed(request, fd_, piece.data(), piece.size(), flags, usage, index);
    if (!is_last) request->flags |= IOSQE_IO_LINK;
    request->user_data = piece.size();
  }

  // A completion says that the socket has taken a piece, or that the kernel does not need its memory any more.
  Outcome TakeOne(int64_t patience_s) {
    Outcome outcome;
    io_uring_cqe* const completed = ring_.Await(patience_s, &outcome);
    if (!outcome.done()) return outcome;
    if (completed == nullptr)
      return {unanswered_ > 0 ? Status::kFailed : Status::kLacks,
              "the kernel has not told in time that it is done with the memory"};
    if ((completed->flags & IORING_CQE_F_NOTIF) != 0) {
      --unused_later_;
      ++notices_.told;
      if ((static_cast<unsigned>(completed->res) & kUsageCopied) != 0) ++notices_.copied;
    } else {
      --unanswered_;
      if ((completed->flags & IORING_CQE_F_MORE) != 0) ++unused_later_;
      if (completed->res < 0)
        outcome = Refused("a send by io_uring", -completed->res);
      else if (static_cast<uint64_t>(completed->res) != completed->user_data)
        outcome = {Status::kFailed, "io_uring has sent a piece in part"};
    }
    ring_.Seen(completed);
    return outcome;
  }

  const Sends sends_;
  const int fd_;
  const std::span<std::byte> memory_;
  Ring ring_;
  size_t unanswered_ = 0, unused_later_ = 0;
  Notices notices_;
};

class UringReceiver final : public ReceivingEnd {
 public:
  explicit UringReceiver(std::span<std::byte> staging) : staging_(staging) {}
  Outcome Open() { return ring_.Open(); }

  Outcome Receive(int fd, uint64_t bytes, const Taker& take) override {
    for (uint64_t at = 0; at < bytes;) {
      const size_t count = std::min<uint64_t>(kTogether, (bytes - at) / kPieceBytes);
      for (size_t i = 0; i < count; ++i) {
        io_uring_sqe* const request = ring_.Next();
        io_uring_prep_recv(request, fd, Piece(at + i * kPieceBytes).data(), kPieceBytes, MSG_WAITALL);
        if (i + 1 < count) request->flags |= IOSQE_IO_LINK;
      }
      Outcome outcome = ring_.Submit(1);
      for (size_t i = 0; i < count && outcome.done(); ++i) {
        outcome = TakeOne();
        if (take && outcome.done()) take(at, Piece(at));
        at += kPieceBytes;
      }
      if (!outcome.done()) return outcome;
    }
    return {};
  }

 private:
  std::span<std::byte> Piece(uint64_t at) const {
    return staging_.subspan(at % staging_.size(), kPieceBytes);
  }

  Outcome TakeOne() {
    Outcome outcome;
    io_uring_cqe* const completed = ring_.Await(kPatienceS, &outcome);
    if (!outcome.done()) return outcome;
    if (completed == nullptr) return {Status::kFailed, "nothing has come for a minute"};
    if (completed->res < 0)
      outcome = Refused("a receive by io_uring", -completed->res);
    else if (static_cast<size_t>(completed->res) != kPieceBytes)
      outcome = {Status::kFailed, "the stream has ended early"};
    ring_.Seen(completed);
    return outcome;
  }

  const std::span<std::byte> staging_;
  Ring ring_;
};

// One request stays and takes a buffer for whatever has come, up to the buffer's size. So a piece of a copy comes in parts of any
// length, which do not lie one behind the other: a session could not hand it to the driver as one copy.
class MultishotReceiver final : public ReceivingEnd {
 public:
  explicit MultishotReceiver(std::span<std::byte> staging) : staging_(staging) {}

  Outcome Open() {
    if (Outcome outcome = ring_.Open(); !outcome.done()) return outcome;
    io_uring_buf_reg registration{};
    registration.ring_addr = reinterpret_cast<uintptr_t>(memory_);
    registration.ring_entries = kBuffers;
    const int error = io_uring_register_buf_ring(ring_.get(), &registration, 0);
    if (error != 0) return Refused("io_uring_register_buf_ring", -error);
    io_uring_buf_ring_init(buffers_);
    for (size_t i = 0; i < std::min(kBuffers, staging_.size() / kWireBytes); ++i) Provide(i);
    return {};
  }

  Outcome Receive(int fd, uint64_t bytes, const Taker& take) override {
    for (uint64_t at = 0; at < bytes;) {
      if (!stays_) {
        io_uring_sqe* const request = ring_.Next();
        io_uring_prep_recv_multishot(request, fd, nullptr, 0, 0);
        request->flags |= IOSQE_BUFFER_SELECT;
        if (Outcome outcome = ring_.Submit(0); !outcome.done()) return outcome;
        stays_ = true;
      }
      if (Outcome outcome = TakeOne(take, &at); !outcome.done()) return outcome;
    }
    return {};
  }

 private:
  static constexpr size_t kBuffers = 64, kPageBytes = 4096;
  static_assert(kBuffers * sizeof(io_uring_buf) <= kPageBytes);

  std::span<std::byte> Buffer(size_t index) const { return staging_.subspan(index * kWireBytes, kWireBytes); }
  void Provide(size_t index) {
    io_uring_buf_ring_add(buffers_, Buffer(index).data(), kWireBytes, static_cast<unsigned short>(index),
                          io_uring_buf_ring_mask(kBuffers), 0);
    io_uring_buf_ring_advance(buffers_, 1);
  }

  Outcome TakeOne(const Taker& take, uint64_t* at) {
    Outcome outcome;
    io_uring_cqe* const completed = ring_.Await(kPatienceS, &outcome);
    if (!outcome.done()) return outcome;
    if (completed == nullptr) return {Status::kFailed, "nothing has come for a minute"};
    if ((completed->flags & IORING_CQE_F_MORE) == 0) stays_ = false;
    if (completed->res == 0) outcome = {Status::kFailed, "the stream has ended early"};
    if (completed->res < 0 && completed->res != -ENOBUFS)
      outcome = Refused("a receive by io_uring", -completed->res);
    if (completed->res > 0) {
      const size_t index = completed->flags >> IORING_CQE_BUFFER_SHIFT;
      const auto bytes = static_cast<size_t>(completed->res);
      if (take) take(*at, Buffer(index).first(bytes));
      *at += bytes;
      Provide(index);
    }
    ring_.Seen(completed);
    return outcome;
  }

  const std::span<std::byte> staging_;
  alignas(kPageBytes) std::byte memory_[kPageBytes];  // of *buffers_, and in use until the ring ends
  io_uring_buf_ring* const buffers_ = reinterpret_cast<io_uring_buf_ring*>(memory_);
  Ring ring_;
  bool stays_ = false;
};

template <typename End, typename... Arguments>
std::unique_ptr<End> Make(Outcome* outcome, Arguments... arguments) {
  auto end = std::make_unique<End>(arguments...);
  *outcome = end->Open();
  return outcome->done() ? std::move(end) : nullptr;
}

}  // namespace

std::unique_ptr<SendingEnd> MakeUringSendingEnd(Sends sends, int fd, std::span<std::byte> memory,
                                                Outcome* outcome) {
  return Make<UringSender>(outcome, sends, fd, memory);
}

std::unique_ptr<ReceivingEnd> MakeUringReceivingEnd(Receives receives, std::span<std::byte> staging,
                                                    Outcome* outcome) {
  if (receives == Receives::kUringMultishot) return Make<MultishotReceiver>(outcome, staging);
  return Make<UringReceiver>(outcome, staging);
}

}  // namespace causeway::payload
