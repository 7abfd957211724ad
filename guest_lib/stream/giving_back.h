// SPDX-License-Identifier: Apache-2.0
// Whether synchronising has an effect besides waiting. Natively it also returns to the device what was freed
// to pools. So after such a free, of which the host was told, a synchronisation must not be answered in the
// guest until the host has synchronised with the stream of the free.
//
// Any thread may call these functions; no message is sent with the lock inside held.
#pragma once
#include "ivshmem_ring/protocol/driver_api.h"

#include <cstdint>

#include "guest_lib/session/handles.h"

namespace causeway::guest {

// Names a stream beyond its life, so that a number that is used again is not mistaken for it. The legacy
// stream of a context has no object.
struct StreamKey {
  Object* context = nullptr;
  Object* stream = nullptr;
  uint64_t id = 0;
  bool operator==(const StreamKey&) const = default;
};

bool IsAlive(const StreamKey& key);
// The key of a stream. False for cases that only the host can judge: captures, streams of other contexts.
bool KeyOf(CUstream stream, StreamKey* key);

// To be called when the host was told of a free in that stream.
void NoteFreedOnHost(CUstream stream);
void NoteFreedOnHost(const StreamKey& stream);
// To be called when the program has lowered what a pool may keep: any synchronisation of the current context
// may then return memory.
void NotePoolsKeepLess();
// Whether a synchronisation on the host may do more than wait.
bool MayGiveMemoryBack();

// Accompanies one synchronisation on the host. It is made before the call is sent; Note takes the host's
// answer, and if it is success forgets the frees that the synchronisation has covered.
class GivingBack {
 public:
  explicit GivingBack(CUstream stream);
  GivingBack();  // for a synchronisation with the current context
  void Note(CUresult answer) const;

 private:
  uint64_t until_;  // the number of frees before the synchronisation
  Object* context_ = nullptr;
  Object* stream_ = nullptr;
  uint64_t id_ = 0;
  bool all_;
};

}  // namespace causeway::guest
