// SPDX-License-Identifier: Apache-2.0
// Census category checkpoint: a process that is locked, checkpointed, restored and unlocked by another.
#include "tests/driver/two_processes.h"

namespace causeway::driver_test {
namespace {

class CheckpointTest : public DriverTest {};
using CheckpointPeer = CheckpointTest;

constexpr int kNobody = 0x3fffffff;  // above every process number

TEST_F(CheckpointTest, NoSuchProcess) {
  NEEDS_HARDWARE("checkpoints");
  CUprocessState state{};
  EXPECT_NE(cuCheckpointProcessGetState(kNobody, &state), CUDA_SUCCESS);
  EXPECT_NE(cuCheckpointProcessLock(kNobody, nullptr), CUDA_SUCCESS);
  EXPECT_NE(cuCheckpointProcessCheckpoint(kNobody, nullptr), CUDA_SUCCESS);
  EXPECT_NE(cuCheckpointProcessRestore(kNobody, nullptr), CUDA_SUCCESS);
  EXPECT_NE(cuCheckpointProcessUnlock(kNobody, nullptr), CUDA_SUCCESS);
  EXPECT_NE(cuCheckpointProcessGetState(getpid(), nullptr), CUDA_SUCCESS);
  int thread = 0;
  EXPECT_NE(cuCheckpointProcessGetRestoreThreadId(kNobody, &thread), CUDA_SUCCESS);
  // A process of the machine that does not use CUDA.
  EXPECT_NE(cuCheckpointProcessGetState(1, &state), CUDA_SUCCESS);
}

TEST_F(CheckpointTest, AnotherProcess) {
  NEEDS_HARDWARE("checkpoints");
  NEEDS_SHARED_MEMORY();
  Peer peer("CheckpointPeer.DISABLED_Works");
  ASSERT_TRUE(peer.there());
  int step = 0;
  ASSERT_TRUE(peer.Receive(&step));  // it runs
  CUprocessState state{};
  OK(cuCheckpointProcessGetState(peer.pid(), &state));
  EXPECT_EQ(state, CU_PROCESS_STATE_RUNNING);
  CUcheckpointLockArgs lock{};
  lock.timeoutMs = 5000;
  OK(cuCheckpointProcessLock(peer.pid(), &lock));
  OK(cuCheckpointProcessGetState(peer.pid(), &state));
  EXPECT_EQ(state, CU_PROCESS_STATE_LOCKED);
  OK(cuCheckpointProcessUnlock(peer.pid(), nullptr));
  OK(cuCheckpointProcessGetState(peer.pid(), &state));
  EXPECT_EQ(state, CU_PROCESS_STATE_RUNNING);
  peer.Send(step);
}

TEST_F(CheckpointPeer, DISABLED_Works) {
  Peer peer;
  CUdeviceptr address = 0;
  OK(cuMemAlloc(&address, 4096));
  int step = 1;
  peer.Send(step);
  ASSERT_TRUE(peer.Receive(&step));
  OK(cuMemsetD32(address, 1, 16));
  OK(cuCtxSynchronize());
  OK(cuMemFree(address));
}

}  // namespace
}  // namespace causeway::driver_test
