// SPDX-License-Identifier: Apache-2.0
// What a host says of itself to a guest that may choose among several (docs/remote.md). The guest sends an OpenBlock of
// SessionKind::kQuestion, as over TCP, and gets a LocalReply. Where its `accepted` is kAnswersOnly, `region_bytes` bytes follow: a
// PoolAnswer and its PoolGpus. Then the connection ends: there is no session. A refusal says, in its text, why a session of
// this guest would be refused now.
//
// Hosts and guests may be of different releases: PoolAnswer never changes, and PoolGpu grows at its end.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace causeway {

inline constexpr uint32_t kAnswersOnly = 2;  // LocalReply::accepted
inline constexpr uint32_t kMaxPoolGpus = 64;
inline constexpr size_t kMaxPoolAnswerBytes = 32u << 10;
inline constexpr uint32_t kLoadUnknown = 0xffffffff;

struct PoolAnswer {
  uint32_t sessions;   // of this guest, on this host
  uint32_t gpu_count;  // that a session of it could use; at most kMaxPoolGpus
  uint32_t gpu_bytes;  // sizeof(PoolGpu) of the host's release
  uint32_t reserved;
};
static_assert(sizeof(PoolAnswer) == 16);

struct PoolGpu {
  uint64_t memory_bytes;  // as the guest sees it: its limit where that is less
  uint64_t free_bytes;    // that it could take now
  uint32_t load_percent;  // in so much of the last moments a kernel ran on it, of whomever; or kLoadUnknown
  uint32_t reserved;
  uint8_t uuid[16];
  char name[64];  // ends with a zero byte
};
static_assert(sizeof(PoolGpu) == 104);

// The same, checked.
struct HostGpu {
  uint64_t memory_bytes = 0;
  uint64_t free_bytes = 0;  // at most memory_bytes
  int load_percent = -1;    // 0 to 100; -1: not known
  std::string uuid;         // as nvidia-smi shows it
  std::string name;         // printable ASCII
};
struct HostFigures {
  uint32_t sessions = 0;
  std::vector<HostGpu> gpus;
};

// The host's side: figures become the bytes of an answer. Further GPUs than kMaxPoolGpus are left out.
std::vector<std::byte> PoolAnswerBytes(uint32_t sessions, std::vector<PoolGpu> gpus);

// The guest's side. The bytes are a stranger's until here. False: they are no answer.
bool ReadPoolAnswer(std::span<const std::byte> bytes, HostFigures* figures);

}  // namespace causeway
