// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace sharing_facts {

inline constexpr int kMostChildren = 72;
inline constexpr std::size_t kMostSamples = std::size_t{1} << 18;

enum class State : std::uint32_t { kStarting, kReady, kEnded, kFailed };

// What one child tells; written by that child alone.
struct Cell {
  std::atomic<State> state;
  std::atomic<std::uint64_t> count;                  // units of work done
  std::atomic<std::uint64_t> seen;                   // samples taken; the newest kMostSamples are kept
  std::array<std::atomic<std::uint64_t>, 8> values;  // what the part likes
  std::array<std::uint32_t, kMostSamples> samples;   // nanoseconds
  std::array<char, 256> message;                     // why it failed

  void Sample(std::uint64_t nanoseconds);
};

// Memory that the parent and all children of a crew share.
struct Stage {
  std::atomic<std::uint32_t> go, stop;
  std::atomic<std::uint32_t> turn;  // whose turn it is, where children take turns
  std::atomic<std::uint64_t> word;  // what the part likes
  std::uint64_t deadline_ns;        // no child waits beyond this
  std::array<Cell, kMostChildren> cells;

  bool Over() const;       // stop was asked, or the deadline has passed
  void Ready(Cell& cell);  // the child is ready; returns once `go` is set or Over
};

using Environment = std::vector<std::pair<std::string, std::string>>;

// Child processes that do one thing at the same time. All are dead and reaped when the object is gone, whatever they do:
// they get SIGKILL at the deadline, and when the parent dies. One thread, and no driver in it.
class Crew {
 public:
  using Work = std::function<void(Stage&, Cell&, int index)>;  // runs in the child; may throw Failure

  explicit Crew(double limit_s);  // seconds from now until every child is killed
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Starts `count` children that do `work`, and returns the index of the first one.
  int Add(int count, const Work& work, const Environment& environment = {});
  bool AwaitReady();  // all that were added; false when one failed or the deadline came
  void Go() { stage_->go = 1; }
  void Sleep(double seconds);  // or until the deadline
  bool Finish();               // asks all to stop and reaps them; false when one failed or had to be killed
  bool Reap(int index, double seconds);  // waits for one child's end; false when it lives on
  void Kill(int index);                  // SIGKILL to one child, without waiting

  Stage& stage() { return *stage_; }
  Cell& cell(int index) { return stage_->cells[static_cast<std::size_t>(index)]; }
  int size() const { return static_cast<int>(pids_.size()); }
  pid_t pid(int index) const { return pids_[static_cast<std::size_t>(index)]; }
  std::string Complaint() const;  // the first failure's sentence
  // The samples of children [first, first + count) together.
  std::vector<std::uint32_t> Samples(int first, int count) const;

 private:
  Stage* stage_;
  std::vector<pid_t> pids_;
  std::vector<bool> reaped_, killed_;
};

}  // namespace sharing_facts
