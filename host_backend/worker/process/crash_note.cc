// SPDX-License-Identifier: Apache-2.0
// Everything between the signal and the end is safe in a signal handler: no allocation, no lock. The unwinder
// and the loader are asked once beforehand, since they allocate at their first use.
#include "host_backend/worker/process/crash_note.h"

#include <execinfo.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "host_backend/sandbox/filter.h"
#include "host_backend/worker/process/output.h"

namespace causeway::host {
namespace {

constexpr int kMostFrames = 24;

class Line {
 public:
  void Add(const char* text) {
    while (*text != '\0' && length_ < sizeof text_ - 1) text_[length_++] = *text++;
  }
  void AddNumber(uint64_t number, unsigned base) {
    char digits[24];
    size_t at = sizeof digits - 1;
    digits[at] = '\0';
    do {
      digits[--at] = "0123456789abcdef"[number % base];
      number /= base;
    } while (number != 0);
    Add(digits + at);
  }
  void End() {
    text_[length_++] = '\n';
    [[maybe_unused]] const ssize_t written = write(Output::LogFd(), text_, length_);
    length_ = 0;
  }

 private:
  char text_[1024];
  size_t length_ = 0;
};

// "libcuda.so.1+0x1f2a30", or "?" for code of no library.
void AddPlace(Line& line, void* address) {
#if defined(DLFO_STRUCT_HAS_EH_DBASE)  // glibc 2.35: without a lock
  dl_find_object found{};
  if (_dl_find_object(address, &found) != 0) return line.Add("?");
  const link_map* map = found.dlfo_link_map;
  const char* slash = strrchr(map->l_name, '/');
  line.Add(slash != nullptr ? slash + 1 : *map->l_name != '\0' ? map->l_name : "worker");
  line.Add("+0x");
  line.AddNumber(reinterpret_cast<uint64_t>(address) - map->l_addr, 16);
#else
  line.Add("?");
#endif
}

void OnCrash(int number) {
  Line line;
  void* frames[kMostFrames];
  const int count = backtrace(frames, kMostFrames);
  line.Add("causeway-worker[");
  line.AddNumber(uint64_t(getpid()), 10);
  line.Add("]: ends by signal ");
  line.AddNumber(uint64_t(number), 10);
  line.Add(" in");
  for (int i = 1; i < count; ++i) {
    line.Add(" ");
    AddPlace(line, frames[i]);
  }
  line.End();
  char text[512];
  const size_t bytes = Output::LastError(text, sizeof text - 1);
  text[bytes] = '\0';
  for (char* newline = text; (newline = strchr(newline, '\n')) != nullptr;) *newline = ' ';
  if (bytes != 0) {
    line.Add("causeway-worker: its last words: ");
    line.Add(text);
    line.End();
  }
  raise(number);  // which now ends the process, when this returns
}

}  // namespace

void NoteCrashes() {
  if (sandbox::kSanitized) return;  // a sanitizer says more
  void* first[1];
  backtrace(first, 1);
  struct sigaction action {};
  action.sa_handler = OnCrash;
  action.sa_flags = SA_RESETHAND;
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) sigaction(number, &action, nullptr);
}

}  // namespace causeway::host
