// SPDX-License-Identifier: Apache-2.0
// Every request is checked here, by what the launcher knows itself.
#include "host_backend/launcher/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "host_backend/common/driver_variables.h"
#include "host_backend/launcher/worker_child.h"

extern char** environ;

namespace causeway::launcher {
namespace {

constexpr size_t kMaxVariables = std::size(kDriverVariables) + 1;  // of a request, and the cache's place

// Variables of the daemon that would change which library the worker loads, or make it a guest of itself.
bool IsKeptFromWorkers(std::string_view entry) {
  return entry.starts_with("LD_PRELOAD=") || entry.starts_with("LD_AUDIT=") ||
         (entry.starts_with("CAUSEWAY") && !entry.starts_with("CAUSEWAY_LANES=") &&
          !entry.starts_with("CAUSEWAY_TURNS="));
}

std::string_view NameOf(std::string_view entry) {
  return entry.substr(0, entry.find('='));
}

// The group of the GPUs' device nodes where not everybody may open them; 0: everybody may, or there are none.
gid_t DeviceGroup() {
  struct stat node {};
  return stat("/dev/nvidiactl", &node) == 0 && (node.st_mode & 0006) != 0006 ? node.st_gid : 0;
}

bool IsPipe(int file) {
  struct stat info {};
  return fstat(file, &info) == 0 && S_ISFIFO(info.st_mode);
}

bool IsPacketSocket(int file) {
  int type = 0, domain = 0;
  socklen_t bytes = sizeof type;
  return getsockopt(file, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0 && type == SOCK_SEQPACKET &&
         getsockopt(file, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_UNIX;
}

// Fields of a request, as bits: which of them an action uses.
enum : unsigned {
  kWorker = 1,
  kPid = 2,
  kGroup = 4,
  kUser = 8,
  kNumber = 16,
  kLink = 32,
  kTexts = 64,
  kHash = 128
};

// How long a worker that has ended waits for its checkpointers.
constexpr std::chrono::seconds kCheckpointersEnd{3};
constexpr size_t kAny = ~size_t{0}, kNever = kAny - 1;  // of descriptors

struct Shape {
  unsigned fields;
  size_t descriptors;
};

Shape ShapeOf(Action action) {
  switch (action) {
    case Action::kStart:
      return {kWorker | kHash | kLink | kTexts, 2};
    case Action::kKill:
    case Action::kReap:
    case Action::kAbandon:
      return {kPid, 0};
    case Action::kGiveToGroup:
      return {kGroup, 1};
    case Action::kFindVm:
      return {0, 2};
    case Action::kMakeCache:
      return {kUser, 0};
    case Action::kHoldCache:
    case Action::kClearCache:
      return {kUser | kNumber, 0};
    case Action::kWatchCache:
      return {kUser | kNumber, 1};
    case Action::kCheckpoint:
      return {kPid | kUser, 1};
    case Action::kGiveToUser:
      return {kUser, 1};
    case Action::kKeep:
      return {kLink | kPid, kAny};
    case Action::kForget:
      return {kLink, 0};
    case Action::kTake:
      return {kNumber, 0};
    case Action::kEnd:
      return {0, 0};
  }
  return {0, kNever};
}

bool HasOnly(const Request& request, unsigned fields) {
  const auto fits = [&](unsigned field, bool zero) { return (fields & field) != 0 || zero; };
  const bool texts = request.environment_bytes == 0 && request.gpus[0] == '\0';
  return request.reserved == 0 && fits(kWorker, request.worker == WorkerKind::kNone) &&
         fits(kPid, request.pid == 0) && fits(kGroup, request.group == 0) && fits(kUser, request.user == 0) &&
         fits(kNumber, request.number == 0) && fits(kLink, request.link == 0) && fits(kTexts, texts) &&
         fits(kHash, request.worker_hash == 0);
}

}  // namespace

bool IsGpuList(const char (&text)[kGpuListBytes]) {
  const size_t length = strnlen(text, kGpuListBytes);
  if (length == kGpuListBytes) return false;
  return std::string_view(text, length).find_first_not_of("-,0123456789abcdefABCDEFGPUMI") ==
         std::string_view::npos;
}

bool IsEnvironment(const char (&text)[kEnvironmentBytes], uint32_t bytes) {
  if (bytes > kEnvironmentBytes || (bytes != 0 && text[bytes - 1] != '\0')) return false;
  bool seen[std::size(kDriverVariables)] = {};
  for (uint32_t at = 0; at < bytes;) {
    const std::string_view entry(text + at);
    at += uint32_t(entry.size()) + 1;
    if (entry.find('=') == std::string_view::npos) return false;
    const auto* known = std::find(std::begin(kDriverVariables), std::end(kDriverVariables), NameOf(entry));
    if (known == std::end(kDriverVariables) || std::exchange(seen[known - kDriverVariables], true))
      return false;
  }
  return true;
}

Launcher::Launcher(Settings settings, Acts& acts) : settings_(std::move(settings)), acts_(acts) {
  if (!settings_.cache.empty())
    cache_.reset(open(settings_.cache.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  for (char** at = environ; *at != nullptr; ++at) {
    if (!IsKeptFromWorkers(*at)) environment_.push_back(*at);
  }
  environment_.push_back(nullptr);
  worker_environment_.resize(environment_.size() + kMaxVariables);
  children_.reserve(kMaxWorkers);
}

Launcher::~Launcher() {
  for (const Child& child : children_) {
    if (child.pid > 0) acts_.Kill(child.pid);
  }
}

size_t Launcher::workers() const {
  return size_t(
      std::count_if(children_.begin(), children_.end(), [](const Child& child) { return child.pid > 0; }));
}

Launcher::Child* Launcher::Find(pid_t pid) {
  if (pid <= 0) return nullptr;
  for (Child& child : children_) {
    if (child.pid == pid && !child.abandoned) return &child;
  }
  return nullptr;
}

Launcher::Child* Launcher::FindFree() {
  for (Child& child : children_) {
    if (child.pid == 0) return &child;
  }
  return children_.size() < kMaxWorkers ? &children_.emplace_back() : nullptr;
}

Answer Launcher::Handle(const Request& request, size_t bytes, std::span<UniqueFd> descriptors,
                        UniqueFd* descriptor) {
  Answer answer{};
  const auto refused = [&](int error) {
    answer.error = error;
    return answer;
  };
  if (bytes < kLeastRequestBytes) return refused(EINVAL);
  const Shape shape = ShapeOf(request.action);
  const bool fits =
      shape.descriptors == kAny ? !descriptors.empty() : descriptors.size() == shape.descriptors;
  if (!fits || !HasOnly(request, shape.fields)) return refused(EINVAL);
  switch (request.action) {
    case Action::kStart:
      return refused(Start(request, descriptors, &answer, descriptor));
    case Action::kKill:
      return refused(Kill(request.pid, false));
    case Action::kAbandon:
      return refused(Kill(request.pid, true));
    case Action::kReap:
      return refused(Reap(request, &answer));
    case Action::kGiveToGroup:
      return refused(GiveToGroup(request, descriptors[0].get()));
    case Action::kFindVm:
      return refused(FindVm(descriptors[0].get(), descriptors[1].get()));
    case Action::kMakeCache:
      return refused(MakeCache(request.user));
    case Action::kHoldCache:
      return refused(HoldCache(request.user, request.number));
    case Action::kWatchCache:
      return refused(HoldCache(request.user, request.number, descriptors[0].get()));
    case Action::kClearCache:
      return refused(ClearCache(request.user, request.number));
    case Action::kCheckpoint:
      return refused(Checkpoint(request, descriptors[0].get(), &answer));
    case Action::kGiveToUser:
      return refused(GiveToUser(request.user, descriptors[0].get()));
    case Action::kKeep:
      return refused(Keep(request, descriptors));
    case Action::kForget:
      return refused(Forget(request.link));
    case Action::kTake:
      return refused(Take(request.number, &answer));
    case Action::kEnd:
      end_ = true;
      return answer;
  }
  return refused(EINVAL);
}

// What a worker's program is told, as a worker or a checkpointer. Lives until the child has executed it.
struct Launcher::CommandLine {
  CommandLine(const Settings& settings, const Request& request, int control_fd) {
    const bool cuda = request.worker == WorkerKind::kCuda;
    snprintf(control, sizeof control, "%d", control_fd);
    snprintf(users, sizeof users, "%u,%u", settings.users.first, settings.users.count);
    snprintf(group, sizeof group, "%u", DeviceGroup());
    snprintf(target, sizeof target, "%d", request.pid);
    if (request.worker_hash != 0)
      snprintf(path, sizeof path, "%s/%016llx/causeway-worker", settings.workers.c_str(),
               static_cast<unsigned long long>(request.worker_hash));
    Add(request.worker_hash != 0 ? path : settings.worker.c_str());
    Add("--control-fd", control);
    Add("--sandbox", settings.sandbox.c_str());
    if (request.action == Action::kCheckpoint) {
      Add("--driver", settings.driver.c_str());
      Add("--checkpoint", target);
      return;
    }
    Add("--namespaces", namespaces);
    Add(cuda ? "--driver" : "--management", cuda ? settings.driver.c_str() : settings.management.c_str());
    Add("--users", users);
    Add("--device-group", group);
    if (request.gpus[0] != '\0') Add("--gpus", request.gpus);
    if (cuda && !settings.cache.empty()) Add("--cache", settings.cache.c_str());
    if (request.worker == WorkerKind::kMemoryWatch) Add("--watch-memory");
    // A VM with GPUs of its own is shown no others.
    if (!cuda && settings.shows_all && request.environment_bytes == 0) Add("--all-devices");
    if (cuda && settings.allow_pageable_access) Add("--allow-pageable-access");
  }

  void Add(const char* argument, const char* value = nullptr) {
    for (const char* each : {argument, value}) {
      // execve takes what it does not change as changeable.
      if (each != nullptr && count + 1 < std::size(arguments)) arguments[count++] = const_cast<char*>(each);
    }
  }

  char control[16], users[32], group[16], target[16];
  char path[4096] = {};
  char namespaces[sizeof kNoNamespaces] = {};
  char* arguments[24] = {};
  size_t count = 0;
};

// What the request says comes in place of what the launcher has.
void Launcher::SetEnvironment(const Request& request, char* link) {
  std::array<char*, kMaxVariables> wanted{};
  size_t variables = 0;
  for (uint32_t at = 0; at < request.environment_bytes; at += uint32_t(strlen(request.environment + at)) + 1)
    wanted[variables++] = const_cast<char*>(request.environment + at);
  if (request.link != 0) wanted[variables++] = link;
  const auto wanted_end = wanted.begin() + ptrdiff_t(variables);
  const auto kept = std::remove_copy_if(
      environment_.begin(), environment_.end() - 1, worker_environment_.begin(), [&](const char* own) {
        return std::any_of(wanted.begin(), wanted_end,
                           [&](const char* entry) { return NameOf(entry) == NameOf(own); });
      });
  *std::copy(wanted.begin(), wanted_end, kept) = nullptr;
}

int Launcher::Start(const Request& request, std::span<UniqueFd> descriptors, Answer* answer,
                    UniqueFd* descriptor) {
  const bool cuda = request.worker == WorkerKind::kCuda;
  if (!cuda && request.worker != WorkerKind::kManagement && request.worker != WorkerKind::kMemoryWatch)
    return EINVAL;
  if (!IsGpuList(request.gpus) || !IsEnvironment(request.environment, request.environment_bytes) ||
      (request.link != 0 && (!cuda || settings_.links.empty())) ||
      (request.worker_hash != 0 && settings_.workers.empty()) || !IsPipe(descriptors[0].get()) ||
      !IsPacketSocket(descriptors[1].get())) {
    return EINVAL;
  }
  Child* free = FindFree();
  if (free == nullptr) return EAGAIN;

  char link[4096];
  snprintf(link, sizeof link, "CUDA_CACHE_PATH=%s/cache-%llu", settings_.links.c_str(),
           static_cast<unsigned long long>(request.link));
  CommandLine command(settings_, request, descriptors[1].get());
  memcpy(command.namespaces, kNoNamespaces, sizeof command.namespaces);
  SetEnvironment(request, link);
  const ChildPlan plan{command.arguments[0],       command.arguments,
                       worker_environment_.data(), descriptors[0].get(),
                       descriptors[1].get(),       getpid(),
                       command.namespaces,         settings_.shm.empty() ? nullptr : settings_.shm.c_str()};
  const pid_t pid = acts_.StartWorker(plan);
  if (pid < 0) return errno;
  *free = {pid, false, ++started_, 0, 0};
  descriptor->reset(acts_.OpenProcess(pid));
  if (!*descriptor) {
    const int error = errno;
    acts_.Kill(pid);
    free->abandoned = true;
    return error;
  }
  answer->pid = pid;
  return 0;
}

void Launcher::Name(Record& record, pid_t pid) {
  for (Child& child : children_) {
    if (record.child != 0 && child.number == record.child) --child.records;
  }
  const auto child = Find(pid);
  record.pid = pid;
  record.child = child != nullptr ? child->number : 0;
  if (child != nullptr) ++child->records;
}

int Launcher::Keep(const Request& request, std::span<UniqueFd> descriptors) {
  if (request.pid != 0 && Find(request.pid) == nullptr) return ESRCH;
  auto record =
      std::find_if(records_.begin(), records_.end(), [&](const Record& r) { return r.key == request.link; });
  if (record == records_.end()) {
    if (records_.size() >= kMaxKept) return EAGAIN;
    record = records_.emplace(records_.end());
    record->key = request.link;
  }
  Name(*record, request.pid);
  record->descriptors.clear();
  for (UniqueFd& each : descriptors) record->descriptors.push_back(std::move(each));
  return 0;
}

int Launcher::Forget(uint64_t key) {
  const auto record =
      std::find_if(records_.begin(), records_.end(), [&](const Record& r) { return r.key == key; });
  if (record == records_.end()) return ENOENT;
  Name(*record, 0);
  records_.erase(record);
  return 0;
}

int Launcher::Take(uint32_t number, Answer* answer) const {
  if (number >= records_.size()) return ENOENT;
  answer->key = records_[number].key;
  answer->pid = records_[number].pid;
  return 0;
}

std::span<const UniqueFd> Launcher::Kept(uint32_t number) const {
  if (number >= records_.size()) return {};
  return records_[number].descriptors;
}

bool Launcher::Outlive() {
  if (end_ || settings_.keep_s == 0) return false;
  for (Child& child : children_) {
    if (child.pid != 0 && child.records == 0) Kill(child.pid, true);
  }
  return true;
}

int Launcher::Kill(pid_t pid, bool abandon) {
  Child* child = Find(pid);
  if (child == nullptr) return ESRCH;
  acts_.Kill(child->pid);
  child->abandoned = abandon;
  if (abandon) ReapHelpers();
  return 0;
}

bool Launcher::HasCheckpointer(pid_t worker) const {
  return std::any_of(children_.begin(), children_.end(), [this, worker](const Child& child) {
    return child.pid != 0 && child.target == worker && !child.abandoned && acts_.Runs(child.pid);
  });
}

void Launcher::EndCheckpointersOf(pid_t worker) {
  for (Child& child : children_) {
    if (child.pid == 0 || child.target != worker) continue;
    acts_.Kill(child.pid);
    child.abandoned = true;
  }
}

// It gets the variables of the launcher, none of a guest's.
int Launcher::Checkpoint(const Request& request, int control, Answer* answer) {
  const Child* target = Find(request.pid);
  if (target == nullptr || target->target != 0) return ESRCH;
  const bool changes = settings_.users.count != 0;
  if (!IsPacketSocket(control) || (changes ? !settings_.users.Has(request.user) : request.user != 0))
    return EINVAL;
  Child* free = FindFree();
  if (free == nullptr) return EAGAIN;
  CommandLine command(settings_, request, control);
  // Its output goes where its input comes from, which is nothing: what a library prints here nobody reads.
  const ChildPlan plan{settings_.worker.c_str(),
                       command.arguments,
                       environment_.data(),
                       STDIN_FILENO,
                       control,
                       getpid(),
                       command.namespaces,
                       nullptr};
  const pid_t pid = acts_.StartCheckpointer(plan, request.user, DeviceGroup());
  if (pid < 0) return errno;
  *free = {pid, false, ++started_, 0, target->pid};
  answer->pid = pid;
  return 0;
}

int Launcher::Reap(const Request& request, Answer* answer) {
  Child* child = Find(request.pid);
  if (child == nullptr) return ESRCH;
  if (acts_.Runs(child->pid)) return EAGAIN;
  // Its number is nobody else's as long as it is not reaped, so that they can do no harm.
  if (HasCheckpointer(child->pid)) {
    const auto now = std::chrono::steady_clock::now();
    if (child->checkpointers_end == decltype(now){}) child->checkpointers_end = now + kCheckpointersEnd;
    if (now < child->checkpointers_end) return EAGAIN;
  }
  EndCheckpointersOf(child->pid);
  const pid_t reaped = acts_.Reap(child->pid, &answer->status);
  answer->pid = child->pid;
  *child = {};
  return reaped < 0 ? errno : 0;
}

void Launcher::ReapHelpers() {
  for (pid_t& helper : helpers_) {
    if (helper != 0 && acts_.Reap(helper, nullptr) == helper) helper = 0;
  }
  for (Child& child : children_) {
    if (child.pid == 0 || !child.abandoned) continue;
    EndCheckpointersOf(child.pid);
    if (acts_.Reap(child.pid, nullptr) == child.pid) child = {};
  }
}

template <class Begin>
int Launcher::StartHelper(size_t most, const Begin& begin) {
  auto* free = std::find(helpers_.begin(), helpers_.end(), 0);
  const auto busy = kMaxHelpers - size_t(std::count(helpers_.begin(), helpers_.end(), 0));
  if (free == helpers_.end() || busy >= most) return EBUSY;
  const pid_t pid = begin();
  if (pid < 0) return errno;
  *free = pid;
  return 0;
}

// What the daemon could as well change itself, so that nobody else's file is touched or asked about.
bool Launcher::IsOwnFile(int file, bool writable) const {
  struct stat info {};
  const int flags = fcntl(file, F_GETFL);
  return flags >= 0 && (flags & O_PATH) == 0 && (!writable || (flags & O_ACCMODE) == O_RDWR) &&
         fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() && info.st_nlink == 1;
}

// A socket of the daemon's, named by its place: the descriptor of the socket itself has no owner to change.
bool Launcher::IsOwnSocket(int place) const {
  struct stat info {};
  const int flags = fcntl(place, F_GETFL);
  return flags >= 0 && (flags & O_PATH) != 0 && fstat(place, &info) == 0 && S_ISSOCK(info.st_mode) &&
         info.st_uid == geteuid() && info.st_nlink == 1;
}

// What kGiveToUser has made of such a file.
bool Launcher::IsGivenFile(int file) const {
  struct stat info {};
  const int flags = fcntl(file, F_GETFL);
  return flags >= 0 && (flags & O_PATH) == 0 && (flags & O_ACCMODE) == O_RDWR && fstat(file, &info) == 0 &&
         S_ISREG(info.st_mode) && info.st_uid >= kFirstPerson && !settings_.users.Has(info.st_uid) &&
         info.st_gid == getegid() && (info.st_mode & 07777) == 0660 && info.st_nlink == 1;
}

int Launcher::GiveToGroup(const Request& request, int file) const {
  if (std::find(settings_.groups.begin(), settings_.groups.end(), request.group) == settings_.groups.end() ||
      !(IsOwnFile(file, true) || IsOwnSocket(file))) {
    return EINVAL;
  }
  return acts_.Give(file, uid_t(-1), request.group);
}

int Launcher::GiveToUser(uint32_t user, int file) const {
  struct stat info {};
  const bool person = user >= kFirstPerson && user != uid_t(-1) && !settings_.users.Has(user);
  if (!person || !(IsOwnFile(file, true) || IsOwnSocket(file)) || fstat(file, &info) != 0) return EINVAL;
  // Others may trust what belongs to them to be what they made: it is no program, and closed to the rest.
  if ((info.st_mode & 07777) != 0660 || info.st_gid != getegid()) return EINVAL;
  return acts_.Give(file, user, gid_t(-1));
}

int Launcher::FindVm(int file, int socket) {
  struct stat info {};
  if (!IsPacketSocket(socket) || fstat(file, &info) != 0) return EINVAL;
  if (!IsOwnFile(file, true) && !IsGivenFile(file)) return EINVAL;
  return StartHelper(kMaxHelpers, [&] { return acts_.FindVm(info, daemon_, socket); });
}

int Launcher::MakeCache(uint32_t user) const {
  if (!cache_ || !settings_.users.Has(user)) return EINVAL;
  return acts_.MakeCache(cache_.get(), user);
}

int Launcher::HoldCache(uint32_t user, uint32_t mib, int socket) {
  if (!cache_ || !settings_.users.Has(user) || (socket >= 0 && !IsPacketSocket(socket))) return EINVAL;
  return StartHelper(kMaxFolderHelpers, [&] { return acts_.HoldCache(cache_.get(), user, mib, socket); });
}

int Launcher::ClearCache(uint32_t user, uint32_t number) {
  if (!cache_ || !settings_.users.Has(user)) return EINVAL;
  return StartHelper(kMaxFolderHelpers, [&] { return acts_.ClearCache(cache_.get(), user, number); });
}

}  // namespace causeway::launcher
