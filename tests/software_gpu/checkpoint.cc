// SPDX-License-Identifier: Apache-2.0
// Both sides: the calls, and the thread of the process that they name. Its states are those of
// CUprocessState; while it is checkpointed its devices' memory is zero and what was there lies with the host.
#include "tests/software_gpu/checkpoint.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "tests/software_gpu/call_gate.h"
#include "tests/software_gpu/config.h"
#include "tests/software_gpu/device.h"
#include "tests/software_gpu/faults.h"
#include "tests/software_gpu/memory.h"
#include "tests/software_gpu/stream.h"

namespace causeway::software_gpu {
namespace {

enum class Action : uint32_t { kGetState = 1, kLock, kCheckpoint, kRestore, kUnlock };
constexpr uint32_t kMostPairs = 64;

struct Question {
  uint64_t number;  // the answer says the same
  Action action;
  uint32_t timeout_ms;
  uint32_t pairs;
  uint32_t reserved;
  CUcheckpointGpuPair pair[kMostPairs];
};
static_assert(sizeof(Question) <= PIPE_BUF);  // nobody else's bytes come between

struct Reply {
  uint64_t number;
  CUresult result;
  CUprocessState state;
};

// The thread's name: the descriptors to write a question to and to read the answer from.
constexpr char kNameForm[] = "swgpu%05x%05x";

bool IsOwn(const CUuuid& uuid) {
  for (int device = 0; device < GetConfig().device_count; ++device) {
    const CUuuid own = DeviceUuid(device);
    if (std::memcmp(&own, &uuid, sizeof own) == 0) return true;
  }
  return false;
}

// The process that others name. Of the listening thread.
class Target {
 public:
  std::pair<CUresult, CUprocessState> Answer(const Question& question) {
    switch (question.action) {
      case Action::kGetState:
        return {CUDA_SUCCESS, state_};
      case Action::kLock:
        if (state_ != CU_PROCESS_STATE_RUNNING) return {CUDA_ERROR_ILLEGAL_STATE, state_};
        if (!CallGate::Close(std::chrono::milliseconds(question.timeout_ms)))
          return {CUDA_ERROR_NOT_READY, state_};
        return Now(CU_PROCESS_STATE_LOCKED);
      case Action::kCheckpoint:
        if (state_ != CU_PROCESS_STATE_LOCKED) return {CUDA_ERROR_ILLEGAL_STATE, state_};
        SynchronizeDevice();
        SaveDeviceMemory();
        return Now(CU_PROCESS_STATE_CHECKPOINTED);
      case Action::kRestore:
        return Restore(question);
      case Action::kUnlock:
        if (state_ != CU_PROCESS_STATE_LOCKED) return {CUDA_ERROR_ILLEGAL_STATE, state_};
        return Now(CU_PROCESS_STATE_RUNNING);
    }
    return {CUDA_ERROR_INVALID_VALUE, state_};
  }

 private:
  std::pair<CUresult, CUprocessState> Now(CUprocessState state) {
    state_ = state;
    return {CUDA_SUCCESS, state};
  }
  // Memory comes back to where it was: a process that is to change devices cannot be had.
  std::pair<CUresult, CUprocessState> Restore(const Question& question) {
    if (state_ != CU_PROCESS_STATE_CHECKPOINTED) return {CUDA_ERROR_ILLEGAL_STATE, state_};
    for (uint32_t i = 0; i < std::min(question.pairs, kMostPairs); ++i) {
      const CUcheckpointGpuPair& pair = question.pair[i];
      if (!IsOwn(pair.oldUuid) || !IsOwn(pair.newUuid)) return {CUDA_ERROR_INVALID_VALUE, state_};
      if (std::memcmp(&pair.oldUuid, &pair.newUuid, sizeof pair.oldUuid) != 0)
        return {CUDA_ERROR_NOT_SUPPORTED, state_};
    }
    LoadDeviceMemory();
    return Now(CU_PROCESS_STATE_LOCKED);
  }

