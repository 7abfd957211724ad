// SPDX-License-Identifier: Apache-2.0
// The log on spdlog: the only file that includes it.
#include "host_backend/daemon/process/log.h"

#include <fcntl.h>

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "host_backend/daemon/loop/loop_work.h"
#include "host_backend/daemon/process/trusted_file.h"

namespace causeway::daemon {
namespace {

spdlog::level::level_enum Level(LogLevel level) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn, spdlog::level::err};
  static_assert(std::size(kLevels) == size_t(LogLevel::kError) + 1);
  return kLevels[size_t(level)];
}

std::function<void()>& LeftOutCall() {
  static std::function<void()> call;
  return call;
}

// Whether systemd's journal reads standard error: the service manager says which file that is, and a program may have been given
// another one since (sd_journal_stream_fd, and systemd.exec(5) on JOURNAL_STREAM).
bool JournalReads() {
  const char* const named = std::getenv("JOURNAL_STREAM");
  struct stat found {};
  if (named == nullptr || fstat(STDERR_FILENO, &found) != 0) return false;
  return named == std::to_string(found.st_dev) + ":" + std::to_string(found.st_ino);
}

// "<4>" at the beginning of a line: the priority that the journal gives it, by the numbers of syslog(3).
class PriorityFlag : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& to) override {
    constexpr spdlog::string_view_t kError = "<3>", kWarning = "<4>", kInfo = "<6>", kDebug = "<7>";
    const spdlog::string_view_t text = message.level >= spdlog::level::err    ? kError
                                       : message.level == spdlog::level::warn ? kWarning
                                       : message.level == spdlog::level::info ? kInfo
                                                                              : kDebug;
    to.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<PriorityFlag>(); }
};

// The journal has the time and the priority as fields of its own.
void WriteForJournal(spdlog::sinks::sink& sink) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<PriorityFlag>('*').set_pattern("%*%v");
  sink.set_formatter(std::move(formatter));
}

}  // namespace

std::string StartLog(const std::string& path, LogLevel level, bool echo) {
  try {
    static int file = -1;  // as long as the process
    std::vector<spdlog::sink_ptr> sinks;
    if (!path.empty()) {
      // Opened by this descriptor: no link that somebody puts in its place later leads elsewhere.
      file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0640);
      struct stat found {};
      if (file >= 0 && fstat(file, &found) == 0) {
        if (const std::string why = WhyNotTrusted(file, found, path); !why.empty())
          return "the log file " + path + " " + why.substr(0, why.size() - 1);
      }
      const std::string opened = "/proc/self/fd/" + std::to_string(file);
      sinks.push_back(std::make_shared<spdlog::sinks::basic_file_sink_st>(opened));
    }
    const bool to_stderr = path.empty() || echo;
    if (to_stderr) sinks.push_back(std::make_shared<spdlog::sinks::stderr_sink_st>());
    auto logger = std::make_shared<spdlog::logger>("causewayd", sinks.begin(), sinks.end());
    logger->set_level(Level(level));
    logger->flush_on(spdlog::level::debug);
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l: %v");
    if (to_stderr && JournalReads()) WriteForJournal(*sinks.back());
    spdlog::set_default_logger(std::move(logger));
  } catch (const spdlog::spdlog_ex&) {
    return "the log file " + path +
           " cannot be opened for writing; correct log_file or its folder's permissions";
  }
  return {};
}

void SetLogLevel(LogLevel level) {
  spdlog::default_logger_raw()->set_level(Level(level));
}

void Log(LogLevel level, std::string_view line) {
  // A line may hold what a guest wrote: control characters must not forge further lines.
  std::string clean(line);
  for (char& c : clean) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  const LoopPart part("log line");
  spdlog::default_logger_raw()->log(Level(level), spdlog::string_view_t(clean.data(), clean.size()));
}

void LimitedLog::WriteAt(Time now, LogLevel level, std::string_view line) {
  const bool wrong = level >= LogLevel::kWarning;
  Time& oldest = wrong ? wrong_[next_wrong_] : told_[next_told_];
  if (oldest != Time{} && now - oldest < std::chrono::seconds(1)) {
    return LeaveOut(1);
  }
  oldest = now;
  if (wrong) {
    next_wrong_ = (next_wrong_ + 1) % kWrong;
  } else {
    next_told_ = (next_told_ + 1) % kTold;
  }
  Log(level, line);
}

void LimitedLog::OnLeftOut(std::function<void()> call) {
  LeftOutCall() = std::move(call);
}

void LimitedLog::LeaveOut(uint64_t lines) {
  const bool first = dropped_ == 0 && lines != 0;
  dropped_ += lines;
  if (first && LeftOutCall()) LeftOutCall()();
}

void LimitedLog::FlushAt(Time now, std::string_view source) {
  if (dropped_ == 0 || (said_ != Time{} && now - said_ < std::chrono::minutes(1))) return;
  said_ = now;
  Log(LogLevel::kWarning, std::string(source) + ": " + std::to_string(dropped_) +
                              " further lines were left out, of which there were too many in a second");
  dropped_ = 0;
}

}  // namespace causeway::daemon
