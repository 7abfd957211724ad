// SPDX-License-Identifier: Apache-2.0
// The management library as programs use it: the same answers from NVIDIA's library and through Causeway, but
// for what a VM may not see or do. Run by tests/driver/compare_ways.py like the programs of the driver API.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "ivshmem_ring/nvml/nvml_api.h"
#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

using nvml::DeviceHandle;
using nvml::V;

constexpr uint32_t kSuccess = 0, kUninitialized = 1, kInvalid = 2, kNotSupported = 3, kNoPermission = 4,
                   kNotFound = 6, kShort = 7, kFunctionNotFound = 13;

void* NvmlSymbol(const char* name) {
  static void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  return library != nullptr ? dlsym(library, name) : nullptr;
}

// Calls a function by name; the arguments' types are the ABI's.
template <class... P>
uint32_t Call(const char* name, P... p) {
  auto* function = reinterpret_cast<uint32_t (*)(P...)>(NvmlSymbol(name));
  if (function == nullptr) return 9999;
  return function(p...);
}

bool ThroughCauseway() {
  return std::getenv("CAUSEWAY") != nullptr;
}

// NVIDIA's library reads and writes through some arguments without a look: a null pointer or handle ends the
// program. Natively only right ones are given to the calls that are asked for many functions.
bool SurvivesWrongArguments() {
  return ThroughCauseway() || OnSoftwareGpu();
}

class NvmlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(Call("nvmlInit_v2"), kSuccess);
    ASSERT_EQ(Call("nvmlDeviceGetHandleByIndex_v2", 0u, &device_), kSuccess);
  }
  void TearDown() override { EXPECT_EQ(Call("nvmlShutdown"), kSuccess); }

  // A number that every device has; recorded where it does not change.
  uint32_t Number(const char* name) {
    uint32_t value = 0;
    EXPECT_EQ(Call(name, device_, &value), kSuccess) << name;
    if (!SurvivesWrongArguments()) return value;
    EXPECT_EQ(Call(name, device_, static_cast<uint32_t*>(nullptr)), kInvalid) << name;
    EXPECT_EQ(Call(name, DeviceHandle{}, &value), kInvalid) << name;
    return value;
  }
  std::string Text(const char* name) {
    char text[96] = "";
    EXPECT_EQ(Call(name, device_, +text, 96u), kSuccess) << name;
    EXPECT_EQ(Call(name, device_, +text, 2u), kShort) << name;
    EXPECT_EQ(Call(name, device_, static_cast<char*>(nullptr), 96u), kInvalid) << name;
    EXPECT_EQ(Call(name, device_, +text, 96u), kSuccess) << name;
    return text;
  }
  DeviceHandle device_ = nullptr;
};

TEST(NvmlInitTest, CountsItsUsers) {
  uint32_t count = 0;
  EXPECT_EQ(Call("nvmlDeviceGetCount_v2", &count), kUninitialized);
  EXPECT_EQ(Call("nvmlShutdown"), kUninitialized);
  ASSERT_EQ(Call("nvmlInit_v2"), kSuccess);
  ASSERT_EQ(Call("nvmlInitWithFlags", 0u), kSuccess);
  EXPECT_EQ(Call("nvmlDeviceGetCount_v2", &count), kSuccess);
  EXPECT_GE(count, 1u);
  EXPECT_EQ(Call("nvmlShutdown"), kSuccess);
  EXPECT_EQ(Call("nvmlDeviceGetCount_v2", &count), kSuccess);
  EXPECT_EQ(Call("nvmlShutdown"), kSuccess);
  EXPECT_EQ(Call("nvmlDeviceGetCount_v2", &count), kUninitialized);
  EXPECT_EQ(Call("nvmlInit_v2"), kSuccess);  // and again
  EXPECT_EQ(Call("nvmlShutdown"), kSuccess);
}

TEST_F(NvmlTest, SystemTellsVersions) {
  char text[96] = "";
  EXPECT_EQ(Call("nvmlSystemGetDriverVersion", +text, 96u), kSuccess);
  Say("driver", std::string(text));
  EXPECT_EQ(Call("nvmlSystemGetNVMLVersion", +text, 96u), kSuccess);
  Say("nvml", std::string(text));
  int version = 0;
  EXPECT_EQ(Call("nvmlSystemGetCudaDriverVersion_v2", &version), kSuccess);
  EXPECT_GE(version, 12000);
  Say("cuda", version);
}

