// SPDX-License-Identifier: Apache-2.0
// Bodies of the graph messages that have no generic row.
#pragma once
#include <algorithm>

#include "ivshmem_ring/messages/graph_messages.h"
#include "ivshmem_ring/protocol/call.h"
#include "tests/fuzz/fuzz_bodies.h"

namespace causeway::fuzz {

// One of cuGraphAddNode_v2: dependencies and payload as announced, or not.
inline void MakeNode(Input& input, Bytes& body) {
  using enum HandleKind;
  NodeBody node{};
  node.verb = static_cast<NodeVerb>(input.Byte() % 4);
  node.form = static_cast<NodeForm>(input.Byte() % 3);
  node.node = SomeHandle(input, kGraphNode);
  node.owner = SomeHandle(input, node.verb == NodeVerb::kSetInExec ? kGraphExec : kGraph);
  const uint8_t count = input.Byte();
  node.dependency_count = count < 220 ? count % 3 : SomeNumber(input);
  node.has_edges = input.Byte() % 2;
  node.packing = static_cast<KernelPacking>(input.Byte() % 4);
  const uint8_t payload = input.Byte();
  node.payload_bytes = payload < 220 ? payload % 64 : static_cast<uint32_t>(SomeNumber(input));
  Put(body, &node, sizeof node);
  for (uint64_t i = 0; i < std::min<uint64_t>(node.dependency_count, 3); ++i)
    MakeHandles(input, body, {kGraphNode});
  if (node.has_edges != 0) body.resize(body.size() + 8 * std::min<uint64_t>(node.dependency_count, 3));
  auto& params = AppendNumbers<CUgraphNodeParams>(input, body);
  params.type = static_cast<CUgraphNodeType>(input.Byte() % 16);
  auto place = [&](auto& field, HandleKind kind) {
    const WireHandle wire = SomeHandle(input, kind);
    std::memcpy(&field, &wire, sizeof wire);
  };
  switch (params.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      place(params.kernel.func, kFunction);
      place(params.kernel.kern, kFunction);
      place(params.kernel.ctx, kContext);
      break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      place(params.memcpy.copyCtx, kContext);
      place(params.memcpy.copyParams.srcArray, kArray);
      place(params.memcpy.copyParams.dstArray, kArray);
      break;
    case CU_GRAPH_NODE_TYPE_GRAPH:
      place(params.graph.graph, kGraph);
      break;
    default:
      break;
  }
  body.resize(body.size() + payload % 64);
}

inline void MakeList(Input& input, Bytes& body) {
  ListBody list{};
  list.list = static_cast<NodeList>(input.Byte() % 6);
  const bool of_node = list.list == NodeList::kDependencies || list.list == NodeList::kDependents;
  list.subject = SomeHandle(input, of_node ? HandleKind::kGraphNode : HandleKind::kGraph);
  list.first = input.Byte() < 200 ? 0 : SomeNumber(input);
  list.room = input.Byte() < 200 ? 2 : SomeNumber(input);
  list.wants_first = input.Byte() % 2;
  list.wants_second = input.Byte() % 2;
  list.wants_edges = input.Byte() % 2;
  list.old_form = input.Byte() % 2;
  Put(body, &list, sizeof list);
  MakeHandles(
      input, body,
      {HandleKind::kGraphNode, HandleKind::kGraphNode, HandleKind::kGraphNode, HandleKind::kGraphNode});
}

// False: the operation is none of these.
inline bool MakeGraphBody(Op op, Input& input, Bytes& body) {
  using enum HandleKind;
  switch (op) {
    case Op::cuGraphAddNode_v2:
      MakeNode(input, body);
      return true;
    case Op::cuGraphGetNodes:
      MakeList(input, body);
      return true;
    case Op::cuGraphKernelNodeGetParams_v2:
      MakeHandles(input, body, {kGraphNode});
      Append<uint64_t>(body) = input.Byte() % 16;
      MakeHandles(input, body, {kFunction, kFunction});
      return true;
    case Op::cuGraphInstantiateWithParams:
      MakeHandles(input, body, {kGraphExec, kGraph, kStream, kGraphNode});
      Append<uint64_t>(body) = SomeNumber(input);
      Append<uint32_t>(body) = input.Byte() % 4;
      Append<uint32_t>(body) = static_cast<uint32_t>(SomeNumber(input));
      return true;
    case Op::cuGraphExecUpdate_v2:
      MakeHandles(input, body, {kGraphExec, kGraph, kGraphNode, kGraphNode});
      Append<uint64_t>(body) = input.Byte() % 2;
      return true;
    case Op::cuGraphDebugDotPrint:
      MakeHandles(input, body, {kGraph});
      Append<uint64_t>(body) = input.Byte() < 200 ? 0 : SomeNumber(input);
      Append<uint64_t>(body) = input.Byte();
      return true;
    case Op::cuStreamGetCaptureInfo_v2:
      MakeHandles(input, body, {kStream, kGraph});
      Append<uint32_t>(body) = input.Byte() < 200 ? 2 : static_cast<uint32_t>(SomeNumber(input));
      Append<uint32_t>(body) = static_cast<uint32_t>(SomeNumber(input));
      MakeHandles(input, body, {kGraphNode, kGraphNode});
      return true;
    case Op::cuStreamEndCapture:
      MakeHandles(input, body, {kStream, kGraph, kGraph});
      return true;
    case Op::cuUserObjectCreate:
      MakeHandles(input, body, {kUserObject});
      Append<uint64_t>(body) = SomeNumber(input);
      Append<uint64_t>(body) = uint64_t{1} << 32 | input.Byte();
      return true;
    default:
      return false;
  }
}

}  // namespace causeway::fuzz
