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

namespace causeway::bench {

inline constexpr int kMostChildren = 72;
inline constexpr std::size_t kMostSamples = std::size_t{1} << 20;
inline constexpr std::size_t kMostWindows = 8192;
inline constexpr std::uint64_t kWindowNs = 10'000'000;

enum class State : std::uint32_t { kStarting, kReady, kEnded, kFailed };

struct Stage;

// What one child tells; written by that child alone.
struct Cell {
  std::atomic<State> state;
  std::atomic<std::uint64_t> count;                  // units of work done
  std::atomic<std::uint64_t> seen;                   // samples taken; the newest kMostSamples are kept
  std::array<std::atomic<std::uint64_t>, 8> values;  // what the part likes
  std::array<std::atomic<std::uint32_t>, kMostWindows>
      windows;                                      // units that ended in each, from Stage::begin_ns on
  std::array<std::uint32_t, kMostSamples> samples;  // nanoseconds
  std::array<char, 256> message;                    // why it failed

  void Sample(std::uint64_t nanoseconds);
  // So many units of work have just ended.
  void Done(const Stage& stage, std::uint64_t units);
};

// Memory that the parent and all children of a crew share.
struct Stage {
  std::atomic<std::uint32_t> go, stop;
  std::atomic<std::uint32_t> turn;                // whose turn it is, where children take turns
  std::atomic<std::uint64_t> word;                // what the part likes
  std::uint64_t deadline_ns;                      // no child waits beyond this
  std::atomic<std::uint64_t> begin_ns, until_ns;  // of the work, from Crew::Go on; until_ns 0: until `stop`
  std::array<Cell, kMostChildren> cells;

  bool Over() const;       // stop was asked, or its time is over
  void Ready(Cell& cell);  // the child is ready; returns once `go` is set or Over
  void AwaitStop() const;  // returns once `stop` is set, which Crew::Finish does, or after the deadline
};

using Environment = std::vector<std::pair<std::string, std::string>>;

// Where a child works.
struct Place {
  Environment environment;  // an empty value: the variable is taken away
  int user = -1;            // it becomes this user, with the group of the same number alone; -1: it does not
  std::string library;      // of the driver, opened before that, as SetDriverPath; empty: as it is set
};

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
  int Add(int count, const Work& work, const Place& place = {});
  int Add(int count, const Work& work, const Environment& environment) {
    return Add(count, work, Place{environment, -1, {}});
  }
  // Starts another child in the place of one that was reaped; what the cell has counted stays.
  void Again(int index, const Work& work, const Place& place);
  bool AwaitReady();  // all that were added; false when one failed or the deadline came
  bool AwaitReady(int index);
  void Go(double seconds = 0);  // 0: until Finish
  void Sleep(double seconds);   // or until the deadline
  bool Finish();                // asks all to stop and reaps them; false when one failed or had to be killed
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
  pid_t Start(int index, const Work& work, const Place& place);

  Stage* stage_;
  std::vector<pid_t> pids_;
  std::vector<bool> reaped_, killed_;
};

}  // namespace causeway::bench
