// SPDX-License-Identifier: Apache-2.0
// The log on spdlog: the only file that includes it.
#include "host_backend/daemon/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace causeway::daemon {
namespace {

spdlog::level::level_enum Level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

std::string StartLog(const std::string& path, LogLevel level, bool echo) {
  try {
    std::vector<spdlog::sink_ptr> sinks;
    if (!path.empty()) sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_st>(path));
    if (path.empty() || echo) sinks.push_back(std::make_shared<spdlog::sinks::stderr_sink_st>());
    auto logger = std::make_shared<spdlog::logger>("causewayd", sinks.begin(), sinks.end());
    logger->set_level(Level(level));
    logger->flush_on(spdlog::level::debug);
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l: %v");
    spdlog::set_default_logger(std::move(logger));
  } catch (const spdlog::spdlog_ex&) {
    return "the log file " + path +
           " cannot be opened for writing; correct log_file or its folder's permissions";
  }
  return {};
}

void Log(LogLevel level, std::string_view line) {
  // A line may hold what a guest wrote: control characters must not forge further lines.
  std::string clean(line);
  for (char& c : clean) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  spdlog::default_logger_raw()->log(Level(level), spdlog::string_view_t(clean.data(), clean.size()));
}

void LimitedLog::Write(LogLevel level, std::string_view line) {
  const auto now = std::chrono::steady_clock::now();
  if (now - second_ >= std::chrono::seconds(1)) {
    if (dropped_ != 0)
      Log(level, "(" + std::to_string(dropped_) + " further lines of this source were left out)");
    second_ = now;
    lines_ = 0;
    dropped_ = 0;
  }
  if (++lines_ > kLinesPerSecond) {
    ++dropped_;
    return;
  }
  Log(level, line);
}

}  // namespace causeway::daemon
