// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/process/daemon_link.h"

#include "ivshmem_ring/transport/packet.h"

namespace causeway::host {
namespace {

CUresult ResultOf(SharingResult result) {
  switch (result) {
    case SharingResult::kOk:
      return CUDA_SUCCESS;
    case SharingResult::kUnknown:
      return CUDA_ERROR_INVALID_VALUE;
    case SharingResult::kFull:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case SharingResult::kForbidden:
      return CUDA_ERROR_NOT_PERMITTED;
  }
  return CUDA_ERROR_UNKNOWN;
}

}  // namespace

CUresult DaemonLink::Ask(SharingRequest request, int descriptor, SharingReply* reply, UniqueFd* received) {
  const std::lock_guard one(asking_);
  std::unique_lock lock(mutex_);
  if (++asked_ == 0) asked_ = 1;
  request.number = asked_;
  waiting_ = true;
  arrived_ = false;
  refused_ = false;
  if (!SendPacket(control_, &request, sizeof request, std::span(&descriptor, descriptor >= 0 ? 1 : 0))) {
    waiting_ = false;
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  // Where one that is not taken has come, the daemon has only now got to this question.
  bool refused = false;
  while (answered_.wait_for(lock, patience_, [this] { return arrived_ || refused_; }) && !arrived_) {
    refused = true;
    refused_ = false;
  }
  waiting_ = false;
  if (!arrived_) {
    // What was refused may have been the answer: a daemon that crashed has left a question that nobody answers.
    overdue_ = refused ? 0 : overdue_ + 1;
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *reply = reply_;
  if (received != nullptr) *received = std::move(received_);
  received_.reset();
  return ResultOf(reply->result);
}

// A daemon of an earlier release numbers no answers. They come in the order of the questions, so the first ones answer
// those that were given up.
bool DaemonLink::Answers(const SharingReply& reply) const {
  return waiting_ && !arrived_ && (reply.number == asked_ || (reply.number == 0 && overdue_ == 0));
}

void DaemonLink::Deliver(const SharingReply& reply, UniqueFd descriptor) {
  const std::lock_guard lock(mutex_);
  if (Answers(reply)) {
    overdue_ = 0;  // what was asked before gets no answer any more
    reply_ = reply;
    received_ = std::move(descriptor);
    arrived_ = true;
  } else if (overdue_ != 0) {
    --overdue_;
    refused_ = true;
  }
  answered_.notify_all();
}

CUresult DaemonLink::Put(SharedKind kind, const void* bytes, int descriptor, SharedToken* token) {
  SharingRequest request{};
  request.action = SharingAction::kPut;
  request.kind = kind;
  request.has_descriptor = descriptor >= 0 ? 1 : 0;
  if (bytes != nullptr) std::memcpy(request.bytes, bytes, sizeof request.bytes);
  SharingReply reply{};
  const CUresult result = Ask(request, descriptor, &reply, nullptr);
  if (result == CUDA_SUCCESS) std::memcpy(token, reply.token, sizeof *token);
  return result;
}

CUresult DaemonLink::Get(SharedKind kind, const SharedToken& token, void* bytes, UniqueFd* descriptor) {
  SharingRequest request{};
  request.action = SharingAction::kGet;
  request.kind = kind;
  std::memcpy(request.token, &token, sizeof request.token);
  SharingReply reply{};
  const CUresult result = Ask(request, -1, &reply, descriptor);
  if (result == CUDA_SUCCESS && bytes != nullptr) std::memcpy(bytes, reply.bytes, sizeof reply.bytes);
  return result;
}

CUresult DaemonLink::Drop(const SharedToken& token) {
  SharingRequest request{};
  request.action = SharingAction::kDrop;
  std::memcpy(request.token, &token, sizeof request.token);
  SharingReply reply{};
  return Ask(request, -1, &reply, nullptr);
}

namespace {

SharingRequest ImageMessage(SharingAction action, const ImageHash& hash, uint64_t bytes) {
  ImageRequest image{};
  std::memcpy(image.hash, hash.data(), sizeof image.hash);
  image.bytes = bytes;
  SharingRequest request{};
  request.action = action;
  std::memcpy(request.bytes, &image, sizeof image);
  return request;
}

}  // namespace

CUresult DaemonLink::PutImage(const ImageHash& hash, uint64_t bytes, int file) {
  SharingRequest request = ImageMessage(SharingAction::kPutImage, hash, bytes);
  request.has_descriptor = 1;
  SharingReply reply{};
  return Ask(request, file, &reply, nullptr);
}

CUresult DaemonLink::GetImage(const ImageHash& hash, uint64_t bytes, UniqueFd* file) {
  SharingReply reply{};
  return Ask(ImageMessage(SharingAction::kGetImage, hash, bytes), -1, &reply, file);
}

// No limit: the daemon has one, a daemon that follows it asks for the order again, and without one this process ends.
CUresult DaemonLink::Checkpoint(const CheckpointOrder& order, uint32_t* state) {
  const std::lock_guard one(checkpointing_);
  std::unique_lock lock(mutex_);
  checkpoint_.reset();
  if (!SendPacket(control_, &order, sizeof order, {})) return CUDA_ERROR_OPERATING_SYSTEM;
  order_ = &order;
  answered_.wait(lock, [this] { return checkpoint_.has_value(); });
  order_ = nullptr;
  *state = checkpoint_->state;
  return static_cast<CUresult>(checkpoint_->result);
}

void DaemonLink::Deliver(const CheckpointAnswer& answer) {
  const std::lock_guard lock(mutex_);
  if (order_ == nullptr || checkpoint_) return;
  checkpoint_ = answer;
  if (answer.again != 0) {
    CheckpointOrder order = *order_;
    order.again = 1;
    checkpoint_.reset();
    if (SendPacket(control_, &order, sizeof order, {})) return;
    checkpoint_ = CheckpointAnswer{CUDA_ERROR_OPERATING_SYSTEM, 0, 0};
  }
  answered_.notify_all();
}

}  // namespace causeway::host
