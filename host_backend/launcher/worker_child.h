// SPDX-License-Identifier: Apache-2.0
// What a new process does before it becomes a worker: namespaces of its own, capabilities that are left, and
// then the worker's program. docs/sandbox.md says why.
#pragma once
#include <sched.h>
#include <sys/mount.h>
#include <sys/types.h>

#include <cstdint>

namespace causeway::launcher {

// The only namespaces and mounts that the launcher's filter lets through.
inline constexpr int kNamespaces = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNS;
inline constexpr unsigned long kMakePrivate = MS_REC | MS_PRIVATE, kBind = MS_BIND,
                               kBindSafely = MS_BIND | MS_REMOUNT | MS_NOSUID | MS_NODEV | MS_NOEXEC;

// Tells the worker, as --namespaces, what it has; the child fills in a letter for each: n a network, i System
// V IPC, u a host name and m mounts of its own; s /dev/shm is the workers' folder.
inline constexpr char kNoNamespaces[] = "-----";

// Of this process, as a set of bits; what it lacks is missed when asked for. False: the kernel refuses.
bool KeepCapabilities(uint64_t kept);

// From now on that folder is memory of its own in this process and in all that it starts, and only there. All workers together have room
// for one part of kSharedPart of the host's memory, each user for half of that where the kernel has quotas for tmpfs (Linux 6.6). So a worker that was taken over takes no room from the
// host's /dev/shm, where regions are. To be called before the launcher's filter is installed. False: this process may not, and
// workers get the folder of that name as it is.
bool LimitSharedMemory(const char* folder);
inline constexpr uint64_t kSharedPart = 8;

struct ChildPlan {
  const char* path;
  char* const* arguments;
  char* const* environment;
  int output_fd;  // standard input is the launcher's: /dev/null
  int control_fd;
  pid_t parent;
  char* namespaces;  // a worker's, in `arguments`; as long as kNoNamespaces
  const char* shm;   // the folder that becomes a worker's /dev/shm; null: none
};

// These run between fork and exec, and make only calls that are safe there. The process ends with kExecFailed
// if it cannot become a worker or a checkpointer.
[[noreturn]] void BecomeWorker(const ChildPlan& plan);
// `user`: 0 for the launcher's.
[[noreturn]] void BecomeCheckpointer(const ChildPlan& plan, uid_t user, gid_t device_group);

inline constexpr int kExecFailed = 127;

}  // namespace causeway::launcher
