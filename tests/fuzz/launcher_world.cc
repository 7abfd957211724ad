// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/launcher_world.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "host_backend/common/driver_variables.h"
#include "host_backend/launcher/worker_child.h"
#include "tests/fuzz/fuzz_input.h"

extern char** environ;

namespace causeway::fuzz {
namespace {

using launcher::Action;
using launcher::ChildPlan;
using launcher::Request;
using launcher::WorkerKind;
using Sort = Process::Sort;

constexpr uid_t kPerson = 4321;
constexpr pid_t kFirstPid = 70'000;

std::pair<dev_t, ino_t> PlaceOf(int descriptor) {
  struct stat info {};
  Require(fstat(descriptor, &info) == 0);
  return {info.st_dev, info.st_ino};
}

bool IsOwn(const char* entry) {
  char** at = environ;
  while (*at != nullptr && *at != entry) ++at;
  return *at != nullptr;
}

std::string_view NameOf(std::string_view entry) {
  return entry.substr(0, entry.find('='));
}

}  // namespace

// The order is the corpus's: what needs a right comes last.
Files::Files() {
  const char* place = getenv("TMPDIR");
  folder_ = std::string(place != nullptr ? place : "/tmp") + "/fuzz-launcher-XXXXXX";
  Require(mkdtemp(folder_.data()) != nullptr);
  umask(0);
  int ends[2];
  Require(pipe2(ends, O_CLOEXEC) == 0);
  Add({.name = "pipe", .pipe = true}, ends[1]);
  Add({.name = "other end of the pipe", .pipe = true}, ends[0]);
  AddSockets();
  const FileTraits region{.name = "region", .for_groups = true, .for_persons = true, .for_search = true};
  AddRegular(region, 0660, O_RDWR);
  FileTraits open = region;
  open.name = "open to everybody";
  open.for_persons = false;
  AddRegular(open, 0666, O_RDWR);
  open.name = "program";
  AddRegular(open, 06770, O_RDWR);
  AddRegular({.name = "opened for reading"}, 0660, O_RDONLY);
  AddRegular({.name = "opened for writing"}, 0660, O_WRONLY);
  AddRegular({.name = "place of a file"}, 0660, O_PATH);
  AddRegular({.name = "of two names"}, 0660, O_RDWR);
  Require(link((folder_ + "/of two names").c_str(), (folder_ + "/second name").c_str()) == 0);
  Add({.name = "memory"}, memfd_create("fuzz", MFD_CLOEXEC));
  Add({.name = "folder"}, ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  Add({.name = "device"}, ::open("/dev/null", O_RDWR | O_CLOEXEC));
  Add({.name = "event"}, eventfd(0, EFD_CLOEXEC));
  if (geteuid() != 0) return;
  AddRegular({.name = "given", .for_search = true}, 0660, O_RDWR, kPerson);
  AddRegular({.name = "a person's own"}, 0600, O_RDWR, kPerson);
  AddRegular({.name = "the system's"}, 0660, O_RDWR, 999);
  AddRegular({.name = "a worker's", .of_worker = true}, 0660, O_RDWR, kUsers.first + 3);
}

void Files::AddSockets() {
  int ends[2];
  Require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  Add({.name = "packets", .packets = true}, ends[0]);
  Add({.name = "other end of packets", .packets = true}, ends[1]);
  Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  Add({.name = "stream"}, ends[0]);
  Add({.name = "other end of the stream"}, ends[1]);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", folder_.c_str());
  const UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  Require(bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  Require(chmod(address.sun_path, 0660) == 0);
  Add({.name = "place of a socket", .for_groups = true, .for_persons = true},
      ::open(address.sun_path, O_PATH | O_CLOEXEC));
}

Files::~Files() {
  for (const auto& [traits, descriptor] : files_) unlink((folder_ + "/" + traits.name).c_str());
  for (const char* other : {"/socket", "/second name"}) unlink((folder_ + other).c_str());
  rmdir(folder_.c_str());
}

void Files::Add(const FileTraits& traits, int descriptor) {
  Require(descriptor >= 0);
  places_[PlaceOf(descriptor)] = files_.size();
  files_.emplace_back(traits, UniqueFd(descriptor));
}

void Files::AddRegular(const FileTraits& traits, mode_t mode, int flags, uid_t owner) {
  const std::string path = folder_ + "/" + traits.name;
  const UniqueFd made(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  Require(made && fchown(made.get(), owner, getegid()) == 0 && fchmod(made.get(), mode) == 0);
  Add(traits, ::open(path.c_str(), flags | O_CLOEXEC));
}

// The two ends of a pipe are one file, as are all of its descriptors.
const FileTraits& Files::Of(int descriptor) const {
  const auto found = places_.find(PlaceOf(descriptor));
  Require(found != places_.end());
  return files_[found->second].first;
}

const Files& AllFiles() {
  static const Files files;
  return files;
}

Process* CheckedActs::Find(pid_t pid) {
  const auto found = std::find_if(processes_.begin(), processes_.end(),
                                  [pid](const Process& process) { return process.pid == pid; });
  return found == processes_.end() ? nullptr : &*found;
}

// What is done has been asked for.
const Request& CheckedActs::RequestOf(std::initializer_list<Action> actions) {
  Require(request_ != nullptr &&
          std::find(actions.begin(), actions.end(), request_->action) != actions.end());
  ++done_;
  return *request_;
}

// The lowest number that is free: the kernel gives numbers of processes that were reaped to others.
pid_t CheckedActs::Start(Sort sort, pid_t target) {
  if (std::exchange(start_fails_, false)) {
    errno = EAGAIN;
    return -1;
  }
  Process process;
  process.serial = ++last_serial_;
  process.sort = sort;
  process.target = target;
  for (process.pid = kFirstPid; Find(process.pid) != nullptr;) ++process.pid;
  processes_.push_back(process);
  return process.pid;
}

void CheckedActs::RequireArguments(const ChildPlan& plan) const {
  Require(std::string_view(plan.arguments[0]) == plan.path);
  const bool cuda = request_->worker == WorkerKind::kCuda;
  for (size_t at = 1; plan.arguments[at] != nullptr; ++at) {
    const std::string_view name = plan.arguments[at];
    if (name == "--all-devices") {
      Require(settings_.shows_all && !cuda && request_->environment_bytes == 0);
    } else if (name == "--allow-pageable-access") {
      Require(settings_.allow_pageable_access && cuda);
    } else if (name == "--watch-memory") {
      Require(request_->worker == WorkerKind::kMemoryWatch);
    } else {
      Require(plan.arguments[++at] != nullptr);
      const std::string value = plan.arguments[at];
      const auto is = [&](std::string_view option, const std::string& expected) {
        return name == option && value == expected;
      };
      const bool gpus = name == "--gpus" && value == request_->gpus &&
                        value.find_first_not_of("-,0123456789abcdefABCDEFGPUMI") == std::string::npos &&
                        !value.empty();
      Require(gpus || is("--control-fd", std::to_string(plan.control_fd)) ||
              is("--sandbox", settings_.sandbox) || is("--driver", settings_.driver) ||
              is("--management", settings_.management) || is("--cache", settings_.cache) ||
              is("--users",
                 std::to_string(settings_.users.first) + "," + std::to_string(settings_.users.count)) ||
              name == "--device-group" || is("--checkpoint", std::to_string(request_->pid)) ||
              (name == "--namespaces" && plan.arguments[at] == plan.namespaces &&
               value == launcher::kNoNamespaces));
    }
  }
}

// Nothing but what this process has itself, and what a guest or the configuration may set. No name comes twice.
void CheckedActs::RequireEnvironment(const ChildPlan& plan, bool of_worker) const {
  std::vector<std::string_view> asked;
  for (uint32_t at = 0; of_worker && at < request_->environment_bytes;) {
    asked.emplace_back(request_->environment + at);
    at += uint32_t(asked.back().size()) + 1;
    Require(at <= request_->environment_bytes && MayReachDriver(NameOf(asked.back())));
  }
  const std::string cache = "CUDA_CACHE_PATH=" + settings_.links + "/cache-" + std::to_string(request_->link);
  size_t met = 0;
  bool met_cache = false;
  for (char* const* at = plan.environment; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    Require(!entry.starts_with("LD_PRELOAD=") && !entry.starts_with("LD_AUDIT="));
    Require(!entry.starts_with("CAUSEWAY") || entry.starts_with("CAUSEWAY_LANES=") ||
            entry.starts_with("CAUSEWAY_TURNS="));
    if (IsOwn(*at)) {
      Require(std::none_of(asked.begin(), asked.end(),
                           [&](std::string_view each) { return NameOf(each) == NameOf(entry); }));
      Require(!of_worker || request_->link == 0 || !entry.starts_with("CUDA_CACHE_PATH="));
    } else if (of_worker && request_->link != 0 && entry == cache) {
      Require(!std::exchange(met_cache, true) && !settings_.links.empty());
    } else {
      Require(met < asked.size() && entry == asked[met++]);
    }
  }
  Require(met == asked.size() && met_cache == (of_worker && request_->link != 0));
}

pid_t CheckedActs::StartWorker(const ChildPlan& plan) {
  const Request& request = RequestOf({Action::kStart});
  Require(request.worker >= WorkerKind::kCuda && request.worker <= WorkerKind::kMemoryWatch);
  std::string path = settings_.worker;
  if (request.worker_hash != 0) {
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(request.worker_hash));
    path = settings_.workers + "/" + hash + "/causeway-worker";
    Require(!settings_.workers.empty());
  }
  Require(path == plan.path && AllFiles().Of(plan.output_fd).pipe && AllFiles().Of(plan.control_fd).packets);
  Require(plan.parent == getpid());
  Require(plan.shm == nullptr ? settings_.shm.empty() : settings_.shm == plan.shm);
  RequireArguments(plan);
  RequireEnvironment(plan, true);
  return Start(Sort::kWorker);
}

// As the user of scopes alone, about a worker that is there.
pid_t CheckedActs::StartCheckpointer(const ChildPlan& plan, uid_t user, gid_t) {
  const Request& request = RequestOf({Action::kCheckpoint});
  const Process* target = Find(request.pid);
  Require(target != nullptr && target->sort == Sort::kWorker);
  Require(user == request.user && (settings_.users.count == 0 ? user == 0 : settings_.users.Has(user)));
  Require(settings_.worker == plan.path && AllFiles().Of(plan.control_fd).packets);
  Require(plan.output_fd == STDIN_FILENO && plan.parent == getpid() && plan.shm == nullptr);
  RequireArguments(plan);
  RequireEnvironment(plan, false);
  return Start(Sort::kCheckpointer, request.pid);
}

pid_t CheckedActs::FindVm(const struct stat& file, pid_t, int socket) {
  RequestOf({Action::kFindVm});
  Require(AllFiles().Of(socket).packets && S_ISREG(file.st_mode));
  return Start(Sort::kSearch);
}

pid_t CheckedActs::HoldCache(int cache, uint32_t user, uint32_t mib, int socket) {
  const Request& request = RequestOf({Action::kHoldCache, Action::kWatchCache});
  Require(cache >= 0 && !settings_.cache.empty() && settings_.users.Has(user));
  Require(user == request.user && mib == request.number);
  Require(request.action == Action::kHoldCache ? socket == -1 : AllFiles().Of(socket).packets);
  return Start(Sort::kFolder);
}

pid_t CheckedActs::ClearCache(int cache, uint32_t user, uint32_t number) {
  const Request& request = RequestOf({Action::kClearCache});
  Require(cache >= 0 && !settings_.cache.empty() && settings_.users.Has(user));
  Require(user == request.user && number == request.number);
  return Start(Sort::kFolder);
}

// A number that is nobody's, or another's by now, is never signalled, asked about or waited for.
void CheckedActs::Kill(pid_t child) {
  Process* process = Find(child);
  Require(process != nullptr && (process->sort == Sort::kWorker || process->sort == Sort::kCheckpointer));
  process->killed = true;
  ++done_;
}

bool CheckedActs::Runs(pid_t child) {
  const Process* process = Find(child);
  Require(process != nullptr);
  return !process->ended;
}

pid_t CheckedActs::Reap(pid_t child, int* status) {
  Process* process = Find(child);
  Require(process != nullptr);
  if (!process->ended) return 0;
  // The number is another process's from now on: nobody may act on it any more.
  for (const Process& other : processes_) Require(other.target != child || other.killed || other.ended);
  if (status != nullptr) *status = process->status;
  processes_.erase(processes_.begin() + (process - processes_.data()));
  return child;
}

int CheckedActs::OpenProcess(pid_t child) {
  Require(Find(child) != nullptr);
  if (!std::exchange(open_fails_, false)) return fcntl(AllFiles().number(0), F_DUPFD_CLOEXEC, 0);
  errno = EMFILE;
  return -1;
}

int CheckedActs::Give(int file, uid_t user, gid_t group) {
  const Request& request = RequestOf({Action::kGiveToGroup, Action::kGiveToUser});
  const FileTraits& traits = AllFiles().Of(file);
  if (request.action == Action::kGiveToGroup) {
    const auto& groups = settings_.groups;
    Require(user == uid_t(-1) && group == request.group && traits.for_groups);
    Require(std::find(groups.begin(), groups.end(), group) != groups.end());
  } else {
    Require(group == gid_t(-1) && user == request.user && traits.for_persons);
    Require(user >= launcher::kFirstPerson && user != uid_t(-1) && !settings_.users.Has(user));
  }
  return 0;
}

int CheckedActs::MakeCache(int cache, uint32_t user) {
  const Request& request = RequestOf({Action::kMakeCache});
  Require(cache >= 0 && !settings_.cache.empty() && settings_.users.Has(user) && user == request.user);
  return 0;
}

}  // namespace causeway::fuzz