  CUprocessState state_ = CU_PROCESS_STATE_RUNNING;
};

void Listen(int questions, int answers) {
  prctl(PR_SET_TIMERSLACK, 1);  // ns: Causeway's worker starts drivers with timers that may be 700 ms late
  Target target;
  Question question;
  while (read(questions, &question, sizeof question) == ssize_t(sizeof question)) {
    if (const uint64_t delay = GetConfig().checkpoint_delay_ms; delay != 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(delay));
    const auto [result, state] = target.Answer(question);
    const Reply reply{question.number, result, state};
    const bool told = write(answers, &reply, sizeof reply) == ssize_t(sizeof reply);
    // Only now: a process that goes on may be at its end before the next line of this thread.
    if (question.action == Action::kUnlock && result == CUDA_SUCCESS) CallGate::Open();
    if (!told) return;
  }
}

struct Thread {
  int id = 0;
  unsigned questions = 0, answers = 0;
};

// The one that listens in the process; id 0: there is none, or it cannot be looked at.
Thread ThreadOf(int pid) {
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  DIR* folder = opendir(tasks.c_str());
  Thread thread;
  while (const dirent* entry = folder != nullptr && thread.id == 0 ? readdir(folder) : nullptr) {
    std::ifstream file(tasks + "/" + entry->d_name + "/comm");
    std::string name;
    if (std::getline(file, name) && sscanf(name.c_str(), kNameForm, &thread.questions, &thread.answers) == 2)
      thread.id = atoi(entry->d_name);
  }
  if (folder != nullptr) closedir(folder);
  return thread;
}

int OpenOf(int pid, unsigned descriptor, int flags) {
  return open(("/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor)).c_str(),
              flags | O_CLOEXEC);
}

std::pair<CUresult, CUprocessState> Ask(int pid, Question question) {
  constexpr CUprocessState kNone = CU_PROCESS_STATE_FAILED;
  if (!IsInitialised()) return {CUDA_ERROR_NOT_INITIALIZED, kNone};
  const Thread thread = pid > 0 ? ThreadOf(pid) : Thread{};
  if (thread.id == 0) return {CUDA_ERROR_INVALID_VALUE, kNone};
  const int questions = OpenOf(pid, thread.questions, O_WRONLY);
  const int answers = OpenOf(pid, thread.answers, O_RDONLY);
  question.number = uint64_t(getpid()) << 32 | uint64_t(gettid());
  Reply reply{};
  CUresult result = CUDA_ERROR_OPERATING_SYSTEM;
  // One that died before it had its answer left it to the next.
  if (questions >= 0 && answers >= 0 && flock(questions, LOCK_EX) == 0 &&
      write(questions, &question, sizeof question) == ssize_t(sizeof question)) {
    while (reply.number != question.number && read(answers, &reply, sizeof reply) == ssize_t(sizeof reply)) {
    }
    if (reply.number == question.number) result = reply.result;
  }
  if (questions >= 0) close(questions);
  if (answers >= 0) close(answers);
  return {result, reply.state};
}

template <class T, size_t kCount>
bool IsZero(const T (&values)[kCount]) {
  return std::all_of(values, values + kCount, [](T value) { return value == 0; });
}

}  // namespace

void ListenForCheckpoints() {
  static std::once_flag once;
  std::call_once(once, [] {
    int questions[2], answers[2];
    if (pipe2(questions, O_CLOEXEC) != 0) return;
    if (pipe2(answers, O_CLOEXEC) != 0) {
      close(questions[0]);
      close(questions[1]);
      return;
    }
    char name[16];
    snprintf(name, sizeof name, kNameForm, unsigned(questions[1]), unsigned(answers[0]));
    sigset_t all, before;  // signals are the program's threads' matter
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread thread([from = questions[0], to = answers[1]] { Listen(from, to); });
    pthread_setname_np(thread.native_handle(), name);
    thread.detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  });
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

// Not through the gate: a locked process may ask for itself.
extern "C" {

CUresult cuCheckpointProcessGetState(int pid, CUprocessState* state) {
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto [result, found] = Ask(pid, {0, Action::kGetState, 0, 0, 0, {}});
  if (result == CUDA_SUCCESS) *state = found;
  return result;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* args) {
  if (args != nullptr && (args->reserved0 != 0 || !IsZero(args->reserved1))) return CUDA_ERROR_INVALID_VALUE;
  return Ask(pid, {0, Action::kLock, args != nullptr ? args->timeoutMs : 0, 0, 0, {}}).first;
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs* args) {
  if (args != nullptr && !IsZero(args->reserved)) return CUDA_ERROR_INVALID_VALUE;
  return Ask(pid, {0, Action::kCheckpoint, 0, 0, 0, {}}).first;
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs* args) {
  Question question{0, Action::kRestore, 0, 0, 0, {}};
  if (args != nullptr) {
    if (!IsZero(args->reserved) || args->reserved1 != 0 || args->gpuPairsCount > kMostPairs ||
        (args->gpuPairsCount != 0 && args->gpuPairs == nullptr)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    question.pairs = args->gpuPairsCount;
    std::copy_n(args->gpuPairs, question.pairs, question.pair);
  }
  return Ask(pid, question).first;
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs* args) {
  if (args != nullptr && !IsZero(args->reserved)) return CUDA_ERROR_INVALID_VALUE;
  return Ask(pid, {0, Action::kUnlock, 0, 0, 0, {}}).first;
}

CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int* tid) {
  if (!IsInitialised()) return CUDA_ERROR_NOT_INITIALIZED;
  const Thread thread = pid > 0 ? ThreadOf(pid) : Thread{};
  if (tid == nullptr || thread.id == 0) return CUDA_ERROR_INVALID_VALUE;
  *tid = thread.id;
  return CUDA_SUCCESS;
}

}  // extern "C"
