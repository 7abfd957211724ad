// SPDX-License-Identifier: Apache-2.0
// A connection for sessions whose requests a test makes by itself.
#pragma once
#include "ivshmem_ring/transport/transport.h"

namespace causeway::test {

// Of a session whose threads are not started: nothing is received, and nothing sent.
class SilentTransport : public ServerTransport {
 public:
  explicit SilentTransport(bool shares) : shares_(shares) {}
  ReceiveStatus ReceiveMain(std::span<const std::byte>*) override { return ReceiveStatus::kStopped; }
  void DoneMain() override {}
  void HandedMain() override {}
  void ExecutedMain(uint64_t) override {}
  bool MainReady() override { return true; }
  ReceiveStatus ReceiveRequest(uint32_t, std::span<const std::byte>*) override {
    return ReceiveStatus::kStopped;
  }
  bool RequestReady(uint32_t) override { return false; }
  void DoneRequest(uint32_t) override {}
  std::byte* ReserveReply(uint32_t, size_t) override { return nullptr; }
  void PublishReply(uint32_t, size_t) override {}
  void PostAsyncError(uint32_t) override {}
  std::span<std::byte> BulkOf(uint32_t, const RecordHeader&) override { return {}; }
  bool shares_memory() const override { return shares_; }
  void Stop() override {}
  const char* CorruptReason() const override { return "none"; }

 private:
  const bool shares_;
};

}  // namespace causeway::test
