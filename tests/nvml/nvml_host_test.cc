// SPDX-License-Identifier: Apache-2.0
// The host's half of NVML over a library made for it: what a hostile guest may send, and whose processes are
// told.
#include <gtest/gtest.h>

#include <cstring>

#include "host_backend/worker/nvml/nvml.h"

namespace causeway::host {
namespace {

using nvml::DeviceHandle;
using nvml::Op;
using nvml::Return;

char devices[4];
std::string last_call;

DeviceHandle Native(uint32_t index) {
  return reinterpret_cast<DeviceHandle>(&devices[index]);
}
uint32_t FakeCount(uint32_t* count) {
  *count = 3;
  return 0;
}
uint32_t FakeByIndex(uint32_t index, DeviceHandle* device) {
  *device = Native(index);
  return 0;
}
uint32_t FakeMemory(DeviceHandle, nvml::Memory* memory) {
  *memory = {1000, 400, 600};
  return 0;
}
uint32_t FakeProcesses(DeviceHandle, uint32_t* count, nvml::ProcessV2* list) {
  constexpr uint32_t kRunning = 300;  // more than a first try has room for
  const uint32_t room = *count;
  *count = kRunning;
  if (room < kRunning) return 7;
  for (uint32_t i = 0; i < kRunning; ++i) list[i] = {100 + i, 10, 0, 0};
  return 0;
}
uint32_t FakeUtilization(DeviceHandle, nvml::ProcessSample* samples, uint32_t* count,
                         unsigned long long since) {
  *count = since == 0 ? 2 : 0;
  if (since != 0) return 6;
  samples[0] = {150, 1, 50, 10, 0, 0};
  samples[1] = {151, 1, 40, 10, 0, 0};
  return 0;
}
Return FakeName(DeviceHandle device, char* text, uint32_t bytes) {
  last_call = device == Native(1) ? "second" : "other";
  if (bytes < 5) return Return::kInsufficientSize;
  std::memcpy(text, "GPU!", 5);
  return Return::kSuccess;
}
Return FakeClocks(DeviceHandle, uint32_t* count, void* clocks) {
  for (uint32_t i = 0; i < *count; ++i) static_cast<uint32_t*>(clocks)[i] = i;
  return Return::kSuccess;
}
Return FakePdi(DeviceHandle, void* pdi) {
  std::memset(pdi, 0x5a, 16);
  return Return::kSuccess;
}

class NvmlHostTest : public ::testing::Test {
 protected:
  NvmlHostTest() : host_(library_, [this] { return peers_; }) {
    library_.device_count = FakeCount;
    library_.device_by_index = FakeByIndex;
    library_.memory = FakeMemory;
    library_.processes[0] = FakeProcesses;
    library_.utilization = FakeUtilization;
    library_.nvmlDeviceGetName = FakeName;
    library_.nvmlDeviceGetSupportedMemoryClocks = FakeClocks;
    library_.nvmlDeviceGetPdi = FakePdi;
    EXPECT_EQ(host_.FindDevices(nullptr), "");
  }

  template <class... T>
  Return Serve(Op op, T... values) {
    std::byte request[512];
    Writer w{request};
    (w.Put(values), ...);
    Reader in({request, w.size()});
    Writer out{reply_};
    const Return result = host_.Serve(static_cast<uint16_t>(op), in, out, &known_);
    answer_ = Reader({reply_, out.size()});
    return result;
  }