TEST_F(NvmlTest, DevicesAreFoundInEveryWay) {
  uint32_t count = 0;
  EXPECT_EQ(Call("nvmlDeviceGetCount_v2", &count), kSuccess);
  Say("count", count);
  DeviceHandle other = nullptr;
  EXPECT_EQ(Call("nvmlDeviceGetHandleByIndex_v2", count, &other), kInvalid);
  EXPECT_EQ(Call("nvmlDeviceGetHandleByIndex_v2", 0u, static_cast<DeviceHandle*>(nullptr)), kInvalid);
  const std::string uuid = Text("nvmlDeviceGetUUID");
  Say("uuid", uuid);
  EXPECT_EQ(Call("nvmlDeviceGetHandleByUUID", uuid.c_str(), &other), kSuccess);
  EXPECT_EQ(other, device_);
  EXPECT_EQ(Call("nvmlDeviceGetHandleByUUID", "GPU-00000000-0000-0000-0000-000000000000", &other), kNotFound);
  nvml::PciInfo pci{};
  EXPECT_EQ(Call("nvmlDeviceGetPciInfo_v3", device_, &pci), kSuccess);
  Say("bus", std::string(pci.bus_id));
  other = nullptr;
  EXPECT_EQ(Call("nvmlDeviceGetHandleByPciBusId_v2", +pci.bus_id, &other), kSuccess);
  EXPECT_EQ(other, device_);
  other = nullptr;
  EXPECT_EQ(Call("nvmlDeviceGetHandleByPciBusId_v2", +pci.legacy_bus_id, &other), kSuccess);
  EXPECT_EQ(other, device_);
  EXPECT_EQ(Number("nvmlDeviceGetIndex"), 0u);
}

