// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/plot.h"

#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <vector>

#include "host_backend/command/command.h"
#include "host_backend/common/unique_fd.h"

namespace causeway::bench {
namespace {

bool Fail(const std::string& reason) {
  std::fprintf(stderr, "causeway: The picture cannot be drawn because %s.\n", reason.c_str());
  return false;
}

// Runs the script with `arguments` and `input` as its standard input, and waits for its end. The script says
// itself what fails.
bool RunScript(const std::vector<std::string>& arguments, const std::string& input) {
  const UniqueFd file(memfd_create("causeway-bench", MFD_CLOEXEC));
  if (!file || write(file.get(), input.data(), input.size()) != ssize_t(input.size()) ||
      lseek(file.get(), 0, SEEK_SET) != 0)
    return Fail("the script cannot be given the figures: " + ErrnoText());
  std::vector<std::string> words = {"python3", command::ProgramFolder() + "/causeway-bench-plot"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, file.get(), STDIN_FILENO);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, pointers[0], &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    return Fail("python3 cannot be started (" + ErrnoText(error) + "); install the package python3");
  int status = 0;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

bool CanPlot() {
  return RunScript({"--check"}, "");
}

bool Plot(const std::string& json, const std::string& picture, const std::string& kind) {
  return RunScript({kind, "-", picture}, json);
}

}  // namespace causeway::bench
