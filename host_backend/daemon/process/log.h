// SPDX-License-Identifier: Apache-2.0
// The daemon's log: one line an event, bounded in rate where a guest can cause lines.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace causeway::daemon {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Has lines go to `path`, or stderr if it is empty; with `echo` to both. Empty, or a sentence with the file. Where systemd's
// journal reads stderr, lines there begin with their priority ("<4>") instead of time and level.
std::string StartLog(const std::string& path, LogLevel level, bool echo);

// From now on. StartLog was called before.
void SetLogLevel(LogLevel level);

void Log(LogLevel level, std::string_view line);
inline void LogInfo(std::string_view line) {
  Log(LogLevel::kInfo, line);
}
inline void LogWarning(std::string_view line) {
  Log(LogLevel::kWarning, line);
}
inline void LogError(std::string_view line) {
  Log(LogLevel::kError, line);
}

// A log for lines that a guest or a worker can cause. In no second does it write more than kLinesPerSecond,
// and once a minute it says how many lines were left out. Lines of information cannot use up the number of
// lines for what went wrong. The daemon's only thread uses it.
class LimitedLog {
 public:
  static constexpr size_t kTold = 9, kWrong = 10;
  static constexpr size_t kLinesPerSecond = kTold + kWrong + 1;  // and the count of those left out
  using Time = std::chrono::steady_clock::time_point;

  void Write(LogLevel level, std::string_view line) {
    WriteAt(std::chrono::steady_clock::now(), level, line);
  }
  // Called whenever a log that had left out nothing leaves out a line: somebody is to call its Flush once a minute until it is
  // idle. One function for all logs; an empty one ends that.
  static void OnLeftOut(std::function<void()> call);

  // Says how many lines were left out, if any were and if a minute has passed since it last said so.
  void Flush(std::string_view source) { FlushAt(std::chrono::steady_clock::now(), source); }
  // Counts so many lines as left out, which were not even read.
  void LeaveOut(uint64_t lines);
  bool idle() const { return dropped_ == 0; }

  void WriteAt(Time now, LogLevel level, std::string_view line);
  void FlushAt(Time now, std::string_view source);
  uint64_t dropped() const { return dropped_; }  // since it was last said

 private:
  std::array<Time, kTold> told_{};  // when each of the last lines was written; the oldest is replaced
  std::array<Time, kWrong> wrong_{};
  size_t next_told_ = 0, next_wrong_ = 0;
  uint64_t dropped_ = 0;
  Time said_{};
};

}  // namespace causeway::daemon
