// SPDX-License-Identifier: Apache-2.0
// Moves bytes of managed memory to and from the host's driver, over an RPC channel of its own. One thread
// uses it: the one that serves page faults. That thread must not wait for anything that a faulting thread
// could hold, so it takes no lock of the session's, fetches no printed text, and posts no record.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "guest_lib/session/session.h"
#include "ivshmem_ring/messages/managed_messages.h"

namespace causeway::guest {

// A stretch of managed memory of `count` bytes: its address, this process's own copy of it, and the context
// and stream in which the host copies it.
struct ManagedSpan {
  uint64_t address;
  std::byte* bytes;
  uint64_t count;
  WireHandle context;  // 0, with stream 0, for a variable
  WireHandle stream;
};

class ManagedLink {
 public:
  // Opens the channel and takes its staging buffers. This call may wait for other threads.
  CUresult Open();

  // Makes all copies from now on come after all that was posted until now. Any thread may call it.
  void ComeAfterPosted();

  // Write the spans to the driver, or read them from it, in order. Large ones go through two buffers in turn.
  CUresult Write(const std::vector<ManagedSpan>& spans) { return Copy(spans, true, nullptr); }
  // *changed says whether any byte differs from what was there.
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
  uint32_t first_ = 0, sent_ = 0;  // sent_ messages, from first_ on, have no reply yet
};

}  // namespace causeway::guest
