// SPDX-License-Identifier: Apache-2.0
// Memory of the guest process that it has registered. The guest puts region pages in the place of its own;
// here the same pages are mapped at the guest's own address, so that the driver registers them under it and
// host pointer and device pointer are one. Where no memory is shared the pages are the worker's own, and the
// guest exchanges their bytes (ivshmem_ring/messages/managed_messages.h).
//
// The guest chooses the address: it must be free, nothing of the driver's or ours is ever replaced, and from
// then on it is the guest's (host_backend/worker/addresses/guest_addresses.h). A guest library has the
// addresses of the driver and of most of what a worker maps reserved, so that nothing of its program lies
// there; the rest, the worker's program, heap and main stack, lies somewhere in a tebibyte. A guest that
// registers there looks for them, and loses its session before it has learned where they are.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>

#include "host_backend/worker/addresses/arenas.h"
#include "host_backend/worker/session/session.h"
#include "ivshmem_ring/messages/registration.h"

namespace causeway::host {

class HostRanges : public SessionPart {
 public:
  HostRanges(Session& session, Arenas& arenas) : session_(session), arenas_(arenas) {}

  // The most bytes that all guests of one scope together may register over TCP or TLS. Such guests share no memory with the host, so the
  // host allocates memory of its own for the registered bytes, and without a limit one scope could use all of it. The limit is the size
  // that a local user's region has by default.
  static constexpr uint64_t kMostOwnBytes = 4ull << 30;

  // Any thread. The driver is called under the mutex, which is taken before those of Arenas.
  CUresult Register(const RegisterBody& body, uint64_t* device_address);
  CUresult Unregister(uint64_t address);

 private:
  bool MayRegister(const RegisterBody& body);
  // Counts so many bytes more; false, and counts nothing, if that would be too many. The caller holds the mutex.
  bool Count(uint64_t bytes);
  void Uncount(uint64_t bytes);
  CUresult PutPages(const RegisterBody& body, PageRange pages, bool* probes);
  // Puts pages of the region, or of the worker's own, at addresses that are the guest's already.
  bool MapPages(Window range, const RegisterBody& body);

  struct Range {
    uint64_t bytes;
  };
  Session& session_;
  Arenas& arenas_;
  std::mutex mutex_;                  // guards what follows
  std::map<uint64_t, Range> ranges_;  // by the guest's address
  uint64_t mapped_bytes_ = 0;
  uint32_t collisions_ = 0;  // refused because of the worker's own
};

}  // namespace causeway::host
