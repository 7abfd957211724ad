// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/hosts/host_choice.h"

#include <algorithm>

namespace causeway {
namespace {

constexpr double kAlike = 0.9;       // of the best: the order of preference decides
constexpr double kLeastIdle = 0.05;  // of a GPU that is busy all the time: its memory still counts

// As the driver reads the list: by UUIDs, or by the beginnings of them. Numbers count in each host's own list.
bool Names(std::string_view devices, const std::string& uuid) {
  if (!devices.starts_with("GPU-")) return true;
  while (!devices.empty()) {
    const std::string_view item = devices.substr(0, devices.find(','));
    if (!item.starts_with("GPU-")) return false;
    if (std::string_view(uuid).starts_with(item)) return true;
    devices.remove_prefix(std::min(item.size() + 1, devices.size()));
  }
  return false;
}

}  // namespace

double WorthOf(const HostFigures& figures, std::string_view devices) {
  double best = 0;
  for (const HostGpu& gpu : figures.gpus) {
    if (!Names(devices, gpu.uuid)) continue;
    const double idle = 1 - std::max(gpu.load_percent, 0) / 100.0;
    // One byte, so that a GPU without free memory is still better than none.
    best = std::max(best, static_cast<double>(gpu.free_bytes + 1) * std::max(idle, kLeastIdle));
  }
  const double gpus = static_cast<double>(std::max<size_t>(figures.gpus.size(), 1));
  return best / (1 + figures.sessions / gpus);
}

std::vector<size_t> OrderHosts(std::vector<HostAnswer>& answers, std::string_view devices) {
  std::vector<std::pair<size_t, double>> up;
  std::vector<size_t> unknown;
  for (size_t i = 0; i < answers.size(); ++i) {
    HostAnswer& answer = answers[i];
    if (answer.state == HostAnswer::State::kUnknown) unknown.push_back(i);
    if (answer.state != HostAnswer::State::kUp) continue;
    if (const double worth = WorthOf(answer.figures, devices); worth > 0) {
      up.emplace_back(i, worth);
    } else {
      answer.state = HostAnswer::State::kFull;
      answer.reason = "it has none of the GPUs that CUDA_VISIBLE_DEVICES names";
    }
  }
  std::vector<size_t> order;
  while (!up.empty()) {
    const double best = std::max_element(up.begin(), up.end(), [](const auto& one, const auto& other) {
                          return one.second < other.second;
                        })->second;
    const auto next =
        std::find_if(up.begin(), up.end(), [&](const auto& host) { return host.second >= kAlike * best; });
    order.push_back(next->first);
    up.erase(next);
  }
  order.insert(order.end(), unknown.begin(), unknown.end());
  return order;
}

}  // namespace causeway
