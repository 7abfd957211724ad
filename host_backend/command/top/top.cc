// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/top/top.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "host_backend/command/ask/ask_daemon.h"
#include "host_backend/command/top/gpu_times.h"
#include "host_backend/command/top/table.h"

namespace causeway::command {
namespace {

double Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

volatile sig_atomic_t g_ended = 0;

// The terminal without echo and on its second screen, until this object ends. Control-C is a key meanwhile, and the signals that
// end a program end the loop, so that the terminal is given back.
class Terminal {
 public:
  explicit Terminal(bool wanted) : used_(wanted && tcgetattr(STDIN_FILENO, &before_) == 0) {
    if (!used_) return;
    termios raw = before_;
    raw.c_lflag &= tcflag_t(~(ICANON | ECHO | ISIG));
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    std::fputs("\033[?1049h\033[?25l", stdout);
  }
  ~Terminal() {
    if (!used_) return;
    std::fputs("\033[?25h\033[?1049l", stdout);
    std::fflush(stdout);
    tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  bool used() const { return used_; }
  // The lines that fit, each cut to the width; the fourth is the table's head.
  static void Draw(const std::vector<std::string>& lines) {
    constexpr size_t kHead = 3;
    winsize size{24, 80, 0, 0};
    ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    std::string screen = "\033[H";
    for (size_t i = 0; i < lines.size() && i < size.ws_row; ++i) {
      const std::string line = lines[i].substr(0, size.ws_col);
      screen += (i == 0 ? "" : "\r\n") + (i == kHead ? "\033[7m" + line + "\033[0m" : line) + "\033[K";
    }
    screen += "\033[J";
    std::fputs(screen.c_str(), stdout);
    std::fflush(stdout);
  }

 private:
  termios before_{};
  const bool used_;
};

constexpr char kHelp[] =
    "q quit  V VMs or sessions  S shares  P gpu  C calls  M memory  T age  < > sort column  R reverse  + - "
    "delay";

class Top {
 public:
  // `while_waiting`: the signal mask while top waits for the user. At all other times the caller blocks more signals (RunTop).
  Top(const TopOptions& options, const sigset_t& while_waiting)
      : options_(options), while_waiting_(while_waiting), delay_s_(options.delay_s) {
    view_.scopes = options.scopes;
    view_.shares = options.shares;
    view_.sort_column = ColumnNamed(options.sort);
  }

  // Empty: it has ended as it should.
  std::string Run() {
    if (std::string text = Read(); !text.empty()) return text;
    const Terminal terminal(!options_.batch && !options_.json && isatty(STDOUT_FILENO) &&
                            isatty(STDIN_FILENO));
    if (terminal.used()) Terminal::Draw({"Reading what sessions do ..."});
    for (uint64_t shown = 0; options_.iterations == 0 || shown < options_.iterations; ++shown) {
      if (!Wait(terminal.used())) return {};
      if (std::string text = Read(); !text.empty()) return text;
      Show(terminal.used());
    }
    return {};
  }

 private:
  std::string Read() {
    const auto status = QueryStatus(options_.socket);
    if (!status.ok()) return status.error();
    auto read = ReadFigures(status.value());
    if (!read.ok()) return read.error();
    if (!gpu_times_) gpu_times_.emplace(read.value().driver);
    gpu_times_->Fill(&read.value());
    const double now = Now();
    rows_ = SessionRows(figures_, read.value(), now - read_at_);
    seconds_ = now - read_at_;
    shares_ = ShareRows(figures_.shares, read.value().shares, seconds_);
    for (ShareRow& share : shares_) {
      for (const Row& row : rows_) {
        if (row.scope == share.scope.scope) share.memory_bytes += row.memory_bytes;
      }
    }
    figures_ = std::move(read.value());
    read_at_ = now;
    return {};
  }

