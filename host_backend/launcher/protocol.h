// SPDX-License-Identifier: Apache-2.0
// What causewayd asks of its launcher: one packet of a fixed size for a request, one for its answer, in this
// order, on a SOCK_SEQPACKET socketpair. The launcher says kReady first. Either side's end ends the other.
//
// The launcher counts the daemon as taken: it looks at every byte of a request, refuses what it does not know
// (EINVAL, nothing happens) and has the programs, folders, user ids and groups from its own command line.
#pragma once
#include <cstdint>

namespace causeway::launcher {

inline constexpr int kDaemonSocket = 3;  // the launcher's only descriptor beside the standard ones

enum class Action : uint32_t {
  // A worker: `worker`, `link`, `gpus`, `environment`, with the descriptors of its output (a pipe) and its
  // control socket. Answer: pid, with a pidfd.
  kStart = 1,
  kKill,  // `pid`, a worker that was not reaped: SIGKILL
  kReap,  // `pid`: the answer has its exit status, and the number is free from now on; EAGAIN while it runs
  kAbandon,  // `pid`: killed, and reaped by the launcher
  // A file of the daemon's own, given to `group`: one of those that the configuration names.
  kGiveToGroup,
  // Which process maps a file of the daemon's own, beside daemon and workers. With the file and a socket, on
  // which the answer comes later: a VmProcess with a pidfd, or none.
  kFindVm,
  kMakeCache,   // `user`: its folder of compiled kernels, in CACHE/USER, which is the daemon's and there
  kHoldCache,   // `user`, `number`: empties CACHE/USER/kernels by that user's own rights if it holds more MiB
  kClearCache,  // `user`, `number`: empties CACHE/discarded/USER-NUMBER by that user's own rights
  // `pid`, a worker that was not reaped, and `user`, which it is by now: a checkpointer of that user, which
  // makes one call about that worker, with its control socket (host_backend/common/worker_control.h). Answer:
  // pid,
  // which kAbandon takes. It ends with the worker.
  kCheckpoint,
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
  uint64_t link;               // kStart: the name of its cache is LINKS/cache-NUMBER; 0: none
  uint32_t environment_bytes;  // of NAME=VALUE, each with its NUL
  uint32_t reserved;
  char gpus[kGpuListBytes];  // UUIDs with commas between them, NUL-terminated; empty: all
  char environment[kEnvironmentBytes];
};
static_assert(sizeof(Request) == 40 + kGpuListBytes + kEnvironmentBytes);

struct Answer {
  int32_t error;  // errno; 0: done
  int32_t pid;
  int32_t status;  // as of waitpid
  uint32_t reserved;
};
static_assert(sizeof(Answer) == 16);

struct VmProcess {
  int32_t pid;  // 0: none, and no descriptor
  uint32_t reserved;
};
static_assert(sizeof(VmProcess) == 8);

}  // namespace causeway::launcher
