// SPDX-License-Identifier: Apache-2.0
// User objects: counted references of the program and of graphs; the last one that goes calls the destructor,
// in a thread of its own.
#include <algorithm>
#include <atomic>
#include <climits>
#include <thread>

#include "tests/software_gpu/faults.h"
#include "tests/software_gpu/graph_handles.h"

namespace causeway::software_gpu {

struct UserObject {
  CUhostFn destroy = nullptr;
  void* data = nullptr;
  CUuserObject handle = nullptr;
  ~UserObject();
};

namespace {

// Behind a handle: the program's own references. Guarded by GraphLock().
struct UserHandle {
  std::weak_ptr<UserObject> object;
  UserReferences owned;
};

Registry<CUuserObject, UserHandle>& UserHandles() {
  static auto* handles = new Registry<CUuserObject, UserHandle>;
  return *handles;
}

}  // namespace

namespace {
std::atomic<uint32_t> running_destructors{0};
}

UserObject::~UserObject() {
  UserHandles().Remove(handle, false);
  running_destructors.fetch_add(1);
  std::thread([destroy = destroy, data = data] {
    {
      ScopedHostFunction scope;
      destroy(data);
    }
    if (running_destructors.fetch_sub(1) == 1) running_destructors.notify_all();
  }).detach();
}

void AwaitUserObjects() {
  while (const uint32_t running = running_destructors.load()) running_destructors.wait(running);
}

namespace {

bool IsCount(unsigned count) {
  return count != 0 && count <= INT_MAX;
}
// Takes `count` of the references away; the object ends with *ended if they were the last ones.
bool Take(UserReferences* from, const std::shared_ptr<UserObject>& object, unsigned count,
          std::vector<std::shared_ptr<UserObject>>* ended) {
  const auto held = from->find(object);
  if (held == from->end() || held->second < count) return false;
  held->second -= count;
  if (held->second != 0) return true;
  ended->push_back(held->first);
  from->erase(held);
  return true;
}

template <typename Body>
CUresult OnUserObject(const char* function, CUuserObject handle, unsigned count, const Body& body) {
  return OnDevice(function, [&]() -> CUresult {
    std::shared_ptr<UserHandle> found = UserHandles().Find(handle);
    std::vector<std::shared_ptr<UserObject>> ended;  // destroyed behind the lock
    std::lock_guard lock(GraphLock());
    std::shared_ptr<UserObject> object = found != nullptr ? found->object.lock() : nullptr;
    if (object == nullptr || !IsCount(count)) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = body(*found, object, &ended);
    ended.push_back(std::move(object));
    return result;
  });
}

}  // namespace
}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuUserObjectCreate(CUuserObject* object_out, void* ptr, CUhostFn destroy,
                            unsigned int initialRefcount, unsigned int flags) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (object_out == nullptr || destroy == nullptr || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC ||
        !IsCount(initialRefcount)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto object = std::make_shared<UserObject>();
    object->destroy = destroy;
    object->data = ptr;
    auto handle = std::make_shared<UserHandle>();
    handle->object = object;
    handle->owned[object] = initialRefcount;
    *object_out = object->handle = UserHandles().Add(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) {
  return OnUserObject(__func__, object, count, [&](UserHandle& handle, const auto& found, auto*) -> CUresult {
    handle.owned[found] += count;
    return CUDA_SUCCESS;
  });
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
  return OnUserObject(
      __func__, object, count, [&](UserHandle& handle, const auto& found, auto* ended) -> CUresult {
        return Take(&handle.owned, found, count, ended) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
      });
}

CUresult cuGraphRetainUserObject(CUgraph hGraph, CUuserObject object, unsigned int count,
                                 unsigned int flags) {
  return OnUserObject(__func__, object, count,
                      [&](UserHandle& handle, const auto& found, auto* ended) -> CUresult {
                        GraphRef graph = Graphs().Find(hGraph);
                        if (graph == nullptr || (flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE}) != 0)
                          return CUDA_ERROR_INVALID_VALUE;
                        if (flags != 0 && !Take(&handle.owned, found, count, ended))
                          return CUDA_ERROR_INVALID_VALUE;
                        graph->user_objects[found] += count;
                        return CUDA_SUCCESS;
                      });
}

// The object is looked for among what the graph holds, and is no more named than that.
CUresult cuGraphReleaseUserObject(CUgraph hGraph, CUuserObject object, unsigned int count) {
  return OnDevice(__func__, [&]() -> CUresult {
    std::vector<std::shared_ptr<UserObject>> ended;  // destroyed behind the lock
    std::lock_guard lock(GraphLock());
    GraphRef graph = Graphs().Find(hGraph);
    if (graph == nullptr || !IsCount(count)) return CUDA_ERROR_INVALID_VALUE;
    const auto held = std::find_if(graph->user_objects.begin(), graph->user_objects.end(),
                                   [object](const auto& each) { return each.first->handle == object; });
    if (held == graph->user_objects.end()) return CUDA_ERROR_INVALID_VALUE;
    const std::shared_ptr<UserObject> found = held->first;
    const bool taken = Take(&graph->user_objects, found, count, &ended);
    ended.push_back(found);
    return taken ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

}  // extern "C"
