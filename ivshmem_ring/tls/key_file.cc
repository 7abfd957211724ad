// SPDX-License-Identifier: Apache-2.0
#include "ivshmem_ring/tls/key_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <system_error>

#include "ivshmem_ring/tls/hexadecimal.h"

namespace causeway {
namespace {

constexpr std::string_view kFirstLine = "causeway-key 1";

std::string ParseField(std::string_view name, std::string_view value, Key* key) {
  const std::string quoted = "its line \"" + std::string(name) + "\"";
  if (name == "id") {
    if (!IsKeyId(value)) return quoted + " must have 32 hexadecimal digits";
    key->id = value;
  } else if (name == "vm") {
    key->vm = value;
  } else if (name == "secret") {
    if (!ReadHexadecimal(value, key->secret)) return quoted + " must have 64 hexadecimal digits";
    key->has_secret = true;
  } else if (name == "created" || name == "expires" || name == "revoked") {
    int64_t& time = name == "created" ? key->created : name == "expires" ? key->expires : key->revoked;
    time = ParseTime(value);
    if (time == 0) return quoted + " must be a time such as 2026-01-31T12:00:00Z";
  } else {
    return "it has a line \"" + std::string(name.substr(0, 40)) + "\", which no key has";
  }
  return {};
}

}  // namespace

bool IsKeyId(std::string_view text) {
  return text.size() == kKeyIdDigits && text.find_first_not_of(kHexadecimalDigits) == std::string_view::npos;
}

std::string ParseKey(std::string_view text, Key* key) {
  *key = {};
  bool first = true;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (first) {
      if (line != kFirstLine) return "its first line is not \"causeway-key 1\"";
      first = false;
      continue;
    }
    if (line.empty()) continue;
    const size_t blank = line.find(' ');
    const std::string_view value =
        blank == std::string_view::npos ? std::string_view() : line.substr(blank + 1);
    if (std::string problem = ParseField(line.substr(0, blank), value, key); !problem.empty()) return problem;
  }
  if (first) return "it is empty";
  if (key->id.empty()) return "its line \"id\" is missing";
  if (!key->has_secret && key->revoked == 0) return "its line \"secret\" is missing";
  return {};
}

std::string ReadKeyFile(const std::string& path, Key* key) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) return "the key file " + path + " cannot be read: " + std::generic_category().message(errno);
  struct stat found {};
  char text[kMaxKeyFileBytes + 1];
  size_t bytes = 0;
  ssize_t got = 0;
  std::string problem;
  if (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode)) {
    problem = "it is no regular file";
  } else if ((found.st_mode & S_IWOTH) != 0) {
    problem = "everybody may write it; take that right away (chmod o-w) and make a new key";
  } else {
    while (bytes < sizeof text && (got = read(fd, text + bytes, sizeof text - bytes)) > 0)
      bytes += static_cast<size_t>(got);
    if (got < 0) problem = std::generic_category().message(errno);
    if (bytes > kMaxKeyFileBytes) problem = "it is longer than a key file";
  }
  close(fd);
  if (problem.empty()) problem = ParseKey(std::string_view(text, bytes), key);
  // Not left behind on the stack; volatile, so that it is not left out.
  for (volatile char* at = text; at < text + sizeof text; ++at) *at = 0;
  return problem.empty() ? "" : "the key file " + path + " cannot be used: " + problem;
}

std::string KeyText(const Key& key, bool for_guest) {
  std::string text = std::string(kFirstLine) + "\nid " + key.id + "\n";
  if (!for_guest) {
    text += "vm " + key.vm + "\ncreated " + TimeText(key.created) + "\n";
    if (key.expires != 0) text += "expires " + TimeText(key.expires) + "\n";
    if (key.revoked != 0) text += "revoked " + TimeText(key.revoked) + "\n";
  }
  if (!key.has_secret) return text;
  return text + "secret " + HexadecimalText(key.secret) + "\n";
}

std::string TimeText(int64_t seconds) {
  const time_t time = static_cast<time_t>(seconds);
  tm parts{};
  char text[32] = "";
  if (gmtime_r(&time, &parts) != nullptr) strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

int64_t ParseTime(std::string_view text) {
  tm parts{};
  char end = 0;
  const std::string copy(text);
  if (std::sscanf(copy.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d%c", &parts.tm_year, &parts.tm_mon, &parts.tm_mday,
                  &parts.tm_hour, &parts.tm_min, &parts.tm_sec, &end) != 7 ||
      end != 'Z') {
    return 0;
  }
  parts.tm_year -= 1900;
  parts.tm_mon -= 1;
  const auto seconds = static_cast<int64_t>(timegm(&parts));
  // What is no day of the calendar becomes another one.
  return TimeText(seconds) == copy ? seconds : 0;
}

}  // namespace causeway
