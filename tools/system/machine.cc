// SPDX-License-Identifier: Apache-2.0
#include "tools/system/machine.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <sstream>

#include "host_backend/common/unique_fd.h"

namespace causeway::machine {
namespace {

constexpr size_t kMostBytes = 1u << 20;

int64_t NowMs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

[[noreturn]] void Execute(const std::vector<std::string>& arguments, int output) {
  std::vector<std::string> copies = arguments;
  std::vector<char*> pointers;
  for (auto& copy : copies) pointers.push_back(copy.data());
  pointers.push_back(nullptr);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  execvp(pointers[0], pointers.data());
  _exit(127);
}

// Reads until the other end is closed or time is up; false: the latter.
bool ReadAll(int fd, int64_t end_ms, std::string* text) {
  char buffer[4096];
  for (;;) {
    const int64_t left = end_ms - NowMs();
    pollfd wait{fd, POLLIN, 0};
    if (left <= 0 || poll(&wait, 1, int(left)) == 0) return false;
    const ssize_t bytes = read(fd, buffer, sizeof(buffer));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return true;
    if (text->size() < kMostBytes) text->append(buffer, size_t(bytes));
  }
}

}  // namespace

ProgramResult RunProgram(const std::vector<std::string>& arguments, int limit_ms) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  UniqueFd reading(ends[0]), writing(ends[1]);
  const pid_t child = fork();
  if (child < 0) return {};
  if (child == 0) Execute(arguments, writing.get());
  writing.reset();
  ProgramResult result;
  const bool ended = ReadAll(reading.get(), NowMs() + limit_ms, &result.output);
  if (!ended) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (ended) result.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

std::string OwnPath() {
  char path[4096];
  const ssize_t bytes = readlink("/proc/self/exe", path, sizeof(path));
  return bytes > 0 ? std::string(path, size_t(bytes)) : std::string();
}

std::string Trimmed(const std::string& text) {
  constexpr const char* kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

bool Machine::Has(const std::string& path) const {
  return access(At(path).c_str(), F_OK) == 0;
}

std::optional<struct stat> Machine::Stat(const std::string& path) const {
  struct stat found {};
  if (stat(At(path).c_str(), &found) != 0) return std::nullopt;
  return found;
}

std::optional<std::string> Machine::Read(const std::string& path) const {
  const UniqueFd fd(open(At(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return std::nullopt;
  std::string text(kMostBytes, '\0');
  size_t size = 0;
  ssize_t bytes = 0;
  while (size < text.size() && (bytes = read(fd.get(), text.data() + size, text.size() - size)) > 0)
    size += size_t(bytes);
  if (bytes < 0) return std::nullopt;
  text.resize(size);
  return text;
}

std::vector<std::string> Machine::List(const std::string& folder) const {
  std::vector<std::string> names;
  DIR* open = opendir(At(folder).c_str());
  if (open == nullptr) return names;
  while (const dirent* entry = readdir(open)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(open);
  std::sort(names.begin(), names.end());
  return names;
}

std::string Machine::LinkTarget(const std::string& path) const {
  char target[4096];
  const ssize_t bytes = readlink(At(path).c_str(), target, sizeof(target));
  return bytes > 0 ? std::string(target, size_t(bytes)) : std::string();
}

std::vector<std::string> Machine::Cached(const std::string& library) const {
  const auto ldconfig = [&](const char* path) {
    return RunProgram({path, "-C", At("/etc/ld.so.cache"), "-p"}, 10'000);
  };
  ProgramResult listed = ldconfig("/sbin/ldconfig");
  if (listed.status != 0) listed = ldconfig("ldconfig");
  std::vector<std::string> paths;
  for (const std::string& line : Lines(listed.output)) {
    const size_t arrow = line.find(" => ");
    if (arrow != std::string::npos && Trimmed(line).starts_with(library + " ") &&
        line.find("x86-64") != std::string::npos)
      paths.push_back(Trimmed(line.substr(arrow + 4)));
  }
  return paths;
}

std::optional<gid_t> Machine::GroupId(const std::string& name) const {
  for (const std::string& line : Lines(Read("/etc/group").value_or(""))) {
    if (!line.starts_with(name + ":")) continue;
    const size_t second = line.find(':', name.size() + 1);
    if (second != std::string::npos) return gid_t(std::strtoul(line.c_str() + second + 1, nullptr, 10));
  }
  return std::nullopt;
}

std::string Machine::GroupName(gid_t id) const {
  for (const std::string& line : Lines(Read("/etc/group").value_or(""))) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    char* end = nullptr;
    const unsigned long number = std::strtoul(line.c_str() + second + 1, &end, 10);
    if (*end == ':' && number == id) return line.substr(0, first);
  }
  return {};
}

}  // namespace causeway::machine
