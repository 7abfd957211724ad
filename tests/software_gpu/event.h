// SPDX-License-Identifier: Apache-2.0
// Events: the end of the work submitted before the last record.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "tests/software_gpu/graph.h"
#include "tests/software_gpu/stream.h"

namespace causeway::software_gpu {

struct Event {
  unsigned flags = 0;
  std::weak_ptr<Context> context;

  std::mutex mutex;
  CompletionRef recorded;                  // null: never recorded, which counts as ended
  std::weak_ptr<CaptureSequence> capture;  // set when the last record was captured
  std::vector<NodeRef> capture_nodes;      // what the captured record stands for
};
using EventRef = std::shared_ptr<Event>;

EventRef FindEvent(CUevent handle);
void DestroyEventsOf(Context& context);

// Queues a record on the stream (no capture checks).
void RecordEvent(const StreamRef& stream, const EventRef& event);

// Used by graph nodes, on the executing thread: the event ends now / wait for the event's last record.
void MarkEvent(Event& event);
void WaitForEvent(Event& event);

// Handles the record / wait if the stream or the event takes part in a capture; false if it does not.
bool RecordInCapture(const StreamRef& stream, Event& event, CUresult* result);
bool WaitInCapture(const StreamRef& stream, Event& event, CUresult* result);

}  // namespace causeway::software_gpu
