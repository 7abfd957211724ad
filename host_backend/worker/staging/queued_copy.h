// SPDX-License-Identifier: Apache-2.0
// Large copies of ordinary memory whose pieces the GPU waits for by itself
// (ivshmem_ring/messages/copy_messages.h). They run on streams that no program knows: a piece that is not
// ready holds up nothing else of the context.
#pragma once
#include <map>
#include <mutex>
#include <utility>

#include "host_backend/worker/session/session.h"
#include "ivshmem_ring/messages/copy_messages.h"

namespace causeway::host {

// Of one context and direction. Two streams: while one writes a piece's word the other copies.
struct CopyQueue {
  CUstream stream[kQueueStreams] = {};
  CUevent event[kQueueStreams] = {};  // for order with the program's streams
};

class CopyQueues : public SessionPart {
 public:
  // Makes it at the first use; the context is current.
  CUresult Get(CUcontext context, bool to_device, CopyQueue* queue);
  // False: nothing was ever queued there.
  bool Find(CUcontext context, bool to_device, CopyQueue* queue);
  // Streams and events are gone with it.
  void ContextEnds(CUcontext context) override;

 private:
  std::mutex mutex_;
  std::map<std::pair<CUcontext, bool>, CopyQueue> queues_;
};

}  // namespace causeway::host