  NvmlLibrary library_;
  std::vector<WorkerPeer> peers_;
  NvmlHost host_;
  std::byte reply_[4000];
  Reader answer_;
  bool known_ = false;
};

TEST_F(NvmlHostTest, DevicesAreNumbers) {
  EXPECT_EQ(Serve(Op::nvmlDeviceGetName, 1u, 64u), Return::kSuccess);
  EXPECT_EQ(last_call, "second");
  EXPECT_EQ(answer_.Get<uint32_t>(), 5u);
  last_call = "";
  EXPECT_EQ(Serve(Op::nvmlDeviceGetName, 3u, 64u), Return::kInvalidArgument);
  EXPECT_EQ(Serve(Op::nvmlDeviceGetName, 0xffffffffu, 64u), Return::kInvalidArgument);
  EXPECT_EQ(Serve(Op::nvmlDeviceGetName, 1u), Return::kInvalidArgument);  // cut
  EXPECT_EQ(last_call, "");
  EXPECT_EQ(Serve(Op::nvmlDeviceGetName, 1u, 3u), Return::kInsufficientSize);
}

TEST_F(NvmlHostTest, SizesAreBounded) {
  EXPECT_EQ(Serve(Op::nvmlDeviceGetName, 1u, 0xffffffffu), Return::kSuccess);
  EXPECT_EQ(Serve(Op::nvmlDeviceGetSupportedMemoryClocks, 0u, 0xffffffffu, uint8_t{1}), Return::kSuccess);
  EXPECT_EQ(answer_.Get<uint32_t>(), nvml::kMaxListElements);
}

TEST_F(NvmlHostTest, OnlyKnownVersionsOfAStructGoThrough) {
  EXPECT_EQ(Serve(Op::nvmlDeviceGetPdi, 0u, nvml::V(9, 16), uint64_t{0}, uint32_t{0}),
            Return::kVersionMismatch);
  EXPECT_EQ(Serve(Op::nvmlDeviceGetPdi, 0u, nvml::V(1, 0xffffff), uint64_t{0}), Return::kVersionMismatch);
  EXPECT_EQ(Serve(Op::nvmlDeviceGetPdi, 0u, nvml::V(1, 16), uint32_t{0}), Return::kInvalidArgument);  // cut
  EXPECT_EQ(Serve(Op::nvmlDeviceGetPdi, 0u, nvml::V(1, 16), uint32_t{0}, uint64_t{0}), Return::kSuccess);
}

TEST_F(NvmlHostTest, WhatIsMissingOrUnknownIsSaid) {
  EXPECT_EQ(Serve(Op::nvmlDeviceGetUUID, 0u, 64u), Return::kFunctionNotFound);
  EXPECT_TRUE(known_);
  EXPECT_EQ(Serve(Op::kEnd, 0u), Return::kNotSupported);
  EXPECT_FALSE(known_);
  EXPECT_EQ(Serve(static_cast<Op>(1), 0u), Return::kNotSupported);
  EXPECT_FALSE(known_);
}

TEST_F(NvmlHostTest, OnlyTheTenantsProcessesCount) {
  peers_ = {{7, 150}, {8, 399}, {9, 5000}};
  EXPECT_EQ(Serve(Op::kProcesses, 0u, nvml::ProcessMode::kCompute), Return::kSuccess);
  EXPECT_EQ(answer_.Get<uint32_t>(), 2u);
  EXPECT_EQ(answer_.Get<nvml::ProcessV1>().pid, 7u);
  EXPECT_EQ(answer_.Get<nvml::ProcessV1>().pid, 8u);
  EXPECT_EQ(Serve(Op::kMemory, 0u, 0u), Return::kSuccess);
  const auto memory = answer_.Get<nvml::MemoryV2>();
  EXPECT_EQ(memory.total, 1000u);
  EXPECT_EQ(memory.free, 400u);
  EXPECT_EQ(memory.used, 20u);
  EXPECT_EQ(Serve(Op::kProcesses, 0u, static_cast<nvml::ProcessMode>(3)), Return::kInvalidArgument);
  EXPECT_EQ(Serve(Op::kMemory, 9u, 0u), Return::kInvalidArgument);
}

TEST_F(NvmlHostTest, OnlyTheTenantsUseIsTold) {
  EXPECT_EQ(Serve(Op::kUtilization, 0u, 0u, uint64_t{0}), Return::kNotFound);
  peers_ = {{8, 151}};
  EXPECT_EQ(Serve(Op::kUtilization, 0u, 0u, uint64_t{0}), Return::kSuccess);
  EXPECT_EQ(answer_.Get<uint32_t>(), 1u);
  const auto sample = answer_.Get<nvml::ProcessSample>();
  EXPECT_EQ(sample.pid, 8u);
  EXPECT_EQ(sample.sm, 40u);
  EXPECT_EQ(Serve(Op::kUtilization, 0u, 0u, uint64_t{5}), Return::kNotFound);
  EXPECT_EQ(Serve(Op::kUtilization, 0u), Return::kInvalidArgument);
}

TEST_F(NvmlHostTest, OfThePrivateTableOnlyReadersAreReached) {
  static bool other_called = false;
  static void (*table[256])() = {};
  for (auto& slot : table) slot = [] { other_called = true; };
  table[230] = reinterpret_cast<void (*)()>(+[](DeviceHandle, uint32_t* value) -> uint32_t {
    *value = 5;
    return 0;
  });
  EXPECT_EQ(Serve(Op::kPrivate, 0u, 230u), Return::kNotSupported);  // layout not known
  library_.private_table = table;
  library_.private_slots = 240;
  EXPECT_EQ(Serve(Op::kPrivate, 0u, 230u), Return::kSuccess);
  EXPECT_EQ(answer_.Get<uint32_t>(), 5u);
  for (const uint32_t slot : {0u, 1u, 213u, 229u, 249u, 0xffffffffu})
    EXPECT_EQ(Serve(Op::kPrivate, 0u, slot), Return::kNotSupported);
  EXPECT_EQ(Serve(Op::kPrivate, 9u, 230u), Return::kInvalidArgument);
  EXPECT_FALSE(other_called);
}

TEST(VisibleDevicesTest, AsCudaReadsThem) {
  const std::vector<std::string> uuids = {"GPU-aa11", "GPU-bb22", "GPU-cc33"};
  using List = std::vector<size_t>;
  EXPECT_EQ(VisibleDevices(nullptr, uuids), (List{0, 1, 2}));
  EXPECT_EQ(VisibleDevices("", uuids), List{});
  EXPECT_EQ(VisibleDevices("2,0", uuids), (List{0, 2}));
  EXPECT_EQ(VisibleDevices("1,7,0", uuids), List{1});
  EXPECT_EQ(VisibleDevices("-1", uuids), List{});
  EXPECT_EQ(VisibleDevices("GPU-cc,GPU-aa11", uuids), (List{0, 2}));
  EXPECT_EQ(VisibleDevices("GPU-dd", uuids), List{});
  EXPECT_EQ(VisibleDevices("99999999999999999999", uuids), List{});
}

}  // namespace
}  // namespace causeway::host
