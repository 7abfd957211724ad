// SPDX-License-Identifier: Apache-2.0
// What lies between the bytes of a TcpConnection and those of its socket: encryption, which ivshmem_ring/tls implements. It
// does no input and output of its own, so that the connection waits, and is ended, as without it.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

namespace causeway {

class StreamLayer {
 public:
  virtual ~StreamLayer() = default;

  // Adds `plain` to what is to be sent. False: the layer has failed, for good. Any thread.
  virtual bool Seal(std::span<const std::byte> plain) = 0;
  // Exchanges `wire`, which is made empty before, for what is to be sent now. Any thread; what two calls give has to be sent in
  // their order.
  virtual void TakeOutput(std::vector<std::byte>& wire) = 0;

  // How many bytes of the socket to wait for where the next `plain` bytes are to be opened: no more than have to come for them, `most`
  // at most, and where the peer fills its records an end of one. The thread that reads.
  virtual size_t Wanted(size_t plain, size_t most) const { return plain < most ? plain : most; }
  // Bytes of the socket. They have to stay where they are until Open has answered 0. One thread calls this and Open.
  virtual void Received(std::span<const std::byte> wire) = 0;
  // Copies of them what is not used yet, so that they need not stay.
  virtual void KeepReceived() = 0;
  // Fills the beginning of `plain`. 0: more has to be received first. Negative: the layer has failed, or the peer has ended it.
  virtual ptrdiff_t Open(std::span<std::byte> plain) = 0;
};

}  // namespace causeway
