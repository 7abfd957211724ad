// SPDX-License-Identifier: Apache-2.0
// Linked into the worker of the fuzzers' corpus and into no other: every session's transport is wrapped by
// one that writes what passes to a file in the folder "<this program>.raw", for tests/fuzz/record_corpus.py.
// The linker's --wrap puts the wrapper around host::MakeSession, so the product has no place for it.
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "host_backend/worker/api/dispatch.h"

namespace causeway::fuzz {
namespace {

enum class Passed : uint32_t { kPosted = 0, kRequest = 1, kReply = 2 };
// Then the record and `bulk_bytes` of its bulk buffer.
struct Recorded {
  Passed kind;
  uint32_t channel;
  uint32_t record_bytes;
  uint32_t bulk_bytes;
};
constexpr size_t kMostRecordedBulk = 60u << 10;

// Opened before the worker gives up what opening needs.
const int file = [] {
  char program[4096] = {};  // the daemon passes its environment on to no worker
  if (readlink("/proc/self/exe", program, sizeof program - 1) <= 0) return -1;
  const std::string path = std::string(program) + ".raw/" + std::to_string(getpid()) + ".raw";
  return open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}();

class RecordingTransport : public ServerTransport {
 public:
  explicit RecordingTransport(std::unique_ptr<ServerTransport> inner) : inner_(std::move(inner)) {}

  ReceiveStatus ReceiveMain(std::span<const std::byte>* record) override {
    const ReceiveStatus status = inner_->ReceiveMain(record);
    if (status == ReceiveStatus::kRecord) Note(Passed::kPosted, kChannelCount, *record, {});
    return status;
  }
  void DoneMain() override { inner_->DoneMain(); }
  void HandedMain() override { inner_->HandedMain(); }
  void ExecutedMain(uint64_t sequence) override { inner_->ExecutedMain(sequence); }
  bool MainReady() override { return inner_->MainReady(); }
  ReceiveStatus ReceiveRequest(uint32_t channel, std::span<const std::byte>* record) override {
    const ReceiveStatus status = inner_->ReceiveRequest(channel, record);
    if (status != ReceiveStatus::kRecord) return status;
    const auto header = ReadHeader<RecordHeader>(*record);
    const bool carries = (header.flags & kBulkToHost) != 0 || (header.flags & kLargeRequest) != 0;
    const auto bulk = carries ? inner_->BulkOf(channel, header) : std::span<std::byte>{};
    Note(Passed::kRequest, channel, *record, bulk.first(std::min(bulk.size(), kMostRecordedBulk)));
    return status;
  }
  bool RequestReady(uint32_t channel) override { return inner_->RequestReady(channel); }
  void DoneRequest(uint32_t channel) override { inner_->DoneRequest(channel); }
  std::byte* ReserveReply(uint32_t channel, size_t bytes) override {
    return replies_[channel] = inner_->ReserveReply(channel, bytes);
  }
  void PublishReply(uint32_t channel, size_t bytes) override {
    Note(Passed::kReply, channel, {replies_[channel], bytes}, {});
    inner_->PublishReply(channel, bytes);
  }
  void PostAsyncError(uint32_t result) override { inner_->PostAsyncError(result); }
  std::span<std::byte> BulkOf(uint32_t channel, const RecordHeader& header) override {
    return inner_->BulkOf(channel, header);
  }
  bool shares_memory() const override { return inner_->shares_memory(); }
  void Stop() override { inner_->Stop(); }
  const char* CorruptReason() const override { return inner_->CorruptReason(); }

 private:
  void Note(Passed kind, uint32_t channel, std::span<const std::byte> record,
            std::span<const std::byte> bulk) {
    if (file < 0) return;
    Recorded head{kind, channel, static_cast<uint32_t>(record.size()), static_cast<uint32_t>(bulk.size())};
    const std::lock_guard lock(mutex_);
    const iovec pieces[] = {{&head, sizeof head},
                            {const_cast<std::byte*>(record.data()), record.size()},
                            {const_cast<std::byte*>(bulk.data()), bulk.size()}};
    if (writev(file, pieces, 3) < 0) abort();  // a recording with holes would look like a whole one
  }

  const std::unique_ptr<ServerTransport> inner_;
  std::byte* replies_[kChannelCount] = {};
  std::mutex mutex_;
};

}  // namespace

#define MAKE_SESSION                                                                                  \
  "_ZN8causeway4host11MakeSessionESt10unique_ptrINS_15ServerTransportESt14default_deleteIS2_EERKNS0_" \
  "10RegionViewE"
std::unique_ptr<host::Session> RealMakeSession(std::unique_ptr<ServerTransport>,
                                               const host::RegionView&) asm("__real_" MAKE_SESSION);
std::unique_ptr<host::Session> MakeRecordedSession(std::unique_ptr<ServerTransport>,
                                                   const host::RegionView&) asm("__wrap_" MAKE_SESSION);

std::unique_ptr<host::Session> MakeRecordedSession(std::unique_ptr<ServerTransport> transport,
                                                   const host::RegionView& region) {
  return RealMakeSession(std::make_unique<RecordingTransport>(std::move(transport)), region);
}

}  // namespace causeway::fuzz
