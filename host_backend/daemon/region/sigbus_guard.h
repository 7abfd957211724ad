// SPDX-License-Identifier: Apache-2.0
// Keeps the daemon alive when a region's file shrinks under its mapping (a guest's QEMU may truncate it).
#pragma once
#include <cstddef>

namespace causeway::daemon {

// While it lives, a SIGBUS inside [address, address + bytes), in any thread, replaces the whole range by
// zeroed private memory and sets tripped(); everywhere else a SIGBUS ends the process as usual. The daemon's
// event loop makes and destroys guards; more than 8192 at once end the process.
class SigbusGuard {
 public:
  SigbusGuard(void* address, size_t bytes);
  ~SigbusGuard();
  SigbusGuard(const SigbusGuard&) = delete;
  SigbusGuard& operator=(const SigbusGuard&) = delete;
  bool tripped() const;

 private:
  size_t index_;
};

}  // namespace causeway::daemon
