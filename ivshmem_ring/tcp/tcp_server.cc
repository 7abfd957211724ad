// SPDX-License-Identifier: Apache-2.0
// The host's half of the seam over a stream socket. The peer is hostile: every length is checked before
// memory is set aside for it, and what is set aside is bounded by the queues' and bulk buffers' limits.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>

#include "ivshmem_ring/protocol/operation.h"
#include "ivshmem_ring/tcp/tcp_transport.h"
#include "ivshmem_ring/transport/waiter.h"

namespace causeway {
namespace {

constexpr uint64_t kMostReturningUs = 10'000'000;  // of a Send whose last byte the peer has

// Whether the thread that serves the request comes back at once, so that nobody else need read meanwhile. The two exceptions wait for
// the driver to start and for a callback.
bool IsQuick(Op op) {
  return TraitsOf(op).Has(traits::kNoWork) && op != Op::kOpen && op != Op::kAwaitCallback;
}

}  // namespace

struct TcpServer::Message {
  std::vector<std::byte> record;
  bool has_bulk = false;
  uint32_t bulk_index = 0;
  uint32_t bulk_bytes = 0;  // lent
};

// A request whose reply has not been sent. There may be several of one channel, as replies may wait for the device.
struct TcpServer::Unanswered {
  uint64_t sequence;
  uint32_t bulk_index;
  uint32_t bulk_bytes;  // lent; 0: none are
  bool to_guest;
};

struct TcpServer::Link {
  Link(uint64_t most_bytes, size_t most_record_bytes)
      : max_queued_bytes(most_bytes), max_record_bytes(most_record_bytes) {}
  const uint64_t max_queued_bytes;
  const size_t max_record_bytes;
  uint64_t read_sequence = 0;  // of the next record; belongs to the thread that reads

  // Guarded by the reader's mutex, as these are shared with the thread that reads:
  std::condition_variable arrived;
  std::deque<Message> messages;
  uint64_t queued_bytes = 0;  // of `messages` and of a current one that is not done