  void Show(bool on_terminal) const {
    if (options_.json) {
      std::printf("%s\n", TopJson(figures_, seconds_, rows_, shares_).c_str());
      std::fflush(stdout);
      return;
    }
    std::vector<Row> rows = view_.scopes ? ScopeRows(rows_) : rows_;
    SortRows(view_, &rows);
    std::vector<std::string> lines = HeadLines(figures_, rows_);
    lines.push_back(on_terminal ? kHelp : "");
    for (std::string& line : view_.shares ? ShareLines(shares_) : TableLines(view_, rows))
      lines.push_back(std::move(line));
    if (on_terminal) return Terminal::Draw(lines);
    for (const std::string& line : lines) std::printf("%s\n", line.c_str());
    std::printf("\n");
    std::fflush(stdout);
  }

  // Until the next refresh is due; false: the user has ended it.
  bool Wait(bool on_terminal) {
    double end = Now() + delay_s_;
    for (;;) {
      const double left = std::max(0.0, end - Now());
      const timespec limit{time_t(left), long(1e9 * (left - double(time_t(left))))};
      pollfd keys{on_terminal ? STDIN_FILENO : -1, POLLIN, 0};
      const int ready = ppoll(&keys, 1, &limit, &while_waiting_);
      if (ready == 0) return true;
      if (g_ended != 0) return false;
      if (ready < 0) {  // the window has another size
        if (on_terminal) Show(true);
        continue;
      }
      char key = 'q';
      if (read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == '\003') return false;
      if (key == ' ' || key == '\n') return true;
      Press(key);
      end = std::min(end, Now() + delay_s_);
      Show(true);
    }
  }

  void Press(char key) {
    constexpr double kLeast = 0.5, kMost = 3600;
    const size_t last = Columns().size() - 1;
    switch (key) {
      case 'V':
        view_.scopes = !view_.scopes;
        view_.shares = false;
        break;
      case 'S':
        view_.shares = !view_.shares;
        break;
      case 'P':
        view_.sort_column = ColumnNamed("gpu");
        break;
      case 'C':
        view_.sort_column = ColumnNamed("calls");
        break;
      case 'M':
        view_.sort_column = ColumnNamed("memory");
        break;
      case 'T':
        view_.sort_column = ColumnNamed("age");
        break;
      case '<':
        view_.sort_column -= view_.sort_column > 0 ? 1 : 0;
        break;
      case '>':
        view_.sort_column += view_.sort_column < last ? 1 : 0;
        break;
      case 'R':
        view_.reversed = !view_.reversed;
        break;
      case '+':
        delay_s_ = std::min(kMost, delay_s_ * 2);
        break;
      case '-':
        delay_s_ = std::max(kLeast, delay_s_ / 2);
        break;
      default:
        break;
    }
  }

  const TopOptions& options_;
  const sigset_t while_waiting_;
  double delay_s_;
  View view_;
  StatusFigures figures_;
  std::vector<Row> rows_;
  std::vector<ShareRow> shares_;
  std::optional<GpuTimes> gpu_times_;
  double read_at_ = 0, seconds_ = 0;
};

}  // namespace

int RunTop(const TopOptions& options) {
  // The handlers make ppoll() return. Elsewhere the signals are blocked, because they would interrupt the question to the daemon,
  // and the loop would not notice an end that came before ppoll().
  sigset_t handled, before;
  sigemptyset(&handled);
  for (const int number : {SIGWINCH, SIGTERM, SIGHUP}) sigaddset(&handled, number);
  sigprocmask(SIG_BLOCK, &handled, &before);
  struct sigaction resized {};
  resized.sa_handler = [](int) {};
  sigaction(SIGWINCH, &resized, nullptr);
  struct sigaction ending {};
  ending.sa_handler = [](int) { g_ended = 1; };
  for (const int number : {SIGTERM, SIGHUP}) sigaction(number, &ending, nullptr);
  const std::string problem = Top(options, before).Run();
  if (problem.empty()) return 0;
  std::fprintf(stderr, "causeway: %s\n", problem.c_str());
  return 1;
}

}  // namespace causeway::command
