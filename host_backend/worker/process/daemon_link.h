// SPDX-License-Identifier: Apache-2.0
// The worker's questions to the daemon about what the processes of its VM share. Any thread of the session
// may ask; the supervisor's thread, which reads the control socket, delivers the answers.
#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "host_backend/common/unique_fd.h"
#include "host_backend/common/worker_control.h"
#include "ivshmem_ring/messages/image_hash.h"
#include "ivshmem_ring/messages/sharing_messages.h"
#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway::host {

class DaemonLink {
 public:
  // The daemon answers at once. One that does not is stopped, or has crashed between question and answer: the question
  // fails after that time, and the session goes on.
  static constexpr std::chrono::milliseconds kPatience{10'000};

  explicit DaemonLink(int control, std::chrono::milliseconds patience = kPatience)
      : control_(control), patience_(patience) {}

  // `descriptor` stays the caller's; -1: the bytes are what is shared.
  CUresult Put(SharedKind kind, const void* bytes, int descriptor, SharedToken* token);
  // Of a shared object either *descriptor is set or the bytes hold it.
  CUresult Get(SharedKind kind, const SharedToken& token, void* bytes, UniqueFd* descriptor);
  CUresult Drop(const SharedToken& token);
  // Module images by hash; `file` stays the caller's. CUDA_ERROR_NOT_PERMITTED: the daemon keeps none.
  CUresult PutImage(const ImageHash& hash, uint64_t bytes, int file);
  CUresult GetImage(const ImageHash& hash, uint64_t bytes, UniqueFd* file);
  // A call about another process of this VM, as the driver answered it; it takes as long as the call does. The daemon may
  // be replaced meanwhile: the next one is asked again, and may answer that the call has been made.
  // *state where the action is kGetState.
  CUresult Checkpoint(const CheckpointOrder& order, uint32_t* state);

  void Deliver(const SharingReply& reply, UniqueFd descriptor);
  void Deliver(const CheckpointAnswer& answer);

 private:
  CUresult Ask(SharingRequest request, int descriptor, SharingReply* reply, UniqueFd* received);
  bool Answers(const SharingReply& reply) const;

  const int control_;
  const std::chrono::milliseconds patience_;
  std::mutex asking_;  // one question at a time
  std::mutex mutex_;
  std::condition_variable answered_;
  bool waiting_ = false;
  bool arrived_ = false;
  bool refused_ = false;  // an answer, for it is to a question that was given up
  uint32_t overdue_ = 0;  // questions that were given up, whose answers may still come
  uint32_t asked_ = 0;    // the number of the last question; never 0
  SharingReply reply_{};
  UniqueFd received_;
  std::mutex checkpointing_;                // one at a time; before mutex_
  const CheckpointOrder* order_ = nullptr;  // that is waited for
  std::optional<CheckpointAnswer> checkpoint_;
};

}  // namespace causeway::host
