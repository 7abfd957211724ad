// SPDX-License-Identifier: Apache-2.0
#include "tools/containers/own_ldconfig.h"

#include <elf.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "host_backend/common/result.h"
#include "tools/containers/container_root.h"

namespace causeway::containers {
namespace {

constexpr unsigned kLdconfigLimitS = 60;
constexpr size_t kMostSaid = 1024;
constexpr unsigned kMostDescriptors = 1u << 20;  // the kernel's limit (fs.nr_open) where nobody has raised it
constexpr off_t kMostProgramBytes = 64 << 20;

// Whether it is a program of this machine that starts without a loader.
bool IsStatic(const std::vector<char>& program) {
  Elf64_Ehdr header{};
  if (program.size() < sizeof(header)) return false;
  std::copy_n(program.data(), sizeof(header), reinterpret_cast<char*>(&header));
  if (std::string(header.e_ident, header.e_ident + SELFMAG) != ELFMAG || header.e_machine != EM_X86_64)
    return false;
  for (unsigned index = 0; index < header.e_phnum; ++index) {
    Elf64_Phdr segment{};
    const size_t offset = header.e_phoff + index * sizeof(segment);
    if (offset > program.size() || program.size() - offset < sizeof(segment)) return false;
    std::copy_n(program.data() + offset, sizeof(segment), reinterpret_cast<char*>(&segment));
    if (segment.p_type == PT_INTERP) return false;
  }
  return true;
}

std::vector<char> ReadWhole(const char* path) {
  const UniqueFd file(open(path, O_RDONLY | O_CLOEXEC));
  struct stat found {};
  if (!file || fstat(file.get(), &found) != 0 || found.st_size > kMostProgramBytes) return {};
  std::vector<char> bytes(size_t(found.st_size));
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = read(file.get(), bytes.data() + done, bytes.size() - done);
    if (got <= 0) return {};
    done += size_t(got);
  }
  return bytes;
}

// Descriptors from 3 on end when a program is executed. A kernel before 5.11 looks at each of them instead.
bool CloseAtExecution() {
  constexpr unsigned kFirst = 3;
  if (syscall(SYS_close_range, kFirst, ~0U, CLOSE_RANGE_CLOEXEC) == 0) return true;
  rlimit most{};
  if (getrlimit(RLIMIT_NOFILE, &most) != 0) return false;
  for (unsigned fd = kFirst; fd < most.rlim_cur && fd < kMostDescriptors; ++fd)
    fcntl(int(fd), F_SETFD, FD_CLOEXEC);
  return true;
}

// Nothing that is executed from now on has any right but to write files, whoever owns them, and any descriptor but the first
// three. Rights that a runtime lets its hooks inherit go, too.
bool GiveUpRights() {
  for (int capability = 0; prctl(PR_CAPBSET_READ, capability) >= 0; ++capability) {
    if (capability != CAP_DAC_OVERRIDE && prctl(PR_CAPBSET_DROP, capability) != 0) return false;
  }
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct rights[_LINUX_CAPABILITY_U32S_3]{};
  if (syscall(SYS_capget, &header, rights) != 0) return false;
  const uint32_t kept = rights[0].permitted & (1u << CAP_DAC_OVERRIDE);
  rights[0] = {kept, kept, 0};
  rights[1] = {};
  return syscall(SYS_capset, &header, rights) == 0 &&
         prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) == 0 &&
         prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && CloseAtExecution();
}

[[noreturn]] void Child(int program, int said, const std::function<void(std::string* why)>& enter) {
  // A signal that is not handled ends ldconfig, too, whatever the image lets it read.
  signal(SIGALRM, SIG_DFL);
  alarm(kLdconfigLimitS);
  dup2(said, STDOUT_FILENO);
  dup2(said, STDERR_FILENO);
  std::string why;
  enter(&why);
  if (why.empty() && !GiveUpRights()) why = "rights cannot be given up: " + ErrnoText();
  if (why.empty()) {
    const std::string folder = std::string("/") + kLibraryFolder;
    const char* arguments[] = {"ldconfig", folder.c_str(), nullptr};
    const char* environment[] = {nullptr};
    syscall(SYS_execveat, program, "", arguments, environment, AT_EMPTY_PATH);
    why = "ldconfig cannot be started: " + ErrnoText();
  }
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, why.data(), why.size());
  _exit(1);
}

// All that is said until the last end is closed; its first kMostSaid bytes.
std::string ReadSaid(int end) {
  std::string text;
  char buffer[512];
  for (;;) {
    const ssize_t bytes = read(end, buffer, sizeof(buffer));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return text;
    if (text.size() < kMostSaid) text.append(buffer, size_t(bytes));
  }
}

}  // namespace

UniqueFd CopyOwnLdconfig() {
  // On Ubuntu the usual name is a script's.
  for (const char* path : {"/sbin/ldconfig.real", "/sbin/ldconfig"}) {
    const std::vector<char> bytes = ReadWhole(path);
    if (!IsStatic(bytes)) continue;
    UniqueFd copy(memfd_create("ldconfig", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!copy || write(copy.get(), bytes.data(), bytes.size()) != ssize_t(bytes.size()) ||
        fcntl(copy.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0)
      return {};
    return copy;
  }
  return {};
}

std::string RunApart(int program, const std::function<void(std::string* why)>& enter) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "no pipe can be made: " + ErrnoText();
  UniqueFd reading(ends[0]), writing(ends[1]);
  const pid_t child = fork();
  if (child < 0) return "no process can be started: " + ErrnoText();
  if (child == 0) Child(program, writing.get(), enter);
  writing.reset();
  std::string said = ReadSaid(reading.get());
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
    return "ldconfig did not end within " + std::to_string(kLdconfigLimitS) + " s";
  while (!said.empty() && said.back() == '\n') said.pop_back();
  return said.empty() ? "ldconfig failed" : "the loader's cache cannot be made: " + said;
}

}  // namespace causeway::containers
