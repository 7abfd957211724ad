// SPDX-License-Identifier: Apache-2.0
// Census category checkpoint: a process that is locked, checkpointed, restored and unlocked by another.
#include "tests/driver/two_processes.h"

namespace causeway::driver_test {
namespace {

class CheckpointTest : public DriverTest {};
using CheckpointPeer = CheckpointTest;

constexpr int kNobody = 0x3fffffff;  // above every process number

TEST_F(CheckpointTest, NoSuchProcess) {
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

CUprocessState StateOf(pid_t pid) {
  CUprocessState state = CU_PROCESS_STATE_FAILED;
  EXPECT_EQ(cuCheckpointProcessGetState(pid, &state), CUDA_SUCCESS);
  return state;
}

void Lock(pid_t pid) {
  CUcheckpointLockArgs lock{};
  lock.timeoutMs = 5000;
  OK(cuCheckpointProcessLock(pid, &lock));
}

// Another process, which computes and then waits until it may go on.
class RunningPeer : public Peer {
 public:
  RunningPeer() : Peer("CheckpointPeer.DISABLED_Works") { EXPECT_TRUE(there() && Receive(&step_)); }
  void GoOn() { Send(step_); }

 private:
  int step_ = 0;
};

TEST_F(CheckpointTest, AnotherProcess) {
  NEEDS_SHARED_MEMORY();
  RunningPeer peer;
  EXPECT_EQ(StateOf(peer.pid()), CU_PROCESS_STATE_RUNNING);
  Lock(peer.pid());
  EXPECT_EQ(StateOf(peer.pid()), CU_PROCESS_STATE_LOCKED);
  OK(cuCheckpointProcessUnlock(peer.pid(), nullptr));
  EXPECT_EQ(StateOf(peer.pid()), CU_PROCESS_STATE_RUNNING);
  peer.GoOn();
}

// Its memory goes to the host and comes back.
TEST_F(CheckpointTest, ThereAndBack) {
  NEEDS_SHARED_MEMORY();
  RunningPeer peer;
  Lock(peer.pid());
  OK(cuCheckpointProcessCheckpoint(peer.pid(), nullptr));
  EXPECT_EQ(StateOf(peer.pid()), CU_PROCESS_STATE_CHECKPOINTED);
  OK(cuCheckpointProcessRestore(peer.pid(), nullptr));
  EXPECT_EQ(StateOf(peer.pid()), CU_PROCESS_STATE_LOCKED);
  OK(cuCheckpointProcessUnlock(peer.pid(), nullptr));
  EXPECT_EQ(StateOf(peer.pid()), CU_PROCESS_STATE_RUNNING);
  peer.GoOn();
}

// What a locked process asks of its GPU waits until it is unlocked.
TEST_F(CheckpointTest, ALockedProcessWaits) {
  NEEDS_SHARED_MEMORY();
  RunningPeer peer;
  Lock(peer.pid());
  peer.GoOn();
  EXPECT_EQ(StateOf(peer.pid()), CU_PROCESS_STATE_LOCKED);
  OK(cuCheckpointProcessUnlock(peer.pid(), nullptr));
}

TEST_F(CheckpointTest, StepsOutOfTurn) {
  NEEDS_SHARED_MEMORY();
  RunningPeer peer;
  EXPECT_NE(cuCheckpointProcessCheckpoint(peer.pid(), nullptr), CUDA_SUCCESS);
  EXPECT_NE(cuCheckpointProcessRestore(peer.pid(), nullptr), CUDA_SUCCESS);
  EXPECT_NE(cuCheckpointProcessUnlock(peer.pid(), nullptr), CUDA_SUCCESS);
  Lock(peer.pid());
  EXPECT_NE(cuCheckpointProcessLock(peer.pid(), nullptr), CUDA_SUCCESS);
  EXPECT_NE(cuCheckpointProcessRestore(peer.pid(), nullptr), CUDA_SUCCESS);
  OK(cuCheckpointProcessUnlock(peer.pid(), nullptr));
  EXPECT_EQ(StateOf(peer.pid()), CU_PROCESS_STATE_RUNNING);
  peer.GoOn();
}

TEST_F(CheckpointPeer, DISABLED_Works) {
  Peer peer;
  constexpr unsigned kWord = 0x5eed0001;
  constexpr size_t kWords = 1024;
  CUdeviceptr address = 0;
  OK(cuMemAlloc(&address, kWords * 4));
  OK(cuMemsetD32(address, kWord, kWords));
  OK(cuCtxSynchronize());
  int step = 1;
  peer.Send(step);
  ASSERT_TRUE(peer.Receive(&step));
  std::vector<unsigned> words(kWords);
  OK(cuMemcpyDtoH(words.data(), address, kWords * 4));
  EXPECT_EQ(words, std::vector<unsigned>(kWords, kWord));
  OK(cuMemsetD32(address, 1, 16));
  OK(cuCtxSynchronize());
  OK(cuMemFree(address));
}

}  // namespace
}  // namespace causeway::driver_test
