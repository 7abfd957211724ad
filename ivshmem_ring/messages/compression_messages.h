// SPDX-License-Identifier: Apache-2.0
// How a session over TCP or TLS agrees that both sides may compress bulk bytes (ivshmem_ring/tcp/bulk_compressor.h).
//
//   opening   A guest that can do it sets kCompressesFeature in OpenBlock::features. Where the session's worker can, too, and nothing
//             forbids it, the LocalReply has a CompressionGrant behind the place of the ResumeGrant in `text`.
//
// Guests and hosts of different releases meet here: none of this changes.
#pragma once
#include <cstdint>
#include <cstring>

#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/messages/resume_messages.h"

namespace causeway {

inline constexpr uint64_t kCompressesFeature = 2;  // OpenBlock::features
inline constexpr uint64_t kCompressionMagic = 0x31'4d'4f'43'45'53'57'43;
inline constexpr uint32_t kLz4Blocks = 1;  // the only method

struct CompressionGrant {
  uint64_t magic;   // kCompressionMagic
  uint32_t method;  // kLz4Blocks
  uint32_t reserved;
};
static_assert(sizeof(CompressionGrant) == 16);
static_assert(sizeof(ResumeGrant) + sizeof(CompressionGrant) <= sizeof(LocalReply::text));

inline void PutCompression(LocalReply* reply) {
  const CompressionGrant grant{kCompressionMagic, kLz4Blocks, 0};
  std::memcpy(reply->text + sizeof(ResumeGrant), &grant, sizeof grant);
}

// The guest's side, which has asked for it.
inline bool GrantsCompression(const LocalReply& reply) {
  CompressionGrant grant;
  std::memcpy(&grant, reply.text + sizeof(ResumeGrant), sizeof grant);
  return reply.accepted == 1 && grant.magic == kCompressionMagic && grant.method == kLz4Blocks;
}

}  // namespace causeway
