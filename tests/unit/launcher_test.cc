// SPDX-License-Identifier: Apache-2.0
// causeway-launcher with a daemon that was taken over in front of it: this test, which sends what it likes.
// It must not make the launcher start another program, name a file or variable of its choice, touch a process
// that the launcher has not started, or leave its ranges; and what was refused leaves nothing behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>

#include "host_backend/common/unique_fd.h"
#include "host_backend/launcher/protocol.h"
#include "ivshmem_ring/transport/packet.h"
#include "tests/unit/daemon_fixture.h"

namespace causeway::test {
namespace {

using launcher::Action;
using launcher::Answer;
using launcher::Request;
using launcher::WorkerKind;

constexpr uint32_t kFirstUser = 2'000'000'000, kUsers = 16;

std::string Text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool Alive(pid_t pid) {
  const std::string stat = Text("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(") ");
  return name_end != std::string::npos && stat[name_end + 2] != 'Z' && stat[name_end + 2] != 'X';
}

size_t Entries(const std::string& folder) {
  std::error_code ignored;
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder, ignored)) ++count;
  return count;
}

struct Pair {
  explicit Pair(int type = SOCK_SEQPACKET) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends), 0);
    own.reset(ends[0]);
    other.reset(ends[1]);
  }
  UniqueFd own, other;
};

struct Pipe {
  Pipe() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    out.reset(ends[0]);
    in.reset(ends[1]);
  }
  UniqueFd out, in;
};

class LauncherTest : public ::testing::Test {
 protected:
  LauncherTest() {
    chmod(folder_.path().c_str(), 0755);
    mkdir(cache().c_str(), 0711);
    mkdir((cache() + "/discarded").c_str(), 0700);
    mkdir(links().c_str(), 0711);
    bystander_ = fork();
    if (bystander_ == 0) Sleep();
    Pair pair;
    launcher_ = fork();
    if (launcher_ == 0) {
      dup2(pair.other.get(), launcher::kDaemonSocket);
      fcntl(launcher::kDaemonSocket, F_SETFD, 0);
      const std::string users =
          std::to_string(kFirstUser) + "," + std::to_string(geteuid() == 0 ? kUsers : 0);
      execl(LAUNCHER_PATH, LAUNCHER_PATH, "--worker", FAKE_WORKER_PATH, "--driver", "ok", "--management",
            "ok", "--users", users.c_str(), "--cache", cache().c_str(), "--links", links().c_str(), "--group",
            "12345", static_cast<char*>(nullptr));
      _exit(127);
    }
    socket_ = std::move(pair.own);
    pair.other.reset();
    Answer ready{};
    EXPECT_EQ(recv(socket_.get(), &ready, sizeof ready, 0), ssize_t(sizeof ready));
  }

