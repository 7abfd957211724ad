// SPDX-License-Identifier: Apache-2.0
// The guest's half of the seam over a stream socket.
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>

#include "ivshmem_ring/tcp/tcp_transport.h"

namespace causeway {
namespace {

// Fills the fields that belong to the link.
void Seal(std::span<std::byte> record, uint64_t sequence) {
  auto prefix = ReadHeader<RecordPrefix>(record);
  prefix.bytes = static_cast<uint32_t>(record.size());
  prefix.sequence = sequence;
  std::memcpy(record.data(), &prefix, sizeof prefix);
}

}  // namespace

struct TcpClient::Channel {
  // Where the bulk bytes of a coming reply go; capacity 0 if the request asked for none.
  struct Outstanding {
    std::byte* bulk;
    uint32_t bulk_capacity;
  };
  // A request without reply: whether it has lent the program's own memory, and how many bytes of frames were sent with it.
  struct Unanswered {
    bool lends_own;
    uint64_t sent;
  };
  std::vector<std::byte> request;
  uint64_t request_sequence = 0;
  std::byte* own = nullptr;  // of LendOwn
  ShortQueue<Unanswered> unanswered;
  uint32_t lent_own = 0;  // of these
  std::vector<std::byte> held_reply;
  // How many requests have left this process whole; partner: TakeReply, before it fills a sent buffer.
  std::atomic<uint64_t> sent_requests{0};

