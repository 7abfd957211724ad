// SPDX-License-Identifier: Apache-2.0
// How a VM and this host ring each other (docs/doorbells.md): by QEMU's ivshmem-doorbell (../doorbell/doorbell.h) or by
// Xen's event channels (../xen/granted_region.h). The event loop's thread calls all of this.
#pragma once
#include <cstdint>

namespace causeway::daemon {

class Bells {
 public:
  virtual ~Bells() = default;
  Bells(const Bells&) = delete;
  Bells& operator=(const Bells&) = delete;

  // Whether the VM can ring, and be rung, now.
  virtual bool connected() const = 0;
  // While connected: what the VM rings for work, which a thread of the daemon waits for (../doorbell/doorbell_watch.h), and
  // what interrupts the VM, by which workers ring. Eventfds, or files of event channels.
  virtual int work() const = 0;
  virtual int guest() const = 0;
  // What a worker is told of guest(): WorkerAssignment::has_bell.
  virtual uint32_t guest_port() const = 0;

 protected:
  Bells() = default;
};

}  // namespace causeway::daemon