  ~LauncherTest() override {
    socket_.reset();
    int status = 0;
    waitpid(launcher_, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
    EXPECT_TRUE(Alive(bystander_));
    kill(bystander_, SIGKILL);
    waitpid(bystander_, nullptr, 0);
  }

  [[noreturn]] static void Sleep() {
    for (;;) pause();
  }

  std::string cache() const { return folder_.path() + "/cache"; }
  std::string links() const { return folder_.path() + "/links"; }

  // Any bytes, with any descriptors. The answer's error, ~0 where there is none.
  int Send(const void* bytes, size_t count, const std::vector<int>& descriptors, Answer* answer = nullptr) {
    Answer own{};
    if (answer == nullptr) answer = &own;
    pidfd_.reset();
    if (!SendPacket(socket_.get(), bytes, count, descriptors)) return ~0;
    int received = -1;
    const ssize_t got = ReceivePacket(socket_.get(), answer, sizeof *answer, std::span(&received, 1));
    pidfd_.reset(received);
    return got == ssize_t(sizeof *answer) ? answer->error : ~0;
  }
  int Ask(const Request& request, const std::vector<int>& descriptors = {}, Answer* answer = nullptr) {
    return Send(&request, sizeof request, descriptors, answer);
  }

  static Request Good(Action action) {
    Request request{};
    request.action = action;
    if (action == Action::kStart) request.worker = WorkerKind::kCuda;
    return request;
  }
  static void SetEnvironment(Request* request, const std::string& text) {
    request->environment_bytes = uint32_t(text.size());
    text.copy(request->environment, sizeof request->environment);
  }

  // A worker by a request that is as it should be, but for what `change` does. 0: refused.
  pid_t Start(const std::function<void(Request&)>& change = {}) {
    Request request = Good(Action::kStart);
    if (change) change(request);
    Pipe output;
    control_ = std::make_unique<Pair>();
    Answer answer{};
    const int error = Ask(request, {output.in.get(), control_->other.get()}, &answer);
    EXPECT_EQ(error == 0, answer.pid != 0);
    EXPECT_EQ(error == 0, bool(pidfd_));
    return error == 0 ? answer.pid : 0;
  }
  void End(pid_t worker) {
    Request request = Good(Action::kAbandon);
    request.pid = worker;
    EXPECT_EQ(Ask(request), 0);
    EXPECT_TRUE(WaitFor([&] { return !Alive(worker); }));
  }
  bool HasNoChildren() const {
    const std::string place =
        "/proc/" + std::to_string(launcher_) + "/task/" + std::to_string(launcher_) + "/children";
    return WaitFor([&] { return Text(place).empty(); });
  }
  size_t Descriptors() const { return Entries("/proc/" + std::to_string(launcher_) + "/fd"); }

  TemporaryFolder folder_;
  pid_t launcher_ = -1, bystander_ = -1;
  UniqueFd socket_, pidfd_;
  std::unique_ptr<Pair> control_;
};

TEST_F(LauncherTest, AWorkerIsTheProgramThatItWasToldOfAndHasWhatIsAllowed) {
  const pid_t worker = Start([](Request& request) {
    request.link = 7;
    std::strcpy(request.gpus, "GPU-0a,GPU-1b");
    SetEnvironment(&request, std::string("CUDA_VISIBLE_DEVICES=GPU-0a\0", 28));
  });
  ASSERT_GT(worker, 0);
  const std::string place = "/proc/" + std::to_string(worker);
  char ready[1024];
  ASSERT_GT(recv(control_->own.get(), ready, sizeof ready, 0), 0) << "the fake worker says that it is ready";
  EXPECT_EQ(std::filesystem::read_symlink(place + "/exe").string(), FAKE_WORKER_PATH);
  const std::string environment = '\0' + Text(place + "/environ"), arguments = Text(place + "/cmdline");
  EXPECT_NE(environment.find(std::string("\0CUDA_VISIBLE_DEVICES=GPU-0a\0", 29)), std::string::npos);
  EXPECT_NE(environment.find("CUDA_CACHE_PATH=" + links() + "/cache-7"), std::string::npos);
  EXPECT_NE(arguments.find(std::string("--gpus\0GPU-0a,GPU-1b\0", 21)), std::string::npos);
  // Nothing of the launcher's: three standard descriptors and the control socket.
  EXPECT_EQ(Entries(place + "/fd"), 4u);
  // The number stays its own until it was reaped.
  Request reap = Good(Action::kReap), end = Good(Action::kKill);
  reap.pid = end.pid = worker;
  EXPECT_EQ(Ask(reap), EAGAIN);
  EXPECT_EQ(Ask(end), 0);
  Answer answer{};
  EXPECT_TRUE(WaitFor([&] { return Ask(reap, {}, &answer) != EAGAIN; }));
  EXPECT_EQ(answer.pid, worker);
  EXPECT_TRUE(WIFSIGNALED(answer.status) && WTERMSIG(answer.status) == SIGKILL);
  EXPECT_EQ(Ask(reap), ESRCH);
  EXPECT_EQ(Ask(end), ESRCH);
}

TEST_F(LauncherTest, TextsThatAreNotOnTheListStartNothing) {
  const auto environment = [](const std::string& text) {
    return [text](Request& request) { SetEnvironment(&request, text); };
  };
  for (const std::string& bad :
       {std::string("LD_PRELOAD=/tmp/a.so\0", 21), std::string("LD_LIBRARY_PATH=/tmp\0", 21),
        std::string("CUDA_INJECTION64_PATH=/tmp/a.so\0", 32), std::string("CUDA_CACHE_PATH=/etc\0", 21),
        std::string("PATH=/tmp\0", 10), std::string("CUDA_VISIBLE_DEVICES\0", 21), std::string("=0\0", 3),
        std::string("\0", 1), std::string("CUDA_LAUNCH_BLOCKING=1", 22),
        std::string("CUDA_LAUNCH_BLOCKING=1\0CUDA_LAUNCH_BLOCKING=0\0", 46)})
    EXPECT_EQ(Start(environment(bad)), 0) << bad;
  for (const uint32_t bytes : {uint32_t{sizeof(Request::environment)} + 1, ~0u, 1u << 31}) {
    EXPECT_EQ(Start([bytes](Request& request) { request.environment_bytes = bytes; }), 0) << bytes;
  }
  for (const char* bad : {"GPU-0,/dev/mem", "--driver", "GPU 0", "../x", "a;b"}) {
    EXPECT_EQ(Start([bad](Request& request) { std::strcpy(request.gpus, bad); }), 0) << bad;
  }
  EXPECT_EQ(Start([](Request& request) { std::memset(request.gpus, 'a', sizeof request.gpus); }), 0)
      << "no end";
  for (const uint32_t kind : {0u, 4u, ~0u})
    EXPECT_EQ(Start([kind](Request& request) { request.worker = WorkerKind(kind); }), 0) << kind;
  EXPECT_EQ(Start([](Request& request) {
              request.worker = WorkerKind::kManagement;
              request.link = 1;
            }),
            0);
  EXPECT_TRUE(HasNoChildren());
  const pid_t good = Start(environment(std::string("CUDA_LAUNCH_BLOCKING=1\0", 23)));
  ASSERT_GT(good, 0);
  End(good);
}

TEST_F(LauncherTest, FieldsThatAnActionDoesNotUseAreZero) {
  const std::pair<const char*, void (*)(Request&)> fields[] = {
      {"worker", [](Request& r) { r.worker = WorkerKind::kCuda; }},
      {"pid", [](Request& r) { r.pid = 1; }},
      {"group", [](Request& r) { r.group = 12345; }},
      {"user", [](Request& r) { r.user = kFirstUser; }},
      {"number", [](Request& r) { r.number = 1; }},
      {"link", [](Request& r) { r.link = 1; }},
      {"hash",
       [](Request& r) { r.worker_hash = 1; }},  // this launcher was told of no folder with other workers
      {"reserved", [](Request& r) { r.reserved = 1; }},
      {"environment", [](Request& r) { r.environment_bytes = 1; }},
      {"gpus", [](Request& r) { r.gpus[0] = 'G'; }},
  };
  const std::pair<Action, std::string> used[] = {{Action::kStart, "worker link environment gpus"},
                                                 {Action::kKill, "pid"},
                                                 {Action::kReap, "pid"},
                                                 {Action::kAbandon, "pid"},
                                                 {Action::kGiveToGroup, "group"},
                                                 {Action::kFindVm, ""},
                                                 {Action::kMakeCache, "user"},
                                                 {Action::kHoldCache, "user number"},
                                                 {Action::kClearCache, "user number"},
                                                 {Action::kWatchCache, "user number"},
                                                 {Action::kCheckpoint, "pid user"},
                                                 {Action::kGiveToUser, "user"}};
  Pipe output;
  Pair control;
  const std::string path = folder_.path() + "/file";
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  for (const auto& [action, names] : used) {
    std::vector<int> descriptors;
    if (action == Action::kStart) descriptors = {output.in.get(), control.other.get()};
    if (action == Action::kGiveToGroup || action == Action::kGiveToUser) descriptors = {file.get()};
    if (action == Action::kCheckpoint || action == Action::kWatchCache) descriptors = {control.other.get()};
    if (action == Action::kFindVm) descriptors = {file.get(), control.other.get()};
    for (const auto& [name, set] : fields) {
      if (names.find(name) != std::string::npos) continue;
      Request request = Good(action);
      set(request);
      EXPECT_EQ(Ask(request, descriptors), EINVAL) << uint32_t(action) << " " << name;
    }
  }
  for (const uint32_t action : {0u, 12u, 100u, ~0u}) EXPECT_EQ(Ask(Good(Action(action))), EINVAL) << action;
  EXPECT_TRUE(HasNoChildren());
}

TEST_F(LauncherTest, PacketsOfOtherSizesAndDescriptorsOfOtherKinds) {
  const size_t before = Descriptors();
  const std::vector<char> zeros(4 * sizeof(Request));
  Request request = Good(Action::kStart);
  std::vector<char> packet(zeros);
  std::memcpy(packet.data(), &request, sizeof request);
  Pipe output;
  Pair control, stream(SOCK_STREAM);
  const std::vector<int> right = {output.in.get(), control.other.get()};
  packet[sizeof request] = 1;  // what a later version may say, and this launcher does not know
  for (const size_t bytes : {size_t{1}, size_t{3}, size_t{4}, size_t{40}, sizeof request - 1,
                             sizeof request + 1, 2 * sizeof request, zeros.size()})
    EXPECT_EQ(Send(packet.data(), bytes, right), EINVAL) << bytes;
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC)),
      folder(open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC)), path(open("/dev/null", O_PATH | O_CLOEXEC));
  const int out = output.in.get(), to = control.other.get();
  for (const std::vector<int>& wrong : std::vector<std::vector<int>>{{},
                                                                     {out},
                                                                     {to},
                                                                     {to, out},
                                                                     {out, out},
                                                                     {to, to},
                                                                     {out, stream.other.get()},
                                                                     {null.get(), to},
                                                                     {folder.get(), to},
                                                                     {path.get(), to},
                                                                     {out, path.get()},
                                                                     {out, to, out},
                                                                     {out, to, out, to, out}})
    EXPECT_EQ(Ask(request, wrong), EINVAL) << wrong.size();
  EXPECT_TRUE(HasNoChildren());
  EXPECT_TRUE(WaitFor([&] { return Descriptors() == before; })) << "what came with refused packets is closed";
}

