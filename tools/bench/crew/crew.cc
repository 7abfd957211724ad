// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/crew/crew.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <grp.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "tools/bench/crew/driver.h"

namespace causeway::bench {
namespace {

constexpr std::uint64_t kNsPerS = 1'000'000'000;

// Another user's process can be neither traced nor looked into, and keeps no signal for its parent's death, unless it says so
// after it became that user's.
void BecomeUser(int user) {
  const auto id = static_cast<uid_t>(user);
  if (setgroups(0, nullptr) != 0 || setgid(id) != 0 || setuid(id) != 0)
    throw Failure("the process cannot become another user's.");
  prctl(PR_SET_DUMPABLE, 1);
}

[[noreturn]] void RunChild(Stage& stage, Cell& cell, int index, const Crew::Work& work, const Place& place,
                           pid_t parent) {
  for (const auto& [name, value] : place.environment) {
    if (value.empty()) {
      unsetenv(name.c_str());
    } else {
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  int status = 0;
  try {
    if (!place.library.empty()) OpenDriver(place.library);
    if (place.user >= 0) BecomeUser(place.user);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    work(stage, cell, index);
    cell.state = State::kEnded;
  } catch (const Failure& failure) {
    std::snprintf(cell.message.data(), cell.message.size(), "%s", failure.what());
    cell.state = State::kFailed;
    status = 1;
  }
  _exit(status);
}

}  // namespace

void Cell::Sample(std::uint64_t nanoseconds) {
  const std::uint64_t place = seen.load(std::memory_order_relaxed);
  samples[place % kMostSamples] =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(nanoseconds, 0xffffffffu));
  seen.store(place + 1, std::memory_order_relaxed);
}

void Cell::Done(const Stage& stage, std::uint64_t units) {
  count.fetch_add(units, std::memory_order_relaxed);
  const std::uint64_t begin = stage.begin_ns.load(std::memory_order_relaxed), now = NowNs();
  const std::uint64_t at = begin == 0 || now < begin ? kMostWindows : (now - begin) / kWindowNs;
  if (at < kMostWindows) windows[at].fetch_add(static_cast<std::uint32_t>(units), std::memory_order_relaxed);
}

bool Stage::Over() const {
  if (stop.load(std::memory_order_relaxed) != 0) return true;
  const std::uint64_t now = NowNs(), until = until_ns.load(std::memory_order_relaxed);
  return now > deadline_ns || (until != 0 && now > until);
}

void Stage::AwaitStop() const {
  while (stop.load() == 0) {
    if (NowNs() > deadline_ns) return;
    usleep(2000);
  }
}

void Stage::Ready(Cell& cell) {
  cell.state = State::kReady;
  while (go.load() == 0 && !Over()) usleep(200);
}

Crew::Crew(double limit_s) {
  void* memory =
      mmap(nullptr, sizeof(Stage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw Failure("no memory for the children's results.");
  stage_ = static_cast<Stage*>(memory);  // zeros are what every member begins with
  stage_->deadline_ns = NowNs() + static_cast<std::uint64_t>(std::max(0.0, limit_s) * 1e9);
}

Crew::~Crew() {
  Finish();
  munmap(stage_, sizeof(Stage));
}

pid_t Crew::Start(int index, const Work& work, const Place& place) {
  std::fflush(nullptr);
  const pid_t parent = getpid(), pid = fork();
  if (pid == 0) RunChild(*stage_, cell(index), index, work, place, parent);
  if (pid < 0) throw Failure("fork failed.");
  return pid;
}

int Crew::Add(int count, const Work& work, const Place& place) {
  const int first = size();
  for (int i = 0; i < count && size() < kMostChildren; ++i) {
    pids_.push_back(Start(size(), work, place));
    reaped_.push_back(false);
    killed_.push_back(false);
  }
  return first;
}

void Crew::Again(int index, const Work& work, const Place& place) {
  const auto at = static_cast<std::size_t>(index);
  cell(index).state = State::kStarting;
  pids_[at] = Start(index, work, place);
  reaped_[at] = killed_[at] = false;
}

bool Crew::AwaitReady() {
  for (int i = 0; i < size(); ++i) {
    if (!AwaitReady(i)) return false;
  }
  return true;
}

bool Crew::AwaitReady(int index) {
  while (cell(index).state == State::kStarting) {
    if (NowNs() > stage_->deadline_ns || Reap(index, 0)) return false;
    usleep(500);
  }
  return cell(index).state != State::kFailed;
}

void Crew::Go(double seconds) {
  const std::uint64_t now = NowNs();
  stage_->begin_ns = now;
  stage_->until_ns = seconds > 0 ? now + static_cast<std::uint64_t>(seconds * 1e9) : 0;
  stage_->go = 1;
}

void Crew::Sleep(double seconds) {
  const std::uint64_t end =
      std::min(NowNs() + static_cast<std::uint64_t>(seconds * 1e9), stage_->deadline_ns);
  for (std::uint64_t now = NowNs(); now < end; now = NowNs()) {
    usleep(static_cast<useconds_t>(std::min<std::uint64_t>((end - now) / 1000 + 1, 100'000)));
  }
}

bool Crew::Reap(int index, double seconds) {
  const auto place = static_cast<std::size_t>(index);
  const std::uint64_t end = NowNs() + static_cast<std::uint64_t>(seconds * 1e9);
  while (!reaped_[place]) {
    int status = 0;
    if (waitpid(pids_[place], &status, WNOHANG) == pids_[place]) {
      reaped_[place] = true;
      if (!WIFEXITED(status) && !killed_[place] && cell(index).state != State::kFailed) {
        std::snprintf(cell(index).message.data(), cell(index).message.size(), "a child ended by signal %d",
                      WTERMSIG(status));
        cell(index).state = State::kFailed;
      }
      break;
    }
    if (NowNs() >= end) return false;
    usleep(1000);
  }
  return true;
}

void Crew::Kill(int index) {
  const auto place = static_cast<std::size_t>(index);
  if (reaped_[place]) return;
  killed_[place] = true;
  kill(pids_[place], SIGKILL);
}

bool Crew::Finish() {
  stage_->stop = 1;
  stage_->go = 1;
  bool well = true;
  // Three seconds together for those that end by themselves, and ten for the driver to take away those that do not.
  const std::uint64_t patience = NowNs() + 3 * kNsPerS;
  for (int i = 0; i < size(); ++i) {
    const double left = patience > NowNs() ? static_cast<double>(patience - NowNs()) / 1e9 : 0;
    const bool was_killed = killed_[static_cast<std::size_t>(i)];
    if (Reap(i, left)) {
      well = well && (was_killed || cell(i).state != State::kFailed);
      continue;
    }
    well = false;
    Kill(i);
    if (!Reap(i, 10)) std::fprintf(stderr, "child %d does not end, ten seconds after SIGKILL\n", pid(i));
  }
  return well;
}

std::string Crew::Complaint() const {
  for (int i = 0; i < size(); ++i) {
    const Cell& one = stage_->cells[static_cast<std::size_t>(i)];
    if (one.state == State::kFailed) return one.message.data();
  }
  return "a child did not answer in time";
}

std::vector<std::uint32_t> Crew::Samples(int first, int count) const {
  std::vector<std::uint32_t> all;
  for (int i = first; i < first + count; ++i) {
    const Cell& one = stage_->cells[static_cast<std::size_t>(i)];
    const std::size_t kept = std::min<std::size_t>(one.seen, kMostSamples);
    all.insert(all.end(), one.samples.begin(), one.samples.begin() + static_cast<std::ptrdiff_t>(kept));
  }
  return all;
}

}  // namespace causeway::bench
