// SPDX-License-Identifier: Apache-2.0
// What a guest that may use several hosts reads: a host's answer to the question for its load, which is what somebody who has the key
// makes of it, and the list of hosts. Figures that are read are in their bounds, and any of them have an order.
#include <algorithm>
#include <string>
#include <vector>

#include "ivshmem_ring/hosts/host_choice.h"
#include "ivshmem_ring/hosts/host_list.h"
#include "tests/fuzz/fuzz_input.h"

namespace causeway::fuzz {
namespace {

void RequireSound(const HostFigures& figures) {
  Require(figures.gpus.size() <= kMaxPoolGpus);
  for (const HostGpu& gpu : figures.gpus) {
    Require(gpu.free_bytes <= gpu.memory_bytes && gpu.load_percent >= -1 && gpu.load_percent <= 100);
    Require(gpu.uuid.size() == 40 && gpu.name.size() <= 64);
    Require(std::all_of(gpu.name.begin(), gpu.name.end(), [](char c) { return c >= ' ' && c <= '~'; }));
  }
}

// Nearly an answer.
std::vector<std::byte> SomeAnswer(Input& input) {
  std::vector<PoolGpu> gpus(input.Byte() % 8);
  for (PoolGpu& gpu : gpus) {
    gpu = {input.Word(), input.Word(), input.Byte(), 0, {input.Byte()}, {}};
    const auto name = input.Bytes(std::min<size_t>(input.Byte(), sizeof gpu.name));
    std::copy(name.begin(), name.end(), gpu.name);
  }
  std::vector<std::byte> bytes = PoolAnswerBytes(uint32_t(input.Word()), gpus);
  if (input.Byte() > 128) bytes[input.Word() % bytes.size()] ^= std::byte{input.Byte()};
  if (input.Byte() > 200) bytes.resize(input.Word() % (2 * bytes.size()));
  return bytes;
}

void TryAnswers(Input& input) {
  std::vector<HostAnswer> answers(input.Byte() % 6);
  for (HostAnswer& answer : answers) {
    answer.state = static_cast<HostAnswer::State>(input.Byte() % 4);
    if (ReadPoolAnswer(SomeAnswer(input), &answer.figures)) RequireSound(answer.figures);
  }
  const auto devices = input.Bytes(input.Byte() % 64);
  std::vector<size_t> order =
      OrderHosts(answers, {reinterpret_cast<const char*>(devices.data()), devices.size()});
  for (const size_t number : order) Require(answers.at(number).state <= HostAnswer::State::kUnknown);
  std::sort(order.begin(), order.end());
  Require(std::unique(order.begin(), order.end()) == order.end());
}

void TryText(Input& input) {
  const auto bytes = input.Bytes(4096);
  const std::string text(bytes.begin(), bytes.end());
  std::vector<HostAddress> hosts, again;
  const bool of_file = ParseHostsFile(text, &hosts).empty();
  if (!of_file && !ParseHostList(text, &hosts).empty()) return;
  Require(!hosts.empty() && hosts.size() <= kMaxHosts);
  // What is read can be written, and read as the same.
  std::string list;
  for (const HostAddress& host : hosts) list += (list.empty() ? "" : ",") + host.text;
  Require(ParseHostList(list, &again).empty() && again.size() == hosts.size());
  for (size_t i = 0; i < hosts.size(); ++i)
    Require(again[i].host == hosts[i].host && again[i].port == hosts[i].port &&
            again[i].text == hosts[i].text);
}

}  // namespace
}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace causeway::fuzz;
  Input input(data, size);
  switch (input.Byte() % 3) {
    case 0:
      TryAnswers(input);
      break;
    case 1:
      TryText(input);
      break;
    default: {
      const auto bytes = input.Bytes(size);
      causeway::HostFigures figures;
      if (causeway::ReadPoolAnswer(std::as_bytes(bytes), &figures)) RequireSound(figures);
    }
  }
  return 0;
}
