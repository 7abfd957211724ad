// SPDX-License-Identifier: Apache-2.0
// Bodies of messages about graphs, for calls that are written by hand on both sides: nodes of every type,
// lists of nodes and edges, instantiation and update, capture. A body or reply that is longer than a record
// travels in a staging buffer (kLargeRequest, kLargeReply). Where a comment says "this, then ...", the rest
// follows the struct in the message. A wire handle called fresh was made by the guest for an object that it
// may not know yet. Where the object has a wire handle already, the reply has that one and the fresh one
// stays unused. A wire handle 0 stands for a null handle. Fields named reserved are 0.
#pragma once
#include <cstdint>

#include "ivshmem_ring/protocol/driver_api.h"
#include "ivshmem_ring/protocol/handle.h"

namespace causeway {

// The parameters of a node travel as CUgraphNodeParams, for the older calls too. Every handle inside is
// replaced by its wire handle, and what the struct points to follows it, by the type of node:
//   kernel                the parameters in the kernel's layout; KernelPacking says how the program gave them
//   allocation            its accessDescCount CUmemAccessDesc
//   batch of operations   a CUstreamBatchMemOpParams for each operation
//   host function         nothing; userData holds the guest's number of the function
//   conditional           a fresh graph handle for each body (only when the node is added)
inline constexpr uint32_t kMaxNodeParameters = 4096;  // of one kernel
inline constexpr uint32_t kMaxMemOps = 1u << 14;      // of one node
inline constexpr uint32_t kMaxConditionalBodies = 1u << 15;
// How the program gave a kernel's parameters: none, kernelParams (a pointer to each), or extra (one buffer).
enum class KernelPacking : uint32_t { kNone, kPointers, kBuffer };

// What to do with the node: add it to a graph, or change its parameters there or in an executable graph.
enum class NodeVerb : uint32_t { kAdd, kSet, kSetInExec };
// Which of the driver's functions to call for that, since their results differ.
enum class NodeForm : uint32_t {
  kGeneric,  // cuGraphAddNode_v2, cuGraphNodeSetParams, cuGraphExecNodeSetParams
  kTyped,    // cuGraphAddKernelNode_v2 and the like
};

// Op::cuGraphAddNode_v2, for all calls that add or set a node: this, then dependency_count wire handles, as
// many CUgraphEdgeData if has_edges is 1, then the node's parameters. The reply of kAdd: an AddedNode with
// what the driver wrote, then the wire handles of body graphs. kSet and kSetInExec have no dependencies and
// an empty reply.
struct NodeBody {
  NodeVerb verb;
  NodeForm form;
  WireHandle node;   // kAdd: fresh; else the node
  WireHandle owner;  // kAdd: the graph; kSetInExec: the executable graph; kSet: 0
  uint64_t dependency_count;
  uint32_t has_edges;
  KernelPacking packing;
  uint32_t payload_bytes;  // of what follows CUgraphNodeParams
  uint32_t by_word;  // host functions: 1 if the guest polls GraphWords (ivshmem_ring/transport/layout.h),
                     // so the GPU may announce the function
};
static_assert(sizeof(NodeBody) == 48);
struct AddedNode {
  CUdeviceptr address;  // that an allocation node allocates; else 0
};

// Op::cuGraphKernelNodeGetParams_v2, for all calls that ask for a node's parameters. The reply:
// CUgraphNodeParams with wire handles, then a NodePayload, then what the parameters point to. The function of
// a captured launch may be unknown to the guest, so the guest sends a fresh handle for each of the two forms
// in which the driver names a function.
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
  uint32_t parameter_count;  // of a kernel: so many ParameterLayout (code_messages.h) follow, then the bytes
  uint32_t bytes;            // that what the parameters point to takes, without the ParameterLayouts
  uint32_t reserved;
};

