// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/takeover/vault.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "host_backend/common/result.h"
#include "host_backend/daemon/process/launcher_link.h"

namespace causeway::daemon {
namespace {

constexpr unsigned kKindShift = 56;
constexpr off_t kMostStateBytes = 1 << 20;

UniqueFd FileOf(const std::string& text) {
  UniqueFd file(memfd_create("causeway-record", MFD_CLOEXEC));
  if (file && pwrite(file.get(), text.data(), text.size(), 0) != ssize_t(text.size())) file.reset();
  return file;
}

std::string TextOf(int file) {
  struct stat info {};
  if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > kMostStateBytes) return {};
  std::string text(size_t(info.st_size), '\0');
  return pread(file, text.data(), text.size(), 0) == ssize_t(text.size()) ? text : "";
}

// The kernel counts the descriptors that are on their way between all processes of a user: for a moment there may be too many.
LauncherLink::Kept TakePatiently(LauncherLink& launcher, uint32_t number, int* patience) {
  constexpr useconds_t kPauseMicroseconds = 10'000;
  LauncherLink::Kept kept = launcher.Take(number);
  for (; kept.error == ETOOMANYREFS && *patience > 0; --*patience) {
    usleep(kPauseMicroseconds);
    kept = launcher.Take(number);
  }
  return kept;
}

}  // namespace

UniqueFd Vault::Record::Take(std::string_view name) {
  for (auto& [own, descriptor] : descriptors) {
    if (own == name) return std::move(descriptor);
  }
  return {};
}

bool Vault::keeps() const {
  return launcher_ != nullptr && launcher_->keeps();
}

uint64_t Vault::NewKey(Kind kind) {
  return keeps() ? uint64_t(kind) << kKindShift | ++last_number_ : 0;
}

void Vault::Put(uint64_t key, const Json& state, const Descriptors& descriptors, pid_t worker,
                const ClosingAccountRef& account) {
  if (key == 0) return;
  Json record = {{"version", kStateVersion}, {"state", state}};
  Json names = Json::array();
  std::vector<int> numbers(1);
  for (const auto& [name, number] : descriptors) {
    if (number < 0) continue;
    names.push_back(name);
    numbers.push_back(number);
  }
  record["descriptors"] = names;
  const UniqueFd file = FileOf(JsonText(record));
  if (!file) return Drop(key);  // what has no record ends with this daemon
  numbers[0] = file.get();
  // A listening socket is this daemon's own, and its address is free again when the launcher says that it has forgotten it.
  if (Kind(key >> kKindShift) != Kind::kListener) launcher_->Hold(key, numbers, account);
  launcher_->Keep(key, worker, numbers);
}

void Vault::Drop(uint64_t& key) {
  if (key != 0) launcher_->Forget(std::exchange(key, 0));
}

void Vault::AwaitAll() {
  if (launcher_ != nullptr) launcher_->AwaitAll();
}

// "" or what is wrong with it. Key and worker are what the launcher says: it has kept them beside the text.
std::string Vault::Read(const std::string& text, std::vector<UniqueFd>& descriptors, Record* record) {
  const std::string ends = "; what it tells of ends.";
  const Json json = Json::parse(text, nullptr, false);
  const auto field = [&](const char* name) { return json.is_object() ? json.value(name, Json()) : Json(); };
  const Json version = field("version"), state = field("state"), names = field("descriptors");
  if (!version.is_number_unsigned()) return "A record of the causewayd of before is damaged" + ends;
  if (version.get<uint64_t>() > kStateVersion)
    return "A record of a causewayd of a later version (" + std::to_string(version.get<uint64_t>()) +
           ", this one reads " + std::to_string(kStateVersion) + ") cannot be read" + ends;
  const auto kind = Kind(record->key >> kKindShift);
  if (!HasForm(kind, state) || !names.is_array() || names.size() + 1 != descriptors.size() ||
      !std::all_of(names.begin(), names.end(), [](const Json& name) { return name.is_string(); }))
    return "A record of the causewayd of before is damaged" + ends;
  for (size_t at = 0; at < names.size(); ++at) {
    const auto name = names[at].get<std::string>();
    if (!HasSort(name, descriptors[at + 1].get()))
      return "A record of the causewayd of before has something else as its " + PrintableText(name) + ends;
  }
  record->kind = kind;
  record->state = state;
  for (size_t at = 0; at < names.size(); ++at)
    record->descriptors.emplace_back(names[at].get<std::string>(), std::move(descriptors[at + 1]));
  return {};
}

// What cannot be fetched ends as what is damaged does, and those behind it go on.
void Vault::Load(std::vector<std::string>* problems) {
  if (!keeps()) return;
  int patience = 100;  // pauses, of all records together
  for (uint32_t number = 0; number < launcher::kMaxKept; ++number) {
    LauncherLink::Kept kept = TakePatiently(*launcher_, number, &patience);
    if (kept.error == ENOENT) return;
    Record record;
    record.key = kept.key;
    record.worker = kept.worker;
    std::vector<int> numbers;
    for (const UniqueFd& each : kept.descriptors) numbers.push_back(each.get());
    if (Kind(kept.key >> kKindShift) != Kind::kListener) launcher_->Hold(kept.key, numbers, {});
    std::string problem;
    if (kept.error == 0) {
      problem = Read(TextOf(kept.descriptors[0].get()), kept.descriptors, &record);
    } else {
      problem = "A record of the causewayd of before cannot be fetched from the launcher: " +
                ErrnoText(kept.error) + "; what it tells of ends.";
    }
    if (!problem.empty()) problems->push_back(problem);
    last_number_ = std::max(last_number_, record.key & ((uint64_t{1} << kKindShift) - 1));
    records_.push_back(std::move(record));
    if (kept.error != 0 && kept.error != ETOOMANYREFS && kept.error != EMFILE) return;
  }
}

std::vector<Vault::Record*> Vault::All(Kind kind) {
  std::vector<Record*> all;
  for (Record& record : records_) {
    if (record.key != 0 && record.kind == kind) all.push_back(&record);
  }
  return all;
}

Vault::Record Vault::Adopt(Record& record) {
  Record taken = std::move(record);
  record = {};
  return taken;
}

size_t Vault::EndUntaken() {
  size_t ended = 0;
  for (Record& record : records_) {
    if (record.key == 0) continue;
    ++ended;
    if (record.worker > 0) launcher_->Abandon(record.worker);
    Drop(record.key);
  }
  records_.clear();
  return ended;
}

}  // namespace causeway::daemon