TEST_F(NvmlTest, MatchesTheDriversDevice) {
  OK(cuInit(0));
  char name[96] = "", bus[32] = "";
  OK(cuDeviceGetName(name, sizeof name, 0));
  EXPECT_EQ(Text("nvmlDeviceGetName"), name);
  OK(cuDeviceGetPCIBusId(bus, sizeof bus, 0));
  DeviceHandle other = nullptr;
  EXPECT_EQ(Call("nvmlDeviceGetHandleByPciBusId_v2", +bus, &other), kSuccess);
  EXPECT_EQ(other, device_);
  int major = 0, minor = 0, expected = 0;
  EXPECT_EQ(Call("nvmlDeviceGetCudaComputeCapability", device_, &major, &minor), kSuccess);
  OK(cuDeviceGetAttribute(&expected, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  EXPECT_EQ(major, expected);
}

TEST_F(NvmlTest, HealthIsTheHosts) {
  uint32_t degrees = 0;
  EXPECT_EQ(Call("nvmlDeviceGetTemperature", device_, 0u, &degrees), kSuccess);
  EXPECT_GT(degrees, 0u);
  EXPECT_LT(degrees, 120u);
  if (SurvivesWrongArguments()) {
    EXPECT_EQ(Call("nvmlDeviceGetTemperature", device_, 99u, &degrees), kInvalid);
  }
  EXPECT_GT(Number("nvmlDeviceGetPowerUsage"), 0u);
  Say("limit", Number("nvmlDeviceGetEnforcedPowerLimit"));
  Say("persistence", Number("nvmlDeviceGetPersistenceMode"));
  Say("mode", Number("nvmlDeviceGetComputeMode"));
  uint32_t rates[2] = {200, 200}, unrepairable = 9;
  EXPECT_EQ(Call("nvmlDeviceGetUtilizationRates", device_, +rates), kSuccess);
  EXPECT_LE(rates[0], 100u);
  Say("unrepairable", Call("nvmlDeviceGetUnrepairableMemoryFlag_v1", device_, &unrepairable));
  Say("flag", unrepairable);
  for (uint32_t clock = 0; clock < 3; ++clock) {
    uint32_t most = 0;
    EXPECT_EQ(Call("nvmlDeviceGetMaxClockInfo", device_, clock, &most), kSuccess);
    Say("clock" + std::to_string(clock), most);
  }
}

TEST_F(NvmlTest, ListsSayHowLongTheyAre) {
  uint32_t count = 0;
  EXPECT_EQ(Call("nvmlDeviceGetSupportedMemoryClocks", device_, &count, static_cast<uint32_t*>(nullptr)),
            kShort);
  Say("clocks", count);
  ASSERT_GT(count, 0u);
  ASSERT_LT(count, 200u);
  std::vector<uint32_t> clocks(count);
  EXPECT_EQ(Call("nvmlDeviceGetSupportedMemoryClocks", device_, &count, clocks.data()), kSuccess);
  ASSERT_EQ(count, clocks.size());
  for (const uint32_t clock : clocks) Say("clock", clock);
  count = 0;
  EXPECT_EQ(Call("nvmlDeviceGetSupportedMemoryClocks", device_, &count, clocks.data()), kShort);
}

TEST_F(NvmlTest, ManyFieldsAtOnce) {
  constexpr uint32_t kEcc = 1;  // NVML_FI_DEV_ECC_CURRENT
  std::vector<nvml::FieldValue> values(150);
  for (nvml::FieldValue& value : values) value.field = kEcc;
  EXPECT_EQ(Call("nvmlDeviceGetFieldValues", device_, 150, values.data()), kSuccess);
  for (const nvml::FieldValue& value : values) {
    EXPECT_EQ(value.result, values[0].result);
    EXPECT_EQ(value.value, values[0].value);
  }
  Say("ecc", values[0].value);
  if (SurvivesWrongArguments()) {
    EXPECT_EQ(Call("nvmlDeviceGetFieldValues", device_, 0, values.data()), kInvalid);
  }
}

TEST_F(NvmlTest, MemoryAddsUp) {
  nvml::Memory memory{};
  EXPECT_EQ(Call("nvmlDeviceGetMemoryInfo", device_, &memory), kSuccess);
  Say("total", memory.total);
  EXPECT_LE(memory.used + memory.free, memory.total);
  nvml::MemoryV2 second{};
  EXPECT_EQ(Call("nvmlDeviceGetMemoryInfo_v2", device_, &second), kFunctionNotFound);
  second.version = V(2, sizeof second);
  EXPECT_EQ(Call("nvmlDeviceGetMemoryInfo_v2", device_, &second), kSuccess);
  EXPECT_EQ(second.total, memory.total);
  if (!SurvivesWrongArguments()) return;
  EXPECT_EQ(Call("nvmlDeviceGetMemoryInfo", device_, static_cast<nvml::Memory*>(nullptr)), kInvalid);
  EXPECT_EQ(Call("nvmlDeviceGetMemoryInfo", DeviceHandle{}, &memory), kInvalid);
}

TEST_F(NvmlTest, AProcessIsSeenUnderItsOwnNumber) {
  const auto list = [&] {
    std::vector<nvml::ProcessV2> processes(500);
    uint32_t count = 500;
    EXPECT_EQ(Call("nvmlDeviceGetComputeRunningProcesses_v3", device_, &count, processes.data()), kSuccess);
    processes.resize(count);
    return processes;
  };
  list();
  // Where the host's NVML sees the worker. In containers it does not see everybody.
  const bool sure = ThroughCauseway() && OnSoftwareGpu();
  OK(cuInit(0));
  CUcontext context = nullptr;
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  bool found = false;
  for (const nvml::ProcessV2& process : list())
    found = found || process.pid == static_cast<uint32_t>(getpid());
  if (sure) {
    EXPECT_TRUE(found);
    nvml::Memory memory{};
    EXPECT_EQ(Call("nvmlDeviceGetMemoryInfo", device_, &memory), kSuccess);
    EXPECT_GT(memory.used, 0u);
  }
  if (ThroughCauseway()) {
    for (const nvml::ProcessV2& process : list()) {
      // Every process of the list is one of this machine: nobody else's is told.
      EXPECT_EQ(access(("/proc/" + std::to_string(process.pid)).c_str(), F_OK), 0);
    }
  }
  nvml::ProcessSample samples[256];
  uint32_t count = 256;
  if (sure) {
    EXPECT_EQ(Call("nvmlDeviceGetProcessUtilization", device_, +samples, &count, 0ull), kSuccess);
    ASSERT_GE(count, 1u);
    EXPECT_EQ(access(("/proc/" + std::to_string(samples[0].pid)).c_str(), F_OK), 0);
  }
  uint32_t none = 0;
  if (found) {
    EXPECT_EQ(Call("nvmlDeviceGetComputeRunningProcesses_v3", device_, &none,
                   static_cast<nvml::ProcessV2*>(nullptr)),
              kShort);
    EXPECT_GE(none, 1u);
  }
  OK(cuDevicePrimaryCtxRelease(0));
}

// Slots that nvidia-smi alone calls; a size in bytes comes first.
TEST_F(NvmlTest, ToolsHaveAPrivateTable) {
  constexpr unsigned char kTools[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                        0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
  const void* const* table = nullptr;
  ASSERT_EQ(Call("nvmlInternalGetExportTable", &table, +kTools), kSuccess);
  ASSERT_GT(reinterpret_cast<uintptr_t>(table[0]), 237 * sizeof(void*));
  if (!OnSoftwareGpu() && !ThroughCauseway()) return;
  uint32_t generation = 0;
  char text[80] = "";
  auto* number = reinterpret_cast<uint32_t (*)(DeviceHandle, uint32_t*)>(const_cast<void*>(table[230]));
  auto* words = reinterpret_cast<uint32_t (*)(DeviceHandle, char*, uint32_t)>(const_cast<void*>(table[231]));
  const uint32_t known = number(device_, &generation);  // not every device has it
  EXPECT_TRUE(known == kSuccess || known == kNotSupported) << known;
  EXPECT_LT(generation, 10u);
  EXPECT_EQ(words(device_, text, sizeof text), kSuccess);
  EXPECT_NE(std::string(text), "");
  EXPECT_EQ(number(DeviceHandle{}, &generation), kInvalid);
}

TEST_F(NvmlTest, NothingChangesTheHostsDevice) {
  if (!ThroughCauseway()) GTEST_SKIP() << "root may do this natively";
  EXPECT_EQ(Call("nvmlDeviceSetPersistenceMode", device_, 0u), kNoPermission);
  EXPECT_EQ(Call("nvmlDeviceSetComputeMode", device_, 3u), kNoPermission);
  EXPECT_EQ(Call("nvmlDeviceSetGpuLockedClocks", device_, 300u, 300u), kNoPermission);
  EXPECT_EQ(Call("nvmlDeviceSetPowerManagementLimit", device_, 100'000u), kNoPermission);
  EXPECT_EQ(Call("nvmlDeviceClearEccErrorCounts", device_, 0u), kNoPermission);
  uint32_t status = 0;
  EXPECT_EQ(Call("nvmlDeviceSetMigMode", device_, 1u, &status), kNoPermission);
  EXPECT_EQ(Call("nvmlDeviceGetAccountingPids", device_, &status, &status), kNotSupported);
}

TEST_F(NvmlTest, AForkedChildHasASessionOfItsOwn) {
  if (!ThroughCauseway()) GTEST_SKIP() << "the software GPU's library is not made for it";
  const std::string name = Text("nvmlDeviceGetName");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char text[96] = "";
    const bool good = Call("nvmlDeviceGetName", device_, +text, 96u) == kSuccess && name == text &&
                      Call("nvmlShutdown") == kSuccess;
    _exit(good ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Text("nvmlDeviceGetName"), name);  // and the parent's goes on
}

TEST_F(NvmlTest, ThreadsShareIt) {
  const std::string name = Text("nvmlDeviceGetName");
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        char text[96] = "";
        uint32_t power = 0;
        if (Call("nvmlDeviceGetName", device_, +text, 96u) != kSuccess || name != text) ++wrong;
        if (Call("nvmlDeviceGetPowerUsage", device_, &power) != kSuccess) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(NvmlErrorTest, Texts) {
  auto* text = reinterpret_cast<const char* (*)(uint32_t)>(NvmlSymbol("nvmlErrorString"));
  ASSERT_NE(text, nullptr);
  EXPECT_STREQ(text(0), "Success");
  if (OnSoftwareGpu() && !ThroughCauseway()) return;
  for (uint32_t error = 0; error <= 30; ++error) {
    if (!OnSoftwareGpu()) Say("text" + std::to_string(error), std::string(text(error)));
    EXPECT_NE(text(error), nullptr);
  }
}

}  // namespace
}  // namespace causeway::driver_test