// Op::cuGraphGetNodes, for all calls that list nodes or edges. It asks for the items [first, first + room) of
// the list that the driver gives to a caller with room for first + room items, or for the count alone if no
// array is wanted. The message: this, then a fresh node handle for each item and wanted node array. The
// reply: the count as the driver states it, then for each item a wire handle for each wanted node array, and
// a CUgraphEdgeData if wanted.
//
// cuGraphGetEdges wants two node arrays, the nodes from which edges lead and those to which they lead; the
// other calls want the first alone.
enum class NodeList : uint32_t { kNodes, kRoots, kEdges, kDependencies, kDependents };
struct ListBody {
  WireHandle subject;  // of kDependencies and kDependents a node, else a graph
  uint64_t first;
  uint64_t room;
  NodeList list;
  uint8_t wants_first, wants_second, wants_edges;  // 1: the program passed that array
  uint8_t old_form;                                // 1: the driver's function without edge data
};
static_assert(sizeof(ListBody) == 32);
inline constexpr uint64_t kListPage = 16384;  // most items of one message

// Op::cuGraphInstantiateWithParams, for all calls that instantiate. The reply, also of a failure: an
// InstantiateReply, then the text of the log without a NUL, log_bytes at most. The form says which of the
// driver's functions to call: kWithLog is cuGraphInstantiate_v2, the one that has a log. The
// reply has no body if the request is refused before the driver's call.
enum class InstantiateForm : uint32_t { kWithFlags, kWithParams, kWithLog };
struct InstantiateBody {
  WireHandle exec;  // fresh
  WireHandle graph;
  WireHandle stream;      // kWithParams: where the graph is uploaded
  WireHandle error_node;  // fresh
  uint64_t flags;
  InstantiateForm form;
  uint32_t log_bytes;  // the program's room for the log, kMaxGraphLogBytes at most; 0: none wanted
};
static_assert(sizeof(InstantiateBody) == 48);
struct InstantiateReply {
  WireHandle error_node;  // of a failure: the node that it is about, or 0
  uint32_t result;        // CUgraphInstantiateResult
  uint32_t may_refuse;    // 1: its launches can fail at the call, so the guest waits for their answer
  uint32_t announced;     // how many functions each launch announces in GraphWords (layout.h)
  uint32_t reserved;
};
inline constexpr uint32_t kMaxGraphLogBytes = 64u << 10;

// Op::cuGraphExecUpdate_v2, for both forms of the call. The reply, also of a failure: an UpdateReply, whose
// nodes are 0 after success.
struct UpdateBody {
  WireHandle exec;
  WireHandle graph;
  WireHandle error_node, error_from_node;  // fresh
  uint32_t first_form;                     // 1: cuGraphExecUpdate, where the driver has it
  uint32_t reserved;
};
struct UpdateReply {
  WireHandle error_node, error_from_node;
  uint32_t result;  // CUgraphExecUpdateResult
  uint32_t reserved;
};

// Op::cuUserObjectCreate. The reply is empty.
struct UserObjectBody {
  WireHandle object;    // fresh
  uint64_t id;          // the guest's number of the destructor (guest_lib/callbacks/callbacks.h)
  uint32_t references;  // that the creator has at first
  uint32_t flags;
};

// Op::cuGraphDebugDotPrint. The reply: the size of the whole text in bytes (uint64_t), then its bytes from
// `first` on, as many as a staging buffer holds. The guest asks again with a larger `first` for the rest,
// over the same channel: `first` 0 has the text made, and each channel's thread keeps the last one.
struct DotBody {
  WireHandle graph;
  uint64_t first;  // bytes of the text that the guest has already
  uint32_t flags;
  uint32_t reserved;
};

// Op::cuStreamGetCaptureInfo_v2, for all its forms: this, then `room` fresh node handles. The reply: a
// CaptureReply, then, if dependencies are wanted, for each of the first min(room, dependency_count) its wire
// handle and, if wanted, a CUgraphEdgeData.
struct CaptureBody {
  WireHandle stream;
  WireHandle graph;  // fresh
  uint32_t room;
  uint8_t wants_dependencies, wants_edges;
  uint8_t form;  // which of the driver's functions: 2 for _v2, 3 for _v3
  uint8_t reserved;
};
static_assert(sizeof(CaptureBody) == 24);
struct CaptureReply {
  uint64_t id;  // of the capture. This and the next two are 0 if `status` is not ACTIVE
  WireHandle graph;
  uint64_t dependency_count;
  uint32_t status;  // CUstreamCaptureStatus
  uint32_t reserved;
};

}  // namespace causeway
