// SPDX-License-Identifier: Apache-2.0
// The two ends of one connection, of which each way has its own kind.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "ivshmem_ring/tls/tls_records.h"
#include "tests/bench/payload/ways.h"

namespace causeway::payload {

enum class Status : uint32_t {
  kDone,
  kLacks,  // the kernel has not got what the way needs, or forbids it
  kWrong,  // other bytes came than were meant
  kFailed
};
struct [[nodiscard]] Outcome {
  Status status = Status::kDone;
  std::string text;  // what happened, for the end of a line
  bool done() const { return status == Status::kDone; }
};
// Of a system call, or of a request to a ring: whether the way is lacking or has failed, the error tells.
Outcome Refused(const std::string& what, int error);
// All of the bytes, however often that is interrupted: the end of a ring's work interrupts its thread's system calls.
Outcome SendWhole(int fd, std::span<const std::byte> bytes);
Outcome ReceiveWhole(int fd, std::span<std::byte> bytes);

// What the kernel has told of the memory that it sent without a copy of its own, or meant to.
struct Notices {
  uint64_t told = 0, copied = 0;  // of so many sends; of these it has copied the bytes nevertheless
  bool tells_copies = true;       // false: this kernel does not say what it copied
};

class SendingEnd {
 public:
  virtual ~SendingEnd() = default;
  // Sends the pieces in their order, and returns when the socket has taken them.
  virtual Outcome Send(std::span<const std::span<const std::byte>> pieces) = 0;
  // Returns when the kernel looks at none of these bytes any more. The peer has said before that it has them all.
  virtual Outcome AwaitUnused() { return {}; }
  virtual Notices notices() const { return {}; }
};

// Given what was received, and where in this transfer's bytes of the connection it belongs. Empty: nobody looks at it.
using Taker = std::function<void(uint64_t at, std::span<const std::byte> bytes)>;

class ReceivingEnd {
 public:
  virtual ~ReceivingEnd() = default;
  // Receives so many bytes, whole pieces, into the staging pieces, which it fills again and again.
  virtual Outcome Receive(int fd, uint64_t bytes, const Taker& take) = 0;
};

// Null: *outcome says why there can be none. `memory` is all that will ever be sent; `traffic` is of records alone.
std::unique_ptr<SendingEnd> MakeSendingEnd(Sends sends, int fd, std::span<std::byte> memory,
                                           const TlsTraffic& traffic, Outcome* outcome);
// The same; `staging` has two pieces at least.
std::unique_ptr<ReceivingEnd> MakeReceivingEnd(Receives receives, std::span<std::byte> staging,
                                               const TlsTraffic& traffic, Outcome* outcome);

// The same for io_uring. A build without liburing has none.
std::unique_ptr<SendingEnd> MakeUringSendingEnd(Sends sends, int fd, std::span<std::byte> memory,
                                                Outcome* outcome);
std::unique_ptr<ReceivingEnd> MakeUringReceivingEnd(Receives receives, std::span<std::byte> staging,
                                                    Outcome* outcome);

}  // namespace causeway::payload
