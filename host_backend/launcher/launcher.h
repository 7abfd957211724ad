// SPDX-License-Identifier: Apache-2.0
// What causeway-launcher does for causewayd, a request at a time: protocol.h has the list. Single-threaded.
// Room for all workers and the longest environment is there from the start; records alone make it allocate.
#pragma once
#include <sys/types.h>

#include <array>
#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "host_backend/common/unique_fd.h"
#include "host_backend/launcher/acts.h"
#include "host_backend/launcher/filter.h"
#include "host_backend/launcher/protocol.h"

namespace causeway::launcher {

inline constexpr size_t kMaxWorkers = 8192;
inline constexpr size_t kMaxHelpers = 16;
inline constexpr size_t kMaxFolderHelpers = 12;  // of them at work on folders, which may take long

// From the command line, which comes from the daemon before it has looked at anything of a guest.
struct Settings {
  std::string worker, driver, management;
  std::string workers;  // folder of the workers of other releases; empty: none
  std::string sandbox = "enforce";
  bool shows_all = false;  // NVML
  bool allow_pageable_access = false;
  UserRange users;
  std::string shm;    // the folder that becomes /dev/shm; empty: none
  std::string links;  // folder of the workers' links to their caches; empty: none
  std::string cache;  // folder of all caches; empty: none
  std::vector<gid_t> groups;
  unsigned keep_s = 0;  // how long it waits for another daemon; 0: it ends with its first
};

class Launcher {
 public:
  // The acts outlive it.
  Launcher(Settings settings, Acts& acts);
  // Kills what it has started.
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // A packet that claims to be a Request was so many bytes long, of which `request` has what fits (the rest of it is
  // zero), with so many descriptors. *descriptor: what goes with
  // the answer, or none.
  Answer Handle(const Request& request, size_t bytes, std::span<UniqueFd> descriptors, UniqueFd* descriptor);
  // Ends a child of this launcher, for an answer that could not be given to the daemon. Nobody will ask for its end.
  void Abandon(pid_t pid) { Kill(pid, true); }
  // To be called after SIGCHLD: reaps processes of which the end will not be asked for.
  void ReapHelpers();
  size_t workers() const;

  // The process that sends requests from now on.
  void Serve(pid_t daemon) { daemon_ = daemon; }
  // The daemon is gone: ends all that no record names. False: kEnd was asked for, or it is not to be outlived.
  bool Outlive();
  // Copies of them go with the answer to that kTake. Empty: there is no such record.
  std::span<const UniqueFd> Kept(uint32_t number) const;

 private:
  struct Child {
    pid_t pid = 0;  // 0: free
    bool abandoned = false;
    uint64_t number = 0;   // of all children that were started; process numbers come again, these do not
    uint32_t records = 0;  // that name it
    pid_t target = 0;      // of a checkpointer: the worker
    // Of a worker that has ended: until then its checkpointers may say what they did. The epoch: it runs.
    std::chrono::steady_clock::time_point checkpointers_end{};
  };

  struct Record {
    uint64_t key = 0;
    pid_t pid = 0;
    uint64_t child = 0;  // its number; 0: none
    std::vector<UniqueFd> descriptors;
  };

  struct CommandLine;
  int Keep(const Request& request, std::span<UniqueFd> descriptors);
  int Forget(uint64_t key);
  int Take(uint32_t number, Answer* answer) const;
  // What the record says of a child from now on; 0: nothing.
  void Name(Record& record, pid_t pid);
  void SetEnvironment(const Request& request, char* link);
  int Start(const Request& request, std::span<UniqueFd> descriptors, Answer* answer, UniqueFd* descriptor);
  int Checkpoint(const Request& request, int control, Answer* answer);
  int Kill(pid_t pid, bool abandon);
  // Whether a checkpointer of that worker runs, and the daemon still waits for its answer.
  bool HasCheckpointer(pid_t worker) const;
  // Before the worker's number becomes free: nothing is done to another process of that number.
  void EndCheckpointersOf(pid_t worker);
  int Reap(const Request& request, Answer* answer);
  int GiveToGroup(const Request& request, int file) const;
  int GiveToUser(uint32_t user, int file) const;
  int FindVm(int file, int socket);
  int MakeCache(uint32_t user) const;
  int HoldCache(uint32_t user, uint32_t mib, int socket = -1);
  int ClearCache(uint32_t user, uint32_t number);
  Child* Find(pid_t pid);
  Child* FindFree();  // null: as many run as may
  bool IsOwnFile(int file, bool writable) const;
  bool IsOwnSocket(int place) const;
  bool IsGivenFile(int file) const;
  // `begin` starts a process that ends by itself, of which at most so many run. 0, or an errno.
  template <class Begin>
  int StartHelper(size_t most, const Begin& begin);

  const Settings settings_;
  Acts& acts_;
  pid_t daemon_ = getppid();
  bool end_ = false;
  uint64_t started_ = 0;
  std::vector<Record> records_;
  UniqueFd cache_;
  std::vector<char*> environment_;         // the launcher's own that workers may have, and a null
  std::vector<char*> worker_environment_;  // of the worker that is started
  std::vector<Child> children_;            // as many as ran at once so far, with room for kMaxWorkers
  std::array<pid_t, kMaxHelpers> helpers_{};
};

// Takes one packet of the daemon's from that socket, and answers it. False: the daemon is gone, or may as well be.
bool AnswerRequest(Launcher& launcher, int socket);

// Whether the text is a list of UUIDs as nvidia-smi shows them.
bool IsGpuList(const char (&text)[kGpuListBytes]);
// Whether each entry is a variable that a guest may set, and none comes twice.
bool IsEnvironment(const char (&text)[kEnvironmentBytes], uint32_t bytes);

}  // namespace causeway::launcher
