// SPDX-License-Identifier: Apache-2.0
// The captures of this process.
#include "guest_lib/session/captures.h"

#include <atomic>
#include <mutex>
#include <vector>

#include "guest_lib/process/lock_order.h"

namespace causeway::guest {
namespace {

// Captures begun and not ended. While there is none, no stream of this process is capturing.
std::atomic<size_t> captures{0};
Mutex<Lock::kCaptureOrigins> origins_mutex;
struct Origin {
  Object* stream;
  uint64_t id;
};
auto& origins = *new std::vector<Origin>;  // the streams they began in; never destroyed

}  // namespace

bool AnyCapture() {
  return captures.load(std::memory_order_acquire) != 0;
}

// Streams that were destroyed have taken their captures along.
void NoteCapture(Object* stream, bool begins) {
  const std::lock_guard lock(origins_mutex);
  std::erase_if(origins, [&](const Origin& origin) {
    return origin.stream == stream || origin.stream->id != origin.id ||
           FindObject(HandleKind::kStream, origin.stream) == nullptr;
  });
  if (begins) origins.push_back({stream, stream->id});
  captures.store(origins.size(), std::memory_order_release);
}

}  // namespace causeway::guest
