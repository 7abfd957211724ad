// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/scopes/cgroups.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "host_backend/common/unique_fd.h"
#include "host_backend/daemon/loop/loop_work.h"

namespace causeway::daemon {
namespace {

constexpr char kMount[] = "/sys/fs/cgroup";
constexpr char kControllers[] = "+memory +pids +cpu";

bool Write(const std::string& file, const std::string& text) {
  const UniqueFd fd(open(file.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  return fd && write(fd.get(), text.data(), text.size()) == ssize_t(text.size());
}

std::string Read(const std::string& file) {
  std::ifstream stream(file);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

bool Make(const std::string& folder) {
  return mkdir(folder.c_str(), 0755) == 0 || errno == EEXIST;
}

bool HasControllers(const std::string& folder) {
  std::istringstream names(Read(folder + "/cgroup.controllers"));
  int found = 0;
  for (std::string name; names >> name;) found += name == "memory" || name == "pids" || name == "cpu" ? 1 : 0;
  return found == 3;
}

// The cgroup of this process, or "" where there is no hierarchy of version 2.
std::string OwnFolder() {
  struct statfs info {};
  if (statfs(kMount, &info) != 0 || info.f_type != CGROUP2_SUPER_MAGIC) return {};
  std::istringstream lines(Read("/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("0::/", 0) == 0) return std::string(kMount) + (line.size() == 4 ? "" : line.substr(3));
  }
  return {};
}

// Letters, digits, '.', '-' stay; another byte becomes "_" and two hexadecimal digits.
std::string Escaped(const std::string& name) {
  std::string text;
  for (const char c : name) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-';
    char code[4] = {c, '\0'};
    if (!plain) std::snprintf(code, sizeof(code), "_%02x", static_cast<unsigned char>(c));
    text += code;
  }
  return text.substr(0, 200);
}

// All processes of the group `from`: the daemon, and what it started already.
bool MoveAll(const std::string& from, const std::string& to) {
  std::istringstream processes(Read(from + "/cgroup.procs"));
  bool good = true;
  for (std::string pid; processes >> pid;) good = Write(to + "/cgroup.procs", pid) && good;
  return good;
}

bool OnlyOwnProcesses(const std::string& folder) {
  std::istringstream processes(Read(folder + "/cgroup.procs"));
  for (std::string pid; processes >> pid;) {
    if (pid == std::to_string(getpid())) continue;
    const std::string status = Read("/proc/" + pid + "/status");
    if (status.find("\nPPid:\t" + std::to_string(getpid()) + "\n") == std::string::npos) return false;
  }
  return true;
}

}  // namespace

std::string Cgroups::Start(pid_t launcher) {
  const std::string none =
      "VMs and users have no cgroups of their own, so their use of the host's memory, threads and "
      "processor is not bounded: ";
  std::string own = OwnFolder();
  // This process is where one of before was, or where systemd's DelegateSubgroup= puts it.
  const std::string daemon = "/daemon";
  if (own.ends_with(daemon) &&
      access((own.substr(0, own.size() - daemon.size()) + "/spare").c_str(), F_OK) == 0) {
    base_ = own.substr(0, own.size() - daemon.size());
    aside_ = std::make_unique<Aside>(loop_);
    return {};
  }
  if (own.empty()) return none + "this host has no cgroup hierarchy of version 2 at " + kMount;
  const bool is_root = access((own + "/cgroup.type").c_str(), F_OK) != 0;
  if (!HasControllers(own)) return none + own + " lacks one of the controllers memory, pids and cpu";
  if (is_root) {
    // The root may hold processes beside groups.
    if (!Write(own + "/cgroup.subtree_control", kControllers) || !Make(own + "/causeway"))
      return none + own + " cannot be written: " + ErrnoText();
    own += "/causeway";
  } else if (!OnlyOwnProcesses(own)) {
    return none + own +
           " holds other processes too; start causewayd by its systemd unit, which has Delegate=yes";
  }
  if (!Make(own + "/daemon") || !Make(own + "/spare"))
    return none + own + " cannot be written (" + ErrnoText() +
           "); set Delegate=yes in causewayd's systemd unit";
  const std::string procs = own + "/daemon/cgroup.procs";
  const bool moved = is_root
                         ? Write(procs, std::to_string(getpid())) && Write(procs, std::to_string(launcher))
                         : MoveAll(own, own + "/daemon");
  if (!moved || !Write(own + "/cgroup.subtree_control", kControllers)) {
    const std::string why = ErrnoText();
    MoveAll(own + "/daemon", is_root ? kMount : own);
    rmdir((own + "/daemon").c_str());
    rmdir((own + "/spare").c_str());
    return none + own + " cannot be divided (" + why + "); set Delegate=yes in causewayd's systemd unit";
  }
  Write(own + "/daemon/cpu.weight", "1000");  // it serves everybody, with little to do
  base_ = own;
  aside_ = std::make_unique<Aside>(loop_);
  return {};
}

Cgroups::~Cgroups() {
  aside_.reset();
  if (!used()) return;
  for (const auto& [scope, count] : workers_) rmdir(Folder(scope).c_str());
  rmdir((base_ + "/spare").c_str());
}

std::string Cgroups::Folder(const std::string& scope) const {
  return base_ + "/scope-" + Escaped(scope);
}

void Cgroups::AddSpare(pid_t worker) {
  if (used()) aside_->Do([this, worker] { Write(base_ + "/spare/cgroup.procs", std::to_string(worker)); });
}

void Cgroups::Assign(pid_t worker, const std::string& scope, const HostShare& share,
                     std::function<void(const Joined&)> done) {
  if (!used()) return done({});
  auto joined = std::make_shared<Joined>();
  aside_->Do(
      [this, worker, scope, share, joined] {
        joined->problem = Join(worker, scope, share);
        joined->oom_kills = OutOfMemory(scope);
      },
      [joined, done = std::move(done)] { done(*joined); });
}

std::string Cgroups::Join(pid_t worker, const std::string& scope, const HostShare& share) {
  const std::string folder = Folder(scope);
  const auto number = [](uint64_t value) { return std::to_string(value); };
  bool good = Make(folder);
  if (good && workers_[scope] == 0) {
    const uint64_t half = uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE)) / 2;
    good = Write(folder + "/memory.max", number(share.memory_mib != 0 ? share.memory_mib * kMib : half)) &&
           Write(folder + "/pids.max", number(share.threads)) &&
           Write(folder + "/cpu.weight", number(share.cpu_weight));
    Write(folder + "/memory.swap.max", "0");  // a kernel without swap has no such file
    constexpr uint64_t kPeriodUs = 100'000;
    if (share.cpu_percent != 0)
      good =
          Write(folder + "/cpu.max", number(share.cpu_percent * kPeriodUs / 100) + " " + number(kPeriodUs)) &&
          good;
  }
  if (!good || !Write(folder + "/cgroup.procs", number(uint64_t(worker)))) {
    const std::string why = ErrnoText();
    if (workers_[scope] == 0) {
      workers_.erase(scope);
      rmdir(folder.c_str());
    }
    return "The cgroup " + folder + " of this session cannot be set up: " + why +
           "; see the log of causewayd, and its limits of the host's memory, threads and processor.";
  }
  ++workers_[scope];
  return {};
}

void Cgroups::Rejoin(pid_t worker, const std::string& scope, const HostShare& share) {
  if (used()) aside_->Do([this, worker, scope, share] { Join(worker, scope, share); });
}

void Cgroups::Add(pid_t process, const std::string& scope) {
  if (!used()) return;
  aside_->Do([this, process, scope] {
    if (workers_.contains(scope)) Write(Folder(scope) + "/cgroup.procs", std::to_string(process));
  });
}

void Cgroups::Leave(const std::string& scope) {
  if (used()) aside_->Do([this, scope] { End(scope); });
}

void Cgroups::WhenDone(std::function<void()> done) {
  if (!used()) return done();
  aside_->Do([] {}, std::move(done));
}

void Cgroups::End(const std::string& scope) {
  const auto found = workers_.find(scope);
  if (found == workers_.end() || --found->second != 0) return;
  workers_.erase(found);
  rmdir(Folder(scope).c_str());  // where it is still busy, the next session of the scope takes it over
}

uint64_t Cgroups::OutOfMemory(const std::string& scope) const {
  if (!used()) return 0;
  const LoopPart part("cgroup: memory events");
  std::istringstream events(Read(Folder(scope) + "/memory.events"));
  std::string name;
  uint64_t count = 0;
  while (events >> name >> count) {
    if (name == "oom_kill") return count;
  }
  return 0;
}

}  // namespace causeway::daemon
