// SPDX-License-Identifier: Apache-2.0
// What the gates of a device (gate.h, link_gate.h) need of the worker around them; tests have their own. Any thread calls it,
// several at once, and no gate holds its lock meanwhile.
#pragma once
#include <atomic>
#include <cstdint>

namespace causeway::host {

class Surroundings {
 public:
  virtual ~Surroundings() = default;
  virtual uint64_t NowNs() = 0;  // CLOCK_MONOTONIC
  // Has the GPU write `value` into that word of the worker's page when what this thread last gave the driver is done. It may wait,
  // while the driver's queue is full. False: it cannot, as during a capture.
  virtual bool Mark(std::atomic<uint32_t>& word, uint32_t value) = 0;
  // Nobody looks (the grant says that the daemon is asleep, or it was last seen too long ago), and this worker has work.
  virtual void Wake() {}
  // A record has waited so long for its turn. Once for each that waited.
  virtual void Waited(uint64_t /*nanoseconds*/) {}
  // Sleeps until the grant is another one than `seen`, and no longer than that.
  virtual void Sleep(const std::atomic<uint32_t>& grant, uint32_t seen, uint64_t nanoseconds) = 0;
};

}  // namespace causeway::host
