// SPDX-License-Identifier: Apache-2.0
// Whether a worker's guest may have another process checkpointed, and what it is told.
#include <algorithm>
#include <cstring>

#include "host_backend/daemon/pool/worker_pool.h"
#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/system/gpu_uuid.h"

namespace causeway::daemon {
namespace {

// A process comes back on GPUs that its session may open, and on no others.
bool MayRestoreTo(const CheckpointOrder& order, const std::vector<std::string>& gpus) {
  if (gpus.empty()) return true;
  for (uint32_t i = 0; i < order.pairs; ++i) {
    DeviceUuid to;
    std::memcpy(to.data(), order.pair[i].to, to.size());
    if (to == DeviceUuid{}) return false;
    if (std::none_of(gpus.begin(), gpus.end(), [&](const std::string& gpu) { return UuidOf(gpu) == to; }))
      return false;
  }
  return true;
}

}  // namespace

// A process may be controlled by its own user and by root of the same scope, as a debugger may.
CUresult WorkerPool::FindProcess(const SessionPeer& caller, uint32_t guest_pid, const Entry** found) const {
  for (const Entry& entry : workers_) {
    if (entry.client == nullptr || !entry.process->assigned() || entry.kind != SessionKind::kCuda) continue;
    const SessionPeer peer = entry.client->Peer();
    if (peer.scope != caller.scope || peer.guest_pid == 0 || peer.guest_pid != guest_pid) continue;
    *found = &entry;
    return caller.uid == 0 || caller.uid == peer.uid ? CUDA_SUCCESS : CUDA_ERROR_NOT_PERMITTED;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

void WorkerPool::OnCheckpoint(WorkerProcess& worker, const CheckpointOrder& order) {
  const Entry* asker = Find(worker);
  if (asker == nullptr || asker->client == nullptr) return;
  const SessionPeer caller = asker->client->Peer();
  const Entry* target = nullptr;
  CUresult result = FindProcess(caller, order.guest_pid, &target);
  if (result == CUDA_SUCCESS && !MayRestoreTo(order, *target->client->Peer().gpus))
    result = CUDA_ERROR_INVALID_DEVICE;
  if (result != CUDA_SUCCESS) return worker.AnswerCheckpoint({uint32_t(result), 0, 0});
  checkpoints_.Ask(
      {asker->number, target->number, target->process->pid(), target->user, caller.scope, order});
}

void WorkerPool::Reach(uint64_t target, uint32_t number) {
  if (Entry* entry = Find(target)) entry->process->Reach(number);
}

void WorkerPool::OnReachable(WorkerProcess& worker, uint32_t number) {
  if (const Entry* entry = Find(worker)) checkpoints_.Reached(entry->number, number);
}

void WorkerPool::OnCheckpointed(uint64_t asker, const CheckpointAnswer& answer) {
  if (Entry* entry = Find(asker)) entry->process->AnswerCheckpoint(answer);
}

}  // namespace causeway::daemon
