// SPDX-License-Identifier: Apache-2.0
// Members of host::DaemonLink, in place of host_backend/worker/process/daemon_link.cc: objects of a program
// come before those of a library.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "tests/fuzz/worker_setup.h"

namespace causeway::fuzz {
namespace {

struct Shared {
  std::vector<std::byte> bytes;
  UniqueFd descriptor;
};
struct Daemon {
  std::mutex mutex;
  std::map<SharedKind, Shared> shared;
  std::map<ImageHash, UniqueFd> images;
  uint64_t last_token = 0;
};
Daemon& TheDaemon() {
  static auto& daemon = *new Daemon;
  return daemon;
}

}  // namespace

host::DaemonLink& TheFakeDaemon() {
  static auto& link = *new host::DaemonLink(-1);
  return link;
}

void ResetFakeDaemon() {
  Daemon& daemon = TheDaemon();
  daemon.shared.clear();
  daemon.images.clear();
  daemon.last_token = 0;
}

}  // namespace causeway::fuzz

namespace causeway::host {

using fuzz::TheDaemon;

CUresult DaemonLink::Put(SharedKind kind, const void* bytes, int descriptor, SharedToken* token) {
  fuzz::Daemon& daemon = TheDaemon();
  const std::lock_guard lock(daemon.mutex);
  fuzz::Shared& shared = daemon.shared[kind];
  const auto* from = static_cast<const std::byte*>(bytes);
  shared.bytes.assign(kSharedBytes, std::byte{0});
  if (from != nullptr) shared.bytes.assign(from, from + kSharedBytes);
  shared.descriptor.reset(descriptor >= 0 ? dup(descriptor) : -1);
  *token = {};
  std::memcpy(token, &++daemon.last_token, sizeof daemon.last_token);
  return CUDA_SUCCESS;
}

CUresult DaemonLink::Get(SharedKind kind, const SharedToken&, void* bytes, UniqueFd* descriptor) {
  fuzz::Daemon& daemon = TheDaemon();
  const std::lock_guard lock(daemon.mutex);
  const auto found = daemon.shared.find(kind);
  if (found == daemon.shared.end()) return CUDA_ERROR_INVALID_VALUE;
  if (bytes != nullptr) std::memcpy(bytes, found->second.bytes.data(), kSharedBytes);
  if (descriptor != nullptr && found->second.descriptor)
    descriptor->reset(dup(found->second.descriptor.get()));
  return CUDA_SUCCESS;
}

CUresult DaemonLink::Drop(const SharedToken&) {
  return CUDA_SUCCESS;
}

CUresult DaemonLink::PutImage(const ImageHash& hash, uint64_t, int file) {
  fuzz::Daemon& daemon = TheDaemon();
  const std::lock_guard lock(daemon.mutex);
  daemon.images[hash].reset(dup(file));
  return CUDA_SUCCESS;
}

CUresult DaemonLink::GetImage(const ImageHash& hash, uint64_t, UniqueFd* file) {
  fuzz::Daemon& daemon = TheDaemon();
  const std::lock_guard lock(daemon.mutex);
  const auto found = daemon.images.find(hash);
  if (found == daemon.images.end()) return CUDA_ERROR_INVALID_VALUE;
  file->reset(dup(found->second.get()));
  return CUDA_SUCCESS;
}

// What another process would have answered is the daemon's to tell: any state.
CUresult DaemonLink::Checkpoint(const CheckpointOrder& order, uint32_t* state) {
  if (order.action < CheckpointAction::kGetState || order.action > CheckpointAction::kUnlock ||
      order.guest_pid == 0 || order.pairs > kMaxGpuPairs) {
    std::abort();  // the daemon would end the session
  }
  *state = order.guest_pid % 4;
  return order.guest_pid % 2 != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void DaemonLink::Deliver(const SharingReply&, UniqueFd) {}
void DaemonLink::Deliver(const CheckpointAnswer&) {}

}  // namespace causeway::host