TEST_F(LauncherTest, ALongerRequestOfALaterDaemonIsDoneIfItsRestIsZero) {
  std::vector<char> packet(sizeof(Request) + 64);
  const Request request = Good(Action::kStart);
  std::memcpy(packet.data(), &request, sizeof request);
  Pipe output;
  Pair control;
  Answer answer{};
  EXPECT_EQ(Send(packet.data(), packet.size(), {output.in.get(), control.other.get()}, &answer), 0);
  ASSERT_GT(answer.pid, 0);
  End(answer.pid);
}

TEST_F(LauncherTest, OnlyItsOwnWorkersAreSignalledOrReaped) {
  const pid_t worker = Start();
  ASSERT_GT(worker, 0);
  for (const Action action : {Action::kKill, Action::kAbandon, Action::kReap}) {
    for (const pid_t pid : {0, -1, 1, bystander_, launcher_, getpid(), -worker,
                            std::numeric_limits<pid_t>::min(), std::numeric_limits<pid_t>::max()}) {
      Request request = Good(action);
      request.pid = pid;
      EXPECT_EQ(Ask(request), ESRCH) << pid;
    }
  }
  EXPECT_TRUE(Alive(bystander_));
  EXPECT_TRUE(Alive(worker));
  End(worker);
  Request again = Good(Action::kKill);
  again.pid = worker;
  EXPECT_EQ(Ask(again), ESRCH);
}

