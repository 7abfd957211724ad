// SPDX-License-Identifier: Apache-2.0
// causeway-container-hook: what a container runtime calls when a container with Causeway's GPU is about to start (`causeway cdi`
// names it, as a createContainer hook). The runtime has mounted the libraries; the hook makes the image's loader find
// them. The container's state comes on standard input. Where it fails the container does not start, and the reason is one
// sentence on standard error and in the system's log, because some runtimes show neither.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <syslog.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "host_backend/common/json.h"
#include "host_backend/common/result.h"
#include "tools/containers/container_root.h"
#include "tools/containers/container_state.h"

namespace causeway::containers {
namespace {

constexpr size_t kMostBytes = 32u << 20;
constexpr unsigned kHookLimitS = 120;  // twice ldconfig's minute

std::string ReadAll(int fd) {
  std::string text;
  char buffer[16384];
  for (;;) {
    const ssize_t bytes = read(fd, buffer, sizeof(buffer));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0 || text.size() > kMostBytes) return text;
    text.append(buffer, size_t(bytes));
  }
}

// Empty, or what is wrong.
std::string FindContainer(Container* container) {
  const auto bundle = BundleOf(ReadAll(STDIN_FILENO));
  if (!bundle.ok()) return bundle.error();
  const std::string path = bundle.value() + "/config.json";
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return path + " cannot be read: " + ErrnoText();
  auto read = ReadContainer(bundle.value(), ReadAll(file.get()));
  if (!read.ok()) return read.error();
  *container = std::move(read.value());
  return {};
}

std::string Prepare() {
  Container container;
  if (std::string text = FindContainer(&container); !text.empty()) return text;
  if (container.library_folders.size() > kMostFolders) {
    return "its LD_LIBRARY_PATH has more than " + std::to_string(kMostFolders) +
           " folders, of which no more are searched for other libraries; set a shorter one";
  }
  const UniqueFd root(open(container.root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root) return "the container's root " + container.root + " cannot be opened: " + ErrnoText();
  if (std::string text = CoverOtherLibraries(root.get(), container.library_folders); !text.empty())
    return "the container has no GPU of Causeway: " + text;
  if (std::string text = RefreshLoaderCache(root.get()); !text.empty())
    return "the container has no GPU of Causeway: " + text;
  return {};
}

void EndLate(int) {
  constexpr std::string_view kText = "causeway-container-hook: it did not end within two minutes.\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText.data(), kText.size());
  _exit(1);
}

// A runtime that never closes the standard input, or a file system that does not answer, would keep the container for ever.
void LimitTime() {
  sigset_t late;
  sigemptyset(&late);
  sigaddset(&late, SIGALRM);
  sigprocmask(SIG_UNBLOCK, &late, nullptr);
  signal(SIGALRM, EndLate);
  alarm(kHookLimitS);
}

int Main() {
  LimitTime();
  // Some runtimes pass the image's variables on; syslog, for example, would open the file that TZ names.
  clearenv();
  // Processes of a container that shares this one's process ids cannot reach this program's file.
  prctl(PR_SET_DUMPABLE, 0);
  const std::string text = Prepare();
  if (text.empty()) return 0;
  const std::string line = PrintableText(text);
  std::fprintf(stderr, "causeway-container-hook: %s.\n", line.c_str());
  openlog("causeway-container-hook", LOG_PID, LOG_USER);
  syslog(LOG_ERR, "%s.", line.c_str());
  return 1;
}

}  // namespace
}  // namespace causeway::containers

int main() {
  return causeway::containers::Main();
}
