// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/driver/host_nodes.h"

#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "host_backend/worker/driver/guard.h"
#include "host_backend/worker/driver/user_objects.h"
#include "host_backend/worker/process/output.h"

namespace causeway::host {
namespace {

// A graph of more nodes, and what comes when half of the pairs are taken, gets nodes that the driver calls:
// so that pairs are left for further executables of the graphs that there are.
constexpr size_t kMostNodes = kGraphWords / 4;
constexpr uint32_t kMostTaken = kGraphWords / 2;

constexpr size_t kSteps = 3;

using Hidden = Guards<struct HidesHostNodes>;

uint64_t AnnouncedAt(CUdeviceptr words, uint32_t word) {
  return words + offsetof(CallbackWords, graph) + offsetof(GraphWords, announced) + sizeof(uint64_t) * word;
}
uint64_t DoneAt(CUdeviceptr words, uint32_t word) {
  return words + offsetof(CallbackWords, graph) + offsetof(GraphWords, done) + sizeof(uint64_t) * word;
}

void MakeSteps(CUdeviceptr words, uint64_t id, uint32_t word, CUstreamBatchMemOpParams* steps) {
  std::fill(steps, steps + kSteps, CUstreamBatchMemOpParams{});
  // Before the number: who has seen that may write it at once.
  steps[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  steps[0].writeValue.address = DoneAt(words, word);
  // With its barrier: what the graph did before is visible to whoever sees the number.
  steps[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  steps[1].writeValue.address = AnnouncedAt(words, word);
  steps[1].writeValue.value64 = id;
  steps[2].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  steps[2].waitValue.address = DoneAt(words, word);
  steps[2].waitValue.value64 = id;
  steps[2].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;  // a session that ends writes the largest
}

bool CanMake(const Driver& driver) {
  return HasAll(driver.cuGraphBatchMemOpNodeGetParams, driver.cuGraphBatchMemOpNodeSetParams,
                driver.cuGraphAddBatchMemOpNode, driver.cuGraphExecBatchMemOpNodeSetParams,
                driver.cuUserObjectCreate, driver.cuUserObjectRelease, driver.cuGraphRetainUserObject,
                driver.cuGraphReleaseUserObject, driver.cuGraphGetNodes, driver.cuGraphNodeGetType,
                driver.cuGraphChildGraphNodeGetGraph, driver.cuGraphDestroyNode);
}

void LogNoPairs(size_t wanted) {
  static std::atomic<uint32_t> lines{0};
  if (lines.fetch_add(1) >= 20) return;
  const std::string text = "causeway-worker[" + std::to_string(getpid()) + "]: no words for the " +
                           std::to_string(wanted) + " host nodes of a graph (a session has " +
                           std::to_string(kGraphWords) +
                           "): destroy executable graphs, or set CAUSEWAY_CALLBACKS=host in the guest\n";
  dprintf(Output::LogFd(), "%s", text.c_str());
}

}  // namespace

HostNodes& TheHostNodes() {
  static auto* nodes = new HostNodes;  // the driver may end leases until the very end
  return *nodes;
}

void HostNodes::Use(CallbackWords* words, CUdeviceptr address) {
  words_.store(words);
  address_.store(address);
}

// ---- nodes ----

bool HostNodes::Make(CUgraph graph, uint64_t id, CUgraphNodeParams* params) {
  const Driver& driver = TheDriver();
  if (id == 0 || address_.load() == 0 || !CanMake(driver)) return false;
  size_t count = 0;
  if (driver.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS || count > kMostNodes) return false;
  if (Taken() > kMostTaken) return false;
  thread_local CUstreamBatchMemOpParams steps[kSteps];
  MakeSteps(address_.load(), id, 0, steps);  // any pair: no graph runs before it has its own
  *params = {};
  params->type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  params->memOp.count = kSteps;
  params->memOp.paramArray = steps;
  if (driver.cuCtxGetCurrent(&params->memOp.ctx) != CUDA_SUCCESS) return false;
  any_.store(true, std::memory_order_release);
  return true;
}

CUresult HostNodes::Capture(CUstream stream, uint64_t id) {
  const Driver& driver = TheDriver();
  if (!Has(driver.cuStreamUpdateCaptureDependencies)) return CUDA_ERROR_NOT_SUPPORTED;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t capture = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* before = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 0;
  CUresult result =
      Has(driver.cuStreamGetCaptureInfo_v3)
          ? driver.cuStreamGetCaptureInfo_v3(stream, &status, &capture, &graph, &before, &edges, &count)
          : driver.cuStreamGetCaptureInfo_v2(stream, &status, &capture, &graph, &before, &count);
  if (result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_ERROR_NOT_SUPPORTED;
  // The driver's lists are its stream's, and the next call on that ends them.
  const std::vector<CUgraphNode> dependencies(before, before + count);
  for (size_t i = 0; edges != nullptr && i < count; ++i) {
    if (edges[i].type != 0 || edges[i].from_port != 0) return CUDA_ERROR_NOT_SUPPORTED;
  }
  CUgraphNodeParams params;
  CUgraphNode node = nullptr;
  if (!Make(graph, id, &params)) return CUDA_ERROR_NOT_SUPPORTED;
  const CUDA_BATCH_MEM_OP_NODE_PARAMS batch{params.memOp.ctx, params.memOp.count, params.memOp.paramArray, 0};
  if (driver.cuGraphAddBatchMemOpNode(&node, graph, dependencies.data(), count, &batch) != CUDA_SUCCESS)
    return CUDA_ERROR_NOT_SUPPORTED;
  result = driver.cuStreamUpdateCaptureDependencies(stream, &node, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES);
  if (result == CUDA_SUCCESS) return result;
  driver.cuGraphDestroyNode(node);
  return CUDA_ERROR_NOT_SUPPORTED;
}

// False: it is another node, whatever it is.
bool HostNodes::Read(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS* params, uint64_t* id,
                     uint32_t* word) const {
  const Driver& driver = TheDriver();
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  if (!Any() || node == nullptr || Hidden::own<&Driver::cuGraphNodeGetType>(node, &type) != CUDA_SUCCESS ||
      type != CU_GRAPH_NODE_TYPE_BATCH_MEM_OP ||
      driver.cuGraphBatchMemOpNodeGetParams(node, params) != CUDA_SUCCESS || params->count != kSteps ||
      params->paramArray == nullptr) {
    return false;
  }
  const CUstreamBatchMemOpParams* steps = params->paramArray;
  if (steps[0].operation != CU_STREAM_MEM_OP_WRITE_VALUE_64 ||
      steps[1].operation != CU_STREAM_MEM_OP_WRITE_VALUE_64 ||
      steps[2].operation != CU_STREAM_MEM_OP_WAIT_VALUE_64) {
    return false;
  }
  const CUdeviceptr words = address_.load();
  const uint64_t at = steps[0].writeValue.address - DoneAt(words, 0);
  *word = static_cast<uint32_t>(at / sizeof(uint64_t));
  *id = steps[1].writeValue.value64;
  return at % sizeof(uint64_t) == 0 && at / sizeof(uint64_t) < kGraphWords && *id != 0 &&
         steps[0].writeValue.value64 == 0 && steps[1].writeValue.address == AnnouncedAt(words, *word) &&
         steps[2].waitValue.address == DoneAt(words, *word) && steps[2].waitValue.value64 == *id;
}

bool HostNodes::Is(CUgraphNode node, uint64_t* id) const {
  CUDA_BATCH_MEM_OP_NODE_PARAMS params{};
  uint64_t number = 0;
  uint32_t word = 0;
  return Read(node, &params, id != nullptr ? id : &number, &word);
}

CUresult HostNodes::Write(CUgraphExec exec, CUgraphNode node, uint64_t id, uint32_t word) const {
  const Driver& driver = TheDriver();
  CUDA_BATCH_MEM_OP_NODE_PARAMS params{};
  if (const CUresult result = driver.cuGraphBatchMemOpNodeGetParams(node, &params)) return result;
  CUstreamBatchMemOpParams steps[kSteps];
  MakeSteps(address_.load(), id, word, steps);
  params.count = kSteps;
  params.paramArray = steps;
  return exec != nullptr ? driver.cuGraphExecBatchMemOpNodeSetParams(exec, node, &params)
                         : driver.cuGraphBatchMemOpNodeSetParams(node, &params);
}

CUresult HostNodes::Set(CUgraphNode node, uint64_t id) {
  CUDA_BATCH_MEM_OP_NODE_PARAMS params{};
  uint64_t before = 0;
  uint32_t word = 0;
  const std::lock_guard lock(mutex_);
  if (id == 0 || !Read(node, &params, &before, &word)) return CUDA_ERROR_INVALID_VALUE;
  return Write(nullptr, node, id, word);
}

CUresult HostNodes::SetInExec(CUgraphExec exec, CUgraphNode node, uint64_t id) {
  const std::lock_guard lock(mutex_);
  Lease* lease = LeaseOf(exec);
  if (id == 0 || lease == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto known = lease->of.find(node);
  if (known != lease->of.end()) return Write(exec, node, id, known->second.at(0));
  // Of a graph that it was not made from, or not updated from last.
  std::vector<uint32_t> words;
  if (!TakeFor(lease, 1, &words)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = Write(exec, node, id, words[0]);
  if (result == CUDA_SUCCESS) {
    lease->of[node] = words;
  } else {
    lease->spare.push_back(words[0]);
  }
  return result;
}

// ---- executable graphs ----

// Those in child graphs too.
CUresult HostNodes::FindIn(CUgraph graph, std::vector<Found>* found) const {
  const Driver& driver = TheDriver();
  struct Open {
    CUgraph graph;
    std::vector<CUgraphNode> within;
  };
  std::vector<Open> open{{graph, {}}};
  while (!open.empty()) {
    const Open here = std::move(open.back());
    open.pop_back();
    std::vector<CUgraphNode> nodes;
    if (const CUresult result = NodesOf(here.graph, &nodes)) return result;
    for (CUgraphNode node : nodes) {
      CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
      if (const CUresult result = Hidden::own<&Driver::cuGraphNodeGetType>(node, &type)) return result;
      uint64_t id = 0;
      CUgraph child = nullptr;
      if (type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP && Is(node, &id)) found->push_back({node, id, here.within});
      if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
          driver.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS && child != nullptr) {
        open.push_back({child, here.within});
        open.back().within.push_back(node);
      }
    }
  }
  return CUDA_SUCCESS;
}

HostNodes::Lease* HostNodes::LeaseOf(CUgraphExec exec) const {
  const auto found = leases_.find(exec);
  return found != leases_.end() ? found->second : nullptr;
}

void HostNodes::Note(const std::vector<Found>& nodes, const std::vector<uint32_t>& words, Lease* lease) {
  lease->of.clear();
  for (size_t i = 0; i < nodes.size(); ++i) {
    lease->of[nodes[i].node] = {words[i]};
    for (CUgraphNode outer : nodes[i].within) lease->of[outer].push_back(words[i]);
  }
}

CUresult HostNodes::CallWith(Lease* lease, CUgraph graph, const std::vector<Found>& nodes,
                             const std::vector<uint32_t>& words, const Call& call) const {
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (const CUresult result = Write(nullptr, nodes[i].node, nodes[i].id, words[i])) return result;
  }
  if (const CUresult result = UncountedUserObjects::RetainByGraph(graph, lease->object)) return result;
  const CUresult result = call();
  UncountedUserObjects::ReleaseByGraph(graph, lease->object);
  return result;
}

CUresult HostNodes::Instantiate(CUgraph graph, const CUgraphExec& exec, uint32_t* announced,
                                const Call& call) {
  *announced = 0;
  if (!Any()) return call();
  std::vector<Found> nodes;
  if (const CUresult result = FindIn(graph, &nodes)) return result;
  if (nodes.empty()) return call();
  const std::lock_guard lock(mutex_);
  auto* lease = new Lease;
  if (!Take(nodes.size(), &lease->words)) {
    LogNoPairs(nodes.size());
    delete lease;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const Driver& driver = TheDriver();
  const CUresult made =
      driver.cuUserObjectCreate(&lease->object, lease, &End, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  if (made != CUDA_SUCCESS) {
    End(lease);
    return made;
  }
  Note(nodes, lease->words, lease);
  const CUresult result = CallWith(lease, graph, nodes, lease->words, call);
  if (result != CUDA_SUCCESS) {
    UncountedUserObjects::Release(lease->object);
    return result;
  }
  leases_[exec] = lease;
  *announced = static_cast<uint32_t>(nodes.size());
  return CUDA_SUCCESS;
}

CUresult HostNodes::Update(CUgraphExec exec, CUgraph graph, const Call& call) {
  return Change(exec, graph, nullptr, call);
}
CUresult HostNodes::SetChild(CUgraphExec exec, CUgraphNode node, CUgraph graph, const Call& call) {
  return Change(exec, graph, node, call);
}

// The pairs that it has serve again: of its launches only one runs at a time.
CUresult HostNodes::Change(CUgraphExec exec, CUgraph graph, CUgraphNode child, const Call& call) {
  if (!Any()) return call();
  std::vector<Found> nodes;
  if (const CUresult result = FindIn(graph, &nodes)) return result;
  if (nodes.empty()) return call();
  const std::lock_guard lock(mutex_);
  Lease* lease = LeaseOf(exec);
  if (lease == nullptr) return call();
  std::vector<uint32_t> words;
  if (child == nullptr) {
    words = lease->words;
  } else if (const auto known = lease->of.find(child); known != lease->of.end()) {
    words = known->second;
  }
  std::vector<uint32_t> spare;  // for an update it is among the words already
  if (child == nullptr) spare.swap(lease->spare);
  const auto had = static_cast<ptrdiff_t>(std::min(words.size(), nodes.size()));
  words.resize(static_cast<size_t>(had));
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  if (TakeFor(lease, nodes.size() - words.size(), &words)) {
    result = CallWith(lease, graph, nodes, words, call);
  } else {
    LogNoPairs(nodes.size());
  }
  if (result != CUDA_SUCCESS) {
    lease->spare.insert(lease->spare.end(), spare.begin(), spare.end());
    lease->spare.insert(lease->spare.end(), words.begin() + had, words.end());
    return result;
  }
  if (child == nullptr) {
    Note(nodes, words, lease);
    lease->spare.assign(lease->words.begin() + static_cast<ptrdiff_t>(nodes.size()), lease->words.end());
  } else {
    // Which of them a node in there has is not known any more.
    std::erase_if(lease->of, [&](const auto& entry) {
      return entry.first != child && std::find_first_of(words.begin(), words.end(), entry.second.begin(),
                                                        entry.second.end()) != words.end();
    });
    lease->of[child] = words;
  }
  return result;
}

// The driver may give the handle to another graph as soon as it has ended this one.
CUresult HostNodes::Destroy(CUgraphExec exec, const Call& call) {
  if (!Any()) return call();
  std::unique_lock lock(mutex_);
  auto ended = leases_.extract(exec);
  lock.unlock();
  const CUresult result = call();
  if (ended.empty()) return result;
  if (result == CUDA_SUCCESS) {
    UncountedUserObjects::Release(ended.mapped()->object);
  } else {
    lock.lock();
    leases_.insert(std::move(ended));
  }
  return result;
}

// ---- pairs ----

uint32_t HostNodes::Taken() {
  const std::lock_guard lock(words_mutex_);
  return end_ - static_cast<uint32_t>(free_.size());
}

bool HostNodes::Take(size_t count, std::vector<uint32_t>* words) {
  const std::lock_guard lock(words_mutex_);
  if (count > kGraphWords - end_ + free_.size()) return false;
  GraphWords& graph = words_.load()->graph;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t word = free_.empty() ? end_++ : free_.extract(free_.begin()).value();
    std::atomic_ref<uint64_t>(graph.announced[word]).store(0, std::memory_order_relaxed);
    std::atomic_ref<uint64_t>(graph.done[word]).store(0, std::memory_order_relaxed);
    words->push_back(word);
  }
  // partner: the guest's watching thread, which looks at the pairs below
  std::atomic_ref<uint64_t>(graph.end).store(end_, std::memory_order_release);
  return true;
}

bool HostNodes::TakeFor(Lease* lease, size_t count, std::vector<uint32_t>* words) {
  std::vector<uint32_t> more;
  const size_t spare = std::min(count, lease->spare.size());
  if (!Take(count - spare, &more)) return false;
  lease->words.insert(lease->words.end(), more.begin(), more.end());
  more.insert(more.end(), lease->spare.end() - static_cast<ptrdiff_t>(spare), lease->spare.end());
  lease->spare.resize(lease->spare.size() - spare);
  words->insert(words->end(), more.begin(), more.end());
  return true;
}

void HostNodes::Return(const std::vector<uint32_t>& words) {
  const std::lock_guard lock(words_mutex_);
  free_.insert(words.begin(), words.end());
  while (!free_.empty() && *free_.rbegin() + 1 == end_) {
    free_.erase(std::prev(free_.end()));
    --end_;
  }
  std::atomic_ref<uint64_t>(words_.load()->graph.end).store(end_, std::memory_order_release);
}

// The driver calls it when neither the graph nor a launch of it is left.
void CUDA_CB HostNodes::End(void* data) {
  auto* lease = static_cast<Lease*>(data);
  TheHostNodes().Return(lease->words);
  delete lease;
}

// ---- guards ----

namespace {

CUresult GetType(CUgraphNode node, CUgraphNodeType* type) {
  const CUresult result = Hidden::own<&Driver::cuGraphNodeGetType>(node, type);
  if (result == CUDA_SUCCESS && *type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP && TheHostNodes().Is(node))
    *type = CU_GRAPH_NODE_TYPE_HOST;
  return result;
}

CUresult Destroy(CUgraphExec exec) {
  return TheHostNodes().Destroy(exec, [&] { return Hidden::own<&Driver::cuGraphExecDestroy>(exec); });
}

CUresult SetChildInExec(CUgraphExec exec, CUgraphNode node, CUgraph graph) {
  return TheHostNodes().SetChild(exec, node, graph, [&] {
    return Hidden::own<&Driver::cuGraphExecChildGraphNodeSetParams>(exec, node, graph);
  });
}

}  // namespace

void HideHostNodes(Driver& driver) {
  Hidden::Put<&Driver::cuGraphNodeGetType>(driver, &GetType);
  Hidden::Put<&Driver::cuGraphExecDestroy>(driver, &Destroy);
  Hidden::Put<&Driver::cuGraphExecChildGraphNodeSetParams>(driver, &SetChildInExec);
}

}  // namespace causeway::host
