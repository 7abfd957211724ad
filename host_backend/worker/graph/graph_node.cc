// SPDX-License-Identifier: Apache-2.0
// Nodes of graphs: from parameters on the wire to the driver's, and back. Every pointer in the driver's
// structs is put here; none of the guest's is left.
#include <algorithm>
#include <bit>
#include <cstring>

#include "host_backend/worker/addresses/arenas.h"
#include "host_backend/worker/code/function.h"
#include "host_backend/worker/copy/box_copy.h"
#include "host_backend/worker/driver/host_nodes.h"
#include "host_backend/worker/driver/user_objects.h"
#include "host_backend/worker/session/session.h"
#include "host_backend/worker/stream/callbacks.h"
#include "ivshmem_ring/messages/code_messages.h"
#include "ivshmem_ring/messages/graph_messages.h"
#include "ivshmem_ring/protocol/admit.h"

namespace causeway::host {
namespace {

// A handle inside a struct: a wire handle in its place becomes the driver's, and the other way round.
template <class T>
void ToDriver(Session& session, T* handle, Reader& r) {
  WireHandle wire;
  std::memcpy(&wire, handle, sizeof wire);
  *handle = static_cast<T>(session.objects().ToDriver(kTakenKind<T>, wire, r));
}
template <class T>
void ToWire(Session& session, T* handle) {
  const WireHandle wire = *handle != nullptr ? session.objects().Known(kTakenKind<T>, *handle) : 0;
  std::memcpy(handle, &wire, sizeof wire);
}

// The same struct as CUDA_MEMSET_NODE_PARAMS with a context behind it.
CUresult AdmitMemset(const CUDA_MEMSET_NODE_PARAMS_v2& given) {
  CUDA_MEMSET_NODE_PARAMS memset{given.dst,         given.pitch, given.value,
                                 given.elementSize, given.width, given.height};
  return Admit(memset);
}

// A node's parameters for one driver call, with all that they point to.
class NodeParameters {
 public:
  // Reads and resolves what follows a NodeBody.
  CUresult Take(Session& session, const NodeBody& body, Reader& in);
  CUgraphNodeParams& get() { return params_; }
  const std::vector<WireHandle>& bodies() const { return bodies_; }
  WireHandle child() const { return child_; }

 private:
  CUresult TakeKernel(Session& session, const NodeBody& body, Reader& in);
  CUresult TakeCopy(Session& session, Reader& in);
  template <class T>
  bool TakeArray(uint64_t count, uint64_t most, std::vector<T>* array, Reader& in) {
    if (count > most || count * sizeof(T) > in.left()) return false;
    array->resize(count);
    const std::byte* from = in.Take(count * sizeof(T));
    if (from != nullptr && count != 0) std::memcpy(array->data(), from, count * sizeof(T));
    return in.ok();
  }

