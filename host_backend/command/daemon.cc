// SPDX-License-Identifier: Apache-2.0
// A private causewayd for one command: configuration, start, readiness, end.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <memory>
#include <sstream>
#include <string_view>

#include "host_backend/command/command.h"
#include "host_backend/common/key_folder.h"
#include "host_backend/common/unique_fd.h"

namespace causeway::command {
namespace {

constexpr char kTlsVm[] = "run";
constexpr int kServingLimitMs = 20'000;
constexpr int kEndLimitMs = 10'000;
constexpr int kPollMs = 5;
constexpr int kServingPollMs = 1;  // a command is waiting to be started

bool IsFile(const std::string& path) {
  std::error_code none;
  return std::filesystem::is_regular_file(path, none);
}

std::string Absolute(const std::string& path) {
  std::error_code none;
  return std::filesystem::canonical(path, none).string();
}

void SleepMs(int ms) {
  usleep(useconds_t(ms) * 1000);
}

[[noreturn]] void ExecDaemon(const std::string& program, const std::string& config, int log_fd,
                             pid_t parent) {
  setpgid(0, 0);  // a terminal's Ctrl-C is for the command; the daemon ends after it
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(127);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(log_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  execl(program.c_str(), program.c_str(), "--config", config.c_str(), static_cast<char*>(nullptr));
  _exit(127);
}

}  // namespace

std::string ProgramFolder() {
  std::error_code none;
  return std::filesystem::read_symlink("/proc/self/exe", none).parent_path().string();
}

Result<std::string> FindGuestLibrary(const std::string& chosen) {
  std::vector<std::string> folders = {chosen};
  if (chosen.empty()) folders = {ProgramFolder() + "/../guest_lib", ProgramFolder() + "/guest_lib"};
  std::string tried;
  for (const auto& folder : folders) {
    if (IsFile(folder + "/libcuda.so.1")) return Absolute(folder);
    tried += (tried.empty() ? "" : " and ") + folder;
  }
  return Error{"Causeway's libcuda.so.1 was not found in " + tried +
               "; build it or name its folder with --guest-library."};
}

Result<PrivateDaemon*> PrivateDaemon::Start(const PrivateDaemonOptions& options) {
  std::unique_ptr<PrivateDaemon> daemon(new PrivateDaemon());
  if (std::string text = daemon->Launch(options); !text.empty()) return Error{text};
  if (std::string text = daemon->WaitUntilServing(); !text.empty()) return Error{text};
  if (options.tls) {
    if (std::string text = daemon->LaunchTls(); !text.empty()) return Error{text};
  }
  return daemon.release();
}

std::string PrivateDaemon::Launch(const PrivateDaemonOptions& options) {
  auto library = FindGuestLibrary(options.guest_library);
  if (!library.ok()) return library.error();
  guest_library_ = library.value();
  tcp_ = options.tcp;
  if (std::string text = MakeFolder(options.for_all_users); !text.empty()) return text;
  socket_ = folder_ + "/socket";
  log_ = options.log_file.empty() ? folder_ + "/log" : options.log_file;
  if (std::string text = WriteConfiguration(options); !text.empty()) return text;
  return StartProgram();
}

std::string PrivateDaemon::MakeFolder(bool for_all_users) {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  // A UNIX socket's path is short: a long runtime folder is not used.
  // Neither is one of another user's, such as sudo keeps: the daemon has no right to pass through it.
  struct stat found {};
  const bool own =
      runtime != nullptr && stat(runtime, &found) == 0 && found.st_uid == geteuid() && !for_all_users;
  std::string pattern = own && *runtime == '/' && std::string(runtime).size() < 64 ? runtime : "/tmp";
  pattern += "/causeway-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr)
    return "A temporary folder " + pattern + " cannot be made: " + ErrnoText() + ".";
  folder_ = pattern;
  chmod(folder_.c_str(), 0711);  // workers are other users, and have names of their own below
  return {};
}

std::string PrivateDaemon::WriteConfiguration(const PrivateDaemonOptions& options) const {
  const std::string config = folder_ + "/causewayd.toml";
  std::ofstream file(config);
  file
      << "socket = " << std::quoted(socket_)
      << "\nsocket_mode = " << (options.for_all_users ? "\"0666\"" : "\"0600\"") << "\nspare_workers = "
      << options.spare_workers
      // As natively, NVML ignores the CUDA_VISIBLE_DEVICES that this daemon shares with the command. Other users' processes do not
      // have it: were NVML to show them more devices than CUDA, PyTorch would ask for those.
      << "\nnvml_shows_all = " << (options.for_all_users ? "false" : "true")
      << "\nlocal_region_mib = " << options.region_mib << "\n";
  if (options.for_all_users) {
    const std::string state = folder_ + "/state";
    if (mkdir(state.c_str(), 0700) != 0)
      return "The folder " + state + " cannot be made: " + ErrnoText() + ".";
    file << "state_folder = " << std::quoted(state) << "\n";
  }
  if (!options.spares_follow_demand) file << "max_spare_workers = " << options.spare_workers << "\n";
  if (options.max_sessions != 0) file << "max_sessions = " << options.max_sessions << "\n";
  if (!options.driver.empty()) {
    // A path is relative to the user's folder, a bare name is the loader's to find.
    const bool is_path = options.driver.find('/') != std::string::npos;
    const std::string driver = is_path ? Absolute(options.driver) : options.driver;
    if (driver.empty()) return "The driver library " + options.driver + " does not exist; correct --driver.";
    file << "driver_library = " << std::quoted(driver) << "\n";
  }
  file << options.configuration;
  if (options.tcp) file << "[tcp]\nlisten = \"127.0.0.1:0\"\n";
  if (options.tls) {
    file << "[tls]\nlisten = [\"127.0.0.1:0\"]\nkeys = " << std::quoted(folder_ + "/keys")
         << "\n[[remote]]\nname = \"" << kTlsVm << "\"\n";
    auto key = NewKey(kTlsVm);
    if (!key.ok()) return key.error();
    if (std::string text = WriteGuestKey(key.value(), folder_ + "/key"); !text.empty()) return text;
    if (std::string text = WriteKey(folder_ + "/keys", {kTlsVm, key.value()}); !text.empty()) return text;
  }
  file.close();
  if (!file) return "The file " + config + " cannot be written: " + ErrnoText() + ".";
  return {};
}

std::string PrivateDaemon::StartProgram() {
  const std::string program = ProgramFolder() + "/causewayd";
  if (!IsFile(program))
    return "The daemon " + program + " was not found; it belongs beside the causeway command.";
  UniqueFd log(open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log) return "The log file " + log_ + " cannot be opened: " + ErrnoText() + "; correct --daemon-log.";
  const pid_t self = getpid();
  pid_ = fork();
  if (pid_ < 0) return "causewayd cannot be started: " + ErrnoText() + ".";
  if (pid_ == 0) ExecDaemon(program, folder_ + "/causewayd.toml", log.get(), self);
  return {};
}

std::string PrivateDaemon::KillAndStart() {
  if (!Ended()) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (std::string text = StartProgram(); !text.empty()) return text;
  return WaitUntilServing();
}

std::string PrivateDaemon::LaunchTls() {
  constexpr std::string_view kSaid = "TLS sessions are accepted at ";
  const std::string log = folder_ + "/tls_log";
  UniqueFd out(open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  const pid_t self = getpid();
  tls_pid_ = out ? fork() : -1;
  if (tls_pid_ < 0) return "causeway-tls cannot be started: " + ErrnoText() + ".";
  if (tls_pid_ == 0)
    ExecDaemon(ProgramFolder() + "/causeway-tls", folder_ + "/causewayd.toml", out.get(), self);
  for (int waited = 0; waited < kServingLimitMs; waited += kPollMs) {
    std::stringstream text;
    text << std::ifstream(log).rdbuf();
    const std::string said = text.str();
    const size_t at = said.find(kSaid);
    if (const size_t end = said.find('\n', at); at != std::string::npos && end != std::string::npos) {
      address_ = "tls://" + said.substr(at + kSaid.size(), end - at - kSaid.size());
      setenv("CAUSEWAY_KEY", (folder_ + "/key").c_str(), 1);
      return {};
    }
    if (waitpid(tls_pid_, nullptr, WNOHANG) == tls_pid_) {
      tls_pid_ = -1;
      return "The private causeway-tls ended: " + said;
    }
    SleepMs(kPollMs);
  }
  return "The private causeway-tls does not accept sessions within " +
         std::to_string(kServingLimitMs / 1000) + " s.";
}

bool PrivateDaemon::Ended() const {
  if (pid_ > 0 && waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = -1;
  return pid_ < 0;
}

std::string PrivateDaemon::LastLogLine() const {
  std::ifstream file(log_);
  std::string line;
  std::string last;
  while (std::getline(file, line)) {
    if (!line.empty()) last = line;
  }
  return last;
}

std::string PrivateDaemon::WaitUntilServing() {
  for (int waited = 0; waited < kServingLimitMs; waited += kServingPollMs) {
    if (Ended()) return "The private causewayd ended: " + LastLogLine();
    auto status = QueryStatus(socket_);
    if (status.ok()) {
      address_ = tcp_ ? "tcp://" + StatusValue(status.value(), "", "tcp") : "local:" + socket_;
      return {};
    }
    SleepMs(kServingPollMs);
  }
  return "The private causewayd does not accept sessions within " + std::to_string(kServingLimitMs / 1000) +
         " s; its last words: " + LastLogLine();
}

std::string PrivateDaemon::WaitForSpares(uint32_t count, int limit_ms) const {
  for (int waited = 0; waited < limit_ms; waited += kPollMs) {
    if (Ended()) return "The private causewayd ended: " + LastLogLine();
    auto status = QueryStatus(socket_);
    if (!status.ok()) return status.error();
    const std::string problem = StatusValue(status.value(), "workers", "problem");
    if (!problem.empty()) return problem;
    if (std::strtoul(StatusValue(status.value(), "workers", "spare_ready").c_str(), nullptr, 10) >= count)
      return {};
    SleepMs(kPollMs);
  }
  return "No spare worker became ready within " + std::to_string(limit_ms / 1000) +
         " s; last line of the log: " + LastLogLine();
}

PrivateDaemon::~PrivateDaemon() {
  if (tls_pid_ > 0) {
    kill(tls_pid_, SIGKILL);  // it has nothing to tidy up, and its processes end with it
    waitpid(tls_pid_, nullptr, 0);
  }
  if (!Ended()) {
    kill(pid_, SIGTERM);
    for (int waited = 0; waited < kEndLimitMs && !Ended(); waited += kPollMs) SleepMs(kPollMs);
    if (!Ended()) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  std::error_code none;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, none);
}

void UseGuestLibrary(const std::string& folder, const std::string& address) {
  const char* before = std::getenv("LD_LIBRARY_PATH");
  const std::string path = before != nullptr && *before != '\0' ? folder + ":" + before : folder;
  setenv("LD_LIBRARY_PATH", path.c_str(), 1);
  if (!address.empty()) setenv("CAUSEWAY", address.c_str(), 1);
}

}  // namespace causeway::command
