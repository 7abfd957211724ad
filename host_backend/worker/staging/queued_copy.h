// SPDX-License-Identifier: Apache-2.0
// Large copies of ordinary memory whose pieces the GPU waits for by itself
// (ivshmem_ring/messages/copy_messages.h). They run on streams of the worker's own, so that a piece that is
// not ready holds up no other work of the context. Any thread may call these functions.
#pragma once
#include <map>
#include <mutex>
#include <utility>

#include "host_backend/worker/session/session.h"
#include "ivshmem_ring/messages/copy_messages.h"

namespace causeway::host {

// The streams for one context and direction: while one writes a piece's word the other copies.
struct CopyQueue {
  CUstream stream[kQueueStreams] = {};
  CUevent event[kQueueStreams] = {};  // they order the copy with the program's streams
};

class CopyQueues : public SessionPart {
 public:
  // The queue of the current context, which is made at the first use. The errors are the driver's.
  CUresult Get(CUcontext context, bool to_device, CopyQueue* queue);
  // False: nothing was ever queued there.
  bool Find(CUcontext context, bool to_device, CopyQueue* queue);
  // Forgets the context's queues, whose streams and events end with it.
  void ContextEnds(CUcontext context) override;

 private:
  std::mutex mutex_;
  std::map<std::pair<CUcontext, bool>, CopyQueue> queues_;
};

}  // namespace causeway::host
