// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/graph/graph_objects.h"

#include <cstring>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "guest_lib/process/lock_order.h"

namespace causeway::guest {
namespace {

// Behind Object::detail of a graph and of a node.
struct GraphRecord {
  std::unordered_set<Object*> nodes;
  Object* parent_node = nullptr;
};
struct NodeRecord {
  Object* graph = nullptr;
  std::vector<Object*> graphs;
  std::vector<CUgraph> bodies;
  std::unique_ptr<NodeSnapshot> snapshot;
  bool packed = false;
};

Mutex<Lock::kGraphRecords> records_mutex;

GraphRecord& RecordOfGraph(Object* graph) {
  if (graph->detail == nullptr) graph->detail = new GraphRecord;
  return *static_cast<GraphRecord*>(graph->detail);
}
NodeRecord& RecordOfNode(Object* node) {
  if (node->detail == nullptr) node->detail = new NodeRecord;
  return *static_cast<NodeRecord*>(node->detail);
}

void EndNodeContents(Object* node, std::vector<Object*>* ended);

void EndGraphContents(Object* graph, std::vector<Object*>* ended) {
  auto* record = static_cast<GraphRecord*>(std::exchange(graph->detail, nullptr));
  if (record == nullptr) return;
  if (record->parent_node != nullptr) std::erase(RecordOfNode(record->parent_node).graphs, graph);
  for (Object* node : record->nodes) {
    RecordOfNode(node).graph = nullptr;
    ended->push_back(node);
  }
  delete record;
}

void EndNodeContents(Object* node, std::vector<Object*>* ended) {
  auto* record = static_cast<NodeRecord*>(std::exchange(node->detail, nullptr));
  if (record == nullptr) return;
  if (record->graph != nullptr) RecordOfGraph(record->graph).nodes.erase(node);
  for (Object* graph : record->graphs) {
    RecordOfGraph(graph).parent_node = nullptr;
    ended->push_back(graph);
  }
  delete record;
}

// No recursion: how deep graphs are nested is the program's choice.
void EndAll(std::vector<Object*> ended) {
  while (!ended.empty()) {
    Object* object = ended.back();
    ended.pop_back();
    if (object->kind.load() == static_cast<uint8_t>(HandleKind::kGraph)) {
      EndGraphContents(object, &ended);
    } else {
      EndNodeContents(object, &ended);
    }
    FreeObject(object);
  }
}

}  // namespace

void OwnNode(CUgraph graph, CUgraphNode node) {
  Object *owner = Find(graph), *object = Find(node);
  if (owner == nullptr || object == nullptr) return;
  const std::lock_guard lock(records_mutex);
  NodeRecord& record = RecordOfNode(object);
  if (record.graph != nullptr) return;
  record.graph = owner;
  RecordOfGraph(owner).nodes.insert(object);
}

void OwnNodeLike(CUgraphNode sibling, CUgraphNode node) {
  Object* like = Find(sibling);
  if (like == nullptr) return;
  Object* graph = nullptr;
  {
    const std::lock_guard lock(records_mutex);
    graph = RecordOfNode(like).graph;
  }
  if (graph != nullptr) OwnNode(reinterpret_cast<CUgraph>(graph), node);
}

void OwnGraph(CUgraphNode node, CUgraph graph) {
  Object *owner = Find(node), *object = Find(graph);
  if (owner == nullptr || object == nullptr) return;
  const std::lock_guard lock(records_mutex);
  GraphRecord& record = RecordOfGraph(object);
  if (record.parent_node != nullptr) return;
  record.parent_node = owner;
  RecordOfNode(owner).graphs.push_back(object);
}

void EndContents(CUgraph graph) {
  Object* object = Find(graph);
  if (object == nullptr) return;
  const std::lock_guard lock(records_mutex);
  std::vector<Object*> ended;
  EndGraphContents(object, &ended);
  EndAll(std::move(ended));
}

void EndContents(CUgraphNode node) {
  Object* object = Find(node);
  if (object == nullptr) return;
  const std::lock_guard lock(records_mutex);
  std::vector<Object*> ended;
  EndNodeContents(object, &ended);
  EndAll(std::move(ended));
}

void SetPackedForm(CUgraphNode node, bool packed) {
  Object* object = Find(node);
  if (object == nullptr) return;
  const std::lock_guard lock(records_mutex);
  RecordOfNode(object).packed = packed;
}

bool HasPackedForm(CUgraphNode node) {
  Object* object = Find(node);
  if (object == nullptr) return false;
  const std::lock_guard lock(records_mutex);
  return RecordOfNode(object).packed;
}

const NodeSnapshot* KeepSnapshot(CUgraphNode node, std::unique_ptr<NodeSnapshot> snapshot) {
  Object* object = Find(node);
  if (object == nullptr) return nullptr;
  const std::lock_guard lock(records_mutex);
  std::unique_ptr<NodeSnapshot>& kept = RecordOfNode(object).snapshot;
  // Unchanged parameters stay where the program may have seen them. What the structs point to is compared by
  // value; the pointers themselves are not set yet.
  const bool same = kept != nullptr && kept->bytes == snapshot->bytes &&
                    kept->pointers.size() == snapshot->pointers.size() &&
                    kept->buffer_bytes == snapshot->buffer_bytes &&
                    std::memcmp(&kept->params, &snapshot->params, sizeof kept->params) == 0;
  if (!same) kept = std::move(snapshot);
  return kept.get();
}

CUgraph* KeepBodies(CUgraphNode node, std::vector<CUgraph> bodies) {
  Object* object = Find(node);
  if (object == nullptr) return nullptr;
  const std::lock_guard lock(records_mutex);
  NodeRecord& record = RecordOfNode(object);
  record.bodies = std::move(bodies);
  return record.bodies.data();
}

}  // namespace causeway::guest
