// SPDX-License-Identifier: Apache-2.0
// The two messages about memory that the host registers at the guest's address. While the host does its part, the guest does its own.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>

#include "guest_lib/session/captures.h"
#include "guest_lib/session/context.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/messages/registration.h"

namespace causeway::guest {

// Asks the host to map and register pages: those of the region, into which the guest copies the bytes between construction and Finish, which
// waits for the answer; or where no memory is shared, pages of the host's own, which are zero. An object belongs to one thread and has its
// channel.
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

// While an object of this class lives, the calling thread's current context is the one that memory belongs to, whichever was
// before, because the host ties a registration to the context in which it was made.
class InContext {
 public:
  explicit InContext(Object* context) { ThisThread().contexts.push_back(context); }
  ~InContext() { ThisThread().contexts.pop_back(); }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;
};

// Where no memory is shared: has the host register the range in that context, and calls `exchange` to begin the exchange of its bytes.
// When either fails, nothing stays registered. CUDA_ERROR_NOT_SUPPORTED also where the device has another address for it.
template <typename Exchange>
CUresult RegisterOnHost(Object* owner, const RegisterBody& body, Exchange exchange) {
  const InContext context(owner);
  const RelaxedCaptures relaxed;  // the driver registers memory, beside whatever is captured
  PendingRegistration registration(body);
  uint64_t device_address = 0;
  if (const CUresult result = registration.Finish(&device_address)) return result;
  const CUresult result = device_address == body.address ? exchange() : CUDA_ERROR_NOT_SUPPORTED;
  if (result != CUDA_SUCCESS) SendUnregister(body.address, [] {});
  return result;
}

// Whether a later try may succeed: memory may be freed meanwhile, or a copy end. Any other error stays, so that a program does not
// pay for a new try with each launch.
inline bool MayComeRight(CUresult result) {
  return result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_ERROR_NOT_READY;
}

}  // namespace causeway::guest
