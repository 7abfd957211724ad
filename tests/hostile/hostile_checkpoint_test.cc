// SPDX-License-Identifier: Apache-2.0
// Checkpoints of processes that are not the caller's to control, in numbers, and with processes that end in
// the middle. The guests are processes of their own, so that each has a number and a user of its own.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "ivshmem_ring/messages/sharing_messages.h"
#include "tests/hostile/hostile_guest.h"

namespace causeway::test {
namespace {

using std::chrono::steady_clock;

constexpr uint32_t kRunning = CU_PROCESS_STATE_RUNNING, kLocked = CU_PROCESS_STATE_LOCKED;

struct Order {
  Op op;
  CheckpointBody body;
  CUcheckpointGpuPair pair;
};
struct Told {
  uint32_t result;
  uint32_t state;
};

// A guest in a process of its own; it does what it is told and tells how it went.
class GuestProcess {
 public:
  explicit GuestProcess(const HostileDaemon& daemon, uid_t user = 0) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    socket_ = ends[0];
    fcntl(socket_, F_SETFD, FD_CLOEXEC);
    pid_ = fork();
    if (pid_ == 0) Run(daemon, user, ends[1]);
    close(ends[1]);
    EXPECT_EQ(recv(socket_, &worker_, sizeof worker_, 0), ssize_t(sizeof worker_)) << "it has no session";
  }
  ~GuestProcess() {
    close(socket_);
    kill(pid_, SIGKILL);  // others have copies of the socket
    waitpid(pid_, nullptr, 0);
  }
  GuestProcess(const GuestProcess&) = delete;
  GuestProcess& operator=(const GuestProcess&) = delete;

  pid_t pid() const { return pid_; }
  WorkerView worker() const { return WorkerView(worker_); }

  void Send(Op op, int32_t pid, uint32_t timeout_ms = 0) {
    Send({op, {pid, timeout_ms, 0, timeout_ms != 0 ? 1u : 0u}, {}});
  }
  void Send(const Order& order) {
    EXPECT_EQ(send(socket_, &order, sizeof order, MSG_NOSIGNAL), ssize_t(sizeof order));
  }
  // ~0: its session has ended.
  Told Await() {
    const timeval patience{60, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    Told told{~0u, ~0u};
    EXPECT_EQ(recv(socket_, &told, sizeof told, 0), ssize_t(sizeof told)) << "no answer in 60 s";
    return told;
  }
  uint32_t Ask(Op op, int32_t pid, uint32_t timeout_ms = 0) {
    Send(op, pid, timeout_ms);
    return Await().result;
  }
  uint32_t StateOf(int32_t pid) {
    Send(Op::cuCheckpointProcessGetState, pid);
    const Told told = Await();
    EXPECT_EQ(told.result, CUDA_SUCCESS);
    return told.state;
  }

 private:
  [[noreturn]] static void Run(const HostileDaemon& daemon, uid_t user, int socket) {
    if (user != 0 && (setresgid(user, user, user) != 0 || setresuid(user, user, user) != 0)) _exit(2);
    HostileGuest guest(daemon);
    if (!guest.Open()) {
      fprintf(stderr, "%s\n", guest.refusal().c_str());
      _exit(3);
    }
    const pid_t worker = guest.worker().pid();
    send(socket, &worker, sizeof worker, MSG_NOSIGNAL);
    Order order;
    while (recv(socket, &order, sizeof order, 0) == ssize_t(sizeof order)) {
      const Bytes body = order.body.pairs != 0 ? Pack(order.body, order.pair) : Pack(order.body);
      const auto answer = guest.Call(order.op, body);
      const Told told{answer.lost ? ~0u : answer.result, answer.Get<uint32_t>()};
      if (send(socket, &told, sizeof told, MSG_NOSIGNAL) < 0) break;
    }
    _exit(0);
  }

  int socket_ = -1;
  pid_t pid_ = -1, worker_ = 0;
};

std::string Text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// 0 of a process that is gone.
pid_t ParentOf(pid_t pid) {
  const std::string stat = Text("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  int parent = 0;
  if (name_end != std::string::npos) sscanf(stat.c_str() + name_end, ") %*c %d", &parent);
  return parent;
}

// Whether SIGSTOP has reached every thread: the one that takes the signal stops the others when it next runs.
bool IsStopped(pid_t pid) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    if (Text(task.path() / "status").find("\nState:\tT") == std::string::npos) return false;
  }
  return true;
}

// Paths in /proc of the process's pipes, and what each is.
std::map<std::string, std::string> PipesOf(pid_t pid) {
  std::map<std::string, std::string> pipes;
  std::error_code gone;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone)) {
    const std::string name = std::filesystem::read_symlink(entry.path(), gone).string();
    if (name.find("pipe:") == 0) pipes[entry.path()] = name;
  }
  return pipes;
}