  CUgraphNodeParams params_{};
  std::vector<std::byte> bytes_;
  std::vector<void*> pointers_;
  size_t buffer_bytes_ = 0;
  void* extra_[5] = {};
  std::vector<CUmemAccessDesc> access_;
  std::vector<CUstreamBatchMemOpParams> operations_;
  std::vector<WireHandle> bodies_;
  WireHandle child_ = 0;
};

CUresult NodeParameters::TakeKernel(Session& session, const NodeBody& body, Reader& in) {
  CUDA_KERNEL_NODE_PARAMS_v3& kernel = params_.kernel;
  ToDriver(session, &kernel.func, in);
  ToDriver(session, &kernel.kern, in);
  ToDriver(session, &kernel.ctx, in);
  kernel.kernelParams = nullptr;
  kernel.extra = nullptr;
  if (!in.ok()) return in.error();
  if (!TakeArray(body.payload_bytes, kMaxLaunchParameterBytes, &bytes_, in)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<ParameterLayout> layout;
  if (body.packing == KernelPacking::kPointers && ParametersOf(kernel.func, kernel.kern, &layout)) {
    for (const ParameterLayout& at : layout) {
      if (uint64_t{at.offset} + at.bytes > bytes_.size()) return CUDA_ERROR_INVALID_VALUE;
      pointers_.push_back(bytes_.data() + at.offset);
    }
    kernel.kernelParams = pointers_.data();
  } else if (body.packing == KernelPacking::kBuffer || !bytes_.empty()) {
    buffer_bytes_ = bytes_.size();
    bytes_.reserve(1);
    void* const extra[5] = {CU_LAUNCH_PARAM_BUFFER_POINTER, bytes_.data(), CU_LAUNCH_PARAM_BUFFER_SIZE,
                            &buffer_bytes_, CU_LAUNCH_PARAM_END};
    std::copy(std::begin(extra), std::end(extra), extra_);
    kernel.extra = extra_;
  }
  return CUDA_SUCCESS;
}

// Its host sides may be used at any launch from now on, which is what the addresses of a CheckedBox are for.
CUresult NodeParameters::TakeCopy(Session& session, Reader& in) {
  CUDA_MEMCPY3D& box = params_.memcpy.copyParams;
  ToDriver(session, &params_.memcpy.copyCtx, in);
  ToDriver(session, &box.srcArray, in);
  ToDriver(session, &box.dstArray, in);
  if (!in.ok()) return in.error();
  CheckedBox checked;
  if (const CUresult result = CheckedBox::Check(session, box, PackedSide::kNone, {}, &checked)) return result;
  box = checked.get();
  return CUDA_SUCCESS;
}

// The parameters are a union: the member that the type names is put into a cleared one, so that nothing else of the
// guest's is left, in reserved bytes or beyond the member.
CUresult KeepItsType(CUgraphNodeParams& params) {
  const CUgraphNodeParams given = params;
  std::memset(&params, 0, sizeof params);
  params.type = given.type;
  switch (given.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      params.kernel = given.kernel;
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      params.memcpy.copyCtx = given.memcpy.copyCtx;
      params.memcpy.copyParams = given.memcpy.copyParams;
      return given.memcpy.flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_MEMSET:
      params.memset = given.memset;
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_HOST:
      params.host = given.host;
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH:
      params.graph = given.graph;
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      params.free = given.free;
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      params.eventWait = given.eventWait;
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      params.eventRecord = given.eventRecord;
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      params.alloc = given.alloc;
      params.alloc.dptr = 0;
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      params.memOp = given.memOp;
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      params.conditional = given.conditional;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult NodeParameters::Take(Session& session, const NodeBody& body, Reader& in) {
  params_ = in.Get<CUgraphNodeParams>();
  if (!in.ok()) return in.error();
  if (const CUresult result = KeepItsType(params_)) return result;
  switch (params_.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return TakeKernel(session, body, in);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return TakeCopy(session, in);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      ToDriver(session, &params_.memset.ctx, in);
      return in.ok() ? AdmitMemset(params_.memset) : in.error();
    case CU_GRAPH_NODE_TYPE_HOST:
      params_.host.fn = &RunHostFunction;
      params_.host.userData = CallbackUserData(CallbackId(params_.host.userData));
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH:
      std::memcpy(&child_, &params_.graph.graph, sizeof child_);
      ToDriver(session, &params_.graph.graph, in);
      // A node that is there takes over no graph.
      if (in.ok() && body.verb != NodeVerb::kAdd &&
          params_.graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE)
        return CUDA_ERROR_INVALID_VALUE;
      return in.ok() ? Admit(params_.graph.ownership) : in.error();
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      ToDriver(session, &params_.eventWait.event, in);
      return in.error();
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      ToDriver(session, &params_.eventRecord.event, in);
      return in.error();
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      if (!TakeArray(params_.alloc.accessDescCount, kMaxDevices * 4, &access_, in))
        return CUDA_ERROR_INVALID_VALUE;
      for (CUmemAccessDesc& access : access_) {
        if (const CUresult result = Admit(access)) return result;
      }
      params_.alloc.accessDescs = access_.empty() ? nullptr : access_.data();
      return Admit(params_.alloc.poolProps);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      ToDriver(session, &params_.memOp.ctx, in);
      if (!in.ok()) return in.error();
      if (!TakeArray(params_.memOp.count, kMaxMemOps, &operations_, in) ||
          !OnlyFlags(params_.memOp.flags, kNoFlags)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      for (CUstreamBatchMemOpParams& operation : operations_) {
        if (const CUresult result = Admit(operation)) return result;
      }
      params_.memOp.paramArray = operations_.empty() ? nullptr : operations_.data();
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      ToDriver(session, &params_.conditional.ctx, in);
      params_.conditional.phGraph_out = nullptr;
      if (!in.ok()) return in.error();
      if (const CUresult result = Admit(params_.conditional.type)) return result;
      if (body.verb == NodeVerb::kAdd &&
          !TakeArray(params_.conditional.size, kMaxConditionalBodies, &bodies_, in)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// The older calls, a pair for each type of node.
CUresult AddTyped(CUgraphNode* node, CUgraph graph, const std::vector<CUgraphNode>& dependencies,
                  CUgraphNodeParams& params) {
  const Driver& driver = TheDriver();
  const CUgraphNode* first = dependencies.empty() ? nullptr : dependencies.data();
  const size_t count = dependencies.size();
  const auto add = [&](auto call, const auto& typed) { return call(node, graph, first, count, &typed); };
  switch (params.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return add(driver.cuGraphAddKernelNode_v2, std::bit_cast<CUDA_KERNEL_NODE_PARAMS>(params.kernel));
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return driver.cuGraphAddMemcpyNode(node, graph, first, count, &params.memcpy.copyParams,
                                         params.memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_HOST:
      return add(driver.cuGraphAddHostNode, std::bit_cast<CUDA_HOST_NODE_PARAMS>(params.host));
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      auto alloc = std::bit_cast<CUDA_MEM_ALLOC_NODE_PARAMS>(params.alloc);
      const CUresult result = driver.cuGraphAddMemAllocNode(node, graph, first, count, &alloc);
      params.alloc.dptr = alloc.dptr;
      return result;
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return add(driver.cuGraphAddBatchMemOpNode, std::bit_cast<CUDA_BATCH_MEM_OP_NODE_PARAMS>(params.memOp));
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult SetTyped(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams& params) {
  const Driver& driver = TheDriver();
  const auto set = [&](auto in_exec, auto in_graph, const auto& typed) {
    return exec != nullptr ? in_exec(exec, node, &typed) : in_graph(node, &typed);
  };
  switch (params.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return set(driver.cuGraphExecKernelNodeSetParams_v2, driver.cuGraphKernelNodeSetParams_v2,
                 std::bit_cast<CUDA_KERNEL_NODE_PARAMS>(params.kernel));
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
      const CUDA_MEMCPY3D* box = &params.memcpy.copyParams;
      return exec != nullptr ? driver.cuGraphExecMemcpyNodeSetParams(exec, node, box, params.memcpy.copyCtx)
                             : driver.cuGraphMemcpyNodeSetParams(node, box);
    }
    case CU_GRAPH_NODE_TYPE_HOST:
      return set(driver.cuGraphExecHostNodeSetParams, driver.cuGraphHostNodeSetParams,
                 std::bit_cast<CUDA_HOST_NODE_PARAMS>(params.host));
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return set(driver.cuGraphExecBatchMemOpNodeSetParams, driver.cuGraphBatchMemOpNodeSetParams,
                 std::bit_cast<CUDA_BATCH_MEM_OP_NODE_PARAMS>(params.memOp));
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult AddNode(CUgraphNode* node, CUgraph graph, const std::vector<CUgraphNode>& dependencies,
                 const std::vector<CUgraphEdgeData>& edges, NodeForm form, CUgraphNodeParams& params) {
  if (form == NodeForm::kTyped) return AddTyped(node, graph, dependencies, params);
  const Driver& driver = TheDriver();
  const CUgraphNode* first = dependencies.empty() ? nullptr : dependencies.data();
  if (!Has(driver.cuGraphAddNode_v2) && edges.empty())
    return driver.cuGraphAddNode(node, graph, first, dependencies.size(), &params);
  return driver.cuGraphAddNode_v2(node, graph, first, edges.empty() ? nullptr : edges.data(),
                                  dependencies.size(), &params);
}

// A new node, and the graphs that came or went with it.
CUresult Answer(Session& session, const NodeBody& body, CUgraphNode node, NodeParameters& parameters,
                Writer& out) {
  session.objects().Bind(HandleKind::kGraphNode, body.node, node, out);
  const CUgraphNodeParams& params = parameters.get();
  const bool allocates = params.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  out.Put(AddedNode{allocates ? params.alloc.dptr : 0});
  if (params.type == CU_GRAPH_NODE_TYPE_GRAPH && body.form == NodeForm::kGeneric &&
      params.graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE) {
    // The driver has moved the graph. A number by which it could still be ended as if it were nobody's is a danger; only threads of a
    // guest that give one number to two objects at once come here.
    const Found child{parameters.child(), params.graph.graph};
    if (!out.ok() || !session.objects().Adopt(child, {body.node, node})) {
      session.objects().Unbind(child);
      return session.Breach("the node into which a graph was moved has lost its number");
    }
  }
  if (params.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    const CUgraph* graphs = params.conditional.phGraph_out;
    for (size_t i = 0; graphs != nullptr && i < parameters.bodies().size(); ++i) {
      out.Put(session.objects().BindOrKnownTo({body.node, node}, HandleKind::kGraph, parameters.bodies()[i],
                                              graphs[i], out));
    }
  }
  return out.error();
}

// What ends a function or kernel that the guest never asked for: the module, or the library whose module it
// is or whose kernel. What is dead is found nowhere: only those that live are asked for theirs.
Found OwnerOfCode(Session& session, const void* code) {
  const Driver& driver = TheDriver();
  const auto has = [code]<class Item, class Owner>(CUresult (*count_of)(unsigned*, Owner),
                                                   CUresult (*list)(Item*, unsigned, Owner), Owner owner) {
    unsigned count = 0;
    if (count_of == nullptr || list == nullptr || owner == nullptr ||
        count_of(&count, owner) != CUDA_SUCCESS || count == 0)
      return false;
    std::vector<Item> all(count);
    if (list(all.data(), count, owner) != CUDA_SUCCESS) return false;
    return std::any_of(all.begin(), all.end(),
                       [code](Item item) { return static_cast<const void*>(item) == code; });
  };
  for (const WireHandle wire : session.objects().All(HandleKind::kModule)) {
    auto module = static_cast<CUmodule>(session.objects().Find(HandleKind::kModule, wire));
    if (!has(driver.cuModuleGetFunctionCount, driver.cuModuleEnumerateFunctions, module)) continue;
    const Found library = session.objects().ParentOf({wire, module});
    return WireKind(library.wire) == HandleKind::kLibrary ? library : Found{wire, module};
  }
  for (const WireHandle wire : session.objects().All(HandleKind::kLibrary)) {
    auto library = static_cast<CUlibrary>(session.objects().Find(HandleKind::kLibrary, wire));
    CUmodule module = nullptr;
    if (has(driver.cuLibraryGetKernelCount, driver.cuLibraryEnumerateKernels, library))
      return {wire, library};
    if (library != nullptr && driver.cuLibraryGetModule(&module, library) == CUDA_SUCCESS &&
        has(driver.cuModuleGetFunctionCount, driver.cuModuleEnumerateFunctions, module))
      return {wire, library};
  }
  return {};
}

// The function of a node, which the guest may never have asked for.
template <class T>
void FunctionToWire(Session& session, T* function, WireHandle fresh, Writer& out) {
  if (*function == nullptr) return;
  WireHandle wire = session.objects().Known(kTakenKind<T>, *function);
  // One that nobody can say what ends it with gets no number.
  if (const Found owner = wire == 0 ? OwnerOfCode(session, *function) : Found{}; owner.wire != 0)
    wire = session.objects().BindOrKnownTo(owner, kTakenKind<T>, fresh, *function, out);
  std::memcpy(function, &wire, sizeof wire);
}

CUresult GetKernel(Session& session, const GetNodeBody& body, CUgraphNode node, Writer& out) {
  CUDA_KERNEL_NODE_PARAMS kernel{};
  if (const CUresult result = TheDriver().cuGraphKernelNodeGetParams_v2(node, &kernel)) return result;
  std::vector<ParameterLayout> layout;
  std::vector<std::byte> bytes;
  NodePayload payload{};
  auto end_of = [](const ParameterLayout& at) { return uint64_t{at.offset} + at.bytes; };
  // The node remembers them when their module is gone: the driver is asked about those that live alone.
  CUfunction function = kernel.func;
  CUkernel code = kernel.kern;
  FunctionToWire(session, &function, body.fresh_function, out);
  FunctionToWire(session, &code, body.fresh_kernel, out);
  const bool is_laid_out = ParametersOf(function != nullptr ? kernel.func : nullptr,
                                        code != nullptr ? kernel.kern : nullptr, &layout);
  if (kernel.kernelParams != nullptr && is_laid_out) {
    payload.packing = KernelPacking::kPointers;
    for (size_t i = 0; i < layout.size(); ++i) {
      if (bytes.size() < end_of(layout[i])) bytes.resize(end_of(layout[i]));
      if (kernel.kernelParams[i] != nullptr)
        std::memcpy(bytes.data() + layout[i].offset, kernel.kernelParams[i], layout[i].bytes);
    }
  } else if (kernel.extra != nullptr) {
    payload.packing = KernelPacking::kBuffer;
    const void* buffer = nullptr;
    size_t size = 0;
    for (void** at = kernel.extra; *at != CU_LAUNCH_PARAM_END; at += 2) {
      if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = at[1];
      if (*at == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *static_cast<size_t*>(at[1]);
    }
    const auto* from = static_cast<const std::byte*>(buffer);
    if (from != nullptr && size <= kMaxLaunchParameterBytes) bytes.assign(from, from + size);
  }
  kernel.kernelParams = nullptr;
  kernel.extra = nullptr;
  kernel.func = function;
  kernel.kern = code;
  ToWire(session, &kernel.ctx);
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  std::memcpy(&params.kernel, &kernel, sizeof kernel);
  payload.parameter_count = static_cast<uint32_t>(layout.size());
  payload.bytes = static_cast<uint32_t>(bytes.size());
  out.Put(params);
  out.Put(payload);
  out.PutBytes(layout.data(), layout.size() * sizeof(ParameterLayout));
  out.PutBytes(bytes.data(), bytes.size());
  return out.error();
}

// Parameters as the guest gets them, and behind them the elements to which they point.
template <class T>
CUresult PutNode(Writer& out, const CUgraphNodeParams& params, const T* elements = nullptr,
                 size_t count = 0) {
  NodePayload payload{};
  payload.bytes = static_cast<uint32_t>(count * sizeof(T));
  out.Put(params);
  out.Put(payload);
  if (elements != nullptr) out.PutBytes(elements, payload.bytes);
  return out.error();
}

CUresult GetCopy(Session& session, CUgraphNode node, Writer& out) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  CUDA_MEMCPY3D& box = params.memcpy.copyParams;
  if (const CUresult result = TheDriver().cuGraphMemcpyNodeGetParams(node, &box)) return result;
  ToWire(session, &box.srcArray);
  ToWire(session, &box.dstArray);
  // The worker's own addresses mean nothing to the guest.
  if (!session.part<Arenas>().ResolveAddress(reinterpret_cast<uint64_t>(box.srcHost), 0))
    box.srcHost = nullptr;
  if (!session.part<Arenas>().ResolveAddress(reinterpret_cast<uint64_t>(box.dstHost), 0))
    box.dstHost = nullptr;
  box.reserved0 = box.reserved1 = nullptr;
  return PutNode<std::byte>(out, params);
}

CUresult GetHostFunction(CUgraphNode node, Writer& out) {
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_HOST;
  uint64_t id = 0;
  if (TheHostNodes().Is(node, &id)) {
    params.host.userData = CallbackUserData(id);
  } else {
    CUDA_HOST_NODE_PARAMS host{};
    if (const CUresult result = TheDriver().cuGraphHostNodeGetParams(node, &host)) return result;
    params.host.userData = host.fn == &RunHostFunction ? host.userData : nullptr;
  }
  return PutNode<std::byte>(out, params);
}

CUresult GetAllocation(CUgraphNode node, Writer& out) {
  CUDA_MEM_ALLOC_NODE_PARAMS alloc{};
  if (const CUresult result = TheDriver().cuGraphMemAllocNodeGetParams(node, &alloc)) return result;
  const CUmemAccessDesc* access = alloc.accessDescs;
  if (access == nullptr || alloc.accessDescCount > kMaxDevices * 4) alloc.accessDescCount = 0;
  alloc.accessDescs = nullptr;
  Conceal(alloc.poolProps);
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  std::memcpy(&params.alloc, &alloc, sizeof alloc);
  return PutNode(out, params, access, alloc.accessDescCount);
}

CUresult GetBatch(Session& session, CUgraphNode node, Writer& out) {
  CUDA_BATCH_MEM_OP_NODE_PARAMS batch{};
  if (TheHostNodes().Is(node)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = TheDriver().cuGraphBatchMemOpNodeGetParams(node, &batch)) return result;
  const CUstreamBatchMemOpParams* operations = batch.paramArray;
  if (operations == nullptr || batch.count > kMaxMemOps) batch.count = 0;
  batch.paramArray = nullptr;
  // The driver keeps an address of its own in `alias`.
  std::vector<CUstreamBatchMemOpParams> shown(operations, operations + batch.count);
  for (CUstreamBatchMemOpParams& operation : shown) Admit(operation);
  ToWire(session, &batch.ctx);
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  std::memcpy(&params.memOp, &batch, sizeof batch);
  return PutNode(out, params, shown.data(), shown.size());
}

}  // namespace

// All additions and changes, by the verb.
CUresult Serve_cuGraphAddNode_v2(Session& session, Request& request) {
  Reader& in = request.in;
  const auto body = in.Get<NodeBody>();
  const bool adds = body.verb == NodeVerb::kAdd;
  auto* graph = adds ? session.objects().ToDriver<CUgraph>(body.owner, in) : CUgraph{nullptr};
  auto* exec = body.verb == NodeVerb::kSetInExec ? session.objects().ToDriver<CUgraphExec>(body.owner, in)
                                                 : CUgraphExec{nullptr};
  auto* node = adds ? CUgraphNode{nullptr} : session.objects().ToDriver<CUgraphNode>(body.node, in);
  if (!in.ok()) return in.error();
  if (body.verb == NodeVerb::kSetInExec && exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = RequireNumber(HandleKind::kGraphNode, body.node)) return result;
  if (body.dependency_count > in.left() / sizeof(WireHandle)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUgraphNode> dependencies(body.dependency_count);
  for (CUgraphNode& dependency : dependencies) {
    dependency = session.objects().ToDriver<CUgraphNode>(in.Get<WireHandle>(), in);
  }
  std::vector<CUgraphEdgeData> edges(body.has_edges != 0 ? body.dependency_count : 0);
  for (CUgraphEdgeData& edge : edges) {
    edge = in.Get<CUgraphEdgeData>();
    if (const CUresult result = Admit(edge)) return result;
  }
  if (!in.ok()) return in.error();
  NodeParameters parameters;
  if (const CUresult result = parameters.Take(session, body, in)) return result;
  if (const CUresult result = session.objects().Prepare()) return result;
  if (adds) {
    CUgraphNodeParams& params = parameters.get();
    CUgraphNodeParams by_word;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    if (params.type == CU_GRAPH_NODE_TYPE_HOST && body.by_word != 0 &&
        session.part<Arenas>().callback_words() != nullptr &&
        TheHostNodes().Make(graph, CallbackId(params.host.userData), &by_word)) {
      result = AddNode(&node, graph, dependencies, edges, body.form, by_word);
    }
    // What is refused so is refused as the driver refuses a host node.
    if (result != CUDA_SUCCESS) result = AddNode(&node, graph, dependencies, edges, body.form, params);
    return result != CUDA_SUCCESS ? result : Answer(session, body, node, parameters, request.out);
  }
  if (TheHostNodes().Is(node)) {
    const CUgraphNodeParams& params = parameters.get();
    if (params.type != CU_GRAPH_NODE_TYPE_HOST) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t id = CallbackId(params.host.userData);
    return exec != nullptr ? TheHostNodes().SetInExec(exec, node, id) : TheHostNodes().Set(node, id);
  }
  if (body.form == NodeForm::kTyped) return SetTyped(exec, node, parameters.get());
  return exec != nullptr ? TheDriver().cuGraphExecNodeSetParams(exec, node, &parameters.get())
                         : TheDriver().cuGraphNodeSetParams(node, &parameters.get());
}

// All queries, by the type.
CUresult Serve_cuGraphKernelNodeGetParams_v2(Session& session, Request& request) {
  const auto body = request.in.Get<GetNodeBody>();
  auto node = session.objects().ToDriver<CUgraphNode>(body.node, request.in);
  if (!request.in.ok()) return request.in.error();
  if (const CUresult result = session.objects().Prepare()) return result;
  switch (body.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return GetKernel(session, body, node, request.out);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return GetCopy(session, node, request.out);
    case CU_GRAPH_NODE_TYPE_HOST:
      return GetHostFunction(node, request.out);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return GetAllocation(node, request.out);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return GetBatch(session, node, request.out);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult Serve_cuUserObjectCreate(Session& session, Request& request) {
  const auto body = request.in.Get<UserObjectBody>();
  if (!request.in.ok()) return request.in.error();
  if (!OnlyFlags(body.flags, kUserObjectFlags)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = RequireNumber(HandleKind::kUserObject, body.object)) return result;
  CUuserObject object = nullptr;
  const CUresult result = TheDriver().cuUserObjectCreate(&object, CallbackUserData(body.id),
                                                         &AnnounceDestructor, body.references, body.flags);
  if (result != CUDA_SUCCESS) return result;
  TheUserObjects().Begin(object, body.references);
  session.objects().Bind(HandleKind::kUserObject, body.object, object, request.out);
  if (request.out.ok()) session.objects().NoteUserObject(body.id, {body.object, object});
  return request.out.error();
}

}  // namespace causeway::host
