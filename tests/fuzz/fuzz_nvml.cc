// SPDX-License-Identifier: Apache-2.0
// The NVML half of a worker under a hostile guest: every opcode with bodies that are nearly valid. Behind it
// a library whose answers are the input's choice, and whose counts may be larger than the room.
#include "host_backend/worker/nvml/nvml.h"
#include "tests/fuzz/fuzz_input.h"

namespace causeway::fuzz {
namespace {

using nvml::DeviceHandle;
using nvml::Op;

char devices[3];
uint32_t answer;

// Of every row's own type.
template <class Row>
struct AnyCall;
template <class... P, class... D>
struct AnyCall<Shape<nvml::Return (*)(P...), D...>> {
  static nvml::Return Call(P...) { return static_cast<nvml::Return>(answer); }
};
uint32_t Init() {
  return 0;
}
uint32_t Count(uint32_t* count) {
  *count = 3;
  return 0;
}
uint32_t ByIndex(uint32_t index, DeviceHandle* device) {
  *device = reinterpret_cast<DeviceHandle>(&devices[index]);
  return 0;
}
uint32_t Memory(DeviceHandle, nvml::Memory* memory) {
  *memory = {100, 50, 50};
  return answer;
}
uint32_t Processes(DeviceHandle, uint32_t* count, nvml::ProcessV2* list) {
  if (*count > 0) list[0] = {1, 2, 3, 4};
  *count = answer == 7 ? 70'000 : 1;
  return answer;
}
uint32_t Utilization(DeviceHandle, nvml::ProcessSample* samples, uint32_t* count, unsigned long long) {
  samples[0] = {1, 2, 3, 4, 5, 6};
  *count = answer == 0 ? 0xffffffff : 1;
  return answer;
}
// A list whose length comes out larger than there was room for.
nvml::Return LongList(DeviceHandle, uint32_t* count, void*) {
  *count = 0xffffffff;
  return static_cast<nvml::Return>(answer);
}

const host::NvmlLibrary& Library() {
  static const host::NvmlLibrary library = [] {
    host::NvmlLibrary made;
    made.init = Init;
    made.device_count = Count;
    made.device_by_index = ByIndex;
    made.memory = Memory;
    made.processes[0] = Processes;
    made.utilization = Utilization;
#define NVML_CALL(fn, ...) made.fn = &AnyCall<nvml::RowShape<Op::fn>>::Call;
#define NVML_GUEST NVML_CALL
#include "ivshmem_ring/nvml_calls.def"
    made.nvmlDeviceGetSupportedMemoryClocks = LongList;
    return made;
  }();
  return library;
}

}  // namespace
}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace causeway;
  using namespace causeway::fuzz;
  Input input(data, size);
  host::NvmlHost host(Library(), [] { return std::vector<WorkerPeer>{{10, 1}, {11, 2}}; });
  Require(host.FindDevices(nullptr).empty());
  while (!input.empty()) {
    constexpr uint32_t kAnswers[] = {0, 0, 0, 7, 2, 999};
    answer = kAnswers[input.Byte() % std::size(kAnswers)];
    const auto op = static_cast<uint16_t>(static_cast<size_t>(Op::kDescribe) + input.Word() % 0x140);
    // Mostly a device that exists, then bytes as they come.
    std::vector<std::byte> request(input.Byte() % 200);
    for (std::byte& byte : request) byte = static_cast<std::byte>(input.Byte());
    if (request.size() >= 4 && input.Byte() < 200) {
      const uint32_t device = input.Byte() % 4;
      std::memcpy(request.data(), &device, sizeof device);
    }
    Reader in(request);
    std::vector<std::byte> reply(4000);
    Writer out(reply);
    bool known = false;
    host.Serve(op, in, out, &known);
    Require(out.size() <= reply.size());
  }
  return 0;
}