// Whether one has opened a pipe of the other: a checkpointer, to ask.
bool SharesPipe(pid_t pid, pid_t other) {
  const auto others = PipesOf(other);
  for (const auto& [path, name] : PipesOf(pid)) {
    if (std::any_of(others.begin(), others.end(), [&](const auto& each) { return each.second == name; }))
      return true;
  }
  return false;
}

// Whether a pipe of the process holds what nobody has read: of a software GPU's worker, an answer of its own.
bool HasUnread(pid_t pid) {
  bool unread = false;
  for (const auto& [path, name] : PipesOf(pid)) {
    const int pipe = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    int bytes = 0;
    unread = unread || (pipe >= 0 && ioctl(pipe, FIONREAD, &bytes) == 0 && bytes > 0);
    if (pipe >= 0) close(pipe);
  }
  return unread;
}

bool IsProgram(pid_t pid, const char* name) {
  return Text("/proc/" + std::to_string(pid) + "/cmdline").find(BuildFolder() + "/host_backend/" + name) == 0;
}

// Checkpointers of this build that live on this host and of which `is_meant` is true.
std::vector<pid_t> CheckpointersIf(const std::function<bool(pid_t)>& is_meant) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = atoi(entry.path().filename().c_str());
    if (pid > 0 && IsProgram(pid, "causeway-worker") &&
        Text(entry.path() / "cmdline").find(std::string("\0--checkpoint\0", 14)) != std::string::npos &&
        WorkerView(pid).Alive() && is_meant(pid)) {
      found.push_back(pid);
    }
  }
  return found;
}

// Those of this process's daemon, whose launcher is their parent. Other tests run beside this one.
std::vector<pid_t> Checkpointers() {
  return CheckpointersIf([](pid_t pid) { return ParentOf(ParentOf(ParentOf(pid))) == getpid(); });
}

// Those that have outlived their launcher, whosever that was.
std::vector<pid_t> LeftCheckpointers() {
  return CheckpointersIf([](pid_t pid) { return !IsProgram(ParentOf(pid), "causeway-launcher"); });
}

class HostileCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!OnSoftwareGpu()) GTEST_SKIP() << "written for the software GPU's times";
  }
  void TearDown() override {
    EXPECT_TRUE(WaitFor([] { return Checkpointers().empty() && LeftCheckpointers().empty(); }));
  }
  // Others than the daemon's user may connect.
  static void OpenToAll(const HostileDaemon& daemon) {
    chmod(daemon.folder().c_str(), 0755);
    chmod(daemon.socket().c_str(), 0666);
  }
  // So long a checkpointer waits for its target.
  static HostileDaemonOptions Slow() {
    return {.environment = {{"SOFTWARE_GPU_CHECKPOINT_DELAY_MS", "500"}}};
  }
};

TEST_F(HostileCheckpoint, OwnProcessesOfTheScope) {
  HostileDaemon daemon;
  GuestProcess asker(daemon), target(daemon);
  EXPECT_EQ(asker.StateOf(target.pid()), kRunning);
  EXPECT_EQ(asker.Ask(Op::cuCheckpointProcessLock, target.pid(), 1000), CUDA_SUCCESS);
  EXPECT_EQ(asker.StateOf(target.pid()), kLocked);
  EXPECT_EQ(asker.Ask(Op::cuCheckpointProcessUnlock, target.pid()), CUDA_SUCCESS);
  // Itself, too.
  EXPECT_EQ(asker.StateOf(asker.pid()), kRunning);
  EXPECT_EQ(asker.Ask(Op::cuCheckpointProcessLock, asker.pid(), 1000), CUDA_SUCCESS);
  EXPECT_EQ(asker.StateOf(asker.pid()), kLocked);
  EXPECT_EQ(asker.Ask(Op::cuCheckpointProcessUnlock, asker.pid()), CUDA_SUCCESS);
}

