// SPDX-License-Identifier: Apache-2.0
// Census category graph: what graphs do with the program's own functions and memory. Host nodes, user
// objects, copies from and to ordinary memory.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/driver/graph_fixture.h"
#include "tests/yield_until.h"

namespace causeway::driver_test {
namespace {

class GraphHostTest : public GraphTest {};

void CUDA_CB Count(void* counter) {
  static_cast<std::atomic<int>*>(counter)->fetch_add(1);
}
// Destructors run when they come to it; nothing waits for them.
bool Becomes(const std::atomic<int>& counter, int wanted) {
  for (int i = 0; i < 2000 && counter.load() != wanted; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return counter.load() == wanted;
}
// Long enough for what must not happen.
bool Stays(const std::atomic<int>& counter, int value) {
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return counter.load() == value;
}

CUDA_MEMCPY3D Linear(const void* host, CUdeviceptr device, size_t bytes, bool to_device) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = to_device ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  copy.dstMemoryType = to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  (to_device ? copy.dstDevice : copy.srcDevice) = device;
  if (to_device) {
    copy.srcHost = host;
  } else {
    copy.dstHost = const_cast<void*>(host);
  }
  copy.WidthInBytes = bytes;
  copy.Height = copy.Depth = 1;
  return copy;
}

TEST_F(GraphHostTest, HostNode) {
  std::atomic<int> counter{0}, other{0};
  CUDA_HOST_NODE_PARAMS params{&Count, &counter};
  CUgraphNode node = nullptr;
  OK(cuGraphAddHostNode(&node, graph_, nullptr, 0, &params));
  EXPECT_EQ(TypeOf(node), CU_GRAPH_NODE_TYPE_HOST);
  CUDA_HOST_NODE_PARAMS got{};
  OK(cuGraphHostNodeGetParams(node, &got));
  EXPECT_EQ(got.fn, &Count);
  EXPECT_EQ(got.userData, &counter);
  const CUgraphExec exec = Instantiate(graph_);
  Launch(exec);
  Launch(exec);
  EXPECT_EQ(counter.load(), 2);
  params.userData = &other;
  OK(cuGraphHostNodeSetParams(node, &params));
  OK(cuGraphHostNodeGetParams(node, &got));
  EXPECT_EQ(got.userData, &other);
  Launch(exec);
  EXPECT_EQ(counter.load(), 3);
  OK(cuGraphExecHostNodeSetParams(exec, node, &params));
  Launch(exec);
  EXPECT_EQ(counter.load(), 3);
  EXPECT_EQ(other.load(), 1);
  OK(cuGraphExecDestroy(exec));
  CUgraph clone = nullptr;
  CUgraphNode copy = nullptr;
  OK(cuGraphClone(&clone, graph_));
  OK(cuGraphNodeFindInClone(&copy, node, clone));
  OK(cuGraphHostNodeGetParams(copy, &got));
  EXPECT_EQ(got.userData, &other);
  Run(clone);
  EXPECT_EQ(other.load(), 2);
  OK(cuGraphDestroy(clone));
  params.fn = nullptr;
  EXPECT_EQ(cuGraphAddHostNode(&node, graph_, nullptr, 0, &params), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphAddHostNode(&node, graph_, nullptr, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
}

// After what it depends on, before what depends on it.
TEST_F(GraphHostTest, HostNodeInOrder) {
  std::atomic<int> counter{0};
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_HOST;
  params.host = {[](void* data) {
                   auto* at = static_cast<std::atomic<int>*>(data);
                   std::this_thread::sleep_for(std::chrono::milliseconds(20));
                   at->store(at->load() * 10 + 1);
                 },
                 &counter};
  CUgraphNode first = nullptr, second = nullptr;
  OK(cuGraphAddNode(&first, graph_, nullptr, nullptr, 0, &params));
  params.host.fn = [](void* data) {
    auto* at = static_cast<std::atomic<int>*>(data);
    at->store(at->load() * 10 + 2);
  };
  OK(cuGraphAddNode(&second, graph_, &first, nullptr, 1, &params));
  OK(cuGraphNodeSetParams(second, &params));
  Run(graph_);
  EXPECT_EQ(counter.load(), 12);
}

TEST_F(GraphHostTest, CapturedHostFunction) {
  std::atomic<int> counter{0};
  CUgraph captured = nullptr;
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  OK(cuLaunchHostFunc(stream_, &Count, &counter));
  OK(cuStreamEndCapture(stream_, &captured));
  EXPECT_EQ(counter.load(), 0);
  CUgraphNode node = nullptr;
  size_t count = 1;
  OK(cuGraphGetNodes(captured, &node, &count));
  CUDA_HOST_NODE_PARAMS got{};
  OK(cuGraphHostNodeGetParams(node, &got));
  EXPECT_EQ(got.fn, &Count);
  EXPECT_EQ(got.userData, &counter);
  EXPECT_EQ(TypeOf(node), CU_GRAPH_NODE_TYPE_HOST);
  const CUgraphExec exec = Instantiate(captured);
  Launch(exec);
  Launch(exec);
  EXPECT_EQ(counter.load(), 2);
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(captured));
}

// What a host node is, whatever makes it wait.
// Also in a process that has made host nodes, whose graphs are looked through.
TEST_F(GraphHostTest, EmptyGraphsBesideHostNodes) {
  std::atomic<int> counter{0};
  CUDA_HOST_NODE_PARAMS params{&Count, &counter};
  CUgraphNode node = nullptr;
  CUgraph host = nullptr, captured = nullptr;
  OK(cuGraphCreate(&host, 0));
  OK(cuGraphAddHostNode(&node, host, nullptr, 0, &params));
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUdeviceptr memory = 0;
  OK(cuMemAlloc(&memory, 1024));
  OK(cuStreamEndCapture(stream_, &captured));
  const CUgraphExec exec = Instantiate(captured);
  Launch(exec);
  CUgraphExecUpdateResultInfo info{};
  EXPECT_EQ(cuGraphExecUpdate(exec, graph_, &info), CUDA_SUCCESS);
  CUgraphNode list[2] = {node, node};
  size_t count = 2;
  OK(cuGraphGetNodes(captured, list, &count));
  EXPECT_EQ(count, 0u);
  EXPECT_EQ(list[1], nullptr);
  count = 0;
  Say("room for no node", cuGraphGetNodes(captured, list, &count));
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(captured));
  OK(cuGraphDestroy(host));
  OK(cuMemFree(memory));
}

TEST_F(GraphHostTest, HostNodeIsNoOther) {
  std::atomic<int> counter{0};
  CUgraphNode node = nullptr;
  CUDA_HOST_NODE_PARAMS params{&Count, &counter};
  OK(cuGraphAddHostNode(&node, graph_, nullptr, 0, &params));
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch{};
  EXPECT_EQ(cuGraphBatchMemOpNodeGetParams(node, &batch), CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMCPY3D copy{};
  EXPECT_EQ(cuGraphMemcpyNodeGetParams(node, &copy), CUDA_ERROR_INVALID_VALUE);
  const CUgraphNode kernel = AddKernel(graph_, 1);
  EXPECT_EQ(cuGraphHostNodeGetParams(kernel, &params), CUDA_ERROR_INVALID_VALUE);
  size_t count = 0;
  OK(cuGraphGetNodes(graph_, nullptr, &count));
  EXPECT_EQ(count, 2u);
}

// The function sees what the graph wrote before it, the graph what the function wrote.
TEST_F(GraphHostTest, HostNodesAndMemory) {
  unsigned* word = nullptr;
  OK(cuMemHostAlloc(reinterpret_cast<void**>(&word), 4, 0));
  *word = 0;
  CUDA_MEMCPY3D in = Linear(word, words_, 4, true);
  CUDA_MEMCPY3D out = Linear(word, words_, 4, false);
  CUDA_HOST_NODE_PARAMS params{[](void* data) { *static_cast<unsigned*>(data) *= 2; }, word};
  CUgraphNode copied = nullptr, doubled = nullptr, back = nullptr;
  const CUgraphNode add = AddKernel(graph_, 1);
  OK(cuGraphAddMemcpyNode(&copied, graph_, &add, 1, &out, context_));
  OK(cuGraphAddHostNode(&doubled, graph_, &copied, 1, &params));
  OK(cuGraphAddMemcpyNode(&back, graph_, &doubled, 1, &in, context_));
  const CUgraphExec exec = Instantiate(graph_);
  unsigned wanted = 0;
  for (int i = 0; i < 20; ++i) {
    OK(cuGraphLaunch(exec, stream_));
    wanted = (wanted + 1) * 2;
  }
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(*word, wanted);
  EXPECT_EQ(Word(), wanted);
  OK(cuGraphExecDestroy(exec));
  OK(cuMemFreeHost(word));
}

// Many launches on their way, and several executables of one graph and of its clone at once.
TEST_F(GraphHostTest, ManyLaunchesOfHostNodes) {
  constexpr int kLaunches = 100, kNodes = 5, kStreams = 3;
  std::atomic<int> counter{0};
  CUDA_HOST_NODE_PARAMS params{&Count, &counter};
  CUgraphNode node = nullptr;
  for (int i = 0; i < kNodes; ++i) OK(cuGraphAddHostNode(&node, graph_, nullptr, 0, &params));
  OK(cuGraphAddHostNode(&node, graph_, &node, 1, &params));
  CUgraph clone = nullptr;
  OK(cuGraphClone(&clone, graph_));
  CUstream streams[kStreams] = {};
  CUgraphExec execs[kStreams] = {};
  for (int i = 0; i < kStreams; ++i) {
    OK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    execs[i] = Instantiate(i == 0 ? clone : graph_);
  }
  OK(cuGraphDestroy(clone));
  for (int round = 0; round < kLaunches; ++round) {
    for (int i = 0; i < kStreams; ++i) OK(cuGraphLaunch(execs[i], streams[i]));
  }
  for (CUstream stream : streams) OK(cuStreamSynchronize(stream));
  EXPECT_EQ(counter.load(), kLaunches * kStreams * (kNodes + 1));
  for (int i = 0; i < kStreams; ++i) {
    OK(cuGraphExecDestroy(execs[i]));
    OK(cuStreamDestroy(streams[i]));
  }
}

// More than can be waited for in any better way.
TEST_F(GraphHostTest, GraphsOfManyHostNodes) {
  constexpr int kNodes = 1500;
  std::atomic<int> counter{0};
  CUDA_HOST_NODE_PARAMS params{&Count, &counter};
  CUgraphNode node = nullptr;
  for (int i = 0; i < kNodes; ++i)
    OK(cuGraphAddHostNode(&node, graph_, &node, node != nullptr ? 1 : 0, &params));
  CUgraphExec execs[2] = {Instantiate(graph_), Instantiate(graph_)};
  for (CUgraphExec exec : execs) Launch(exec);
  EXPECT_EQ(counter.load(), 2 * kNodes);
  for (CUgraphExec exec : execs) OK(cuGraphExecDestroy(exec));
}

TEST_F(GraphHostTest, HostNodesInChildGraphs) {
  std::atomic<int> inner{0}, outer{0}, other{0};
  CUgraph child = nullptr;
  OK(cuGraphCreate(&child, 0));
  CUDA_HOST_NODE_PARAMS params{&Count, &inner};
  CUgraphNode node = nullptr, first = nullptr, last = nullptr;
  OK(cuGraphAddHostNode(&node, child, nullptr, 0, &params));
  OK(cuGraphAddChildGraphNode(&first, graph_, nullptr, 0, child));
  OK(cuGraphAddChildGraphNode(&last, graph_, &first, 1, child));
  params.userData = &outer;
  CUgraphNode own = nullptr;
  OK(cuGraphAddHostNode(&own, graph_, nullptr, 0, &params));
  const CUgraphExec exec = Instantiate(graph_);
  for (int i = 0; i < 10; ++i) OK(cuGraphLaunch(exec, stream_));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(inner.load(), 20);
  EXPECT_EQ(outer.load(), 10);
  params.userData = &other;
  OK(cuGraphHostNodeSetParams(node, &params));
  OK(cuGraphExecChildGraphNodeSetParams(exec, last, child));
  for (int i = 0; i < 10; ++i) OK(cuGraphLaunch(exec, stream_));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(inner.load(), 30);
  EXPECT_EQ(outer.load(), 20);
  EXPECT_EQ(other.load(), 10);
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(child));
}

TEST_F(GraphHostTest, UpdatedHostNodes) {
  std::atomic<int> counters[4] = {};
  CUgraph second = nullptr;
  OK(cuGraphCreate(&second, 0));
  CUgraphNode nodes[2] = {};
  for (int i = 0; i < 4; ++i) {
    CUDA_HOST_NODE_PARAMS params{&Count, &counters[i]};
    CUgraphNode* node = &nodes[i % 2];
    OK(cuGraphAddHostNode(node, i < 2 ? graph_ : second, nodes, static_cast<size_t>(i % 2), &params));
  }
  const CUgraphExec exec = Instantiate(graph_);
  for (int round = 1; round <= 5; ++round) {
    for (CUgraph graph : {second, graph_}) {
      CUgraphExecUpdateResultInfo info{};
      OK(cuGraphExecUpdate(exec, graph, &info));
      OK(cuGraphLaunch(exec, stream_));
    }
    OK(cuStreamSynchronize(stream_));
    for (auto& counter : counters) EXPECT_EQ(counter.load(), round);
  }
  // What does not fit leaves all as it was.
  AddEmpty(second);
  CUgraphExecUpdateResultInfo info{};
  EXPECT_EQ(cuGraphExecUpdate(exec, second, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  Launch(exec);
  EXPECT_EQ(counters[0].load(), 6);
  EXPECT_EQ(counters[1].load(), 6);
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(second));
}

// The launch ends, and another executable graph made meanwhile runs for itself.
TEST_F(GraphHostTest, DestroyedInAHostNode) {
  static std::atomic<bool> entered, go;
  entered = go = false;
  std::atomic<int> counter{0};
  CUDA_HOST_NODE_PARAMS params{[](void* data) {
                                 entered = true;
                                 for (int i = 0; i < 5000 && !go; ++i)
                                   std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                 Count(data);
                               },
                               &counter};
  CUgraphNode first = nullptr, second = nullptr;
  OK(cuGraphAddHostNode(&first, graph_, nullptr, 0, &params));
  params.fn = &Count;
  OK(cuGraphAddHostNode(&second, graph_, &first, 1, &params));
  CUgraphExec exec = Instantiate(graph_);
  OK(cuGraphLaunch(exec, stream_));
  test::SleepUntil([&] { return entered.load(); });
  OK(cuGraphExecDestroy(exec));
  exec = Instantiate(graph_);
  OK(cuGraphLaunch(exec, stream_));
  EXPECT_EQ(cuStreamQuery(stream_), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(counter.load(), 0);
  go = true;
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(counter.load(), 4);
  OK(cuGraphExecDestroy(exec));
}

TEST_F(GraphHostTest, UserObjects) {
  std::atomic<int> counter{0};
  CUuserObject object = nullptr;
  EXPECT_EQ(cuUserObjectCreate(&object, &counter, &Count, 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuUserObjectCreate(nullptr, &counter, &Count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuUserObjectCreate(&object, &counter, &Count, 0, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
            CUDA_ERROR_INVALID_VALUE);
  OK(cuUserObjectCreate(&object, &counter, &Count, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  OK(cuUserObjectRetain(object, 1));
  EXPECT_EQ(cuUserObjectRetain(object, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuUserObjectRelease(object, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuUserObjectRelease(object, 2));
  EXPECT_TRUE(Stays(counter, 0));
  OK(cuUserObjectRelease(object, 1));
  EXPECT_TRUE(Becomes(counter, 1));
}

TEST_F(GraphHostTest, UserObjectsOfGraphs) {
  std::atomic<int> counter{0};
  CUuserObject object = nullptr;
  OK(cuUserObjectCreate(&object, &counter, &Count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  OK(cuGraphRetainUserObject(graph_, object, 1, 0));
  OK(cuGraphReleaseUserObject(graph_, object, 1));
  EXPECT_EQ(cuGraphRetainUserObject(graph_, object, 0, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuGraphRetainUserObject(graph_, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  AddKernel(graph_, 1);
  const CUgraphExec exec = Instantiate(graph_);
  CUgraph clone = nullptr;
  OK(cuGraphClone(&clone, graph_));
  OK(cuGraphDestroy(graph_));
  graph_ = nullptr;
  EXPECT_TRUE(Stays(counter, 0));
  OK(cuGraphDestroy(clone));
  Launch(exec);
  EXPECT_TRUE(Stays(counter, 0));
  OK(cuGraphExecDestroy(exec));
  EXPECT_TRUE(Becomes(counter, 1));
}

// Each launch reads the program's memory again, and writes to it again.
TEST_F(GraphHostTest, CopiesOfOrdinaryMemory) {
  std::vector<unsigned> from(kWords, 1), to(kWords, 0);
  CUDA_MEMCPY3D in = Linear(from.data(), words_, kWords * 4, true);
  CUDA_MEMCPY3D out = Linear(to.data(), words_, kWords * 4, false);
  CUgraphNode first = nullptr, last = nullptr;
  OK(cuGraphAddMemcpyNode(&first, graph_, nullptr, 0, &in, context_));
  const CUgraphNode add = AddKernel(graph_, 10, {first});
  OK(cuGraphAddMemcpyNode(&last, graph_, &add, 1, &out, context_));
  EXPECT_EQ(TypeOf(first), CU_GRAPH_NODE_TYPE_MEMCPY);
  EXPECT_EQ(TypeOf(last), CU_GRAPH_NODE_TYPE_MEMCPY);
  CUDA_MEMCPY3D got{};
  OK(cuGraphMemcpyNodeGetParams(first, &got));
  EXPECT_EQ(got.srcHost, from.data());
  CUgraph child = nullptr;
  EXPECT_EQ(cuGraphChildGraphNodeGetGraph(first, &child), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(got.dstDevice, words_);
  const CUgraphExec exec = Instantiate(graph_);
  Launch(exec);
  EXPECT_EQ(to[kWords - 1], 11u);
  from[0] = 100;
  Launch(exec);
  EXPECT_EQ(to[0], 110u);
  std::vector<unsigned> other(kWords, 1000);
  in.srcHost = other.data();
  OK(cuGraphExecMemcpyNodeSetParams(exec, first, &in, context_));
  Launch(exec);
  EXPECT_EQ(to[0], 1010u);
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphMemcpyNodeSetParams(first, &in));
  OK(cuGraphMemcpyNodeGetParams(first, &got));
  EXPECT_EQ(got.srcHost, other.data());
  other[1] = 2000;
  Run(graph_);
  EXPECT_EQ(to[1], 2010u);
  CUgraph clone = nullptr;
  CUgraphNode copy = nullptr;
  OK(cuGraphClone(&clone, graph_));
  OK(cuGraphNodeFindInClone(&copy, first, clone));
  EXPECT_EQ(TypeOf(copy), CU_GRAPH_NODE_TYPE_MEMCPY);
  OK(cuGraphDestroy(graph_));
  graph_ = clone;
  other[2] = 3000;
  Run(graph_);
  EXPECT_EQ(to[2], 3010u);
}

// What is wrong with a change into a copy from ordinary memory is said, whether or not there could be such a change.
TEST_F(GraphHostTest, AnotherNodeIntoACopyOfOrdinaryMemory) {
  std::vector<unsigned> from(kWords, 1);
  const CUDA_MEMCPY3D in = Linear(from.data(), words_, kWords * 4, true);
  EXPECT_EQ(cuGraphMemcpyNodeSetParams(AddEmpty(graph_), &in), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphHostTest, RowsOfOrdinaryMemory) {
  std::vector<unsigned char> from(100);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i);
  CUDA_MEMCPY3D copy = Linear(from.data(), words_, 4, true);
  copy.srcPitch = 10;
  copy.srcXInBytes = 2;
  copy.srcY = 1;
  copy.dstPitch = 8;
  copy.Height = 3;
  CUgraphNode node = nullptr;
  OK(cuGraphAddMemcpyNode(&node, graph_, nullptr, 0, &copy, context_));
  Run(graph_);
  EXPECT_EQ(Word(0), 0x0f0e0d0cu);
  EXPECT_EQ(Word(1), 0u);
  EXPECT_EQ(Word(2), 0x19181716u);
  EXPECT_EQ(Word(4), 0x23222120u);
}

TEST_F(GraphHostTest, CapturedCopiesOfOrdinaryMemory) {
  std::vector<unsigned> from(kWords, 1), to(kWords, 0);
  AddLaunch launch(Kernel("add"), words_, 5);
  CUgraph captured = nullptr;
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuMemcpyHtoDAsync(words_, from.data(), kWords * 4, stream_));
  OK(cuLaunchKernel(launch.params.func, 1, 1, 1, kWords, 1, 1, 0, stream_, launch.pointers, nullptr));
  OK(cuMemcpyDtoHAsync(to.data(), words_, kWords * 4, stream_));
  OK(cuStreamEndCapture(stream_, &captured));
  EXPECT_EQ(to[0], 0u);
  size_t count = 0;
  OK(cuGraphGetNodes(captured, nullptr, &count));
  EXPECT_EQ(count, 3u);
  const CUgraphExec exec = Instantiate(captured);
  Launch(exec);
  EXPECT_EQ(to[0], 6u);
  from[0] = 50;
  Launch(exec);
  EXPECT_EQ(to[0], 55u);
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(captured));
}

}  // namespace
}  // namespace causeway::driver_test
