// SPDX-License-Identifier: Apache-2.0
// Graphs: captured, built by hand, updated, with host nodes and user objects.
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/soak/soak.h"

namespace causeway::soak {
namespace {

uint32_t Word(CUdeviceptr memory, CUstream stream) {
  uint32_t word = 0;
  SOAK(cuMemcpyDtoHAsync(&word, memory, 4, stream));
  SOAK(cuStreamSynchronize(stream));
  return word;
}

void Captured(Thread& thread) {
  Stream stream;
  DeviceMemory memory;
  Graph graph;
  GraphExec executable;
  SOAK(cuStreamCreate(stream.out(), CU_STREAM_NON_BLOCKING));
  SOAK(cuMemAlloc(memory.out(), 64));
  SOAK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  SOAK(cuMemsetD32Async(memory, 1, 16, stream));
  const uint32_t launches = 1 + thread.Below(8);
  for (uint32_t i = 0; i < launches; ++i) thread.LaunchAdd(memory, 16, 2, stream);
  SOAK(cuStreamEndCapture(stream, graph.out()));
  size_t nodes = 0;
  SOAK(cuGraphGetNodes(graph, nullptr, &nodes));
  SOAK_EXPECT(nodes == launches + 1);
  SOAK(cuGraphInstantiate(executable.out(), graph, 0));
  SOAK(cuGraphLaunch(executable, stream));
  SOAK(cuGraphLaunch(executable, stream));
  SOAK_EXPECT(Word(memory, stream) == 1 + 2 * launches);
}

CUDA_KERNEL_NODE_PARAMS AddNode(Thread& thread, void** parameters) {
  CUDA_KERNEL_NODE_PARAMS node{};
  node.func = thread.add;
  node.gridDimX = node.gridDimY = node.gridDimZ = 1;
  node.blockDimX = 32;
  node.blockDimY = node.blockDimZ = 1;
  node.kernelParams = parameters;
  return node;
}

void BuiltByHand(Thread& thread) {
  Stream stream;
  DeviceMemory memory;
  Graph graph;
  GraphExec executable;
  SOAK(cuStreamCreate(stream.out(), CU_STREAM_NON_BLOCKING));
  SOAK(cuMemAlloc(memory.out(), 64));
  SOAK(cuGraphCreate(graph.out(), 0));
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = memory;
  fill.value = 10;
  fill.elementSize = 4;
  fill.width = 16;
  fill.height = 1;
  CUgraphNode first = nullptr, second = nullptr, host = nullptr;
  SOAK(cuGraphAddMemsetNode(&first, graph, nullptr, 0, &fill, [] {
    CUcontext context = nullptr;
    cuCtxGetCurrent(&context);
    return context;
  }()));
  CUdeviceptr data = memory;
  uint32_t count = 16, value = thread.Below(50);
  void* parameters[] = {&data, &count, &value};
  CUDA_KERNEL_NODE_PARAMS kernel = AddNode(thread, parameters);
  SOAK(cuGraphAddKernelNode(&second, graph, &first, 1, &kernel));
  std::atomic<uint32_t> calls{0};
  CUDA_HOST_NODE_PARAMS call{[](void* user) { static_cast<std::atomic<uint32_t>*>(user)->fetch_add(1); },
                             &calls};
  SOAK(cuGraphAddHostNode(&host, graph, &second, 1, &call));
  SOAK(cuGraphInstantiate(executable.out(), graph, 0));
  SOAK(cuGraphLaunch(executable, stream));
  SOAK_EXPECT(Word(memory, stream) == 10 + value);
  const uint32_t other = value + 7;
  void* changed[] = {&data, &count, const_cast<uint32_t*>(&other)};
  kernel = AddNode(thread, changed);
  SOAK(cuGraphExecKernelNodeSetParams(executable, second, &kernel));
  SOAK(cuGraphLaunch(executable, stream));
  SOAK_EXPECT(Word(memory, stream) == 10 + other);
  SOAK_EXPECT(calls.load() == 2);
}

void Updated(Thread& thread) {
  Stream stream;
  DeviceMemory memory;
  Graph graph, other;
  GraphExec executable;
  SOAK(cuStreamCreate(stream.out(), CU_STREAM_NON_BLOCKING));
  SOAK(cuMemAlloc(memory.out(), 64));
  for (Graph* each : {&graph, &other}) {
    SOAK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    SOAK(cuMemsetD32Async(memory, each == &graph ? 1 : 2, 16, stream));
    thread.LaunchAdd(memory, 16, 40, stream);
    SOAK(cuStreamEndCapture(stream, each->out()));
  }
  SOAK(cuGraphInstantiate(executable.out(), graph, 0));
  CUgraphExecUpdateResultInfo info{};
  SOAK(cuGraphExecUpdate(executable, other, &info));
  SOAK(cuGraphLaunch(executable, stream));
  SOAK_EXPECT(Word(memory, stream) == 42);
}

void UserObjects(Thread&) {
  static thread_local std::atomic<uint32_t> ended;
  ended.store(0);
  CUuserObject object = nullptr;
  SOAK(cuUserObjectCreate(
      &object, &ended, [](void* user) { static_cast<std::atomic<uint32_t>*>(user)->fetch_add(1); }, 1,
      CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  Graph graph;
  SOAK(cuGraphCreate(graph.out(), 0));
  SOAK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  graph.Done();
  for (int i = 0; i < 10000 && ended.load() == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  SOAK_EXPECT(ended.load() == 1);
}

}  // namespace

std::vector<Group> GraphGroups() {
  return {{"captured graphs", Captured},
          {"graphs by hand", BuiltByHand},
          {"updated graphs", Updated},
          {"user objects", UserObjects}};
}

}  // namespace causeway::soak
