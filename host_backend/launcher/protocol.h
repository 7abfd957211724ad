// SPDX-License-Identifier: Apache-2.0
// What causewayd asks of its launcher: one packet of a fixed size for a request, then one for its answer, on
// a SOCK_SEQPACKET socket. The launcher says that it is ready first. When it ends, so does the daemon. When the daemon
// ends, the launcher ends too; where it was started with --keep, only if the daemon has said kEnd, or if no other daemon has
// come to its listening socket within so many seconds. Meanwhile it keeps what kKeep has given to it.
//
// A daemon may be of another release than the launcher, which lives as long as the workers (docs/versions.md). The first
// answer's `status` says the launcher's version of this protocol. Request and Answer grow at their ends: what a sender
// leaves out counts as zero, and what a receiver does not know has to be zero in a request and is passed over in an
// answer.
//
// The launcher assumes that the daemon may have been taken over: it checks every byte of a request, refuses
// what it does not know (EINVAL), and has programs, folders, user ids and groups from its own command line.
#pragma once
#include <cstdint>

namespace causeway::launcher {

// Of this protocol: what this build's launcher speaks, and the oldest that its daemon still does.
inline constexpr int32_t kVersion = 2;  // 2: kWatchCache
inline constexpr int32_t kOldestVersion = 1;
inline constexpr size_t kGrowth = 1024;  // so much longer may a later version's request be

inline constexpr uint32_t kFirstPerson = 1000;    // user ids below it are the system's own
inline constexpr int kDaemonSocket = 3;           // the daemon that started it
inline constexpr int kDaemonListener = 4;         // with --keep: where the next one connects
inline constexpr size_t kMaxKept = 16384;         // records
inline constexpr size_t kMaxKeptDescriptors = 6;  // of a record

enum class Action : uint32_t {
  // Starts a worker by `worker`, `worker_hash`, `link`, `gpus` and `environment`; the request carries the descriptors of its
  // output (a pipe) and of its control socket. The answer has its pid and carries a pidfd.
  kStart = 1,
  kKill,     // sends SIGKILL to `pid`, a worker that was not reaped
  kReap,     // the answer has the exit status of `pid`, whose number is then free; EAGAIN while it runs
             // and, for a moment, while a checkpointer of it does
  kAbandon,  // kills `pid`; the launcher reaps it
  // Gives a file of the daemon's own, which the request carries, to `group`, which the configuration names. It may be a
  // socket, opened by O_PATH.
  kGiveToGroup,
  // Finds the process that maps a file of the daemon's own and is neither the daemon nor a worker. The
  // request carries the file and a socket, on which the answer comes later: VmProcess and pidfd, or none.
  kFindVm,
  kMakeCache,   // makes `kernels`, the folder of compiled kernels of `user`, in the daemon's CACHE/USER
  kHoldCache,   // empties CACHE/USER/kernels, as that user, if it holds more than `number` MiB
  kClearCache,  // empties CACHE/discarded/USER-NUMBER, as that user
  // Starts a checkpointer as `user`, which makes one call about the worker `pid` and ends with it; the worker
  // was not reaped and has that user id by now. The request carries the control socket
  // (host_backend/common/worker_control.h). The answer has the pid, which kAbandon takes.
  kCheckpoint,
  // Gives such a file to `user`: a person's, from 1000 on, and no
  // worker's. The daemon's group keeps its rights to it.
  kGiveToUser,
  // Keeps the request's descriptors under the key `link`, in place of what has that key; a worker of `pid` lives on
  // without a daemon for as long as it has a record. The launcher reads nothing of what it keeps.
  kKeep,
  kForget,  // closes what has the key `link`
  // The answer tells of record `number`, counted from 0, and carries copies; ENOENT: there are no more. ETOOMANYREFS: it carries
  // none, because too many descriptors are on their way; a launcher of an earlier release then names no record either.
  kTake,
  kEnd,  // the launcher is to end with this daemon
  // As kHoldCache; the request carries a socket, on which the answer comes later: CacheWatch and an inotify descriptor, which is
  // readable when the folder has grown since. It closes without one where the folder was emptied, or cannot be watched.
  kWatchCache,
};

enum class WorkerKind : uint32_t { kNone = 0, kCuda, kManagement, kMemoryWatch };

inline constexpr uint32_t kGpuListBytes = 2048;
inline constexpr uint32_t kEnvironmentBytes = 16384;

// What an action does not use is zero.
struct Request {
  Action action;
  WorkerKind worker;
  int32_t pid;
  uint32_t group;
  uint32_t user;
  uint32_t number;
  uint64_t worker_hash;  // kStart: WORKERS/`worker_hash`/causeway-worker; 0: the one that --worker names
  uint64_t link;         // kStart: LINKS/cache-`link` is the worker's link to its cache; 0: none
  uint32_t environment_bytes;  // of the NAME=VALUE texts, each with its NUL
  uint32_t reserved;
  char gpus[kGpuListBytes];  // UUIDs with commas between them, NUL-terminated; empty: all
  char environment[kEnvironmentBytes];
};
static_assert(sizeof(Request) == 48 + kGpuListBytes + kEnvironmentBytes);
inline constexpr size_t kLeastRequestBytes = 48 + kGpuListBytes + kEnvironmentBytes;  // of version 1

struct Answer {
  int32_t error;  // errno; 0: done
  int32_t pid;
  int32_t status;  // kReap: as waitpid gives it
  uint32_t reserved;
  uint64_t key;  // kTake: of the record, whose worker's number `pid` is (0: none)
};
static_assert(sizeof(Answer) == 24);

struct CacheWatch {
  uint32_t user;
  uint32_t reserved;
};
static_assert(sizeof(CacheWatch) == 8);

struct VmProcess {
  int32_t pid;  // 0: none, and no descriptor
  uint32_t reserved;
};
static_assert(sizeof(VmProcess) == 8);

}  // namespace causeway::launcher
