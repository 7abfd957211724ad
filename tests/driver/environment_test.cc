// SPDX-License-Identifier: Apache-2.0
// Variables that the driver reads before cuInit, each in a process of its own. Through Causeway they travel
// to the worker, which must be one that has not started the driver yet.
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>

#include "tests/driver/child_process.h"
#include "tests/driver/two_processes.h"

namespace causeway::driver_test {
namespace {

struct Answer {
  CUresult init = CUDA_ERROR_UNKNOWN;
  int devices = -1;
  int bus = -1;  // of device 0
  int loading = -1;
};

class EnvironmentTest : public ::testing::Test {
 protected:
  Answer Ask(const std::vector<std::string>& variables) {
    Answer answer;
    Peer peer("EnvironmentTest.DISABLED_Answer", variables);
    EXPECT_TRUE(peer.there());
    EXPECT_TRUE(peer.Receive(&answer));
    return answer;
  }
};

TEST_F(EnvironmentTest, DISABLED_Answer) {
  Peer peer;
  Answer answer;
  answer.init = cuInit(0);
  if (answer.init == CUDA_SUCCESS) {
    EXPECT_EQ(cuDeviceGetCount(&answer.devices), CUDA_SUCCESS);
    // In some VMs each device has a domain of its own, in others a bus or a slot.
    for (const CUdevice_attribute part : {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
                                          CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID}) {
      int number = 0;
      EXPECT_EQ(cuDeviceGetAttribute(&number, part, 0), CUDA_SUCCESS);
      answer.bus = answer.bus * 256 + number;
    }
    CUmoduleLoadingMode mode{};
    if (!OnSoftwareGpu() && cuModuleGetLoadingMode(&mode) == CUDA_SUCCESS) answer.loading = mode;
  }
  peer.Send(answer);
}

TEST_F(EnvironmentTest, VisibleDevices) {
  const Answer all = Ask({});
  EXPECT_EQ(all.init, CUDA_SUCCESS);
  ASSERT_GT(all.devices, 0);
  const Answer first = Ask({"CUDA_VISIBLE_DEVICES=0"});
  EXPECT_EQ(first.init, CUDA_SUCCESS);
  EXPECT_EQ(first.devices, 1);
  EXPECT_EQ(first.bus, all.bus);
  const Answer cut = Ask({"CUDA_VISIBLE_DEVICES=0,-1,0"});  // ends at what names no device
  EXPECT_EQ(cut.init, CUDA_SUCCESS);
  EXPECT_EQ(cut.devices, 1);
  if (all.devices > 1 && !OnSoftwareGpu()) {
    const Answer second = Ask({"CUDA_VISIBLE_DEVICES=1"});
    EXPECT_EQ(second.devices, 1);
    EXPECT_NE(second.bus, all.bus);
  }
}

TEST_F(EnvironmentTest, DeviceOrder) {
  const Answer by_bus = Ask({"CUDA_DEVICE_ORDER=PCI_BUS_ID"});
  EXPECT_EQ(by_bus.init, CUDA_SUCCESS);
  Say("bus", by_bus.bus);
}

TEST_F(EnvironmentTest, ModuleLoading) {
  Say("unset", Ask({}).loading);
  Say("eager", Ask({"CUDA_MODULE_LOADING=EAGER"}).loading);
  Say("lazy", Ask({"CUDA_MODULE_LOADING=LAZY"}).loading);
}

// A program's timer interrupts each system call that waits, and nothing restarts the call.
TEST_F(EnvironmentTest, DISABLED_StartUnderSignals) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  sigaction(SIGALRM, &action, nullptr);
  const itimerval often{{0, 1000}, {0, 1000}}, never{};
  setitimer(ITIMER_REAL, &often, nullptr);
  const CUresult result = cuInit(0);
  setitimer(ITIMER_REAL, &never, nullptr);
  exit(result == CUDA_SUCCESS ? 0 : 1);
}

TEST_F(EnvironmentTest, SignalsDoNotDisturbTheStart) {
  for (int i = 0; i < 5; ++i) EXPECT_EQ(RunChild("EnvironmentTest.DISABLED_StartUnderSignals"), 0);
}

// Those whose effect no call shows: the process must start and work all the same.
TEST_F(EnvironmentTest, TheOthersDoNoHarm) {
  for (const char* variable :
       {"CUDA_DEVICE_MAX_CONNECTIONS=1", "CUDA_CACHE_DISABLE=1", "CUDA_CACHE_MAXSIZE=1048576",
        "CUDA_LAUNCH_BLOCKING=1", "CUDA_AUTO_BOOST=0", "CUDA_MODULE_DATA_LOADING=LAZY",
        "CUDA_GRAPHS_USE_NODE_PRIORITY=1", "CUDA_FORCE_PTX_JIT=1", "CUDA_MANAGED_FORCE_DEVICE_ALLOC=1"}) {
    EXPECT_EQ(Ask({variable}).init, CUDA_SUCCESS) << variable;
  }
}

// Of a worker that finds no GPU, Causeway's daemon starts the next with variables of its own a second later: these
// two come last, so that no other test waits for that.
TEST_F(EnvironmentTest, NoVisibleDevices) {
  EXPECT_EQ(Ask({"CUDA_VISIBLE_DEVICES="}).init, CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(Ask({"CUDA_VISIBLE_DEVICES=99"}).init, CUDA_ERROR_NO_DEVICE);
}

// Right after another: a spare worker that has started the driver already must not be taken.
TEST_F(EnvironmentTest, OneAfterTheOther) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Ask({}).init, CUDA_SUCCESS);
    EXPECT_EQ(Ask({"CUDA_VISIBLE_DEVICES="}).init, CUDA_ERROR_NO_DEVICE);
  }
}

}  // namespace
}  // namespace causeway::driver_test
