// SPDX-License-Identifier: Apache-2.0
// What the checks look at: files below a root folder, the dynamic loader's cache, other programs. One thread uses all this.
#pragma once
#include <sys/stat.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace causeway::machine {

// What a program printed, both streams together, and how it ended.
struct ProgramResult {
  int status =
      -1;  // its exit status, 128 and more after a signal; -1: it was not started, or was ended for its time
  std::string output;
};
// Runs a program, by its path or as the shell would find it, for at most so long.
ProgramResult RunProgram(const std::vector<std::string>& arguments, int limit_ms);

// The path of this program.
std::string OwnPath();
// Without blanks and line ends around it.
std::string Trimmed(const std::string& text);
std::vector<std::string> Lines(const std::string& text);

class Machine {
 public:
  // `root` empty: the machine that this program runs on; else the root folder of a system that is not running.
  explicit Machine(std::string root) : root_(std::move(root)) {}

  bool lives() const { return root_.empty(); }
  std::string At(const std::string& path) const { return root_ + path; }
  bool Has(const std::string& path) const;
  std::optional<struct stat> Stat(const std::string& path) const;
  // Nothing: it cannot be read. At most 1 MiB.
  std::optional<std::string> Read(const std::string& path) const;
  // Names in that folder, sorted; none where it cannot be read.
  std::vector<std::string> List(const std::string& folder) const;
  // Where a symbolic link of that system leads, empty: it is none.
  std::string LinkTarget(const std::string& path) const;
  // The paths that the loader's cache has for that name, in its order, of x86_64 alone.
  std::vector<std::string> Cached(const std::string& library) const;
  // The id of a group by its name in /etc/group.
  std::optional<gid_t> GroupId(const std::string& name) const;
  // And the name by the id; empty: there is none.
  std::string GroupName(gid_t id) const;
  // Whether systemd runs there.
  bool HasSystemd() const { return lives() && Has("/run/systemd/system"); }

 private:
  std::string root_;
};

}  // namespace causeway::machine
