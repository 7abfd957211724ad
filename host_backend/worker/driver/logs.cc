// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/driver/logs.h"

#include <algorithm>
#include <cstring>

#include "host_backend/worker/driver/driver.h"
#include "host_backend/worker/driver/private_text.h"
#include "ivshmem_ring/messages/callback_messages.h"

namespace causeway::host {
namespace {

constexpr size_t kMostLines = 256;  // of a guest that asks nothing while others make the driver log
constexpr size_t kMostLineBytes = 1024;

}  // namespace

void CUDA_CB Logs::Collect(void* user_data, CUlogLevel level, char* message, size_t bytes) {
  if (OwnCalls::Any()) return;
  auto* logs = static_cast<Logs*>(user_data);
  const std::lock_guard lock(logs->mutex_);
  if (logs->lines_.size() >= kMostLines) logs->lines_.pop_front();
  logs->lines_.push_back({static_cast<uint32_t>(level),
                          WithoutAddresses({message, std::min(bytes, kMostLineBytes)}, Keep::kNothing)});
  logs->pending_.store(true, std::memory_order_release);
}

Logs::~Logs() {
  if (listeners_ != 0) TheDriver().cuLogsUnregisterCallback(handle_);
}

CUresult Logs::Listen() {
  const std::lock_guard lock(listeners_mutex_);
  if (listeners_ == 0) {
    if (const CUresult result = TheDriver().cuLogsRegisterCallback(&Collect, this, &handle_)) return result;
  }
  ++listeners_;
  return CUDA_SUCCESS;
}

CUresult Logs::Forget() {
  const std::lock_guard lock(listeners_mutex_);
  if (listeners_ == 0) return CUDA_ERROR_INVALID_VALUE;
  if (--listeners_ != 0) return CUDA_SUCCESS;
  return TheDriver().cuLogsUnregisterCallback(handle_);
}

size_t Logs::Take(std::span<std::byte> space) {
  const std::lock_guard lock(mutex_);
  size_t used = 0;
  while (!lines_.empty()) {
    const Line& line = lines_.front();
    const uint32_t head[2] = {kLogStream + line.level, static_cast<uint32_t>(line.text.size())};
    if (space.size() - used < sizeof head + line.text.size()) break;
    std::memcpy(space.data() + used, head, sizeof head);
    std::memcpy(space.data() + used + sizeof head, line.text.data(), line.text.size());
    used += sizeof head + line.text.size();
    lines_.pop_front();
  }
  pending_.store(!lines_.empty(), std::memory_order_release);
  return used;
}

}  // namespace causeway::host