  Message current;  // the link thread's from here on
  uint64_t current_bytes = 0;
  ShortQueue<Unanswered> unanswered;
  std::vector<std::byte> reply;
  uint64_t reply_sequence = 0;
};

TcpServer::TcpServer(int fd, FlightImage* flight, std::unique_ptr<StreamLayer> layer, WaitForGuest waiting,
                     Compression compression)
    : connection_(fd, std::move(layer)),
      flight_(flight),
      main_(std::make_unique<Link>(kMainRingBytes, kMaxMainRecordBytes)),
      reader_(connection_, *this, false) {
  for (auto& channel : channels_) channel = std::make_unique<Link>(kChannelRingBytes, kMaxChannelRecordBytes);
  if (compression.agreed) connection_.MakeCompressing(compression.assumed_rate);
  if (waiting.grace_s != 0) {
    keeper_ = std::make_unique<LinkKeeper>(
        connection_, reader_,
        LinkKeeper::Terms{waiting.grace_s, &offers_, [this](const std::string& why) { GiveUp(why); },
                          [this] { TellWaiting(); }});
    tell_ = std::move(waiting.tell);
    const auto lost = [this] {
      TellWaiting();
      if (const std::string failure = keeper_->Start(); !failure.empty()) GiveUp(failure);
    };
    connection_.MakeResumable(lost, true);
  }
  if (!reader_.Start().empty()) Stop();
}

// Two threads may have noticed something, and be here in any order: what is told last is what is so.
void TcpServer::TellWaiting() {
  const std::lock_guard lock(tell_mutex_);
  const bool waits = connection_.down();
  if (waits != std::exchange(told_waiting_, waits)) tell_(waits);
}

void TcpServer::GiveUp(const std::string& why) {
  {
    const std::lock_guard lock(end_mutex_);
    if (end_reason_.empty()) end_reason_ = why;
  }
  Stop();
}

std::string TcpServer::EndReason() {
  const std::lock_guard lock(end_mutex_);
  return end_reason_;
}

void TcpServer::Break(const std::string& why) {
  if (!waits()) return Stop();
  connection_.Break(why);
}

void TcpServer::SayGoodbye() {
  if (waits()) connection_.SayGoodbye();
}

void TcpServer::Offer(Offers::Take take) {
  if (!waits()) return Stop();
  connection_.Break("the guest has made another connection");  // first: what is offered is not to be broken
  offers_.Offer(std::move(take));
}

TcpServer::~TcpServer() {
  Stop();
  reader_.Join();  // its thread uses the keeper
}

void TcpServer::Stop() {
  stop_.store(true);
  reader_.End();
  const std::lock_guard lock(reader_.mutex());  // between a waiter's test and its sleep nothing may be missed
  main_->arrived.notify_all();
  for (auto& channel : channels_) channel->arrived.notify_all();
}

TcpServer::Link& TcpServer::At(uint32_t index) {
  if (index >= kChannelCount) abort();  // callers bound guest-supplied numbers
  return *channels_[index];
}

ReceiveStatus TcpServer::Receive(uint32_t index, Link& link, std::span<const std::byte>* record) {
  std::unique_lock lock(reader_.mutex());
  reader_.Await(lock, link.arrived, {.spin_us = 0}, [&] { return !link.messages.empty() || stop_.load(); });
  if (stop_.load()) return *CorruptReason() != '\0' ? ReceiveStatus::kCorrupt : ReceiveStatus::kStopped;
  link.current = std::move(link.messages.front());
  link.messages.pop_front();
  link.current_bytes = RoomOf(link.current.record.size());
  *record = link.current.record;
  const auto header = ReadHeader<RecordPrefix>(*record);
  uint64_t after = 0;
  if (index != FlightRecorder::kMainLink) {
    const auto request = ReadHeader<RecordHeader>(*record);
    after = request.main_sequence;
    const bool lends = link.current.has_bulk;
    link.unanswered.Push({request.sequence, lends ? link.current.bulk_index : 0,
                          lends ? link.current.bulk_bytes : 0, lends && (request.flags & kBulkToGuest) != 0});
  }
  flight_.Begin(index, {header.op, header.bytes, header.sequence}, static_cast<uint32_t>(after),
                FlightTicks());
  return ReceiveStatus::kRecord;
}

void TcpServer::Done(Link& link) {
  std::lock_guard lock(reader_.mutex());
  link.queued_bytes -= link.current_bytes;
  link.current_bytes = 0;
  reader_.RoomMade();
}

ReceiveStatus TcpServer::ReceiveMain(std::span<const std::byte>* record) {
  return Receive(FlightRecorder::kMainLink, *main_, record);
}

void TcpServer::DoneMain() {
  ExecutedMain(ReadHeader<RecordPrefix>(main_->current.record).sequence);
  HandedMain();
}

void TcpServer::ExecutedMain(uint64_t sequence) {
  flight_.End(FlightRecorder::kMainLink, sequence, FlightTicks());
}

void TcpServer::HandedMain() {
  main_done_bytes_ += main_->current_bytes;
  Done(*main_);
  if (main_done_bytes_ - main_told_bytes_ < kMainCreditBytes) return;
  main_told_bytes_ = main_done_bytes_;
  const FrameHeader frame{kMainLink, sizeof main_told_bytes_, 0, FrameKind::kMainDone};
  if (!connection_.Send(frame, std::as_bytes(std::span(&main_told_bytes_, 1)), {}).empty()) Stop();
}

ReceiveStatus TcpServer::ReceiveRequest(uint32_t index, std::span<const std::byte>* record) {
  return Receive(index, At(index), record);
}

bool TcpServer::Ready(Link& link) {
  std::lock_guard lock(reader_.mutex());
  return !link.messages.empty() || stop_.load();
}

bool TcpServer::MainReady() {
  return Ready(*main_);
}

bool TcpServer::RequestReady(uint32_t index) {
  return Ready(At(index));
}

void TcpServer::DoneRequest(uint32_t index) {
  Done(At(index));
}

std::byte* TcpServer::ReserveReply(uint32_t index, size_t bytes) {
  Link& link = At(index);
  if (stop_.load()) return nullptr;
  link.reply.resize(bytes);
  return link.reply.data();
}

void TcpServer::PublishReply(uint32_t index, size_t bytes) {
  Link& link = At(index);
  if (bytes < sizeof(RecordHeader) || bytes > link.reply.size())
    abort();  // the handler's fault, not the guest's
  auto header = ReadHeader<RecordHeader>(link.reply);
  header.bytes = static_cast<uint32_t>(bytes);
  header.sequence = link.reply_sequence++;
  std::memcpy(link.reply.data(), &header, sizeof header);
  const Unanswered request = link.unanswered.Pop();
  flight_.End(index, request.sequence, FlightTicks());
  std::span<const std::byte> bulk;
  if (request.to_guest)
    bulk = {bulk_.Buffer(request.bulk_index), std::min(header.bulk_bytes, request.bulk_bytes)};
  if (request.bulk_bytes != 0)
    bulk_state_[request.bulk_index].store(BulkState::kReplying);  // partner: TakeBulk()
  const FrameHeader frame{index, static_cast<uint32_t>(bytes), static_cast<uint32_t>(bulk.size()),
                          FrameKind::kRecord};
  const bool sent = connection_.Send(frame, std::span(link.reply).first(bytes), bulk).empty();
  if (request.bulk_bytes != 0) bulk_state_[request.bulk_index].store(BulkState::kFree);
  if (!sent) Stop();
}

void TcpServer::PostAsyncError(uint32_t result) {
  std::lock_guard lock(async_mutex_);
  const uint64_t word = ++async_errors_ << 32 | result;
  const FrameHeader frame{kMainLink, sizeof word, 0, FrameKind::kAsyncError};
  if (!connection_.Send(frame, std::as_bytes(std::span(&word, 1)), {}).empty()) Stop();
}

std::span<std::byte> TcpServer::BulkOf(uint32_t index, const RecordHeader& header) {
  const Message& current = At(index).current;
  if (!current.has_bulk || header.bulk_offset != current.bulk_index ||
      header.bulk_bytes != current.bulk_bytes)
    return {};
  return {bulk_.Buffer(current.bulk_index), current.bulk_bytes};
}

bool TcpServer::Corrupt(const char* reason) {
  corrupt_reason_.store(reason, std::memory_order_release);
  Stop();
  return false;
}

// A guest that only posts hears nothing else from us.
void TcpServer::Tick() {
  if (connection_.down()) return;
  if (connection_.SecondsUnacknowledged() >= TcpConnection::kMostUnacknowledged)
    return Break("the guest's machine has not answered for too long");
  connection_.SendBeat();
  if (connection_.resumable()) connection_.AcknowledgeSoon();
}

void TcpServer::Ended(const std::string&) {
  Stop();
}

FrameSink::May TcpServer::MayCome(const FrameHeader& frame) {
  const auto corrupt = [this](const char* reason) {
    Corrupt(reason);
    return May::kNot;
  };
  const bool acknowledges = frame.kind == FrameKind::kAcknowledge;
  if (waits() && (acknowledges || frame.kind == FrameKind::kGoodbye))
    return frame.record_bytes == (acknowledges ? sizeof(uint64_t) : 0) && frame.bulk_bytes == 0
               ? May::kCome
               : corrupt("acknowledgement or goodbye of a wrong size");
  const bool compressed = connection_.compresses() && frame.kind == FrameKind::kCompressed;
  if (connection_.compresses() && frame.kind == FrameKind::kArrivalRate)
    return frame.record_bytes == sizeof(uint64_t) && frame.bulk_bytes == 0 ? May::kCome
                                                                           : corrupt("rate of a wrong size");
  if (frame.kind != FrameKind::kRecord && !compressed)
    return corrupt("frame of a kind that a guest may not send");
  if (compressed && frame.bulk_bytes == 0) return corrupt("compressed frame without bulk bytes");
  if (frame.link != kMainLink && frame.link >= kChannelCount) return corrupt("frame for no link");
  const Link& link = LinkOf(frame);
  if (frame.record_bytes < sizeof(RecordHeader)) return corrupt("record smaller than its header");
  if (frame.record_bytes > link.max_record_bytes) return corrupt("record larger than its kind allows");
  if (frame.bulk_bytes > kBulkBytes) return corrupt("bulk larger than a buffer");
  const std::lock_guard lock(reader_.mutex());
  const bool full =
      link.queued_bytes != 0 && link.queued_bytes + RoomOf(frame.record_bytes) > link.max_queued_bytes;
  return full ? May::kFull : May::kCome;
}

FrameSink::Taken TcpServer::Take(const FrameHeader& frame, std::span<const std::byte> record) {
  const auto corrupt = [this](const char* reason) {
    Corrupt(reason);
    return Taken::kOver;
  };
  if (frame.kind == FrameKind::kGoodbye) {
    Stop();
    return Taken::kOver;
  }
  if (frame.kind == FrameKind::kAcknowledge || frame.kind == FrameKind::kArrivalRate) {
    uint64_t word;
    std::memcpy(&word, record.data(), sizeof word);
    if (frame.kind == FrameKind::kArrivalRate)
      connection_.TakeArrivalRate(word);
    else if (!connection_.TakeAcknowledgement(word))
      return corrupt("acknowledgement of what was never sent");
    return Taken::kNoted;
  }
  Link& link = LinkOf(frame);
  const auto header = ReadHeader<RecordPrefix>(record);
  if (header.bytes != frame.record_bytes) return corrupt("record and frame disagree on the size");
  if (header.sequence != link.read_sequence++) return corrupt("record out of sequence");
  Message message;
  message.record.assign(record.begin(), record.end());
  if (frame.link == kMainLink) {
    if (frame.bulk_bytes != 0) return corrupt("bulk bytes with a posted record");
  } else if (!TakeBulk(frame, ReadHeader<RecordHeader>(message.record), &message)) {
    Stop();
    return Taken::kOver;
  }
  const bool quick = frame.link != kMainLink && IsQuick(static_cast<Op>(header.op));
  const std::lock_guard lock(reader_.mutex());
  back_soon_ = quick;
  link.queued_bytes += RoomOf(frame.record_bytes);
  link.messages.push_back(std::move(message));
  link.arrived.notify_one();
  return Taken::kHanded;
}

bool TcpServer::TakeBulk(const FrameHeader& frame, const RecordHeader& header, Message* message) {
  const bool to_host = (header.flags & kBulkToHost) != 0;
  if (frame.bulk_bytes != (to_host ? header.bulk_bytes : 0))
    return Corrupt("request and frame disagree on the bulk bytes");
  if (header.bulk_bytes == 0) return true;
  if (header.bulk_offset >= kBulkBuffers) return Corrupt("bulk buffer out of range");
  if (header.bulk_bytes > kBulkBytes) return Corrupt("bulk larger than a buffer");
  const auto index = static_cast<uint32_t>(header.bulk_offset);
  // The guest may have its reply already while our Send() is still returning, which takes no longer than this thread waits. A guest
  // that lends a buffer before it has the reply keeps the thread from reading, and its own Send() waits for what would be read.
  const uint64_t late_us = NowUs() + kMostReturningUs;
  while (bulk_state_[index].load() == BulkState::kReplying) {  // partner: PublishReply()
    if (stop_.load()) return false;
    if (NowUs() > late_us) return Corrupt("bulk buffer lent before its reply was read");
    std::this_thread::yield();
  }
  if (bulk_state_[index].exchange(BulkState::kLent) != BulkState::kFree)
    return Corrupt("bulk buffer lent twice");
  message->has_bulk = true;
  message->bulk_index = index;
  message->bulk_bytes = header.bulk_bytes;
  if (frame.bulk_bytes == 0) return true;
  const TcpConnection::BulkRead read = connection_.ReadBulk(frame, {bulk_.Buffer(index), frame.bulk_bytes});
  if (read == TcpConnection::BulkRead::kMalformed)
    return Corrupt("compressed bytes that are not what was said");
  return read == TcpConnection::BulkRead::kWhole;
}

}  // namespace causeway
