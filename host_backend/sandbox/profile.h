// SPDX-License-Identifier: Apache-2.0
// The system calls that a driver library needs once it has started: a profile for each version of it, kept as
// text in host_backend/sandbox/profiles and compiled in. tests/gpu_host/make_profile.py makes a new one.
//
//   # comment
//   openat                 the call is allowed, whatever its arguments
//   ioctl 0xc020462a       the call is allowed with this value of its judged argument (system_calls.h)
//
// A file is called DRIVER-KIND-VERSION.profile, such as nvidia-cuda-580.159.04.profile.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host_backend/common/result.h"
#include "host_backend/sandbox/system_calls.h"

namespace causeway::sandbox {

struct AllowedCall {
  const SystemCall* call = nullptr;
  std::optional<uint32_t> value;  // of its judged argument; none: any
};

struct Profile {
  std::string name;  // of its file, without the ending
  std::vector<AllowedCall> calls;
};

enum class Kind { kCuda, kManagement };

// Which library does the work: "nvidia" and its version, or "software" for the tests' stand-in.
struct DriverIdentity {
  std::string driver;
  std::string version;  // empty: unknown
};

// `address`: of any of its functions.
DriverIdentity IdentifyDriver(const void* address);

// An error names the line.
Result<Profile> ParseProfile(const std::string& name, std::string_view text);

struct ChosenProfile {
  Profile profile;
  bool exact = false;  // made for this very version; otherwise it is the nearest version's
};

struct ProfileText {
  const char* name;
  const char* text;
};
// All that are compiled in; the base profile is called "worker".
extern const ProfileText kProfiles[];
extern const unsigned kProfileCount;

// Of these profiles, which have one of the driver, that of the version itself or else of the nearest one.
ChosenProfile ChooseProfile(const DriverIdentity& identity, Kind kind, std::span<const ProfileText> among);
// Of all that are compiled in. It always finds one.
inline ChosenProfile ChooseProfile(const DriverIdentity& identity, Kind kind) {
  return ChooseProfile(identity, kind, {kProfiles, kProfileCount});
}

// What the worker's own code, the C++ library and libc need with any driver.
const Profile* BaseProfile();

}  // namespace causeway::sandbox
