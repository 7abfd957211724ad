// SPDX-License-Identifier: Apache-2.0
// Synchronising natively also gives back what was freed to pools. So it does more than wait from such a free
// on (of which the host was told) until the host has synchronised with the stream of the free.
//
// Any thread may call these; the lock inside is the innermost.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>

#include "guest_lib/session/handles.h"

namespace causeway::guest {

// A stream as long as it lives; the legacy stream of a context has no object.
struct StreamKey {
  Object* context = nullptr;
  Object* stream = nullptr;
  uint64_t id = 0;
  bool operator==(const StreamKey&) const = default;
};

bool IsAlive(const StreamKey& key);
// False for what only the host can judge: captures, streams of other contexts.
bool KeyOf(CUstream stream, StreamKey* key);

// The host was told of a free, in that stream.
void NoteFreedOnHost(CUstream stream);
void NoteFreedOnHost(const StreamKey& stream);
// The same, wherever: pools may keep less than before.
void NotePoolsKeepLess();
// Whether a synchronisation by the host may do more than wait.
bool MayGiveMemoryBack();

// Accompanies a synchronisation by the host: before it is sent until its answer has come.
class GivingBack {
 public:
  explicit GivingBack(CUstream stream);
  GivingBack();  // of the current context
  void Note(CUresult answer) const;

 private:
  uint64_t until_;  // of the frees
  Object* context_ = nullptr;
  Object* stream_ = nullptr;
  uint64_t id_ = 0;
  bool all_;
};

}  // namespace causeway::guest
