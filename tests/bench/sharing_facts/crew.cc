// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/sharing_facts/crew.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "tests/bench/sharing_facts/driver.h"

namespace sharing_facts {
namespace {

constexpr std::uint64_t kNsPerS = 1'000'000'000;

[[noreturn]] void RunChild(Stage& stage, Cell& cell, int index, const Crew::Work& work,
                           const Environment& environment) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  int status = 0;
  try {
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

bool Stage::Over() const {
  return stop.load(std::memory_order_relaxed) != 0 || NowNs() > deadline_ns;
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

int Crew::Add(int count, const Work& work, const Environment& environment) {
  const int first = size();
  for (int i = 0; i < count && size() < kMostChildren; ++i) {
    std::fflush(nullptr);
    const pid_t pid = fork();
    if (pid == 0) RunChild(*stage_, cell(size()), size(), work, environment);
    if (pid < 0) throw Failure("fork failed.");
    pids_.push_back(pid);
    reaped_.push_back(false);
    killed_.push_back(false);
  }
  return first;
}

bool Crew::AwaitReady() {
  for (int i = 0; i < size(); ++i) {
    while (cell(i).state == State::kStarting) {
      if (NowNs() > stage_->deadline_ns || Reap(i, 0)) return false;
      usleep(500);
    }
    if (cell(i).state == State::kFailed) return false;
  }
  return true;
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

}  // namespace sharing_facts
