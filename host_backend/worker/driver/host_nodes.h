// SPDX-License-Identifier: Apache-2.0
// Host nodes of graphs that the GPU announces by itself (ivshmem_ring/messages/callback_messages.h). In the
// driver's graph such a node is a batch of memory operations on a pair of the session's GraphWords; what the
// guest asks about it is answered as for a host node. An executable graph never runs twice at once, but two
// of one graph may: so each has pairs of its own, which are written into the graph's nodes before it is made
// or updated. A user object of the driver gives them back when the last of it is gone.
#pragma once
#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "host_backend/worker/driver/driver.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::host {

class HostNodes {
 public:
  // The session's words in memory, and where the GPU finds them.
  void Use(CallbackWords* words, CUdeviceptr address);

  // Parameters of such a node; false: the driver must call it. They live until the thread makes others.
  bool Make(CUgraph graph, uint64_t id, CUgraphNodeParams* params);
  // The same in place of a function that the stream captures. CUDA_ERROR_NOT_SUPPORTED: the driver must call
  // it, or has an error to tell.
  CUresult Capture(CUstream stream, uint64_t id);

  // Whether the node is such a one, and the number of its function.
  bool Is(CUgraphNode node, uint64_t* id = nullptr) const;
  CUresult Set(CUgraphNode node, uint64_t id);
  CUresult SetInExec(CUgraphExec exec, CUgraphNode node, uint64_t id);

  // Around the driver's calls of these names. *announced: how many such nodes each launch runs.
  using Call = std::function<CUresult()>;
  CUresult Instantiate(CUgraph graph, const CUgraphExec& exec, uint32_t* announced, const Call& call);
  CUresult Update(CUgraphExec exec, CUgraph graph, const Call& call);
  // The executable graph's child graph node becomes `graph`.
  CUresult SetChild(CUgraphExec exec, CUgraphNode node, CUgraph graph, const Call& call);
  CUresult Destroy(CUgraphExec exec, const Call& call);

 private:
  // The pairs of one executable graph.
  struct Lease {
    CUuserObject object = nullptr;
    std::vector<uint32_t> words;                      // all of them
    std::map<CUgraphNode, std::vector<uint32_t>> of;  // a node's, or of all in a child graph node
    std::vector<uint32_t> spare;                      // those of `words` that no node uses now
  };
  // A node of a graph, and the child graph nodes that it is in.
  struct Found {
    CUgraphNode node;
    uint64_t id;
    std::vector<CUgraphNode> within;
  };

  bool Any() const { return any_.load(std::memory_order_acquire); }
  bool Read(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS* params, uint64_t* id, uint32_t* word) const;
  CUresult Write(CUgraphExec exec, CUgraphNode node, uint64_t id, uint32_t word) const;
  CUresult FindIn(CUgraph graph, std::vector<Found>* found) const;
  Lease* LeaseOf(CUgraphExec exec) const;
  CUresult Change(CUgraphExec exec, CUgraph graph, CUgraphNode child, const Call& call);
  // Writes the pairs into the graph's nodes, and calls while the graph owns the lease too.
  CUresult CallWith(Lease* lease, CUgraph graph, const std::vector<Found>& nodes,
                    const std::vector<uint32_t>& words, const Call& call) const;
  static void Note(const std::vector<Found>& nodes, const std::vector<uint32_t>& words, Lease* lease);

  uint32_t Taken();
  bool Take(size_t count, std::vector<uint32_t>* words);  // adds as many, cleared
  bool TakeFor(Lease* lease, size_t count, std::vector<uint32_t>* words);
  void Return(const std::vector<uint32_t>& words);
  static void CUDA_CB End(void* lease);

  std::atomic<bool> any_{false};  // such a node was made
  std::atomic<CallbackWords*> words_{nullptr};
  std::atomic<CUdeviceptr> address_{0};
  std::mutex mutex_;  // held around calls of the driver
  std::map<CUgraphExec, Lease*> leases_;
  // Never held around calls of the driver, which may end leases within any of them.
  std::mutex words_mutex_;
  std::set<uint32_t> free_;
  uint32_t end_ = 0;  // pairs up to here were taken once; those below it that are in no lease are in free_
};

// A worker has one session.
HostNodes& TheHostNodes();

// Puts the guards that know of such nodes.
void HideHostNodes(Driver& driver);

// For code that looks through graphs, of any kind. Sets *nodes to those of the graph itself, without those of its child graphs. A graph without nodes is not asked for a
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
