// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/workers/sandbox_watch.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <set>
#include <string_view>
#include <tuple>

#include "host_backend/daemon/process/log.h"
#include "host_backend/sandbox/filter.h"

#ifndef SECCOMP_USER_NOTIF_FLAG_CONTINUE
#define SECCOMP_USER_NOTIF_FLAG_CONTINUE 1
#endif

namespace causeway::daemon {
namespace {

constexpr std::chrono::milliseconds kQuestionPause{2};

// The kernel's struct may be larger than the one that this was built with.
union RoomyAnswer {
  seccomp_notif_resp value;
  char room[sizeof(seccomp_notif_resp) + 256];
};

bool IsRegionMapping(const seccomp_data& data) {
  return data.nr == SYS_mmap && int(data.args[4]) == sandbox::kRegionDescriptor;
}

// Shared, readable or also writable, and by whole pages: what the judge sees is what is mapped.
bool IsPlainMapping(const seccomp_data& data) {
  constexpr uint64_t kProtections = PROT_READ | PROT_WRITE;
  constexpr uint64_t kFlags = MAP_SHARED | MAP_FIXED | MAP_FIXED_NOREPLACE;
  return (data.args[2] & ~kProtections) == 0 && (data.args[3] & MAP_TYPE) == MAP_SHARED &&
         (data.args[3] & ~kFlags) == 0;
}

// Once for each call and value of its judged argument, while the daemon lives: a profile can be made of it.
void Report(const std::string& kind, const seccomp_data& data) {
  static std::set<std::tuple<std::string, int, uint32_t>> reported;
  const sandbox::SystemCall* call = sandbox::FindSystemCall(data.nr);
  const bool judged = call != nullptr && call->judged != sandbox::kNoArgument;
  const uint32_t value = judged ? uint32_t(data.args[call->judged]) : 0;
  // The value is a worker's own: more than any program has would be one that fills the log.
  constexpr size_t kMostReported = 4096;
  if (reported.size() >= kMostReported || !reported.emplace(kind, data.nr, value).second) return;
  char argument[16] = "";
  if (judged) std::snprintf(argument, sizeof argument, " 0x%x", value);
  LogWarning("sandbox report (" + kind + "): " + sandbox::NameOfSystemCall(data.nr) + argument +
             (call != nullptr ? "" : " (no profile may allow it)"));
}

}  // namespace

SandboxWatch::SandboxWatch(EventLoop& loop, WorkerFd listener, bool report, std::string kind,
                           OpenQuestion& question, MayAsk may_ask, Judge judge)
    : loop_(loop),
      listener_(std::move(listener)),
      report_(report),
      kind_(std::move(kind)),
      question_(question),
      may_ask_(std::move(may_ask)),
      judge_(std::move(judge)) {
  Watch();
}

void SandboxWatch::Watch() {
  watch_ = loop_.TryWatch(listener_.get(), EPOLLIN, "a question about a worker's mapping",
                          [this](uint32_t events) { OnQuestion(events); });
}

bool SandboxWatch::IsListener(int descriptor) {
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  char name[64];
  const ssize_t bytes = readlink(link.c_str(), name, sizeof name);
  return bytes > 0 && std::string_view(name, size_t(bytes)) == "anon_inode:seccomp notify";
}

SandboxWatch::~SandboxWatch() {
  loop_.Unwatch(watch_);
  loop_.Cancel(pause_);
}

void SandboxWatch::OnQuestion(uint32_t events) {
  if ((events & EPOLLIN) == 0) return loop_.Unwatch(watch_);  // its last thread is gone
  // Each copies what the region says of its owners: a worker that asks all the time is to keep no others waiting.
  if (!may_ask_()) {
    loop_.Unwatch(watch_);
    pause_ = loop_.After(kQuestionPause, "a pause of a worker's questions", [this] { Watch(); });
    return;
  }
  // One for each event: asking for more than there is would wait.
  OpenQuestion::Room& question = question_.Next();
  if (ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_RECV, &question) != 0) {
    // ENOENT: the thread was killed meanwhile. Anything else would come again and again.
    if (errno != ENOENT && errno != EINTR) loop_.Unwatch(watch_);
    return;
  }
  Answer(question.value);
}

void SandboxWatch::AnswerWhatWasLeft() {
  const seccomp_notif& left = question_.left();
  // Most often it was answered, or is another worker's.
  uint64_t id = left.id;
  if (id == 0 || (ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_ID_VALID, &id) != 0 && errno == ENOENT)) return;
  Answer(left);
}

void SandboxWatch::Answer(const seccomp_notif& question) {
  const seccomp_data& data = question.data;
  bool allowed = report_;
  if (IsRegionMapping(data)) {
    allowed = IsPlainMapping(data) && judge_({data.args[5], data.args[1]});
  } else if (report_) {
    Report(kind_, data);
  }
  RoomyAnswer answer;
  std::memset(&answer, 0, sizeof answer);
  answer.value.id = question.id;
  if (allowed) {
    answer.value.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  } else {
    answer.value.error = -EPERM;
  }
  ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_SEND, &answer);
}

}  // namespace causeway::daemon
