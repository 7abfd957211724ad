// SPDX-License-Identifier: Apache-2.0
// Bytes of managed memory to and from the host's driver, over a channel of their own. Used by one thread,
// which must not wait for anything that a faulting thread could hold: no lock of the session's, no text that
// kernels printed, no posted record.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "guest_lib/session/session.h"
#include "ivshmem_ring/messages/managed_messages.h"

namespace causeway::guest {

// A stretch of managed memory: its address, this process's own copy of it, and how the host reaches it.
struct ManagedSpan {
  uint64_t address;
  std::byte* bytes;
  uint64_t count;
  WireHandle context;  // 0 with stream 0: a variable
  WireHandle stream;
};

class ManagedLink {
 public:
  // Opens the channel and takes its buffers; the calling thread may wait for others here.
  CUresult Open();

  // Callable from any thread: all posted until now comes before whatever is copied from now on.
  void ComeAfterPosted();

  // In order. Large ones go through two buffers in turn.
  CUresult Write(const std::vector<ManagedSpan>& spans) { return Copy(spans, true, nullptr); }
  // `*changed`: some byte differs from what was there.
  CUresult Read(const std::vector<ManagedSpan>& spans, bool* changed) { return Copy(spans, false, changed); }

 private:
  static constexpr uint32_t kMostBuffers = 2;
  struct Message {
    ManagedCopyBody body{};
    WireHandle context = 0;
    ManagedPiece piece[kMaxManagedPieces];
    std::byte* place[kMaxManagedPieces];
    uint32_t bytes = 0;
  };
  CUresult Copy(const std::vector<ManagedSpan>& spans, bool to_host, bool* changed);
  CUresult Send(bool to_host);
  CUresult Collect(bool to_host, bool* changed);

  Session* session_ = nullptr;
  std::atomic<uint64_t> main_sequence_{0};
  Bulk buffer_[kMostBuffers];
  Message message_[kMostBuffers];
  uint32_t buffers_ = 1;
  uint32_t first_ = 0, sent_ = 0;  // messages on their way: `sent_` from `first_` on
};

}  // namespace causeway::guest
