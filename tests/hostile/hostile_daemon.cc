// SPDX-License-Identifier: Apache-2.0
#include "tests/hostile/hostile_daemon.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#include "host_backend/command/command.h"

namespace causeway::test {
namespace {

constexpr char kDriverVariable[] = "CAUSEWAY_TEST_DRIVER";

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

pid_t SpawnDaemon(const std::string& program, const std::string& config, const std::string& log,
                  const std::map<std::string, std::string>& environment) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  setenv("SOFTWARE_GPU_DAEMON", std::to_string(getpid()).c_str(),
         1);  // whom tests/hostile/attacker.cc attacks
  const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(fd, STDOUT_FILENO);
  dup2(fd, STDERR_FILENO);
  execl(program.c_str(), program.c_str(), "--config", config.c_str(), static_cast<char*>(nullptr));
  _exit(127);
}

}  // namespace

bool WaitFor(const std::function<bool()>& done, int seconds) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!done()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

std::string BuildFolder() {
  return std::filesystem::path(command::ProgramFolder()).parent_path();
}

std::string DriverLibrary() {
  const char* chosen = getenv(kDriverVariable);
  return chosen != nullptr && *chosen != '\0' ? chosen : BuildFolder() + "/software_gpu/libcuda.so.1";
}

bool OnSoftwareGpu() {
  return DriverLibrary().find("software_gpu") != std::string::npos;
}

bool WorkerView::Alive() const {
  const std::string stat = ReadAll("/proc/" + std::to_string(pid_) + "/stat");
  const size_t name_end = stat.rfind(") ");
  return pid_ > 0 && name_end != std::string::npos && stat[name_end + 2] != 'Z' && stat[name_end + 2] != 'X';
}

std::vector<Mapping> WorkerView::Maps() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/maps");
  std::vector<Mapping> maps;
  for (std::string line; std::getline(file, line);) {
    Mapping each;
    char permissions[8] = "";
    int name_at = 0;
    unsigned long long begin, end, offset;
    if (sscanf(line.c_str(), "%llx-%llx %7s %llx %*s %*s %n", &begin, &end, permissions, &offset, &name_at) <
        4)
      continue;
    each = {begin, end, permissions, offset, line.substr(size_t(name_at))};
    maps.push_back(each);
  }
  return maps;
}

Mapping WorkerView::MapAt(uint64_t address) const {
  for (const Mapping& each : Maps()) {
    if (address >= each.begin && address < each.end) return each;
  }
  return {};
}

std::string WorkerView::Read(uint64_t address, size_t count) const {
  const std::string path = "/proc/" + std::to_string(pid_) + "/mem";
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::string bytes(count, '\0');
  const ssize_t got = fd >= 0 ? pread(fd, bytes.data(), count, off_t(address)) : 0;
  if (fd >= 0) close(fd);
  bytes.resize(got > 0 ? size_t(got) : 0);
  return bytes;
}

size_t WorkerView::Threads() const {
  std::error_code error;
  size_t count = 0;
  const std::filesystem::directory_iterator tasks("/proc/" + std::to_string(pid_) + "/task", error);
  for (auto at = begin(tasks); !error && at != end(tasks); ++at) ++count;
  return count;
}

void HostileDaemon::Adopt(const char* socket) {
  socket_ = socket;
  const char* log = getenv("CAUSEWAY_TEST_LOG");
  log_ = log != nullptr ? log : "";
  pid_ = std::numeric_limits<pid_t>::max();  // no process has it: a case that kills its daemon kills nobody
  const std::string tcp = command::StatusValue(Status(), "", "tcp");
  tcp_port_ = uint16_t(std::strtoul(tcp.substr(tcp.rfind(':') + 1).c_str(), nullptr, 10));
}

