// SPDX-License-Identifier: Apache-2.0
// With SOFTWARE_GPU_STRICT_HANDLES=1 the process aborts where NVIDIA's driver would read freed memory or
// change what another thread reads: a call that names an object that has ended, one that ends an object while
// a call of another thread uses it, two calls at once in one graph, executable graph or link, a graph that is
// put into itself.
#pragma once

#include <cstdint>

namespace causeway::software_gpu {

bool HasStrictHandles();

// Of the registries (handles.h). Outside of calls these do nothing.
void NoteMade(uint64_t handle);
void NoteUse(uint64_t handle, bool exclusive);
void NoteMissed(uint64_t handle);  // not found where it was looked for
void NoteEnd(uint64_t handle);
void NoteGraphIntoItself(uint64_t handle);
void NoteContentsEnd(uint64_t handle);  // the object stays: a primary context

// One exported call of the calling thread: what it uses it uses until it returns.
class CallScope {
 public:
  explicit CallScope(const char* function);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
};

}  // namespace causeway::software_gpu
