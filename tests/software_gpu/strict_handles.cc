// SPDX-License-Identifier: Apache-2.0
#include "tests/software_gpu/strict_handles.h"

#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tests/software_gpu/call_gate.h"
#include "tests/software_gpu/config.h"

namespace causeway::software_gpu {
namespace {

// A thread's calls, innermost last.
struct Caller {
  int depth = 0;
  const char* function = "";  // the outermost
};
thread_local Caller caller;

struct Use {
  const Caller* by;
  std::string function;
  bool exclusive;
};

struct State {
  std::mutex mutex;
  std::unordered_set<uint64_t> alive, ended;
  std::unordered_map<uint64_t, std::vector<Use>> uses;
};
State& TheState() {
  static auto* state = new State;
  return *state;
}

[[noreturn]] void Abort(const char* what, uint64_t handle, const std::string& other) {
  const int file = GetConfig().misuse_file;
  dprintf(file >= 0 ? file : STDERR_FILENO,
          "software GPU: %s %s of handle 0x%llx%s%s, as SOFTWARE_GPU_STRICT_HANDLES forbids\n",
          caller.function, what, static_cast<unsigned long long>(handle),
          other.empty() ? "" : " that another thread uses in ", other.c_str());
  std::abort();
}

}  // namespace

bool HasStrictHandles() {
  return GetConfig().strict_handles;
}

void NoteMade(uint64_t handle) {
  if (!HasStrictHandles()) return;
  const std::lock_guard lock(TheState().mutex);
  TheState().alive.insert(handle);
}

void NoteUse(uint64_t handle, bool exclusive) {
  if (!HasStrictHandles() || caller.depth == 0 || handle == 0) return;
  const std::lock_guard lock(TheState().mutex);
  std::vector<Use>& uses = TheState().uses[handle];
  for (const Use& use : uses) {
    if (use.by != &caller && (exclusive || use.exclusive)) Abort("makes use", handle, use.function);
  }
  uses.push_back({&caller, caller.function, exclusive});
}

void NoteGraphIntoItself(uint64_t handle) {
  if (HasStrictHandles()) Abort("puts into itself the graph", handle, {});
}

void NoteMissed(uint64_t handle) {
  if (!HasStrictHandles() || caller.depth == 0) return;
  const std::lock_guard lock(TheState().mutex);
  if (TheState().ended.contains(handle) && !TheState().alive.contains(handle))
    Abort("makes use after the end", handle, "");
}

void NoteEnd(uint64_t handle) {
  if (!HasStrictHandles()) return;
  NoteContentsEnd(handle);
  const std::lock_guard lock(TheState().mutex);
  TheState().alive.erase(handle);
  TheState().ended.insert(handle);
}

void NoteContentsEnd(uint64_t handle) {
  if (!HasStrictHandles()) return;
  const std::lock_guard lock(TheState().mutex);
  const auto found = TheState().uses.find(handle);
  if (found == TheState().uses.end() || caller.depth == 0) return;
  for (const Use& use : found->second) {
    if (use.by != &caller) Abort("is the end", handle, use.function);
  }
}

CallScope::CallScope(const char* function) {
  CallGate::Enter();
  if (!HasStrictHandles()) return;
  if (caller.depth++ == 0) caller.function = function;
}

CallScope::~CallScope() {
  struct Left {
    ~Left() { CallGate::Leave(); }
  } const left;
  if (!HasStrictHandles() || --caller.depth != 0) return;
  const std::lock_guard lock(TheState().mutex);
  for (auto entry = TheState().uses.begin(); entry != TheState().uses.end();) {
    std::erase_if(entry->second, [](const Use& use) { return use.by == &caller; });
    entry = entry->second.empty() ? TheState().uses.erase(entry) : std::next(entry);
  }
}

}  // namespace causeway::software_gpu