HostileDaemon::HostileDaemon(const HostileDaemonOptions& options) {
  const char* others = getenv("CAUSEWAY_TEST_SOCKET");
  if (others != nullptr && *others != '\0') {
    Adopt(others);
    return;
  }
  char pattern[] = "/tmp/causeway-hostile-XXXXXX";
  if (mkdtemp(pattern) == nullptr) {
    ADD_FAILURE() << "no temporary folder";
    return;
  }
  folder_ = pattern;
  socket_ = folder_ + "/socket";
  log_ = folder_ + "/log";
  std::ofstream(folder_ + "/config.toml")
      << "socket = \"" << socket() << "\"\nsocket_mode = \"0600\"\nlog_level = \"debug\"\n"
      << "driver_library = \"" << DriverLibrary() << "\"\nlocal_region_mib = " << options.region_mib << "\n"
      << options.more << "\n"
      << (options.tcp ? "[tcp]\nlisten = \"127.0.0.1:0\"\n" : "");
  pid_ = SpawnDaemon(BuildFolder() + "/host_backend/causewayd", folder_ + "/config.toml", log_,
                     options.environment);
  const bool served = WaitFor([&] {
    return waitpid(pid_, nullptr, WNOHANG) == pid_ || Log().find("accepts sessions at") != std::string::npos;
  });
  if (!served || !Serves()) ADD_FAILURE() << "causewayd does not serve; its log:\n" << Log();
  const std::string tcp = command::StatusValue(Status(), "", "tcp");
  if (options.tcp) tcp_port_ = uint16_t(std::strtoul(tcp.substr(tcp.rfind(':') + 1).c_str(), nullptr, 10));
}

HostileDaemon::~HostileDaemon() {
  if (pid_ > 0 && kill(pid_, SIGTERM) == 0) {
    int status = 0;
    const bool ended = WaitFor([&] { return waitpid(pid_, &status, WNOHANG) == pid_; });
    EXPECT_TRUE(ended) << "causewayd does not end";
    if (ended) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "causewayd ended with status " << status;
    } else {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  if (::testing::Test::HasFailure() && !folder_.empty())
    fprintf(stderr, "log of the daemon:\n%s\n", Log().c_str());
  if (!folder_.empty()) std::filesystem::remove_all(folder_);
}

bool HostileDaemon::Serves() const {
  return !Status().empty();
}

std::string HostileDaemon::Log() const {
  return ReadAll(log_);
}

size_t HostileDaemon::CountInLog(const std::string& text) const {
  std::istringstream log(Log());
  size_t count = 0;
  for (std::string line; std::getline(log, line);) count += line.find(text) != std::string::npos;
  return count;
}

std::string HostileDaemon::Status() const {
  auto status = command::QueryStatus(socket());
  return status.ok() ? status.value() : "";
}

uint64_t HostileDaemon::Counter(const std::string& name) const {
  return std::strtoull(command::StatusValue(Status(), "counters", name).c_str(), nullptr, 10);
}

std::vector<pid_t> HostileDaemon::Workers() const {
  std::vector<pid_t> workers;
  for (const std::string& session : command::JsonObjects(Status(), "sessions")) {
    const auto pid = pid_t(std::strtol(command::StatusValue(session, "", "worker_pid").c_str(), nullptr, 10));
    if (pid > 0) workers.push_back(pid);
  }
  return workers;
}

std::string EndOf(const HostileDaemon& daemon, const WorkerView& worker) {
  const std::string marker = "(pid " + std::to_string(worker.pid()) + ") ";
  std::string how;
  WaitFor([&] {
    std::istringstream log(daemon.Log());
    for (std::string line; std::getline(log, line);) {
      const size_t at = line.find(marker);
      if (at != std::string::npos && (line.find("was killed", at) != std::string::npos ||
                                      line.find("ended with", at) != std::string::npos))
        how = line.substr(at + marker.size(), line.find(';', at) - at - marker.size());
    }
    return !how.empty();
  });
  return how;
}

}  // namespace causeway::test
