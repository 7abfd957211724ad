// SPDX-License-Identifier: Apache-2.0
// Around the launcher of fuzz_launcher.cc: files of every sort that a daemon could hand over, and acts that check what
// they are asked for and do nothing.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "host_backend/launcher/launcher.h"
#include "host_backend/launcher/protocol.h"

namespace causeway::fuzz {

inline constexpr launcher::UserRange kUsers{2'000'000'000, 16};
inline constexpr uint32_t kGroups[] = {12345, 12346};

// What a file may be used for: by what it is, as it was made here.
struct FileTraits {
  const char* name;
  bool pipe = false, packets = false;
  bool for_groups = false, for_persons = false;  // kGiveToGroup, kGiveToUser
  bool for_search = false;                       // kFindVm
  bool of_worker = false;  // given to a user of kUsers: where these are nobody's workers, that is a person
};

// Made once. What this process lacks the right to make is not among them.
class Files {
 public:
  Files();
  ~Files();  // removes its folder
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  size_t size() const { return files_.size(); }
  int number(size_t at) const { return files_[at % files_.size()].second.get(); }
  const FileTraits& traits(size_t at) const { return files_[at % files_.size()].first; }
  // Of any descriptor of one of these files.
  const FileTraits& Of(int descriptor) const;

 private:
  void Add(const FileTraits& traits, int descriptor);
  void AddRegular(const FileTraits& traits, mode_t mode, int flags, uid_t owner = uid_t(-1));
  void AddSockets();

  std::string folder_;
  std::vector<std::pair<FileTraits, UniqueFd>> files_;
  std::map<std::pair<dev_t, ino_t>, size_t> places_;
};

const Files& AllFiles();

// Of the acts' children.
struct Process {
  enum class Sort { kWorker, kCheckpointer, kSearch, kFolder };
  uint64_t serial = 0;  // numbers of processes come again, these do not
  pid_t pid = 0;
  Sort sort{};
  pid_t target = 0;  // of a checkpointer
  bool killed = false, ended = false;
  int status = 0;
};

class CheckedActs final : public launcher::Acts {
 public:
  explicit CheckedActs(const launcher::Settings& settings) : settings_(settings) {}

  // The request that acts are for from now on; null: none is.
  void Begin(const launcher::Request* request) {
    request_ = request;
    done_ = 0;
  }
  // Acts of this request that change something.
  size_t done() const { return done_; }
  std::vector<Process>& processes() { return processes_; }
  Process* Find(pid_t pid);
  void FailNext(bool start, bool open) {
    start_fails_ = start;
    open_fails_ = open;
  }

  pid_t StartWorker(const launcher::ChildPlan& plan) override;
  pid_t StartCheckpointer(const launcher::ChildPlan& plan, uid_t user, gid_t device_group) override;
  pid_t FindVm(const struct stat& file, pid_t daemon, int socket) override;
  pid_t HoldCache(int cache, uint32_t user, uint32_t mib, int socket) override;
  pid_t ClearCache(int cache, uint32_t user, uint32_t number) override;
  void Kill(pid_t child) override;
  bool Runs(pid_t child) override;
  pid_t Reap(pid_t child, int* status) override;
  int OpenProcess(pid_t child) override;
  int Give(int file, uid_t user, gid_t group) override;
  int MakeCache(int cache, uint32_t user) override;

 private:
  const launcher::Request& RequestOf(std::initializer_list<launcher::Action> actions);
  pid_t Start(Process::Sort sort, pid_t target = 0);
  void RequireArguments(const launcher::ChildPlan& plan) const;
  void RequireEnvironment(const launcher::ChildPlan& plan, bool of_worker) const;

  const launcher::Settings& settings_;
  const launcher::Request* request_ = nullptr;
  size_t done_ = 0;
  uint64_t last_serial_ = 0;
  bool start_fails_ = false, open_fails_ = false;
  std::vector<Process> processes_;  // not reaped
};

}  // namespace causeway::fuzz
