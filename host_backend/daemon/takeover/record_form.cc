// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/takeover/record_form.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <span>

#include "host_backend/common/unique_fd.h"

namespace causeway::daemon {
namespace {

using IsType = bool (*)(const Json&);

struct Field {
  std::string_view name;
  IsType is_type;
  bool added_later = false;  // records of earlier releases lack it
};

bool IsText(const Json& value) {
  return value.is_string();
}
bool IsBool(const Json& value) {
  return value.is_boolean();
}
bool IsCount(const Json& value) {
  return value.is_number_unsigned() || (value.is_number_integer() && value.get<int64_t>() >= 0);
}
bool IsCountOrNull(const Json& value) {
  return value.is_null() || IsCount(value);
}
bool IsTexts(const Json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), IsText);
}
bool IsCounts(const Json& value) {
  return value.is_object() && std::all_of(value.begin(), value.end(), IsCount);
}
// Path, version, devices, whether modules load lazily, and what confines workers.
bool IsDriver(const Json& value) {
  return value.is_array() && value.size() == 5 && IsText(value[0]) && IsCount(value[1]) &&
         IsCount(value[2]) && IsBool(value[3]) && IsText(value[4]);
}
// Of three event channels, or none.
bool IsPorts(const Json& value) {
  return value.is_array() && (value.empty() || value.size() == 3) &&
         std::all_of(value.begin(), value.end(), IsCount);
}

// Of each scope the numbers that were set.
bool IsCountsOfEach(const Json& value) {
  return value.is_object() && std::all_of(value.begin(), value.end(), IsCounts);
}
bool IsNumbers(const Json& value) {
  return value.is_object() &&
         std::all_of(value.begin(), value.end(), [](const Json& each) { return each.is_number(); });
}

constexpr Field kListener[] = {{"path", IsText}};
constexpr Field kFolders[] = {{"users", IsBool}, {"folder", IsText}, {"shm", IsText},
                              {"cache", IsText}, {"links", IsText},  {"users_problem", IsText}};
constexpr Field kAccount[] = {{"scope", IsText}, {"limit", IsCount}};
constexpr Field kWorker[] = {{"kind", IsCount},           {"api_hash", IsCount},
                             {"assigned", IsBool},        {"confined", IsBool},
                             {"link", IsCount},           {"user", IsCount},
                             {"number", IsCount},         {"own", IsBool},
                             {"scope", IsText},           {"kept_for", IsText},
                             {"user_scope", IsText},      {"entry_user", IsCount},
                             {"cell", IsCountOrNull},     {"in_cgroup", IsBool},
                             {"oom_kills", IsCount},      {"start_bytes", IsCounts},
                             {"driver", IsDriver},        {"asks_again", IsBool, true},
                             {"devices", IsTexts, true},  {"waits_for_guests", IsBool, true},
                             {"compresses", IsBool, true}};
constexpr Field kConnection[] = {{"pid", IsCount},   {"uid", IsCount},   {"scope", IsText},
                                 {"family", IsText}, {"bytes", IsCount}, {"begun", IsBool}};
constexpr Field kSession[] = {{"vm", IsText},          {"slot", IsCount},     {"session", IsCount},
                              {"connection", IsCount}, {"worker", IsCount},   {"window", IsCount},
                              {"pid", IsCount},        {"uid", IsCount},      {"number", IsCount},
                              {"release", IsText},     {"opened_ns", IsCount}};
constexpr Field kRegion[] = {{"vm", IsText},      {"xen_domain", IsText}, {"mib", IsCount},
                             {"domain", IsCount}, {"epoch", IsCount},     {"directory", IsCount},
                             {"ports", IsPorts}};
constexpr Field kDoorbell[] = {{"vm", IsText},    {"path", IsText},    {"group", IsText},
                               {"user", IsCount}, {"device", IsCount}, {"inode", IsCount}};
constexpr Field kStream[] = {{"kind", IsText},           {"place", IsText},
                             {"user", IsCountOrNull},    {"worker", IsCount},
                             {"pid", IsCount},           {"number", IsCount},
                             {"release", IsText},        {"opened_ns", IsCount},
                             {"key_id", IsText, true},   {"waits", IsBool, true},
                             {"token", IsText, true},    {"grace_s", IsCount, true},
                             {"attempt", IsCount, true}, {"compresses", IsBool, true}};
constexpr Field kShared[] = {
    {"scope", IsText}, {"session", IsCount}, {"kind", IsCount}, {"token", IsText}, {"bytes", IsText}};
constexpr Field kImage[] = {{"scope", IsText}, {"hash", IsText}, {"bytes", IsCount}};
constexpr Field kShares[] = {{"paused", IsTexts}, {"set", IsCountsOfEach}, {"turn_ms", IsNumbers}};

std::span<const Field> FieldsOf(RecordKind kind) {
  switch (kind) {
    case RecordKind::kListener:
      return kListener;
    case RecordKind::kFolders:
      return kFolders;
    case RecordKind::kAccount:
      return kAccount;
    case RecordKind::kWorker:
      return kWorker;
    case RecordKind::kConnection:
      return kConnection;
    case RecordKind::kSession:
      return kSession;
    case RecordKind::kRegion:
      return kRegion;
    case RecordKind::kDoorbell:
      return kDoorbell;
    case RecordKind::kStream:
      return kStream;
    case RecordKind::kShared:
      return kShared;
    case RecordKind::kImage:
      return kImage;
    case RecordKind::kShares:
      return kShares;
  }
  return {};
}

}  // namespace

bool HasForm(RecordKind kind, const Json& state) {
  const std::span<const Field> fields = FieldsOf(kind);
  return state.is_object() && !fields.empty() &&
         std::all_of(fields.begin(), fields.end(), [&](const Field& field) {
           const auto found = state.find(field.name);
           return found != state.end() ? field.is_type(*found) : field.added_later;
         });
}

bool HasSort(std::string_view name, int descriptor) {
  constexpr std::string_view kWatched[] = {"listener", "control", "output", "pidfd",     "questions",
                                           "socket",   "work",    "guest",  "interrupt", "client"};
  if (std::ranges::find(kWatched, name) == std::end(kWatched)) return true;
  int listens = 0;
  socklen_t length = sizeof listens;
  if (name == "listener" &&
      (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens == 0))
    return false;
  const UniqueFd trial(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  // Where there is no descriptor left for the trial, there will be none for the daemon's work either.
  return trial && epoll_ctl(trial.get(), EPOLL_CTL_ADD, descriptor, &event) == 0;
}

std::chrono::steady_clock::time_point OpenedOf(const Json& state) {
  using Clock = std::chrono::steady_clock;
  const auto now = Clock::now();
  const auto opened =
      std::min(state.at("opened_ns").get<uint64_t>(), uint64_t(now.time_since_epoch().count()));
  return Clock::time_point(Clock::duration(Clock::rep(opened)));
}

}  // namespace causeway::daemon
