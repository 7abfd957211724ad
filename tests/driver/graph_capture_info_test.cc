// SPDX-License-Identifier: Apache-2.0
// Stream capture as the graph sees it: what can be asked, capture into a graph, dependencies that are
// changed.
#include <algorithm>
#include <cstring>

#include "tests/driver/graph_fixture.h"

namespace causeway::driver_test {
namespace {

class GraphCaptureInfoTest : public GraphTest {
 protected:
  void AddOnStream(unsigned value) {
    AddLaunch launch(Kernel("add"), words_, value);
    EXPECT_EQ(cuLaunchKernel(launch.params.func, 1, 1, 1, kWords, 1, 1, 0, stream_, launch.pointers, nullptr),
              CUDA_SUCCESS);
  }
};

TEST_F(GraphCaptureInfoTest, Nothing) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  OK(cuStreamGetCaptureInfo(stream_, &status, nullptr, nullptr, nullptr, nullptr, nullptr));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(cuStreamGetCaptureInfo(stream_, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  const CUgraphEdgeData* edges = nullptr;
  EXPECT_EQ(cuStreamGetCaptureInfo(stream_, &status, nullptr, nullptr, nullptr, &edges, nullptr),
            CUDA_SUCCESS);
  CUgraphNode node = nullptr;
  EXPECT_EQ(cuStreamUpdateCaptureDependencies(stream_, &node, nullptr, 0, 0), CUDA_ERROR_ILLEGAL_STATE);
}

TEST_F(GraphCaptureInfoTest, Dependencies) {
  Kernel("add");
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CUstreamCaptureStatus status{};
  cuuint64_t id = 0, first_id = 0;
  CUgraph graph = nullptr, captured = nullptr;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 7;
  OK(cuStreamGetCaptureInfo(stream_, &status, &id, &graph, &nodes, &edges, &count));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(count, 0u);
  EXPECT_NE(id, 0u);
  AddOnStream(1);
  OK(cuStreamGetCaptureInfo(stream_, &status, &first_id, &captured, &nodes, &edges, &count));
  EXPECT_EQ(first_id, id);
  EXPECT_EQ(captured, graph);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(TypeOf(nodes[0]), CU_GRAPH_NODE_TYPE_KERNEL);
  EXPECT_EQ(edges[0].type, 0);
  // A node by hand, in the middle of the capture.
  const std::vector<CUgraphNode> before(nodes, nodes + count);
  CUgraphNode node = AddKernel(graph, 100, before);
  OK(cuStreamUpdateCaptureDependencies(stream_, &node, nullptr, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  OK(cuStreamGetCaptureInfo(stream_, &status, nullptr, nullptr, &nodes, &edges, &count));
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(nodes[0], node);
  auto* first_update =
      SymbolAs<CUresult(CUstream, CUgraphNode*, size_t, unsigned)>("cuStreamUpdateCaptureDependencies");
  OK(first_update(stream_, &node, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  AddOnStream(1000);
  auto* second_form = SymbolAs<CUresult(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*,
                                        const CUgraphNode**, size_t*)>("cuStreamGetCaptureInfo_v2");
  OK(second_form(stream_, &status, &id, &graph, &nodes, &count));
  EXPECT_EQ(count, 1u);
  EXPECT_NE(nodes[0], node);
  auto* first_form =
      SymbolAs<CUresult(CUstream, CUstreamCaptureStatus*, cuuint64_t*)>("cuStreamGetCaptureInfo");
  OK(first_form(stream_, &status, &id));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(id, first_id);
  OK(cuStreamEndCapture(stream_, &captured));
  EXPECT_EQ(captured, graph);
  Run(captured);
  EXPECT_EQ(Word(), 1101u);
  OK(cuGraphDestroy(captured));
}

// More dependencies than one message holds.
TEST_F(GraphCaptureInfoTest, ManyDependencies) {
  constexpr size_t kMany = 600;
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUstreamCaptureStatus status{};
  CUgraph graph = nullptr;
  OK(cuStreamGetCaptureInfo(stream_, &status, nullptr, &graph, nullptr, nullptr, nullptr));
  std::vector<CUgraphNode> made;
  for (size_t i = 0; i < kMany; ++i) made.push_back(AddEmpty(graph));
  OK(cuStreamUpdateCaptureDependencies(stream_, made.data(), nullptr, kMany,
                                       CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 0;
  OK(cuStreamGetCaptureInfo(stream_, &status, nullptr, nullptr, &nodes, &edges, &count));
  ASSERT_EQ(count, kMany);
  std::vector<CUgraphNode> got(nodes, nodes + count);
  std::sort(got.begin(), got.end());
  std::sort(made.begin(), made.end());
  EXPECT_EQ(got, made);
  CUgraph captured = nullptr;
  OK(cuStreamEndCapture(stream_, &captured));
  OK(cuGraphDestroy(captured));
}

TEST_F(GraphCaptureInfoTest, CaptureToGraph) {
  const CUgraphNode before = AddKernel(graph_, 1);
  OK(cuStreamBeginCaptureToGraph(stream_, graph_, &before, nullptr, 1, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CUstreamCaptureStatus status{};
  CUgraph graph = nullptr;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 0;
  OK(cuStreamGetCaptureInfo(stream_, &status, nullptr, &graph, &nodes, &edges, &count));
  EXPECT_EQ(graph, graph_);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(nodes[0], before);
  AddOnStream(10);
  OK(cuStreamEndCapture(stream_, &graph));
  EXPECT_EQ(graph, graph_);
  OK(cuGraphGetNodes(graph_, nullptr, &count));
  EXPECT_EQ(count, 2u);
  Run(graph_);
  EXPECT_EQ(Word(), 11u);
}

// A graph that the program gave need not be given back, and any other is lost.
TEST_F(GraphCaptureInfoTest, EndsWithoutAPlaceForTheGraph) {
  Kernel("add");
  OK(cuStreamBeginCaptureToGraph(stream_, graph_, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  AddOnStream(3);
  OK(cuStreamEndCapture(stream_, nullptr));
  Run(graph_);
  EXPECT_EQ(Word(), 3u);
  EXPECT_EQ(cuStreamEndCapture(stream_, nullptr), CUDA_ERROR_ILLEGAL_STATE);
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  AddOnStream(3);
  OK(cuStreamEndCapture(stream_, nullptr));
  CUgraph captured = nullptr;
  EXPECT_EQ(cuStreamEndCapture(stream_, &captured), CUDA_ERROR_ILLEGAL_STATE);
}

TEST_F(GraphCaptureInfoTest, FirstForm) {
  auto* begin = SymbolAs<CUresult(CUstream)>("cuStreamBeginCapture");
  Kernel("add");
  OK(begin(stream_));
  AddOnStream(2);
  CUgraph captured = nullptr;
  OK(cuStreamEndCapture(stream_, &captured));
  Run(captured);
  EXPECT_EQ(Word(), 2u);
  // What a captured launch was given is shown as the program gave it.
  CUgraphNode node = nullptr;
  size_t count = 1;
  OK(cuGraphGetNodes(captured, &node, &count));
  CUDA_KERNEL_NODE_PARAMS got{};
  OK(cuGraphKernelNodeGetParams(node, &got));
  ASSERT_NE(got.kernelParams, nullptr);
  EXPECT_EQ(*static_cast<unsigned*>(got.kernelParams[2]), 2u);
  unsigned value = 30;
  got.kernelParams[2] = &value;
  OK(cuGraphKernelNodeSetParams(node, &got));
  Run(captured);
  EXPECT_EQ(Word(), 32u);
  OK(cuGraphDestroy(captured));
}

}  // namespace
}  // namespace causeway::driver_test