  // Guarded by the reader's mutex, as these are shared with the thread that reads:
  std::condition_variable arrived;
  std::deque<Outstanding> outstanding;
  std::deque<std::vector<std::byte>> replies;
  uint64_t reply_sequence = 0;
  bool filling = false;  // bulk bytes of a reply are being received
};

TcpClient::TcpClient(int fd, std::unique_ptr<StreamLayer> layer, ConnectAgain again, Compression compression)
    : ClientTransport(async_error_, false),
      connection_(fd, std::move(layer)),
      process_(getpid()),
      main_buffer_(kMaxMainRecordBytes),
      reader_(connection_, *this, true),
      redial_(again.grace_s != 0 ? std::make_unique<Redial>(std::move(again.dial)) : nullptr) {
  // All at once: the reader may look at any of them.
  for (auto& channel : channels_) channel = std::make_unique<Channel>();
  if (compression.agreed) connection_.MakeCompressing(compression.assumed_rate);
  if (redial_ == nullptr) return;
  keeper_ = std::make_unique<LinkKeeper>(
      connection_, reader_,
      LinkKeeper::Terms{again.grace_s, redial_.get(), [this](const std::string& why) { Lose(why); }});
  const auto lost = [this] {
    if (const std::string failure = keeper_->Start(); !failure.empty()) Lose(failure);
  };
  connection_.MakeResumable(lost, false);
}

TcpClient::~TcpClient() {
  if (getpid() == process_) {
    reader_.Join();  // its thread uses the keeper
  } else {
    reader_.Abandon();
    if (keeper_ != nullptr) keeper_->Abandon();
  }
}

void TcpClient::SayGoodbye() {
  if (connection_.resumable()) connection_.SayGoodbye();
}

TcpClient::Channel& TcpClient::At(uint32_t index) {
  if (index >= kChannelCount) abort();  // the caller made the number
  return *channels_[index];
}

std::byte* TcpClient::BulkBuffer(uint32_t index) {
  if (index >= kBulkBuffers) abort();  // the caller made the number
  return bulk_.Buffer(index);
}

void TcpClient::StartReader() {
  std::call_once(reader_started_, [this] {
    if (const std::string failure = reader_.Start(); !failure.empty()) Lose(failure);
  });
}

// What the host has not executed stays within its queue: were its queue full, its reader would stand still,
// and with it the channels that may bring what the queue waits for (the end of a host function).
bool TcpClient::HasMainRoom(size_t bytes) const {
  return main_sent_bytes_ - known_done_bytes_ + RoomOf(bytes) <= kMainRingBytes - kMainCreditBytes;
}

std::byte* TcpClient::AwaitMainRoom(size_t bytes, std::unique_lock<std::mutex>&) {
  if (bytes > main_buffer_.size()) abort();  // as the ring does: no such record exists
  if (!HasMainRoom(bytes)) {
    std::string failure;
    connection_.Flush(&failure);  // what is left the background thread sends; it also finds a failure again
    std::unique_lock lock(reader_.mutex());
    reader_.Await(lock, room_, ReplyPolicy(true), [&] {
      known_done_bytes_ = main_done_bytes_;
      return HasMainRoom(bytes) || lost_.load();
    });
  }
  return lost_.load(std::memory_order_acquire) ? nullptr : main_buffer_.data();
}

// A post is sent at once if none was sent for a while (FrameReader::kRemindUs): the device may be idle. Those that follow wait for that
// time to pass, for a request, or for a full batch: each sent alone would cost the program a system call, and both sides what the
// network does for a packet. No clock is read.
void TcpClient::PublishMain(size_t bytes) {
  StartReader();
  const std::span<std::byte> record = std::span(main_buffer_).first(bytes);
  const uint64_t sequence = main_sequence_.load(std::memory_order_relaxed);
  Seal(record, sequence);
  const FrameHeader frame{kMainLink, static_cast<uint32_t>(bytes), 0, FrameKind::kRecord};
  main_sent_bytes_ += RoomOf(bytes);
  if (!reader_.reminds() || !connection_.Put(frame, record)) {
    const std::string failure = connection_.Send(frame, record, {});
    if (!failure.empty()) Lose(failure);
  }
  reader_.Remind();
  // Only now: a request stamped with the new count must follow the record on the wire.
  main_sequence_.store(sequence + 1, std::memory_order_release);  // partner: main_sequence()
}

// The next post may again be sent at once only if none came since the last call.
bool TcpClient::Reminded() {
  std::string failure;
  const bool waited = connection_.Flush(&failure);
  if (!failure.empty()) Lose(failure);
  return waited && failure.empty();
}

std::byte* TcpClient::ReserveRequest(uint32_t index, size_t bytes) {
  if (bytes > kMaxChannelRecordBytes) abort();
  Channel& channel = At(index);
  if (lost_.load(std::memory_order_acquire)) return nullptr;
  channel.request.resize(kMaxChannelRecordBytes);
  return channel.request.data();
}

void TcpClient::PublishRequest(uint32_t index, size_t bytes) {
  StartReader();
  Channel& channel = At(index);
  const std::span<std::byte> record = std::span(channel.request).first(bytes);
  Seal(record, channel.request_sequence++);
  const auto header = ReadHeader<RecordHeader>(record);
  Channel::Outstanding outstanding{nullptr, 0};
  std::span<const std::byte> bulk;
  std::byte* const own = std::exchange(channel.own, nullptr);
  if (header.bulk_bytes > 0) {
    if (header.bulk_offset >= kBulkBuffers || header.bulk_bytes > kBulkBytes) abort();
    outstanding.bulk = own != nullptr ? own : BulkBuffer(static_cast<uint32_t>(header.bulk_offset));
    if ((header.flags & kBulkToHost) != 0) bulk = {outstanding.bulk, header.bulk_bytes};
    if ((header.flags & kBulkToGuest) != 0) outstanding.bulk_capacity = header.bulk_bytes;
  }
  {
    std::lock_guard lock(reader_.mutex());
    channel.outstanding.push_back(outstanding);
  }
  const FrameHeader frame{index, static_cast<uint32_t>(bytes), static_cast<uint32_t>(bulk.size()),
                          FrameKind::kRecord};
  Channel::Unanswered unanswered{own != nullptr, 0};
  const std::string failure = connection_.Send(frame, record, bulk, &unanswered.sent);
  if (!failure.empty()) Lose(failure);
  channel.unanswered.Push(unanswered);
  if (unanswered.lends_own) ++channel.lent_own;
  channel.sent_requests.store(channel.request_sequence, std::memory_order_release);
}

std::span<const std::byte> TcpClient::AwaitReply(uint32_t index, ReplyWait wait) {
  Channel& channel = At(index);
  std::unique_lock lock(reader_.mutex());
  const WaitPolicy policy = wait.blocking ? BlockingPolicy() : ReplyPolicy(true);
  reader_.Await(lock, channel.arrived, policy, [&] { return !channel.replies.empty() || lost_.load(); });
  if (channel.replies.empty()) {
    if (channel.lent_own != 0) TakeBackOwn(channel, lock);
    return {};
  }
  channel.held_reply = std::move(channel.replies.front());
  channel.replies.pop_front();
  lock.unlock();
  const Channel::Unanswered request = channel.unanswered.Pop();
  if (request.lends_own) {
    --channel.lent_own;
    connection_.NoteAnswered(request.sent);  // so that what it lent is never sent again
  }
  return channel.held_reply;
}

void TcpClient::LendOwn(uint32_t index, std::byte* bytes) {
  At(index).own = bytes;
}

void TcpClient::TakeBackOwn(Channel& channel, std::unique_lock<std::mutex>& lock) {
  channel.outstanding.clear();  // a reply that was received, and is taken now, finds no place
  connection_.Shutdown();       // the thread that has lost the session may not have come to it
  channel.arrived.wait(lock, [&] { return !channel.filling; });
  lock.unlock();
  connection_.AwaitSenders();
}

bool TcpClient::ReplyReady(uint32_t index) {
  Channel& channel = At(index);
  std::unique_lock lock(reader_.mutex());
  if (channel.replies.empty()) reader_.Look(lock);
  return !channel.replies.empty() || lost_.load();
}

std::string TcpClient::LossReason() {
  std::lock_guard lock(loss_mutex_);
  return loss_;
}

void TcpClient::Lose(const std::string& reason) {
  {
    std::lock_guard lock(loss_mutex_);
    if (!loss_.empty()) return;
    loss_ = "the connection to the host is lost: " + reason;
  }
  lost_.store(true);
  reader_.End();
  const std::lock_guard lock(reader_.mutex());  // between a waiter's test and its sleep nothing may be missed
  room_.notify_all();
  for (auto& channel : channels_) channel->arrived.notify_all();
}

void TcpClient::Ended(const std::string& reason) {
  Lose(reason);
}

FrameSink::May TcpClient::MayCome(const FrameHeader& frame) {
  const auto no = [this](const char* reason) {
    Lose(reason);
    return May::kNot;
  };
  switch (frame.kind) {
    case FrameKind::kBeat:
      return frame.record_bytes == 0 && frame.bulk_bytes == 0 ? May::kCome
                                                              : no("the host sent a beat with content");
    case FrameKind::kAsyncError:
    case FrameKind::kMainDone:
      return frame.record_bytes == sizeof(uint64_t) && frame.bulk_bytes == 0
                 ? May::kCome
                 : no("the host sent a word of a wrong size");
    case FrameKind::kAcknowledge:
      return connection_.resumable() && frame.record_bytes == sizeof(uint64_t) && frame.bulk_bytes == 0
                 ? May::kCome
                 : no("the host acknowledged something in a wrong form");
    case FrameKind::kGoodbye:
      if (connection_.resumable()) return no("the host has ended the session");
      break;
    case FrameKind::kArrivalRate:
      if (!connection_.compresses()) break;
      return frame.record_bytes == sizeof(uint64_t) && frame.bulk_bytes == 0
                 ? May::kCome
                 : no("the host sent a rate of a wrong size");
    case FrameKind::kCompressed:
      if (!connection_.compresses()) break;
      if (frame.bulk_bytes == 0) return no("the host compressed what has no bulk bytes");
      [[fallthrough]];
    case FrameKind::kRecord:
      if (frame.link >= kChannelCount) return no("the host replied on a channel that does not exist");
      if (frame.record_bytes < sizeof(RecordHeader) || frame.record_bytes > kMaxChannelRecordBytes)
        return no("the host sent a reply whose size is out of range");
      return May::kCome;
  }
  return no("the host sent a frame of an unknown kind");
}

FrameSink::Taken TcpClient::Take(const FrameHeader& frame, std::span<const std::byte> record) {
  if (frame.kind == FrameKind::kRecord || frame.kind == FrameKind::kCompressed) {
    const std::string failure = TakeReply(frame, record);
    if (failure.empty()) return Taken::kHanded;
    Lose(failure);
    return Taken::kOver;
  }
  if (frame.kind == FrameKind::kBeat) return Taken::kNoted;
  uint64_t word;
  std::memcpy(&word, record.data(), sizeof word);
  if (frame.kind == FrameKind::kAcknowledge) {
    if (connection_.TakeAcknowledgement(word)) return Taken::kNoted;
    Lose("the host acknowledged more than was sent");
    return Taken::kOver;
  }
  if (frame.kind == FrameKind::kArrivalRate) {
    connection_.TakeArrivalRate(word);
    return Taken::kNoted;
  }
  if (frame.kind == FrameKind::kAsyncError) {
    // partner: AsyncError(); a reply sent after the error is read after it, too
    StoreRelease(async_error_, word);
  } else {
    std::lock_guard lock(reader_.mutex());
    main_done_bytes_ = word;
    room_.notify_all();
  }
  return Taken::kNoted;
}

std::string TcpClient::TakeReply(const FrameHeader& frame, std::span<const std::byte> record) {
  Channel& channel = *channels_[frame.link];
  std::vector<std::byte> reply(record.begin(), record.end());
  const auto header = ReadHeader<RecordHeader>(reply);
  if (header.bytes != frame.record_bytes) return "the host sent a reply whose two sizes differ";
  Channel::Outstanding outstanding;
  {
    std::lock_guard lock(reader_.mutex());
    if (channel.outstanding.empty()) return "the host sent a reply that no request waits for";
    if (header.sequence != channel.reply_sequence) return "the host sent a reply out of sequence";
    ++channel.reply_sequence;
    outstanding = channel.outstanding.front();
    channel.outstanding.pop_front();
    if (frame.bulk_bytes > outstanding.bulk_capacity)
      return "the host sent more bulk bytes than were asked for";
    channel.filling = frame.bulk_bytes > 0;
  }
  TcpConnection::BulkRead received = TcpConnection::BulkRead::kWhole;
  if (frame.bulk_bytes > 0) {
    // The reply shows that the host has the request, but only the sender's return orders its reading of the
    // buffer before this thread's writing.
    while (channel.sent_requests.load(std::memory_order_acquire) <= header.sequence) sched_yield();
    received = connection_.ReadBulk(frame, {outstanding.bulk, frame.bulk_bytes});
  }
  std::lock_guard lock(reader_.mutex());
  channel.filling = false;
  if (received == TcpConnection::BulkRead::kWhole) channel.replies.push_back(std::move(reply));
  channel.arrived.notify_one();
  if (received == TcpConnection::BulkRead::kMalformed)
    return "the host sent compressed bytes that are not what it said";
  return received == TcpConnection::BulkRead::kWhole ? std::string() : connection_.reason();
}

// The host sends a beat each second that nothing else is under way.
void TcpClient::Tick() {
  constexpr uint32_t kMaxQuietSeconds = 30;
  if (connection_.down()) return;
  const uint64_t receipts = connection_.receipts();
  quiet_seconds_ = receipts == std::exchange(seen_receipts_, receipts) ? quiet_seconds_ + 1 : 0;
  const char* silence =
      quiet_seconds_ >= kMaxQuietSeconds ? "nothing has come from the peer for too long" : nullptr;
  if (connection_.SecondsUnacknowledged() >= TcpConnection::kMostUnacknowledged)
    silence = "the peer's machine has not answered for too long";
  if (silence == nullptr) {
    if (connection_.resumable()) connection_.AcknowledgeSoon();
    return;
  }
  quiet_seconds_ = 0;
  if (connection_.resumable())
    connection_.Break(silence);
  else
    Lose(silence);
}

}  // namespace causeway
