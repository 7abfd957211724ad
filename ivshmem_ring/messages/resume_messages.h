// SPDX-License-Identifier: Apache-2.0
// How a session over TCP or TLS goes on after its connection was lost (docs/remote.md, "Lost connections"); and how, in the same answer,
// both sides agree that they may compress bulk bytes (ivshmem_ring/compression/bulk_compressor.h).
//
//   opening   A guest that can do it sets kResumesFeature in OpenBlock::features. Where the host can, too, its LocalReply has
//             kGrantsResume in `reserved` and a ResumeGrant in the place of `text`.
//   again     On a new connection the guest sends an OpenBlock of kind kResumeKind whose `reserved` begins with a ResumeRequest.
//             The LocalReply refuses, with kSessionGone in `reserved` if no further attempt can succeed; or it accepts, and the
//             session's worker sends a ResumeGreeting. Then both send what the other has not received, and go on.
//   compressing  A guest that can do it sets kCompressesFeature in OpenBlock::features. Where the session's worker can, too, and nothing
//             forbids it, the LocalReply of the opening has a CompressionGrant behind the place of the ResumeGrant in `text`.
//
// Guests and hosts of different releases meet here: none of this changes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "ivshmem_ring/messages/local_protocol.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway {

inline constexpr SessionKind kResumeKind = SessionKind{3};
inline constexpr uint64_t kResumesFeature = 1;  // OpenBlock::features
inline constexpr uint32_t kGrantsResume = 1;    // LocalReply::reserved, where it accepts
inline constexpr uint32_t kSessionGone = 2;     // the same, where it refuses
inline constexpr uint64_t kResumeMagic = 0x31'4d'55'53'45'52'57'43;
inline constexpr size_t kSessionIdBytes = 16;
inline constexpr size_t kSessionSecretBytes = 32;
inline constexpr uint32_t kMaxResumeGraceS = 24 * 3600;

// By which the host knows a session again. Both are random.
struct SessionToken {
  uint8_t session[kSessionIdBytes];
  uint8_t secret[kSessionSecretBytes];
};

struct ResumeGrant {
  uint64_t magic;  // kResumeMagic
  SessionToken token;
  uint32_t grace_s;  // for so long the session waits for its guest
  uint32_t reserved;
};
static_assert(sizeof(ResumeGrant) == 64);

struct ResumeRequest {
  SessionToken token;
  // Grows with each connection that the guest makes for this session: what comes late, or again, is refused.
  uint64_t attempt;
  uint64_t received;  // so many bytes of the host's frames
};
static_assert(sizeof(ResumeRequest) == 64 && sizeof(ResumeRequest) <= sizeof(OpenBlock::reserved));

struct ResumeGreeting {
  uint64_t magic;     // kResumeMagic
  uint64_t received;  // so many bytes of the guest's frames
};
static_assert(sizeof(ResumeGreeting) == 16);

// Without telling by its time how much is equal.
inline bool SameToken(const SessionToken& one, const SessionToken& other) {
  const auto* left = reinterpret_cast<const volatile uint8_t*>(&one);
  const auto* right = reinterpret_cast<const volatile uint8_t*>(&other);
  uint8_t differs = 0;
  for (size_t i = 0; i < sizeof one; ++i) differs = static_cast<uint8_t>(differs | (left[i] ^ right[i]));
  return differs == 0;
}

inline void PutGrant(const SessionToken& token, uint32_t grace_s, LocalReply* reply) {
  const ResumeGrant grant{kResumeMagic, token, grace_s, 0};
  static_assert(sizeof grant <= sizeof reply->text);
  reply->reserved = kGrantsResume;
  std::memcpy(reply->text, &grant, sizeof grant);
}

// The guest's side: what the host grants, if it grants anything that makes sense.
inline std::optional<ResumeGrant> GrantOf(const LocalReply& reply) {
  ResumeGrant grant;
  std::memcpy(&grant, reply.text, sizeof grant);
  const bool grants = reply.accepted == 1 && reply.reserved == kGrantsResume && grant.magic == kResumeMagic &&
                      grant.grace_s != 0 && grant.grace_s <= kMaxResumeGraceS;
  return grants ? std::optional(grant) : std::nullopt;
}

inline void PutRequest(const ResumeRequest& request, OpenBlock* block) {
  std::memcpy(block->reserved, &request, sizeof request);
}
// Any values: the block is a stranger's.
inline ResumeRequest RequestOf(const OpenBlock& block) {
  ResumeRequest request;
  std::memcpy(&request, block.reserved, sizeof request);
  return request;
}

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
