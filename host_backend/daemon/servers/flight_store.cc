// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/servers/flight_store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>

#include "host_backend/common/json.h"

namespace causeway::daemon {
namespace {

bool MayRead(const SessionStatus& status, const std::string& scope) {
  return scope.empty() || status.scope == scope;
}

Json JsonOf(const FlightCopy& copy, bool ended) {
  const SessionStatus& status = copy.status;
  return {{"number", status.number},
          {"kind", status.kind},
          {"vm", status.vm},
          {"pid", status.pid},
          {"uid", status.uid},
          {"worker_pid", status.worker_pid},
          {"calls", status.usage.calls},
          {"state", ended ? "ended" : status.state},
          {"end", copy.end},
          {"guest_bytes", copy.guest.size()},
          {"host_bytes", copy.host.size()}};
}

}  // namespace

std::unique_ptr<FlightFile> FlightFile::Make() {
  UniqueFd fd(memfd_create("causeway-flight", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), sizeof(FlightImage)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return nullptr;
  }
  return Of(std::move(fd));
}

std::unique_ptr<FlightFile> FlightFile::Of(UniqueFd fd) {
  struct stat info {};
  const bool fits = fd && fcntl(fd.get(), F_GET_SEALS) >= F_SEAL_SHRINK && fstat(fd.get(), &info) == 0 &&
                    info.st_size == off_t(sizeof(FlightImage));
  if (!fits) return nullptr;
  const void* image = mmap(nullptr, sizeof(FlightImage), PROT_READ, MAP_SHARED, fd.get(), 0);
  if (image == MAP_FAILED) return nullptr;
  return std::unique_ptr<FlightFile>(new FlightFile(std::move(fd), image));
}

FlightFile::~FlightFile() {
  munmap(const_cast<void*>(image_), sizeof(FlightImage));
}

std::string FlightFile::Copy() const {
  return std::string(static_cast<const char*>(image_), sizeof(FlightImage));
}

uint64_t FlightStore::Begin(Copier copier) {
  live_.emplace(++last_number_, std::move(copier));
  return last_number_;
}

void FlightStore::Resume(uint64_t number, Copier copier) {
  last_number_ = std::max(last_number_, number);
  live_.emplace(number, std::move(copier));
}

void FlightStore::End(uint64_t number) {
  const auto found = live_.find(number);
  if (found == live_.end()) return;
  ended_.push_back(found->second(true));
  live_.erase(found);
  if (ended_.size() <= kEnded) return;
  // The oldest of the scope that has most: none can have others' forgotten.
  std::map<std::string, size_t> sessions;
  for (const FlightCopy& copy : ended_) ++sessions[copy.status.scope];
  const auto most =
      std::max_element(sessions.begin(), sessions.end(),
                       [](const auto& one, const auto& other) { return one.second < other.second; });
  ended_.erase(std::find_if(ended_.begin(), ended_.end(),
                            [&](const FlightCopy& copy) { return copy.status.scope == most->first; }));
}

Result<std::string> FlightStore::Answer(uint64_t wanted, const std::string& scope) const {
  std::map<uint64_t, FlightCopy> all;  // without images, in the order of their numbers
  for (const FlightCopy& copy : ended_) {
    if (MayRead(copy.status, scope)) all[copy.status.number] = {copy.status, copy.end, "", ""};
  }
  for (const auto& [number, copier] : live_) {
    FlightCopy copy = copier(false);
    if (MayRead(copy.status, scope)) all[number] = std::move(copy);
  }
  if (wanted == kTraceLast && !all.empty()) wanted = all.rbegin()->first;
  if (wanted != kTraceList && !all.contains(wanted)) {
    return Error{all.empty()
                     ? "No session has been served that you may look into."
                     : "The host knows no session of that number; `causeway trace --list` shows them."};
  }
  FlightCopy chosen;
  if (const auto live = live_.find(wanted); live != live_.end()) chosen = live->second(true);
  for (const FlightCopy& copy : ended_) {
    if (copy.status.number == wanted) chosen = copy;
  }
  Json sessions = Json::array();
  for (const auto& [number, copy] : all) {
    if (wanted == kTraceList || number == wanted)
      sessions.push_back(JsonOf(wanted == number ? chosen : copy, !live_.contains(number)));
  }
  const std::string text = JsonText({{"sessions", std::move(sessions)}});
  if (wanted == kTraceList) return text;
  return text + '\0' + chosen.guest + chosen.host;
}

}  // namespace causeway::daemon