TEST_F(HostileCheckpoint, ProcessesThatAreNoSessions) {
  HostileDaemon daemon;
  GuestProcess asker(daemon);
  for (const int32_t pid : {1, getpid(), daemon.pid(), asker.worker().pid(), 0, -1, asker.pid() + (1 << 24),
                            std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
    EXPECT_EQ(asker.Ask(Op::cuCheckpointProcessGetState, pid), CUDA_ERROR_INVALID_VALUE) << pid;
    EXPECT_EQ(asker.Ask(Op::cuCheckpointProcessLock, pid), CUDA_ERROR_INVALID_VALUE) << pid;
    EXPECT_EQ(asker.Ask(Op::cuCheckpointProcessRestore, pid), CUDA_ERROR_INVALID_VALUE) << pid;
  }
  EXPECT_TRUE(Checkpointers().empty());
}

TEST_F(HostileCheckpoint, ProcessesOfOtherScopes) {
  if (geteuid() != 0) GTEST_SKIP() << "other users need root";
  HostileDaemon daemon;
  OpenToAll(daemon);
  GuestProcess root(daemon), one(daemon, 12345), other(daemon, 12346), same(daemon, 12345);
  const std::pair<GuestProcess*, GuestProcess*> strangers[] = {
      {&root, &one}, {&one, &root}, {&one, &other}, {&other, &one}};
  for (const auto& [asker, target] : strangers) {
    EXPECT_EQ(asker->Ask(Op::cuCheckpointProcessGetState, target->pid()), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(asker->Ask(Op::cuCheckpointProcessLock, target->pid()), CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(one.StateOf(same.pid()), kRunning);
}

// A worker can be looked into by its own user's processes only while it is a checkpointer's target.
TEST_F(HostileCheckpoint, ProcessesOfTheSameUserSeeNothingOfEachOther) {
  if (geteuid() != 0) GTEST_SKIP() << "workers' users need root";
  HostileDaemon daemon(Slow());
  GuestProcess asker(daemon), target(daemon), beside(daemon);
  const auto seen = [](const WorkerView& worker) {
    struct stat info {};
    stat(("/proc/" + std::to_string(worker.pid()) + "/fd").c_str(), &info);
    return info.st_uid;
  };
  EXPECT_EQ(seen(target.worker()), 0u) << "root's, as the kernel shows what nobody may look into";
  asker.Send(Op::cuCheckpointProcessGetState, target.pid());
  EXPECT_TRUE(WaitFor([&] { return seen(target.worker()) != 0; }));
  EXPECT_EQ(seen(asker.worker()), 0u);
  EXPECT_EQ(seen(beside.worker()), 0u);
  EXPECT_EQ(asker.Await().result, CUDA_SUCCESS);
  EXPECT_TRUE(WaitFor([&] { return seen(target.worker()) == 0; }));
}

TEST_F(HostileCheckpoint, TheCheckpointerIsKilled) {
  HostileDaemon daemon(Slow());
  GuestProcess asker(daemon), target(daemon);
  asker.Send(Op::cuCheckpointProcessGetState, target.pid());
  std::vector<pid_t> found;
  ASSERT_TRUE(WaitFor([&] { return !(found = Checkpointers()).empty(); }));
  for (const pid_t pid : found) kill(pid, SIGKILL);
  EXPECT_EQ(asker.Await().result, CUDA_ERROR_OPERATING_SYSTEM);
  EXPECT_EQ(asker.StateOf(target.pid()), kRunning);
}

TEST_F(HostileCheckpoint, TheTargetIsKilled) {
  HostileDaemon daemon(Slow());
  GuestProcess asker(daemon), beside(daemon);
  {
    GuestProcess target(daemon);
    asker.Send(Op::cuCheckpointProcessLock, target.pid(), 2000);
    ASSERT_TRUE(WaitFor([] { return !Checkpointers().empty(); }));
    kill(target.worker().pid(), SIGKILL);
    EXPECT_NE(asker.Await().result, CUDA_SUCCESS);
    EXPECT_TRUE(WaitFor([] { return Checkpointers().empty(); }));
  }
  EXPECT_EQ(asker.StateOf(beside.pid()), kRunning);
}

// An unlocked process may go to its end at once: what was done is told all the same.
TEST_F(HostileCheckpoint, TheTargetEndsBeforeItsAnswerIsRead) {
  HostileDaemon daemon(Slow());
  GuestProcess asker(daemon), target(daemon);
  const pid_t worker = target.worker().pid();
  // The checkpointer is stopped between its question and its answer. Where the host let it get by, it is tried again.
  bool answered = false;
  for (int i = 0; i < 20 && !answered; ++i) {
    ASSERT_EQ(asker.Ask(Op::cuCheckpointProcessLock, target.pid()), CUDA_SUCCESS);
    asker.Send(Op::cuCheckpointProcessUnlock, target.pid());
    std::vector<pid_t> found;
    ASSERT_TRUE(WaitFor([&] { return !(found = Checkpointers()).empty() && SharesPipe(found[0], worker); }));
    usleep(50'000);  // its question follows at once
    kill(found[0], SIGSTOP);
    for (int wait = 0; wait < 200 && !(answered = HasUnread(worker)); ++wait) usleep(10'000);
    if (answered) {
      kill(worker, SIGKILL);
      EXPECT_TRUE(WaitFor([&] { return !target.worker().Alive(); }));
      usleep(100'000);  // the daemon learns of it, and would have it reaped
    }
    kill(found[0], SIGCONT);
    EXPECT_EQ(asker.Await().result, CUDA_SUCCESS);
  }
  EXPECT_TRUE(answered);
}

TEST_F(HostileCheckpoint, TheAskerIsKilled) {
  HostileDaemon daemon(Slow());
  GuestProcess beside(daemon), target(daemon);
  {
    GuestProcess asker(daemon);
    asker.Send(Op::cuCheckpointProcessGetState, target.pid());
    ASSERT_TRUE(WaitFor([] { return !Checkpointers().empty(); }));
    kill(asker.pid(), SIGKILL);
    EXPECT_TRUE(WaitFor([] { return Checkpointers().empty(); }));
  }
  EXPECT_EQ(beside.StateOf(target.pid()), kRunning);
}

// A target that says nothing keeps nobody from others, and not its asker for ever.
TEST_F(HostileCheckpoint, ATargetThatDoesNotAnswer) {
  HostileDaemon daemon;
  GuestProcess asker(daemon), patient(daemon), target(daemon), beside(daemon);
  kill(target.worker().pid(), SIGSTOP);
  ASSERT_TRUE(WaitFor([&] { return IsStopped(target.worker().pid()); }));
  asker.Send(Op::cuCheckpointProcessGetState, target.pid());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(patient.StateOf(beside.pid()), kRunning);
  EXPECT_EQ(asker.Await().result, CUDA_ERROR_OPERATING_SYSTEM);
  kill(target.worker().pid(), SIGCONT);
  EXPECT_EQ(asker.StateOf(target.pid()), kRunning);
}

// What would let a lock succeed comes in between, however long the lock waits.
TEST_F(HostileCheckpoint, LocksWithoutLimitKeepNobodyFromUnlocking) {
  HostileDaemon daemon;
  GuestProcess first(daemon), second(daemon), third(daemon), one(daemon), other(daemon);
  ASSERT_EQ(third.Ask(Op::cuCheckpointProcessLock, other.pid(), 1000), CUDA_SUCCESS);
  first.Send(Op::cuCheckpointProcessLock, other.pid());
  second.Send(Op::cuCheckpointProcessLock, one.pid());
  EXPECT_EQ(first.Await().result, CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(second.Await().result, CUDA_SUCCESS);
  EXPECT_EQ(third.Ask(Op::cuCheckpointProcessUnlock, other.pid()), CUDA_SUCCESS);
}

TEST_F(HostileCheckpoint, FloodsOfOneScopeAreTwoAtOnce) {
  constexpr int kAskers = 6, kRounds = 2;
  HostileDaemon daemon({.environment = {{"SOFTWARE_GPU_CHECKPOINT_DELAY_MS", "100"}}});
  std::vector<std::unique_ptr<GuestProcess>> askers;
  for (int i = 0; i < kAskers; ++i) askers.push_back(std::make_unique<GuestProcess>(daemon));
  size_t most = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kAskers; ++i)
      askers[size_t(i)]->Send(Op::cuCheckpointProcessGetState, askers[size_t((i + round) % kAskers)]->pid());
    EXPECT_TRUE(WaitFor([] { return !Checkpointers().empty(); }));
    for (int looks = 0; looks < 3; ++looks) most = std::max(most, Checkpointers().size());
    EXPECT_TRUE(daemon.Serves());
    for (auto& asker : askers) {
      const Told told = asker->Await();
      EXPECT_EQ(told.result, CUDA_SUCCESS);
      EXPECT_EQ(told.state, kRunning);
    }
  }
  EXPECT_GE(most, 1u);
  EXPECT_LE(most, 2u);
}

TEST_F(HostileCheckpoint, NobodyComesBackOnAGpuThatIsNotItsScopes) {
  const auto uuid = [](char device) {  // as the software GPU has them
    CUuuid each{};
    std::memcpy(each.bytes, "causeway-swgpu", 14);
    each.bytes[15] = device;
    return each;
  };
  HostileDaemonOptions options;
  options.environment = {{"SOFTWARE_GPU_DEVICES", "2"}};
  options.more = "local_gpus = [\"GPU-63617573-6577-6179-2d73-776770750000\"]";
  HostileDaemon daemon(options);
  GuestProcess asker(daemon), target(daemon);
  ASSERT_EQ(asker.Ask(Op::cuCheckpointProcessLock, target.pid(), 1000), CUDA_SUCCESS);
  ASSERT_EQ(asker.Ask(Op::cuCheckpointProcessCheckpoint, target.pid()), CUDA_SUCCESS);
  const auto restore = [&](const CUuuid& to) {
    asker.Send({Op::cuCheckpointProcessRestore, {target.pid(), 0, 1, 1}, {uuid(0), to}});
    return asker.Await().result;
  };
  EXPECT_EQ(restore(uuid(1)), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(restore(uuid(2)), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(restore(CUuuid{}), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(restore(uuid(0)), CUDA_SUCCESS);
  EXPECT_EQ(asker.Ask(Op::cuCheckpointProcessUnlock, target.pid()), CUDA_SUCCESS);
}

}  // namespace
}  // namespace causeway::test
