// SPDX-License-Identifier: Apache-2.0
#include "host_backend/sandbox/profile.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>

#include <array>
#include <fstream>
#include <sstream>

namespace causeway::sandbox {
namespace {

using Version = std::array<uint64_t, 3>;

bool IsVersion(std::string_view text) {
  return !text.empty() && text.find('.') != std::string_view::npos &&
         text.find_first_not_of("0123456789.") == std::string_view::npos;
}

Version ParseVersion(std::string_view text) {
  Version version{};
  size_t part = 0;
  for (const char c : text) {
    if (c == '.') {
      if (++part == version.size()) break;
    } else if (c >= '0' && c <= '9') {
      version[part] = version[part] * 10 + uint64_t(c - '0');
    }
  }
  return version;
}

// Versions of one branch are nearer to each other than to any other.
uint64_t Distance(const Version& one, const Version& other) {
  uint64_t sum = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    const uint64_t step = one[i] > other[i] ? one[i] - other[i] : other[i] - one[i];
    sum = sum * 100'000 + std::min<uint64_t>(step, 99'999);
  }
  return sum;
}

std::string FirstWord(const char* path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

}  // namespace

DriverIdentity IdentifyDriver(const void* address) {
  Dl_info info{};
  const bool found = dladdr(address, &info) != 0;
  void* library = found ? dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY) : nullptr;
  const bool software = library != nullptr && dlsym(library, "causeway_software_gpu") != nullptr;
  if (library != nullptr) dlclose(library);
  if (software) return {"software", ""};
  char path[PATH_MAX];
  if (found && realpath(info.dli_fname, path) != nullptr) {
    const std::string_view name(path);
    const size_t end = name.rfind(".so.");
    if (end != std::string_view::npos && IsVersion(name.substr(end + 4)))
      return {"nvidia", std::string(name.substr(end + 4))};
  }
  const std::string of_module = FirstWord("/sys/module/nvidia/version");
  return {"nvidia", IsVersion(of_module) ? of_module : ""};
}

Result<Profile> ParseProfile(const std::string& name, std::string_view text) {
  Profile profile;
  profile.name = name;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string call, value, rest;
    if (!(words >> call)) continue;
    AllowedCall allowed{FindSystemCall(call), {}};
    const std::string where = name + ":" + std::to_string(number) + ": ";
    if (allowed.call == nullptr) return Error{where + call + " is no call that a profile may allow."};
    if (words >> value) {
      char* end = nullptr;
      const unsigned long long parsed = std::strtoull(value.c_str(), &end, 0);
      if (*end != '\0' || parsed > UINT32_MAX || allowed.call->judged == kNoArgument)
        return Error{where + value + " is no argument of " + call + " that is judged."};
      allowed.value = uint32_t(parsed);
    } else if (allowed.call->judged != kNoArgument) {
      return Error{where + call + " needs the value of its argument."};
    }
    if (words >> rest) return Error{where + "\"" + rest + "\" is too much."};
    profile.calls.push_back(allowed);
  }
  return profile;
}

ChosenProfile ChooseProfile(const DriverIdentity& identity, Kind kind, std::span<const ProfileText> among) {
  const std::string prefix = identity.driver + (kind == Kind::kCuda ? "-cuda" : "-nvml");
  const Version wanted = ParseVersion(identity.version);
  const ProfileText* nearest = nullptr;
  uint64_t least = 0;
  for (const ProfileText& each : among) {
    const std::string_view name = each.name;
    if (name.substr(0, prefix.size()) != prefix) continue;
    const std::string_view version = name.substr(std::min(name.size(), prefix.size() + 1));
    const uint64_t distance = Distance(ParseVersion(version), wanted);
    if (nearest != nullptr && distance >= least) continue;
    nearest = &each;
    least = distance;
  }
  if (nearest == nullptr) return {};  // base rules alone; a test sees to it that this does not happen
  auto profile = ParseProfile(nearest->name, nearest->text);
  const std::string own_name = prefix + (identity.version.empty() ? "" : "-" + identity.version);
  // The texts are compiled in, and a test reads them all.
  return {profile.ok() ? profile.value() : Profile{nearest->name, {}}, own_name == nearest->name};
}

const Profile* BaseProfile() {
  static const Profile base = [] {
    for (unsigned i = 0; i < kProfileCount; ++i) {
      if (std::string_view(kProfiles[i].name) != "worker") continue;
      auto parsed = ParseProfile(kProfiles[i].name, kProfiles[i].text);
      if (parsed.ok()) return parsed.value();
    }
    return Profile{};
  }();
  return &base;
}

}  // namespace causeway::sandbox
