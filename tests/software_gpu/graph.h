// SPDX-License-Identifier: Apache-2.0
// Graphs, and stream capture, which turns submitted operations into graph nodes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/software_gpu/driver.h"
#include "tests/software_gpu/memory.h"
#include "tests/software_gpu/stream.h"

namespace causeway::software_gpu {

// Something a stream executes, once or, as a graph's node, many times.
struct Operation {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  std::function<void()> run;
  // What the node's GetParams call answers: the type's parameter structure with deep copies behind its
  // pointers, or null for operations whose parameters cannot be asked for.
  std::shared_ptr<const void> parameters;
  bool always = false;  // also run after a device fault
};

struct Graph;
struct UserObject;  // graph_user_object.cc

struct Node {
  CUgraphNode handle = nullptr;
  std::weak_ptr<Graph> graph;
  Operation operation;
  std::vector<std::shared_ptr<Node>> dependencies;
  std::weak_ptr<Node> original;                      // in the graph that this node's graph was cloned from
  std::shared_ptr<Graph> child;                      // of a child graph node: its own copy
  std::map<int, CUlaunchAttributeValue> attributes;  // of a kernel node: those that were set
  ~Node();
};
using NodeRef = std::shared_ptr<Node>;

// How many references to each user object somebody has; all of them together keep it alive.
using UserReferences = std::map<std::shared_ptr<UserObject>, uint64_t>;

// Guarded by GraphLock().
struct Graph {
  CUgraph handle = nullptr;
  std::vector<NodeRef> nodes;
  std::vector<AllocationRef>
      allocations;  // of captured stream-ordered allocations; live as long as the graph
  UserReferences user_objects;
  bool embedded = false;  // a child graph node's own
  ~Graph();
};
using GraphRef = std::shared_ptr<Graph>;

// One cuStreamBeginCapture .. cuStreamEndCapture. Guarded by GraphLock().
struct CaptureSequence {
  uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  ContextRef context;
  StreamRef origin;
  GraphRef graph;
  bool given = false;  // the graph is the program's, and outlasts a failure
  bool invalidated = false;
  std::map<Stream*, std::vector<NodeRef>> tails;  // what each taking-part stream's next node depends on
  std::vector<StreamRef> streams;                 // all that take part, the origin included
};
using CaptureRef = std::shared_ptr<CaptureSequence>;

std::mutex& GraphLock();

// Makes a node; caller holds GraphLock().
NodeRef AddNode(const GraphRef& graph, Operation operation, std::vector<NodeRef> dependencies);

// Registers a new graph and returns it.
GraphRef MakeGraph();

// Queues the operation, or adds it to the graph when the stream is capturing. *done, if wanted, is the queued
// operation's end and null when captured.
CUresult Submit(const StreamRef& stream, Operation operation, CompletionRef* done = nullptr);

bool IsCapturing(const StreamRef& stream);
// Whether the stream captures and the capture is invalidated.
bool IsCaptureBroken(const StreamRef& stream);
// Whether work in the stream would have to wait for one that captures, as in the legacy stream. Asking ends no capture.
bool MeetsCapture(const StreamRef& stream);

// The answer for an operation that capture forbids, for the calling thread: 0 or 900 (which ends the
// capture).
CUresult RefuseWhileCapturing();

// 900 when the stream takes part in a capture; 0 otherwise.
CUresult RefuseWhileStreamCaptures(const StreamRef& stream);
// The same, and CUDA_ERROR_STREAM_CAPTURE_IMPLICIT for the legacy stream beside a blocking stream's capture.
CUresult RefuseInCapture(const StreamRef& stream);

// Waits for the destructors of user objects that have begun.
void AwaitUserObjects();

// The captures of a context that ends are over.
void EndCapturesOf(const Context& context);

// 900 when any stream of the context takes part in a capture; 0 otherwise.
CUresult RefuseWhileContextCaptures(const Context& context);

}  // namespace causeway::software_gpu
