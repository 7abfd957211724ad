// SPDX-License-Identifier: Apache-2.0
// The daemon's log: one line an event, bounded in rate where a guest can cause lines.
#pragma once
#include <chrono>
#include <string>
#include <string_view>

namespace causeway::daemon {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Lines go to `path`, or to standard error where it is empty (and also there when `echo`). The error sentence
// names the file. Returns an empty string on success.
std::string StartLog(const std::string& path, LogLevel level, bool echo);

void Log(LogLevel level, std::string_view line);
inline void LogDebug(std::string_view line) {
  Log(LogLevel::kDebug, line);
}
inline void LogInfo(std::string_view line) {
  Log(LogLevel::kInfo, line);
}
inline void LogWarning(std::string_view line) {
  Log(LogLevel::kWarning, line);
}
inline void LogError(std::string_view line) {
  Log(LogLevel::kError, line);
}

// A source of lines that somebody else controls: at most `kLinesPerSecond`, then a count of what was left
// out.
class LimitedLog {
 public:
  static constexpr int kLinesPerSecond = 20;
  void Write(LogLevel level, std::string_view line);

 private:
  std::chrono::steady_clock::time_point second_{};
  int lines_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace causeway::daemon
