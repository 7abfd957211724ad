// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/crew/mps_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "tools/bench/crew/driver.h"

namespace causeway::bench {
namespace {

constexpr const char* kProgram = "nvidia-cuda-mps-control";

// Waits so long for the process, and then kills it. True when it ended by itself.
bool EndWithin(pid_t pid, double seconds) {
  const std::uint64_t end = NowNs() + static_cast<std::uint64_t>(seconds * 1e9);
  while (NowNs() < end) {
    if (waitpid(pid, nullptr, WNOHANG) != 0) return true;
    usleep(5000);
  }
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  return false;
}

// Only what nobody else may still use: a process is one of ours when its environment names our folder.
bool IsOurs(pid_t pid, const std::string& folder) {
  const int file = open(("/proc/" + std::to_string(pid) + "/environ").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  std::string text(65536, '\0');
  const ssize_t length = read(file, text.data(), text.size());
  close(file);
  return length > 0 && text.find(folder) != std::string::npos;
}

}  // namespace

MpsServer::MpsServer() {
  char name[] = "/tmp/causeway-bench-mps-XXXXXX";
  if (mkdtemp(name) == nullptr) throw Failure("no folder for MPS could be made under /tmp.");
  folder_ = name;
  std::filesystem::create_directory(folder_ + "/pipe");
  std::filesystem::create_directory(folder_ + "/log");
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (const auto& [key, value] : folders()) setenv(key.c_str(), value.c_str(), 1);
    const int log = open((folder_ + "/log/output").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (log >= 0) dup2(log, 1), dup2(log, 2);
    execlp(kProgram, kProgram, "-f", nullptr);
    _exit(127);
  }
  const std::uint64_t end = NowNs() + 5'000'000'000;
  while (!std::filesystem::exists(folder_ + "/pipe/control")) {
    if (NowNs() > end || waitpid(pid_, nullptr, WNOHANG) == pid_) {
      kill(pid_, SIGKILL);
      std::filesystem::remove_all(folder_);
      throw Failure(std::string(kProgram) + " did not start.");
    }
    usleep(10'000);
  }
}

MpsServer::~MpsServer() {
  std::istringstream servers(Ask("get_server_list"));
  Ask("quit -t 2");
  EndWithin(pid_, 5);
  for (pid_t server = 0; servers >> server;) {
    for (int i = 0; i < 100 && IsOurs(server, folder_); ++i) usleep(20'000);
    if (IsOurs(server, folder_)) kill(server, SIGKILL);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

Environment MpsServer::environment() const {
  Environment own = folders();
  // The server numbers anew what CUDA_VISIBLE_DEVICES has left it.
  if (getenv("CUDA_VISIBLE_DEVICES") != nullptr) own.emplace_back("CUDA_VISIBLE_DEVICES", "0");
  return own;
}

Environment MpsServer::folders() const {
  return {{"CUDA_MPS_PIPE_DIRECTORY", folder_ + "/pipe"}, {"CUDA_MPS_LOG_DIRECTORY", folder_ + "/log"}};
}

std::string MpsServer::Ask(const std::string& line) const {
  std::array<int, 2> in{}, out{};
  if (pipe2(in.data(), O_CLOEXEC) != 0) return {};
  if (pipe2(out.data(), O_CLOEXEC) != 0) return {};
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (const auto& [key, value] : folders()) setenv(key.c_str(), value.c_str(), 1);
    dup2(in[0], 0);
    dup2(out[1], 1);
    execlp(kProgram, kProgram, nullptr);
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  const std::string text = line + "\n";
  if (write(in[1], text.data(), text.size()) < 0) kill(pid, SIGKILL);
  close(in[1]);
  std::string answer;
  const std::uint64_t end = NowNs() + 5'000'000'000;
  for (char bytes[512]; NowNs() < end;) {
    pollfd ready{out[0], POLLIN, 0};
    if (poll(&ready, 1, 100) <= 0) continue;
    const ssize_t length = read(out[0], bytes, sizeof(bytes));
    if (length <= 0) break;
    answer.append(bytes, static_cast<std::size_t>(length));
  }
  close(out[0]);
  EndWithin(pid, 1);
  return answer;
}

}  // namespace causeway::bench
