// SPDX-License-Identifier: Apache-2.0
// The sending process, which says what is measured and when.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "host_backend/common/unique_fd.h"
#include "tests/bench/payload/ends.h"
#include "tests/bench/payload/link.h"
#include "tests/bench/payload/ways.h"

namespace causeway::payload {

// One transfer of the whole memory.
struct Sample {
  double gb_per_s = 0, sender_s_per_gb = 0, receiver_s_per_gb = 0;
};

class Sender {
 public:
  // `memory` stays, and has whole pieces. Ends the process when nobody is there.
  Sender(std::string host, std::string port, std::span<std::byte> memory, uint32_t limit_s);

  // Makes a way's connections and transfers the memory once, which holds Pattern's bytes; each byte is compared. After anything but kDone the way
  // does not exist.
  Outcome Prepare(uint32_t way);
  // Transfers the memory over a way that was prepared.
  Outcome Transfer(uint32_t way, bool verifies, Sample* sample);
  Notices NoticesOf(uint32_t way) const;

 private:
  struct Lane {
    UniqueFd fd;
    std::unique_ptr<SendingEnd> end;
    std::vector<std::span<const std::byte>> pieces;
  };
  Answer Ask(const Order& order);
  Outcome Connect(uint32_t way);

  const std::string host_, port_;
  const std::span<std::byte> memory_;
  Greeting greeting_;
  UniqueFd orders_;
  std::vector<Lane> ways_[kWayCount];
};

}  // namespace causeway::payload