TEST_F(LauncherTest, ACheckpointerIsOfAWorkerAndOfAUserOfTheRange) {
  const uint32_t user = geteuid() == 0 ? kFirstUser + 3 : 0;
  const pid_t worker = Start();
  ASSERT_GT(worker, 0);
  Pair pair, stream(SOCK_STREAM);
  Pipe pipe;
  Request request = Good(Action::kCheckpoint);
  request.user = user;
  const auto ask = [&](pid_t pid) {
    request.pid = pid;
    Answer answer{};
    const int error = Ask(request, {pair.other.get()}, &answer);
    EXPECT_EQ(error == 0, answer.pid != 0);
    return answer.pid != 0 ? answer.pid : -answer.error;
  };
  for (const pid_t pid : {0, -1, 1, bystander_, launcher_, getpid(), -worker})
    EXPECT_EQ(ask(pid), -ESRCH) << pid;
  request.pid = worker;
  for (const int wrong : {stream.other.get(), pipe.in.get()}) EXPECT_EQ(Ask(request, {wrong}), EINVAL);
  for (const uint32_t other : {1u, 1000u, kFirstUser - 1, kFirstUser + kUsers, ~0u}) {
    request.user = other;
    EXPECT_EQ(ask(worker), -EINVAL) << other;
  }
  request.user = user;
  const pid_t checkpointer = ask(worker);
  ASSERT_GT(checkpointer, 0);
  char ready[1024];
  ASSERT_GT(recv(pair.own.get(), ready, sizeof ready, 0), 0) << "the fake worker says that it is ready";
  const std::string place = "/proc/" + std::to_string(checkpointer);
  EXPECT_EQ(std::filesystem::read_symlink(place + "/exe").string(), FAKE_WORKER_PATH);
  const std::string arguments = Text(place + "/cmdline"), status = Text(place + "/status");
  EXPECT_NE(arguments.find(std::string("--checkpoint\0", 13) + std::to_string(worker)), std::string::npos);
  EXPECT_EQ(Entries(place + "/fd"), 4u);
  if (user != 0) {
    const std::string id = std::to_string(user), all = "\t" + id + "\t" + id + "\t" + id + "\t" + id + "\n";
    EXPECT_NE(status.find("Uid:" + all), std::string::npos) << status;
    EXPECT_NE(status.find("Gid:" + all), std::string::npos) << status;
    for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapAmb"})
      EXPECT_NE(status.find(set + std::string(":\t0000000000000000\n")), std::string::npos) << set;
  }
  EXPECT_NE(status.find("NoNewPrivs:\t1\n"), std::string::npos);
  EXPECT_EQ(ask(checkpointer), -ESRCH) << "it is no worker";
  // It ends before its target's number is free.
  Request end = Good(Action::kKill), reap = Good(Action::kReap);
  end.pid = reap.pid = worker;
  EXPECT_EQ(Ask(end), 0);
  EXPECT_TRUE(WaitFor([&] { return Ask(reap) == 0; }));
  EXPECT_TRUE(HasNoChildren());
}

