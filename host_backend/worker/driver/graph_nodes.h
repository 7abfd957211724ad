// SPDX-License-Identifier: Apache-2.0
// The nodes of a graph, for code of the worker that looks through graphs. For any thread that may use the graph.
#pragma once
#include <algorithm>
#include <vector>

#include "host_backend/worker/driver/driver.h"

namespace causeway::host {

// Sets *nodes to those of the graph itself, without those of its child graphs. A graph without nodes is not asked for a
// list: the driver need not take room for no node, and an error there would be taken for one of the graph.
inline CUresult NodesOf(CUgraph graph, std::vector<CUgraphNode>* nodes) {
  const Driver& driver = TheDriver();
  size_t count = 0;
  nodes->clear();
  if (const CUresult result = driver.cuGraphGetNodes(graph, nullptr, &count)) return result;
  if (count == 0) return CUDA_SUCCESS;
  nodes->resize(count);
  const CUresult result = driver.cuGraphGetNodes(graph, nodes->data(), &count);
  nodes->resize(result == CUDA_SUCCESS ? std::min(count, nodes->size()) : 0);
  return result;
}

}  // namespace causeway::host
