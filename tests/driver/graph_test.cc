// SPDX-License-Identifier: Apache-2.0
// Census category graph: graphs as objects. Nodes and edges in any number, clones, child graphs,
// descriptions.
#include "tests/driver/graph_fixture.h"

#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace causeway::driver_test {
namespace {

TEST_F(GraphTest, CreateAndDestroy) {
  CUgraph graph = nullptr;
  EXPECT_EQ(cuGraphCreate(&graph, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphCreate(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphDestroy(nullptr), CUDA_ERROR_INVALID_VALUE);
  OK(cuGraphCreate(&graph, 0));
  size_t count = 7;
  EXPECT_EQ(cuGraphGetNodes(graph, nullptr, &count), CUDA_SUCCESS);
  EXPECT_EQ(count, 0u);
  EXPECT_EQ(cuGraphGetNodes(graph, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  OK(cuGraphDestroy(graph));
}

// Graphs belong to no context: one is needed from the instantiation on.
TEST_F(GraphTest, WithoutAContext) {
  CUcontext before = nullptr;
  CUgraph graph = nullptr;
  CUgraphNode first = nullptr, second = nullptr, listed[2] = {};
  CUgraphNodeType type{};
  CUDA_MEMCPY3D box{};
  size_t count = 2;
  OK(cuCtxPopCurrent(&before));
  EXPECT_EQ(cuGraphCreate(&graph, 1), CUDA_ERROR_INVALID_VALUE);
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddEmptyNode(&first, graph, nullptr, 0));
  OK(cuGraphAddEmptyNode(&second, graph, nullptr, 0));
  OK(cuGraphAddDependencies(graph, &first, &second, nullptr, 1));
  OK(cuGraphGetNodes(graph, listed, &count));
  EXPECT_EQ(count, 2u);
  OK(cuGraphNodeGetType(first, &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_EMPTY);
  EXPECT_EQ(cuGraphMemcpyNodeGetParams(first, &box), CUDA_ERROR_INVALID_VALUE);
  CUgraphExec exec = nullptr;
  EXPECT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_ERROR_INVALID_CONTEXT);
  OK(cuGraphDestroyNode(second));
  OK(cuGraphDestroy(graph));
  OK(cuCtxPushCurrent(before));
}

TEST_F(GraphTest, EmptyGraphRuns) {
  Run(graph_);
}

TEST_F(GraphTest, ListsOfNodes) {
  const CUgraphNode a = AddEmpty(graph_), b = AddEmpty(graph_, {a}), c = AddEmpty(graph_, {a});
  const CUgraphNode d = AddEmpty(graph_, {b, c});
  CUgraphNode nodes[6];
  std::fill(std::begin(nodes), std::end(nodes), a);
  size_t count = 6;
  OK(cuGraphGetNodes(graph_, nodes, &count));
  EXPECT_EQ(count, 4u);
  for (const CUgraphNode node : {a, b, c, d}) EXPECT_EQ(std::count(nodes, nodes + 4, node), 1);
  EXPECT_EQ(nodes[4], nullptr);
  EXPECT_EQ(nodes[5], nullptr);
  count = 2;
  OK(cuGraphGetNodes(graph_, nodes, &count));
  EXPECT_EQ(count, 2u);
  count = 6;
  OK(cuGraphGetRootNodes(graph_, nodes, &count));
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(nodes[0], a);
  count = 6;
  OK(cuGraphNodeGetDependencies(d, nodes, nullptr, &count));
  EXPECT_EQ(count, 2u);
  EXPECT_TRUE((nodes[0] == b && nodes[1] == c) || (nodes[0] == c && nodes[1] == b));
  OK(cuGraphNodeGetDependentNodes(a, nullptr, nullptr, &count));
  EXPECT_EQ(count, 2u);
  auto* old_dependents =
      SymbolAs<CUresult(CUgraphNode, CUgraphNode*, size_t*)>("cuGraphNodeGetDependentNodes");
  auto* old_dependencies =
      SymbolAs<CUresult(CUgraphNode, CUgraphNode*, size_t*)>("cuGraphNodeGetDependencies");
  count = 6;
  OK(old_dependents(b, nodes, &count));
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(nodes[0], d);
  OK(old_dependencies(b, nullptr, &count));
  EXPECT_EQ(count, 1u);
}

TEST_F(GraphTest, Edges) {
  const CUgraphNode a = AddEmpty(graph_), b = AddEmpty(graph_), c = AddEmpty(graph_, {a});
  OK(cuGraphAddDependencies(graph_, &a, &b, nullptr, 1));
  EXPECT_EQ(cuGraphAddDependencies(graph_, &a, &b, nullptr, 1),
            CUDA_ERROR_INVALID_VALUE);  // is there already
  CUgraphNode from[4], to[4];
  CUgraphEdgeData data[4];
  size_t count = 4;
  OK(cuGraphGetEdges(graph_, from, to, data, &count));
  ASSERT_EQ(count, 2u);
  EXPECT_EQ(from[0], a);
  EXPECT_EQ(from[1], a);
  EXPECT_TRUE((to[0] == b && to[1] == c) || (to[0] == c && to[1] == b));
  EXPECT_EQ(data[0].type, 0);
  OK(cuGraphRemoveDependencies(graph_, &a, &b, nullptr, 1));
  EXPECT_EQ(cuGraphRemoveDependencies(graph_, &a, &b, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  auto* old_add =
      SymbolAs<CUresult(CUgraph, const CUgraphNode*, const CUgraphNode*, size_t)>("cuGraphAddDependencies");
  auto* old_remove = SymbolAs<CUresult(CUgraph, const CUgraphNode*, const CUgraphNode*, size_t)>(
      "cuGraphRemoveDependencies");
  auto* old_edges = SymbolAs<CUresult(CUgraph, CUgraphNode*, CUgraphNode*, size_t*)>("cuGraphGetEdges");
  OK(old_add(graph_, &b, &c, 1));
  OK(old_edges(graph_, nullptr, nullptr, &count));
  EXPECT_EQ(count, 2u);
  OK(old_remove(graph_, &b, &c, 1));
  OK(cuGraphGetEdges(graph_, nullptr, nullptr, nullptr, &count));
  EXPECT_EQ(count, 1u);
  OK(cuGraphDestroyNode(a));
  OK(cuGraphGetEdges(graph_, nullptr, nullptr, nullptr, &count));
  EXPECT_EQ(count, 0u);
  OK(cuGraphGetNodes(graph_, nullptr, &count));
  EXPECT_EQ(count, 2u);
}

// Far more than one message holds.
TEST_F(GraphTest, ListsOfAnyLength) {
  constexpr size_t kMany = 3000;
  std::vector<CUgraphNode> made;
  for (size_t i = 0; i < kMany; ++i) made.push_back(AddEmpty(graph_));
  const CUgraphNode last = AddEmpty(graph_, made);
  std::vector<CUgraphNode> nodes(kMany + 1);
  size_t count = nodes.size();
  OK(cuGraphGetNodes(graph_, nodes.data(), &count));
  EXPECT_EQ(count, kMany + 1);
  std::vector<CUgraphNode> expected = made;
  expected.push_back(last);
  std::sort(expected.begin(), expected.end());
  std::sort(nodes.begin(), nodes.end());
  EXPECT_EQ(nodes, expected);
  count = nodes.size();
  OK(cuGraphNodeGetDependencies(last, nodes.data(), nullptr, &count));
  EXPECT_EQ(count, kMany);
  EXPECT_EQ(nodes[kMany], nullptr);
  std::vector<CUgraphNode> from(kMany), to(kMany);
  std::vector<CUgraphEdgeData> data(kMany);
  count = kMany;
  OK(cuGraphGetEdges(graph_, from.data(), to.data(), data.data(), &count));
  EXPECT_EQ(count, kMany);
  EXPECT_EQ(std::count(to.begin(), to.end(), last), static_cast<long>(kMany));
  OK(cuGraphRemoveDependencies(graph_, from.data(), to.data(), nullptr, kMany));
  OK(cuGraphAddDependencies(graph_, from.data(), to.data(), nullptr, kMany));
  count = 0;
  OK(cuGraphNodeGetDependencies(last, nullptr, nullptr, &count));
  EXPECT_EQ(count, kMany);
}

TEST_F(GraphTest, Clone) {
  const CUgraphNode first = AddKernel(graph_, 1), second = AddKernel(graph_, 10, {first});
  CUgraph clone = nullptr;
  OK(cuGraphClone(&clone, graph_));
  CUgraphNode found = nullptr;
  OK(cuGraphNodeFindInClone(&found, second, clone));
  EXPECT_NE(found, second);
  EXPECT_EQ(TypeOf(found), CU_GRAPH_NODE_TYPE_KERNEL);
  EXPECT_EQ(cuGraphNodeFindInClone(&found, second, graph_), CUDA_ERROR_INVALID_VALUE);
  AddLaunch launch(Kernel("add"), words_, 100);
  OK(cuGraphNodeFindInClone(&found, second, clone));
  OK(cuGraphKernelNodeSetParams(found, &launch.params));
  Run(clone);
  EXPECT_EQ(Word(), 101u);
  Run(graph_);
  EXPECT_EQ(Word(), 112u);
  OK(cuGraphDestroy(clone));
}

TEST_F(GraphTest, ChildGraphs) {
  // In each graph the kernels add to the same words, one after another.
  CUgraph child = nullptr, held = nullptr;
  OK(cuGraphCreate(&child, 0));
  const CUgraphNode five = AddKernel(child, 5);
  CUgraphNode node = nullptr, generic = nullptr, first = nullptr;
  OK(cuGraphAddChildGraphNode(&node, graph_, nullptr, 0, child));
  EXPECT_EQ(TypeOf(node), CU_GRAPH_NODE_TYPE_GRAPH);
  OK(cuGraphChildGraphNodeGetGraph(node, &held));
  EXPECT_NE(held, child);
  size_t count = 1;
  OK(cuGraphGetNodes(held, &first, &count));
  EXPECT_EQ(count, 1u);
  AddKernel(held, 7, {first});  // the node's own graph, not a copy
  AddKernel(child, 1000, {five});
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_GRAPH;
  params.graph.graph = child;
  OK(cuGraphAddNode(&generic, graph_, &node, nullptr, 1, &params));
  const CUgraphExec exec = Instantiate(graph_);
  Launch(exec);
  EXPECT_EQ(Word(), 1017u);
  // Other parameters for the nodes of the child, in the executable graph alone.
  CUgraph other = nullptr;
  OK(cuGraphCreate(&other, 0));
  AddKernel(other, 3, {AddKernel(other, 2)});
  OK(cuGraphExecChildGraphNodeSetParams(exec, node, other));
  Launch(exec);
  EXPECT_EQ(Word(), 1017u + 1010u);
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(other));
  OK(cuGraphDestroy(child));
}

// It can be cloned and changed, and ends with its node alone.
TEST_F(GraphTest, AGraphWithinANodeStaysThere) {
  CUgraph child = nullptr, other = nullptr, held = nullptr, clone = nullptr;
  CUgraphNode node = nullptr, refused = nullptr;
  OK(cuGraphCreate(&child, 0));
  OK(cuGraphCreate(&other, 0));
  AddKernel(child, 5);
  OK(cuGraphAddChildGraphNode(&node, graph_, nullptr, 0, child));
  OK(cuGraphChildGraphNodeGetGraph(node, &held));
  EXPECT_EQ(cuGraphDestroy(held), CUDA_ERROR_INVALID_VALUE);
  for (CUgraph to : {graph_, other, held})
    EXPECT_EQ(cuGraphAddChildGraphNode(&refused, to, nullptr, 0, held), CUDA_ERROR_NOT_SUPPORTED);
  OK(cuGraphClone(&clone, held));
  OK(cuGraphAddChildGraphNode(&refused, other, nullptr, 0, clone));
  Run(graph_);
  EXPECT_EQ(Word(), 5u);
  Run(other);
  EXPECT_EQ(Word(), 10u);
  for (CUgraph each : {child, other, clone}) OK(cuGraphDestroy(each));
}

TEST_F(GraphTest, MovedChildGraph) {
  NEEDS_HARDWARE("child graphs that are moved");
  CUgraph child = nullptr, held = nullptr;
  OK(cuGraphCreate(&child, 0));
  AddKernel(child, 5);
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_GRAPH;
  params.graph.graph = child;
  params.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
  CUgraphNode node = nullptr;
  OK(cuGraphAddNode(&node, graph_, nullptr, nullptr, 0, &params));
  OK(cuGraphChildGraphNodeGetGraph(node, &held));
  Say("same_handle", held == child);
  Run(graph_);
  EXPECT_EQ(Word(), 5u);
}

TEST_F(GraphTest, ProgrammaticEdges) {
  NEEDS_HARDWARE("edge data");
  const CUgraphNode a = AddKernel(graph_, 1);
  AddLaunch launch(Kernel("add"), words_, 2);
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  std::memcpy(&params.kernel, &launch.params, sizeof params.kernel);
  CUgraphEdgeData edge{};
  edge.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
  edge.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  CUgraphNode b = nullptr;
  const CUresult added = cuGraphAddNode(&b, graph_, &a, &edge, 1, &params);
  Say("added", added);
  if (added != CUDA_SUCCESS) return;
  CUgraphNode from = nullptr, to = nullptr;
  CUgraphEdgeData data{};
  size_t count = 1;
  OK(cuGraphGetEdges(graph_, &from, &to, &data, &count));
  EXPECT_EQ(data.type, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
  EXPECT_EQ(data.from_port, CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
  count = 1;
  EXPECT_EQ(cuGraphGetEdges(graph_, &from, &to, nullptr, &count), CUDA_ERROR_LOSSY_QUERY);
  count = 1;
  EXPECT_EQ(cuGraphNodeGetDependencies(b, &from, nullptr, &count), CUDA_ERROR_LOSSY_QUERY);
  count = 1;
  OK(cuGraphNodeGetDependencies(b, &from, &data, &count));
  EXPECT_EQ(from, a);
}

TEST_F(GraphTest, DotFile) {
  const CUgraphNode a = AddKernel(graph_, 1);
  AddKernel(graph_, 2, {a});
  char path[] = "/tmp/causeway_graph_XXXXXX";
  const int file = mkstemp(path);
  ASSERT_GE(file, 0);
  close(file);
  OK(cuGraphDebugDotPrint(graph_, path, 0));
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_NE(text.str().find("digraph"), std::string::npos);
  EXPECT_NE(text.str().find("->"), std::string::npos);
  std::remove(path);
  EXPECT_EQ(cuGraphDebugDotPrint(graph_, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphDebugDotPrint(nullptr, path, 0), CUDA_ERROR_INVALID_VALUE);
  Say("no_folder", cuGraphDebugDotPrint(graph_, "/no/such/folder/graph.dot", 0));
}

TEST_F(GraphTest, GraphMemoryAttributes) {
  NEEDS_HARDWARE("graph memory");
  cuuint64_t value = 1;
  for (const CUgraphMem_attribute attribute :
       {CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH,
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH}) {
    OK(cuDeviceGetGraphMemAttribute(0, attribute, &value));
  }
  value = 0;
  OK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &value));
  OK(cuDeviceGraphMemTrim(0));
  EXPECT_EQ(cuDeviceGetGraphMemAttribute(0, static_cast<CUgraphMem_attribute>(77), &value),
            CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace causeway::driver_test