TEST_F(LauncherTest, OnlyTheDaemonsOwnFilesGetAGroupAndOnlyNamedOnes) {
  const std::string path = folder_.path() + "/region";
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const UniqueFd reading(open(path.c_str(), O_RDONLY | O_CLOEXEC)),
      named(open(path.c_str(), O_PATH | O_CLOEXEC)),
      folder(open(folder_.path().c_str(), O_RDONLY | O_CLOEXEC)),
      others(open("/dev/null", O_RDWR | O_CLOEXEC));
  Request request = Good(Action::kGiveToGroup);
  for (const uint32_t group : {0u, 1u, 12344u, ~0u}) {
    request.group = group;
    EXPECT_EQ(Ask(request, {file.get()}), EINVAL) << group;
  }
  request.group = 12345;
  for (const int wrong : {reading.get(), named.get(), folder.get(), others.get(), socket_.get()})
    EXPECT_EQ(Ask(request, {wrong}), EINVAL);
  if (geteuid() != 0) GTEST_SKIP() << "the rest needs root";
  EXPECT_EQ(Ask(request, {file.get()}), 0);
  struct stat info {};
  fstat(file.get(), &info);
  EXPECT_EQ(info.st_gid, 12345u);
  // A second name may be another's, and a file of another's is no file of the daemon's.
  EXPECT_EQ(link(path.c_str(), (path + "2").c_str()), 0);
  EXPECT_EQ(Ask(request, {file.get()}), EINVAL);
  unlink((path + "2").c_str());
  EXPECT_EQ(fchown(file.get(), kFirstUser, 0), 0);
  EXPECT_EQ(Ask(request, {file.get()}), EINVAL);
  EXPECT_EQ(Ask(Good(Action::kFindVm), {file.get(), Pair().other.get()}), EINVAL);
}

