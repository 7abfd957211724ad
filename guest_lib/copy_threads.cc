// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/copy_threads.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

namespace causeway::guest {
namespace {

constexpr uint32_t kMaxThreads = 8;            // enough for the memory's bandwidth
constexpr uint64_t kPartBytes = 512u << 10;    // what one thread copies at a time
constexpr uint64_t kAloneBytes = 1024u << 10;  // up to here waking others takes longer than it saves

struct Job {
  void (*work)(void*, uint32_t);
  void* argument;
  uint32_t count;
  uint32_t next = 0;  // the first part that nobody has taken
  uint32_t done = 0;
};

struct Pool {
  std::mutex mutex;
  std::condition_variable work_came, part_done;
  std::vector<Job*> jobs;  // those with parts left to take
  size_t turn = 0;
  bool started = false;
};
Pool* pool = new Pool;  // never destroyed: its threads run until the process is gone

void RunPart(Pool& of, std::unique_lock<std::mutex>& lock, Job* job) {
  const uint32_t part = job->next++;
  if (job->next == job->count) std::erase(of.jobs, job);
  lock.unlock();
  job->work(job->argument, part);
  lock.lock();
  if (++job->done == job->count) of.part_done.notify_all();
}

void* ThreadMain(void* argument) {
  Pool& mine = *static_cast<Pool*>(argument);
  pthread_setname_np(pthread_self(), "causeway-copy");
  std::unique_lock lock(mine.mutex);
  for (;;) {
    mine.work_came.wait(lock, [&] { return !mine.jobs.empty(); });
    RunPart(mine, lock, mine.jobs[mine.turn++ % mine.jobs.size()]);
  }
}

uint32_t Processors() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<uint32_t>(CPU_COUNT(&set)) : 1;
}

// The child has none of the threads, and what they held at the fork stays as it was.
void AfterForkInChild() {
  pool = new Pool;
}

// The caller holds the pool's mutex. Threads that cannot be started are done without.
void Start(Pool& of) {
  of.started = true;
  static const int at_fork = pthread_atfork(nullptr, nullptr, AfterForkInChild);
  (void)at_fork;
  // The threads' code stays also when the program closes this library.
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&Start), &self) != 0)
    dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  for (uint32_t i = 1; i < CopyThreadCount(); ++i) {
    pthread_t thread;
    if (pthread_create(&thread, &attributes, ThreadMain, &of) != 0) break;
  }
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

struct Copy {
  std::byte* to;
  const std::byte* from;
  uint64_t bytes;
};

void CopyPart(void* argument, uint32_t index) {
  const Copy& copy = *static_cast<Copy*>(argument);
  const uint64_t at = index * kPartBytes;
  memcpy(copy.to + at, copy.from + at, std::min(kPartBytes, copy.bytes - at));
}

}  // namespace

uint32_t CopyThreadCount() {
  static const uint32_t count = std::clamp(Processors(), 1u, kMaxThreads);
  return count;
}

void RunInParallel(uint32_t count, void (*work)(void*, uint32_t), void* argument) {
  if (count <= 1 || CopyThreadCount() == 1) {
    for (uint32_t i = 0; i < count; ++i) work(argument, i);
    return;
  }
  Pool& mine = *pool;
  Job job{work, argument, count};
  std::unique_lock lock(mine.mutex);
  if (!mine.started) Start(mine);
  mine.jobs.push_back(&job);
  mine.work_came.notify_all();
  while (job.next < job.count) RunPart(mine, lock, &job);
  mine.part_done.wait(lock, [&] { return job.done == job.count; });
}

void CopyInParallel(void* to, const void* from, uint64_t bytes) {
  if (bytes <= kAloneBytes || CopyThreadCount() == 1) {
    memcpy(to, from, bytes);
    return;
  }
  Copy copy{static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes};
  RunInParallel(static_cast<uint32_t>((bytes + kPartBytes - 1) / kPartBytes), CopyPart, &copy);
}

}  // namespace causeway::guest
