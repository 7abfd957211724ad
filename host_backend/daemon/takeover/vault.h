// SPDX-License-Identifier: Apache-2.0
// What the next daemon needs to go on where this one ends, be it replaced or killed: a record for each session, worker and
// listening socket, which the launcher keeps (host_backend/launcher/protocol.h). A record is made before what it tells of
// begins and forgotten when that ends, so that there is nothing to save in a last moment. Nothing of a record comes from a
// worker or a guest but numbers and texts that the daemon had checked, and the bytes of what it shares with others. The
// daemon's thread calls all functions.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "host_backend/common/json.h"
#include "host_backend/common/unique_fd.h"
#include "host_backend/daemon/loop/closing.h"
#include "host_backend/daemon/takeover/record_form.h"

namespace causeway::daemon {

class LauncherLink;

// Of what a record holds. A daemon reads its own version and those before; records of a later one end what they tell of.
// A field that a reader may do without needs no new version.
inline constexpr uint32_t kStateVersion = 1;

class Vault {
 public:
  using Kind = RecordKind;
  using Descriptors = std::vector<std::pair<const char*, int>>;  // by name; -1: there is none

  struct Record {
    uint64_t key = 0;
    Kind kind{};
    pid_t worker = 0;  // 0: none
    Json state;
    std::vector<std::pair<std::string, UniqueFd>> descriptors;
    // Empty: it has none of that name, or it was taken.
    UniqueFd Take(std::string_view name);
  };

  // Before all else; the launcher outlives this. Without one, or with one that keeps nothing, nothing is kept.
  void Use(LauncherLink* launcher) { launcher_ = launcher; }
  bool keeps() const;

  // 0 where nothing is kept, which all functions below ignore.
  uint64_t NewKey(Kind kind);
  // `worker`: the process that lives on without a daemon for as long as it has this record; 0: none.
  // `account`: on which copies of the descriptors are closed (loop/closing.h).
  void Put(uint64_t key, const Json& state, const Descriptors& descriptors, pid_t worker = 0,
           const ClosingAccountRef& account = {});
  // Repeatable; clears `key`.
  void Drop(uint64_t& key);
  // Returns when the launcher has let go of what was dropped.
  void AwaitAll();

  // What a daemon of before has left, once, before anything is put. What nobody takes by EndUntaken ends there, and so does
  // what is damaged: All gives only records whose texts have the form of their kind (record_form.h).
  void Load(std::vector<std::string>* problems);
  bool has_records() const { return !records_.empty(); }
  std::vector<Record*> All(Kind kind);
  // The record is the caller's from now on, and is dropped by its key.
  Record Adopt(Record& record);
  // Returns how many there were.
  size_t EndUntaken();

 private:
  static std::string Read(const std::string& text, std::vector<UniqueFd>& descriptors, Record* record);
  LauncherLink* launcher_ = nullptr;
  uint64_t last_number_ = 0;
  std::vector<Record> records_;
};

}  // namespace causeway::daemon
