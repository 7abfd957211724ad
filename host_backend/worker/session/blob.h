// SPDX-License-Identifier: Apache-2.0
// What is larger than a record and its staging buffer: it is sent to the worker in pieces, ahead of the request
// that takes it, or left for the guest to fetch in pieces. Blobs belong to the channel that sends or fetches
// them, and are used by its thread alone; room is shared by all.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "host_backend/worker/session/session.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::host {

class Blobs : public SessionPart {
 public:
  static constexpr uint64_t kEnd = 64;  // zeros behind every blob

  // Those of all channels together have at most so many bytes.
  explicit Blobs(uint64_t most) : most_(most) {}
  // As many as the VM's shared memory has, 1 GiB at least, because NVIDIA's largest library is 0.7 GiB, and kMaxBlobBytes at most.
  static uint64_t MostFor(uint64_t region_bytes);

  // A new one begins, of about so many bytes.
  void Begin(uint32_t channel, uint64_t bytes);
  // False: no room.
  bool Append(uint32_t channel, std::span<const std::byte> bytes);
  // The blob of a request, from its staging buffer or of what its channel sent before; empty if there is none.
  // After its `bytes` come kEnd zeros: text ends in one, and the driver may read a word past its end.
  std::shared_ptr<std::vector<std::byte>> Take(const Request& request, uint64_t* bytes);
  // What a call leaves on its channel for kFetchBlob; gone with the channel's next one.
  std::vector<std::byte>& left(uint32_t channel) { return left_[channel]; }

 private:
  const uint64_t most_;
  std::atomic<uint64_t> taken_{0};
  std::vector<std::byte> sent_[kChannelCount];
  std::vector<std::byte> left_[kChannelCount];
};

}  // namespace causeway::host
