// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/nvml/nvml.h"

#include <pthread.h>

#include <cstring>

#include "guest_lib/process/log.h"
#include "ivshmem_ring/transport/record.h"

namespace causeway::guest {

using nvml::Op;
using nvml::Return;

namespace {

constexpr uint32_t kChannel = 0;
constexpr size_t kHeader = sizeof(RecordHeader);
// Handles are addresses in here; nothing is ever read from them.
char handles[nvml::kMaxDevices];

}  // namespace

NvmlSession& NvmlSession::Get() {
  static NvmlSession& session = *new NvmlSession;  // programs call until the very end
  return session;
}

NvmlSession::NvmlSession() {
  // No thread may hold the lock while another forks: the child would wait for it for ever.
  pthread_atfork([] { Get().mutex_.lock(); }, [] { Get().mutex_.unlock(); }, InForkedChild);
}

// The connection is the parent's; the child leaves it alone and makes its own when it calls.
void NvmlSession::InForkedChild() {
  NvmlSession& session = Get();
  if (session.connection_ != nullptr) session.connection_->Abandon();
  (void)session.connection_.release();
  session.mutex_.unlock();
}

Return NvmlSession::Initialise() {
  const std::lock_guard lock(mutex_);
  if (references_ == 0) {
    const Return result = Connect();
    if (result != Return::kSuccess) return result;
  }
  ++references_;
  return Return::kSuccess;
}

Return NvmlSession::Shutdown() {
  const std::lock_guard lock(mutex_);
  if (references_ == 0) return Return::kUninitialized;
  if (--references_ == 0) connection_.reset();
  return Return::kSuccess;
}

bool NvmlSession::initialised() {
  const std::lock_guard lock(mutex_);
  return references_ != 0;
}

Return NvmlSession::Connect() {
  if (connection_ != nullptr) return Return::kSuccess;
  std::string error;
  connection_ = guest::Connect(SessionKind::kManagement, &error);
  if (connection_ == nullptr) {
    Complain("NVML: " + error);
    return Return::kDriverNotLoaded;
  }
  const Return result = AskForDevices();
  if (result != Return::kSuccess) connection_.reset();
  return result;
}

Return NvmlSession::AskForDevices() {
  NvmlCall call(Op::kDescribe, *this);
  const Return result = call.Finish();
  if (result != Return::kSuccess) return result;
  const auto reply = call.reader().Get<nvml::DescribeReply>();
  if (!call.reader().ok()) return Return::kUnknown;
  device_count_ = std::min(reply.device_count, nvml::kMaxDevices);
  return Return::kSuccess;
}

Return NvmlSession::DeviceCount(uint32_t* count) {
  const std::lock_guard lock(mutex_);
  if (references_ == 0) return Return::kUninitialized;
  const Return result = Connect();
  if (result == Return::kSuccess) *count = device_count_;
  return result;
}

nvml::DeviceHandle NvmlSession::HandleOf(uint32_t index) {
  return reinterpret_cast<nvml::DeviceHandle>(&handles[index]);
}

int NvmlSession::IndexOf(nvml::DeviceHandle handle) {
  const auto index = reinterpret_cast<uintptr_t>(handle) - reinterpret_cast<uintptr_t>(handles);
  return index < device_count_.load() ? static_cast<int>(index) : -1;
}

NvmlCall::NvmlCall(Op op) : session_(NvmlSession::Get()), lock_(session_.mutex_), op_(op) {
  const Return result = session_.references_ != 0 ? session_.Connect() : Return::kUninitialized;
  if (result == Return::kSuccess) {
    Begin();
  } else {
    writer_.Fail(nvml::AsFailure(result));
  }
}

NvmlCall::NvmlCall(Op op, NvmlSession& locked) : session_(locked), op_(op) {
  Begin();
}

void NvmlCall::Begin() {
  record_ = session_.connection_->transport->ReserveRequest(kChannel, kMaxChannelRecordBytes);
  if (record_ == nullptr) {
    Lose();
    return writer_.Fail(nvml::AsFailure(Return::kUnknown));
  }
  writer_ = Writer({record_ + kHeader, kMaxChannelRecordBytes - kHeader});
}

void NvmlCall::Lose() {
  Complain("NVML: the session is lost (" + session_.connection_->transport->LossReason() + ")");
  session_.connection_.reset();  // the next call tries again
}

void NvmlCall::PutDevice(nvml::DeviceHandle device) {
  NvmlRemote remote;
  nvml::Device::Held<nvml::DeviceHandle>::Send(remote, writer_, device, 0);
}

Return NvmlCall::Finish() {
  if (!writer_.ok()) return Results<Return>::FailureOf(writer_.error());
  ClientTransport& transport = *session_.connection_->transport;
  RecordHeader header{};
  header.op = static_cast<uint16_t>(op_);
  PutHeader(record_, header);
  transport.PublishRequest(kChannel, kHeader + writer_.size());
  const auto reply = transport.AwaitReply(kChannel);
  if (reply.size() < kHeader) {
    Lose();
    return Return::kUnknown;
  }
  std::memcpy(&header, reply.data(), kHeader);
  reader_ = Reader(reply.subspan(kHeader));
  return static_cast<Return>(header.result);
}

}  // namespace causeway::guest
