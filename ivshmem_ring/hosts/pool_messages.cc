// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/hosts/pool_messages.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ivshmem_ring/system/gpu_uuid.h"

namespace causeway {
namespace {

std::string NameText(const char (&name)[64]) {
  std::string text(name, strnlen(name, sizeof name));
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';
  return text;
}

}  // namespace

std::vector<std::byte> PoolAnswerBytes(uint32_t sessions, std::vector<PoolGpu> gpus) {
  gpus.resize(std::min<size_t>(gpus.size(), kMaxPoolGpus));
  const PoolAnswer answer{sessions, static_cast<uint32_t>(gpus.size()), sizeof(PoolGpu), 0};
  std::vector<std::byte> bytes(sizeof answer + gpus.size() * sizeof(PoolGpu));
  std::memcpy(bytes.data(), &answer, sizeof answer);
  if (!gpus.empty()) std::memcpy(bytes.data() + sizeof answer, gpus.data(), gpus.size() * sizeof(PoolGpu));
  return bytes;
}

bool ReadPoolAnswer(std::span<const std::byte> bytes, HostFigures* figures) {
  *figures = {};
  PoolAnswer answer{};
  if (bytes.size() < sizeof answer || bytes.size() > kMaxPoolAnswerBytes) return false;
  std::memcpy(&answer, bytes.data(), sizeof answer);
  bytes = bytes.subspan(sizeof answer);
  if (answer.gpu_count > kMaxPoolGpus || answer.gpu_bytes < sizeof(PoolGpu) ||
      bytes.size() != uint64_t{answer.gpu_count} * answer.gpu_bytes)
    return false;
  figures->sessions = answer.sessions;
  for (; !bytes.empty(); bytes = bytes.subspan(answer.gpu_bytes)) {
    PoolGpu gpu{};
    std::memcpy(&gpu, bytes.data(), sizeof gpu);
    const int load =
        gpu.load_percent == kLoadUnknown ? -1 : static_cast<int>(std::min(gpu.load_percent, 100u));
    figures->gpus.push_back({gpu.memory_bytes, std::min(gpu.free_bytes, gpu.memory_bytes), load,
                             UuidText(std::to_array(gpu.uuid)), NameText(gpu.name)});
  }
  return true;
}

}  // namespace causeway
