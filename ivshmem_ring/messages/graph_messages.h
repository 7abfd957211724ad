// SPDX-License-Identifier: Apache-2.0
// Bodies of the graph calls that are written by hand: nodes of every type, lists of nodes and edges,
// instantiation and update, capture. What may be longer than a record travels in a large one (kLargeBody).
#pragma once
#include <cstdint>

#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/protocol/handle.h"

namespace causeway {

// Parameters of a node: CUgraphNodeParams, for the older calls too. On the wire every handle inside is a wire
// handle in the handle's place, and what it points to follows the struct:
//   kernel                parameters in kernel layout, KernelPacking says from which form they came
//   allocation            CUmemAccessDesc each
//   batch of operations   CUstreamBatchMemOpParams each
//   host function         nothing; the guest's number of the function lies in userData
//   conditional           a fresh graph handle for each body (cuGraphAddNode alone)
inline constexpr uint32_t kMaxNodeParameters = 4096;
inline constexpr uint32_t kMaxMemOps = 1u << 14;
inline constexpr uint32_t kMaxConditionalBodies = 1u << 15;
enum class KernelPacking : uint32_t { kNone, kPointers, kBuffer };

// Which of the driver's functions is meant: results differ between them.
enum class NodeVerb : uint32_t { kAdd, kSet, kSetInExec };
enum class NodeForm : uint32_t {
  kGeneric,  // cuGraphAddNode_v2, cuGraphNodeSetParams, cuGraphExecNodeSetParams
  kTyped,    // cuGraphAddKernelNode_v2 and the like
};

// Op::cuGraphAddNode_v2: this, dependency_count wire handles, as many CUgraphEdgeData if has_edges, then the
// node's parameters. Reply of kAdd: what the driver wrote, as AddedNode; then the body graphs' handles.
struct NodeBody {
  NodeVerb verb;
  NodeForm form;
  WireHandle node;   // kAdd: a fresh handle
  WireHandle owner;  // kAdd: the graph; kSetInExec: the executable graph
  uint64_t dependency_count;
  uint32_t has_edges;
  KernelPacking packing;
  uint32_t payload_bytes;  // what follows the struct
  uint32_t by_word;        // host functions: 1: the guest watches GraphWords
};
static_assert(sizeof(NodeBody) == 48);
struct AddedNode {
  CUdeviceptr address;  // of an allocation
};

// Op::cuGraphKernelNodeGetParams_v2: every Get. Reply: CUgraphNodeParams with wire handles, then its payload
// behind a NodePayload. The function of a captured launch may be unknown to the guest: it sends fresh
// handles.
struct GetNodeBody {
  WireHandle node;
  CUgraphNodeType type;
  uint32_t reserved;
  WireHandle fresh_function;
  WireHandle fresh_kernel;
};
static_assert(sizeof(GetNodeBody) == 32);
struct NodePayload {
  KernelPacking packing;
  uint32_t parameter_count;  // kernels: ParameterLayout each, then the bytes
  uint32_t bytes;
  uint32_t reserved;
};

// Op::cuGraphGetNodes: every list. Items [first, first + room) of the list that a caller with room for
// first + room gets; none if the arrays are not wanted. This, then a fresh node handle for each item and
// wanted node array. Reply: the count as the driver says it, then for each item a wire handle for each wanted
// node array and CUgraphEdgeData if wanted.
enum class NodeList : uint32_t { kNodes, kRoots, kEdges, kDependencies, kDependents };
struct ListBody {
  WireHandle subject;  // the graph, or the node
  uint64_t first;
  uint64_t room;
  NodeList list;
  uint8_t wants_first, wants_second, wants_edges;
  uint8_t old_form;  // of before edge data
};
static_assert(sizeof(ListBody) == 32);
inline constexpr uint64_t kListPage = 16384;

// Op::cuGraphInstantiateWithParams. Reply, also of a failure: InstantiateReply, then the log's text.
enum class InstantiateForm : uint32_t { kWithFlags, kWithParams, kWithLog };
struct InstantiateBody {
  WireHandle exec;  // fresh
  WireHandle graph;
  WireHandle stream;
  WireHandle error_node;  // fresh
  uint64_t flags;
  InstantiateForm form;
  uint32_t log_bytes;
};
static_assert(sizeof(InstantiateBody) == 48);
struct InstantiateReply {
  WireHandle error_node;
  uint32_t result;      // CUgraphInstantiateResult
  uint32_t may_refuse;  // its launches can fail at the call: they must be waited for
  uint32_t announced;   // functions that each launch announces in GraphWords
  uint32_t reserved;
};
inline constexpr uint32_t kMaxGraphLogBytes = 64u << 10;

// Op::cuGraphExecUpdate_v2. Reply, also of a failure: UpdateReply.
struct UpdateBody {
  WireHandle exec;
  WireHandle graph;
  WireHandle error_node, error_from_node;  // fresh
  uint32_t first_form;
  uint32_t reserved;
};
struct UpdateReply {
  WireHandle error_node, error_from_node;
  uint32_t result;  // CUgraphExecUpdateResult
  uint32_t reserved;
};

// Op::cuUserObjectCreate.
struct UserObjectBody {
  WireHandle object;  // fresh
  uint64_t id;        // of the destructor (guest_lib/stream/callbacks.h)
  uint32_t references;
  uint32_t flags;
};

// Op::cuGraphDebugDotPrint. Reply: the text's size, then bytes from `first` on.
struct DotBody {
  WireHandle graph;
  uint64_t first;
  uint32_t flags;
  uint32_t reserved;
};

// Op::cuStreamGetCaptureInfo_v2: this, then `room` fresh node handles. Reply: CaptureReply, then for each of
// the first min(room, dependency_count) its wire handle and, if wanted, CUgraphEdgeData.
struct CaptureBody {
  WireHandle stream;
  WireHandle graph;  // fresh
  uint32_t room;
  uint8_t wants_dependencies, wants_edges;
  uint8_t form;  // the driver's function: _v2 or _v3
  uint8_t reserved;
};
static_assert(sizeof(CaptureBody) == 24);
struct CaptureReply {
  uint64_t id;
  WireHandle graph;
  uint64_t dependency_count;
  uint32_t status;
  uint32_t reserved;
};

}  // namespace causeway