TEST_F(LauncherTest, OnlyPersonsAreGivenFilesAndOnlyClosedOnes) {
  if (geteuid() != 0) GTEST_SKIP() << "giving files away needs root";
  const std::string path = folder_.path() + "/region";
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const UniqueFd reading(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  Request request = Good(Action::kGiveToUser);
  request.user = 3001;
  for (const mode_t open_to_others : {0600, 0666, 0770, 04660, 02660}) {
    ASSERT_EQ(fchmod(file.get(), open_to_others), 0);
    EXPECT_EQ(Ask(request, {file.get()}), EINVAL) << open_to_others;
  }
  ASSERT_EQ(fchmod(file.get(), 0660), 0);
  for (const uint32_t user : {0u, 1u, 999u, kFirstUser, kFirstUser + kUsers - 1, ~0u}) {
    request.user = user;
    EXPECT_EQ(Ask(request, {file.get()}), EINVAL) << user;
  }
  request.user = 3001;
  EXPECT_EQ(Ask(request, {reading.get()}), EINVAL);
  EXPECT_EQ(Ask(request, {file.get()}), 0);
  struct stat info {};
  fstat(file.get(), &info);
  EXPECT_EQ(info.st_uid, 3001u);
  EXPECT_EQ(info.st_gid, getegid());
  // It is no file of the daemon's any more, but the daemon may still ask which process maps it.
  EXPECT_EQ(Ask(request, {file.get()}), EINVAL);
  EXPECT_EQ(Ask(Good(Action::kFindVm), {file.get(), Pair().other.get()}), 0);
}

TEST_F(LauncherTest, ASocketIsGivenByItsPlace) {
  if (geteuid() != 0) GTEST_SKIP() << "giving files away needs root";
  sockaddr_un address{AF_UNIX, {}};
  const std::string path = folder_.path() + "/doorbell";
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(chmod(path.c_str(), 0660), 0);
  const UniqueFd place(open(path.c_str(), O_PATH | O_CLOEXEC));
  Request request = Good(Action::kGiveToGroup);
  request.group = 12345;
  EXPECT_EQ(Ask(request, {listener.get()}), EINVAL) << "the socket itself has no place";
  EXPECT_EQ(Ask(request, {place.get()}), 0);
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_gid, 12345u);
  ASSERT_EQ(chown(path.c_str(), uid_t(-1), getegid()), 0);
  request = Good(Action::kGiveToUser);
  request.user = 3001;
  EXPECT_EQ(Ask(request, {place.get()}), 0);
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, 3001u);
  EXPECT_EQ(Ask(request, {place.get()}), EINVAL) << "it is not the daemon's any more";
}

