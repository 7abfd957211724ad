// SPDX-License-Identifier: Apache-2.0
// The two messages about registered memory. While the host does its part, the guest does its own.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>

#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/messages/registration.h"

namespace causeway::guest {

// Asks the host to map and register the region's pages. Between construction and Finish, which waits for the
// answer, the guest copies the bytes into those pages. An object belongs to one thread and has its channel.
class PendingRegistration {
 public:
  explicit PendingRegistration(const RegisterBody& body) {
    Writer w = lease_.Begin(sizeof body);
    if (w.ok()) w.Put(body);
    sent_ = lease_.Send(Op::kRegisterHost, w);
  }
  bool sent() const { return sent_ == CUDA_SUCCESS; }
  CUresult Finish(uint64_t* device_address) {
    if (!sent()) return sent_;
    Reader reply;
    const CUresult result = lease_.Await(&reply);
    if (result == CUDA_SUCCESS) *device_address = reply.Get<uint64_t>();
    return result;
  }

 private:
  ChannelLease lease_;
  CUresult sent_ = CUDA_SUCCESS;
};

// Ends a registration on the host, and calls `meanwhile` while the host does so. Returns the host's answer.
template <typename Work>
CUresult SendUnregister(uint64_t address, Work meanwhile) {
  ChannelLease lease;
  const RegisterBody body{.address = address, .bytes = 0, .offset = 0, .flags = 0, .writable = 0};
  Writer w = lease.Begin(sizeof body);
  if (w.ok()) w.Put(body);
  if (const CUresult result = lease.Send(Op::kUnregisterHost, w)) return result;
  meanwhile();
  Reader reply;
  return lease.Await(&reply);
}

}  // namespace causeway::guest
