// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/stream/giving_back.h"

#include <atomic>
#include <mutex>
#include <vector>

#include "guest_lib/process/lock_order.h"
#include "guest_lib/session/captures.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

// Frees that the host was told of and has not synchronised with since: the newest of each stream.
struct Freed {
  StreamKey stream;  // id 0: anywhere in the context
  uint64_t number;
};
struct FreedOnHost {
  Mutex<Lock::kFreedOnHost> mutex;
  std::vector<Freed> newest;
  uint64_t number = 0;
};
FreedOnHost& freed = *new FreedOnHost;  // never destroyed
std::atomic<bool> any_freed{false};
std::atomic<bool> not_followed{false};  // frees in more streams than are followed, or nobody knows where

}  // namespace

bool IsAlive(const StreamKey& key) {
  if (FindObject(HandleKind::kContext, key.context) == nullptr || !ContextOf(key.context).active.load())
    return false;
  return key.stream == nullptr
             ? key.context->id == key.id
             : FindObject(HandleKind::kStream, key.stream) != nullptr && key.stream->id == key.id;
}

bool KeyOf(CUstream stream, StreamKey* key) {
  key->context = CurrentContextObject();
  if (AnyCapture() || key->context == nullptr || !ContextOf(key->context).active.load()) return false;
  if (stream == CU_STREAM_PER_THREAD) stream = PerThreadStream();
  if (stream == nullptr || stream == CU_STREAM_LEGACY) {
    key->id = key->context->id;
    return true;
  }
  key->stream = Find(stream);
  if (key->stream == nullptr || key->stream->context != key->context) return false;
  key->id = key->stream->id;
  return true;
}

void NoteFreedOnHost(const StreamKey& stream) {
  constexpr size_t kMostStreams = 64;
  const std::lock_guard lock(freed.mutex);
  ++freed.number;
  any_freed.store(true, std::memory_order_release);
  for (Freed& newest : freed.newest) {
    if (newest.stream == stream) {
      newest.number = freed.number;
      return;
    }
  }
  if (freed.newest.size() < kMostStreams) {
    freed.newest.push_back({stream, freed.number});
  } else {
    not_followed.store(true, std::memory_order_release);
  }
}

void NoteFreedOnHost(CUstream stream) {
  StreamKey key;
  if (KeyOf(stream, &key)) {
    NoteFreedOnHost(key);
  } else {
    not_followed.store(true, std::memory_order_release);
  }
}

void NotePoolsKeepLess() {
  if (Object* context = CurrentContextObject()) NoteFreedOnHost({.context = context});
}

bool MayGiveMemoryBack() {
  return AnyHeld() || any_freed.load(std::memory_order_acquire) ||
         not_followed.load(std::memory_order_acquire);
}

GivingBack::GivingBack(CUstream stream) : GivingBack() {
  StreamKey key;
  all_ = false;
  if (any_freed.load(std::memory_order_relaxed) && KeyOf(stream, &key)) {
    stream_ = key.stream;
    id_ = key.id;
  }
}

GivingBack::GivingBack() : context_(CurrentContextObject()), all_(true) {
  FreeHeld();  // before it is counted what is there
  const std::lock_guard lock(freed.mutex);
  until_ = freed.number;
}

void GivingBack::Note(CUresult answer) const {
  if (answer != CUDA_SUCCESS || context_ == nullptr || !any_freed.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(freed.mutex);
  std::erase_if(freed.newest, [this](const Freed& newest) {
    const StreamKey& where = newest.stream;
    if (where.context != context_) return !IsAlive({.context = where.context, .id = where.context->id});
    return newest.number <= until_ && (all_ || where.id == 0 || (where.stream == stream_ && where.id == id_));
  });
  if (freed.newest.empty()) any_freed.store(false, std::memory_order_release);
}

}  // namespace causeway::guest
