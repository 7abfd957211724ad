// SPDX-License-Identifier: Apache-2.0
// The worker's system call filter: built while it waits for a session, installed in all of its threads when
// it gets one. docs/sandbox.md says why it is as it is.
#pragma once
#include <linux/filter.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "host_backend/common/result.h"
#include "host_backend/sandbox/profile.h"

namespace causeway::sandbox {

// The number of the region's descriptor in every worker, and the highest that a worker can have:
// RLIMIT_NOFILE is one more. No call but mmap takes it, and that goes to the daemon.
inline constexpr int kRegionDescriptor = 4095;

// Whether this program is built with a sanitizer, which makes calls of its own and traces the process that it
// looks at. Such a program is not confined.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

enum class Mode {
  kEnforce,  // what is not allowed ends the process
  kReport,   // the daemon logs it, and it goes on
  kLearn,    // likewise, without any driver's profile: what it logs is a profile
};

// The argument --sandbox of a worker; an unknown text is kEnforce.
Mode ModeOf(const std::string& text);
const char* NameOf(Mode mode);

struct FilterOptions {
  Mode mode = Mode::kEnforce;
  pid_t process = 0;            // the only one that signals may go to
  bool region_is_asked = true;  // mmap of the region goes to the daemon; false: kernels before 5.7
};

using Program = std::vector<sock_filter>;

Result<Program> BuildFilter(const Profile& driver, const FilterOptions& options);

// Whether the kernel has what region_is_asked and the modes other than kEnforce need.
bool CanNotify();

// Installs it in all threads, which have no_new_privs from then on. *listener, `with_listener`: the caller's to
// close; on it the kernel asks about calls (seccomp user notification). "" or what went wrong.
std::string InstallFilter(const Program& program, bool with_listener, int* listener);

}  // namespace causeway::sandbox