TEST_F(LauncherTest, CachesBelongToUsersOfTheRangeAlone) {
  if (geteuid() != 0) GTEST_SKIP() << "own users need root";
  for (const uint32_t user : {0u, 1u, 1000u, kFirstUser - 1, kFirstUser + kUsers, ~0u}) {
    for (const Action action : {Action::kMakeCache, Action::kHoldCache, Action::kClearCache}) {
      Request request = Good(action);
      request.user = user;
      EXPECT_EQ(Ask(request), EINVAL) << user;
    }
  }
  Request make = Good(Action::kMakeCache);
  make.user = kFirstUser + 3;
  const std::string outer = cache() + "/" + std::to_string(make.user);
  EXPECT_EQ(Ask(make), ENOENT) << "it is the daemon that makes the outer one";
  // A link in its place leads nowhere.
  std::filesystem::create_directory_symlink("/tmp", outer);
  EXPECT_NE(Ask(make), 0);
  EXPECT_FALSE(std::filesystem::exists("/tmp/kernels"));
  std::filesystem::remove(outer);
  mkdir(outer.c_str(), 0711);
  EXPECT_EQ(Ask(make), 0);
  struct stat info {};
  ASSERT_EQ(lstat((outer + "/kernels").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, make.user);
  EXPECT_EQ(info.st_mode & 07777u, 0700u);
  EXPECT_EQ(Ask(make), EEXIST);

  // More than its quota is removed, less is not.
  std::ofstream(outer + "/kernels/kernel") << std::string(3 << 20, 'k');
  Request hold = Good(Action::kHoldCache);
  hold.user = make.user;
  hold.number = 4;
  EXPECT_EQ(Ask(hold), 0);
  EXPECT_TRUE(HasNoChildren());
  EXPECT_TRUE(std::filesystem::exists(outer + "/kernels/kernel"));
  hold.number = 1;
  EXPECT_EQ(Ask(hold), 0);
  EXPECT_TRUE(WaitFor([&] { return !std::filesystem::exists(outer + "/kernels/kernel"); }));

  // Emptied by the rights of its user: what is another's stays, and links are not followed.
  const std::string kernels = outer + "/kernels", kept = folder_.path() + "/kept";
  std::ofstream(kept) << "x";
  mkdir((kernels + "/a").c_str(), 0700);
  std::ofstream(kernels + "/a/b") << "x";
  std::filesystem::create_symlink(folder_.path(), kernels + "/a/link");
  for (const std::string name : {"", "/a", "/a/b"})
    EXPECT_EQ(lchown((kernels + name).c_str(), make.user, 0), 0);
  std::filesystem::rename(outer, cache() + "/discarded/" + std::to_string(make.user) + "-5");
  Request clear = Good(Action::kClearCache);
  clear.user = make.user;
  clear.number = 5;
  EXPECT_EQ(Ask(clear), 0);
  const std::string left = cache() + "/discarded/" + std::to_string(make.user) + "-5/kernels";
  EXPECT_TRUE(WaitFor([&] { return std::filesystem::is_empty(left); }));
  EXPECT_TRUE(std::filesystem::exists(kept));
  EXPECT_TRUE(HasNoChildren());
}

TEST_F(LauncherTest, WhatAHostileDaemonSaysWithoutEnd) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const size_t before = Descriptors();
  Pipe output;
  Pair control, stream(SOCK_STREAM);
  const int some[] = {output.in.get(), control.other.get(), output.out.get(), stream.other.get()};
  const uint32_t values[] = {0,          1,          2,  3, 7, 1000, kFirstUser, kFirstUser + kUsers,
                             0x7fffffff, 0x80000000, ~0u};
  const auto any = [&] { return values[random() % std::size(values)]; };
  int started = 0;
  constexpr int kMessages = 20'000;
  for (int i = 0; i < kMessages; ++i) {
    Request request = Good(Action(1 + random() % 9));
    if (random() % 2 == 0) request.worker = WorkerKind(any());
    uint32_t words[10];
    std::memcpy(words, &request, sizeof words);
    for (uint32_t changes = random() % 3; changes != 0; --changes) words[random() % 10] = any();
    std::memcpy(&request, words, sizeof words);
    for (uint32_t changes = random() % 3; changes != 0; --changes)
      request.gpus[random() % 8] = char(random());
    for (uint32_t changes = random() % 3; changes != 0; --changes)
      request.environment[random() % 64] = char(random());
    std::vector<int> descriptors(random() % 4);
    for (int& each : descriptors) each = some[random() % std::size(some)];
    const size_t bytes = random() % 8 == 0 ? 1 + random() % sizeof request : sizeof request;
    Answer answer{};
    const int error = Send(&request, bytes, descriptors, &answer);
    ASSERT_NE(error, ~0) << "it has ended";
    if (error != 0 || request.action != Action::kStart) continue;
    ++started;  // by chance it was right
    Request end = Good(Action::kAbandon);
    end.pid = answer.pid;
    ASSERT_EQ(Ask(end), 0);
  }
  std::printf("%d messages, %d of them were right and started a worker\n", kMessages, started);
  EXPECT_TRUE(HasNoChildren());
  EXPECT_TRUE(WaitFor([&] { return Descriptors() == before; }));
  const pid_t worker = Start();
  ASSERT_GT(worker, 0) << "and it serves";
  End(worker);
}

TEST_F(LauncherTest, WorkersEndWithIt) {
  const pid_t worker = Start();
  ASSERT_GT(worker, 0);
  socket_.reset();
  EXPECT_TRUE(WaitFor([&] { return !Alive(worker); }));
}

}  // namespace
}  // namespace causeway::test
