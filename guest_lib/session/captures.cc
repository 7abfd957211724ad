// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/session/captures.h"

#include <mutex>
#include <vector>

#include "guest_lib/process/lock_order.h"

namespace causeway::guest {
namespace {

Mutex<Lock::kCaptureOrigins> origins_mutex;
struct Origin {
  Object* stream;
  uint64_t id;
};
auto& origins = *new std::vector<Origin>;  // the streams they began in; never destroyed

}  // namespace

// Streams that were destroyed have taken their captures along.
void NoteCapture(Object* stream, bool begins) {
  const std::lock_guard lock(origins_mutex);
  std::erase_if(origins, [&](const Origin& origin) {
    return origin.stream == stream || origin.stream->id != origin.id ||
           FindObject(HandleKind::kStream, origin.stream) == nullptr;
  });
  if (begins) origins.push_back({stream, stream->id});
  open_captures.store(origins.size(), std::memory_order_release);
}

}  // namespace causeway::guest
