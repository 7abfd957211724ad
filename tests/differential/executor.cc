// SPDX-License-Identifier: Apache-2.0
#include "tests/differential/executor.h"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "tests/differential/callbacks.h"
#include "tests/differential/ready.h"
#include "tests/differential/texts.h"

namespace causeway::differential {

// The second thread of a program. The first one waits while it works, so that calls have one order.
class HelperThread {
 public:
  HelperThread() : thread_([this] { Work(); }) {}
  ~HelperThread() {
    Do(nullptr);
    thread_.join();
  }
  void Do(const std::function<void()>* work) {
    std::unique_lock lock(mutex_);
    work_ = work;
    pending_ = true;
    changed_.notify_all();
    if (work != nullptr) changed_.wait(lock, [&] { return !pending_; });
  }

 private:
  void Work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return pending_; });
      if (work_ == nullptr) return;
      (*work_)();
      pending_ = false;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* work_ = nullptr;
  bool pending_ = false;
  std::thread thread_;
};

Executor::Executor(World& world, const std::vector<RowPlan>& plans, bool explain)
    : world_(world), plans_(plans), explain_(explain), ready_(std::make_unique<Ready>()) {}
Executor::~Executor() = default;

void Executor::OnHelper(const std::function<void()>& work) {
  if (helper_ == nullptr) helper_ = std::make_unique<HelperThread>();
  if (!helper_used_) {
    const std::function<void()> enter = [&] { DRIVER(cuCtxSetCurrent)(world_.base); };
    helper_->Do(&enter);
    helper_used_ = true;
  }
  helper_->Do(&work);
}

Answer Executor::Run(const Call& call) {
  if (call.thread == 0) return RunHere(call);
  Answer answer;
  OnHelper([&] { answer = RunHere(call); });
  return answer;
}

// The value of an argument; what it points to is made ready.
uint64_t Executor::Resolve(const Call& call, const RowPlan& plan, size_t i, Ready& ready) {
  const Argument& argument = call.arguments[i];
  switch (argument.kind) {
    case ArgumentKind::kNumber:
    case ArgumentKind::kWild:
      return argument.number;
    case ArgumentKind::kNull:
      return 0;
    case ArgumentKind::kObject:
      ready.objects[i] = world_.Find(static_cast<uint32_t>(argument.number));
      return ready.objects[i] == nullptr ? 0 : ready.objects[i]->raw;
    case ArgumentKind::kObjects: {
      for (int e = 0; e < argument.count; ++e) {
        const Object* object = world_.Find(argument.list[e]);
        const uint64_t raw = object == nullptr ? 0 : object->raw;
        std::memcpy(ready.scratch[i] + 8 * e, &raw, 8);
      }
      return reinterpret_cast<uint64_t>(ready.scratch[i]);
    }
    case ArgumentKind::kRegion: {
      Region* region = world_.FindRegion(static_cast<uint32_t>(argument.number));
      if (region == nullptr) return 0;
      const bool frees = plan.parameters[i].role == Role::kFreedAddress;
      if (!frees && plan.lasting && region->own) return 0;
      if ((!frees || plan.stream >= 0) && !world_.Acquire(*region, ready.stream_key)) return 0;
      ready.regions[i] = region;
      region->dirty = true;
      return region->base + argument.offset;
    }
    case ArgumentKind::kOut:
      std::memcpy(ready.scratch[i], &argument.number, 8);
      return reinterpret_cast<uint64_t>(ready.scratch[i]);
    case ArgumentKind::kText:
      return reinterpret_cast<uint64_t>(TextOf(argument.number));
    case ArgumentKind::kFunction:
      if (call.row->Named("cuUserObject")) return reinterpret_cast<uint64_t>(&CountNothing);
      if (call.row->Named("cuOccupancy")) return reinterpret_cast<uint64_t>(&SharedBytes);
      return call.row->Named("AddCallback") ? reinterpret_cast<uint64_t>(&CountStream)
                                            : reinterpret_cast<uint64_t>(&CountUp);
    case ArgumentKind::kCounter:
      return reinterpret_cast<uint64_t>(CounterAddress(static_cast<uint32_t>(argument.number)));
    case ArgumentKind::kBuilt:
      return reinterpret_cast<uint64_t>(ready.scratch[i]);  // built when all else is known
  }
  return 0;
}

bool Executor::Prepare(const Call& call, const RowPlan& plan, Ready& ready) {
  const size_t count = call.row->parameters.size();
  std::memset(ready.slots, 0, count * kSlotBytes);
  std::memset(ready.scratch, 0, count * Ready::kScratchBytes);
  std::fill_n(ready.objects, count, nullptr);
  std::fill_n(ready.regions, count, nullptr);
  ready.stream_key = world_.KeyOf(0, plan.per_thread, call.thread);
  if (plan.stream >= 0) {
    const uint64_t raw = Resolve(call, plan, static_cast<size_t>(plan.stream), ready);
    ready.stream_key = world_.KeyOf(raw, plan.per_thread, call.thread);
  }
  for (size_t i = 0; i < count; ++i) {
    const uint64_t value = Resolve(call, plan, i, ready);
    std::memcpy(ready.slots[i], &value, 8);
  }
  return !Forbidden(call, plan, ready);
}

// Calls that could be a race, or that name what natively would be freed memory.
bool Executor::Forbidden(const Call& call, const RowPlan& plan, Ready& ready) {
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    const Role role = plan.parameters[i].role;
    if (role == Role::kEndedHandle && ready.objects[i] != nullptr) {
      if (!ready.objects[i]->own) return true;
      const HandleKind kind = ready.objects[i]->kind;
      if (world_.AnyCapture() && (kind == HandleKind::kGraph || kind == HandleKind::kGraphNode)) return true;
      if (ready.objects[i]->kind == HandleKind::kStream && world_.IsCapturing(ready.objects[i]->raw))
        return true;
    }
    if (role == Role::kFreedAddress && ready.regions[i] != nullptr && !ready.regions[i]->own) return true;
  }
  // NVIDIA's library never comes back from a graph that is within itself.
  const Object* graph = FirstObject(call, HandleKind::kGraph);
  for (size_t i = 0; i < plan.parameters.size() && call.row->Named("ChildGraph"); ++i) {
    const Object* other = ready.objects[i];
    if (other != nullptr && other->kind == HandleKind::kGraph && other != graph && other->raw == graph->raw)
      return true;
    if (other == graph && other != nullptr && call.row->parameters[i].name == "childGraph") return true;
  }
  if (plan.effect == Effect::kLaunchesGraph) {
    const Object* exec = FirstObject(call, HandleKind::kGraphExec);
    if (exec != nullptr && (exec->unordered || !world_.Quiesce())) return true;
  }
  if (plan.effect == Effect::kEndsPrimary && world_.AnyCapture()) return true;
  return false;
}

Object* Executor::FirstObject(const Call& call, HandleKind kind) {
  for (size_t i = 0; i < call.row->parameters.size(); ++i) {
    Object* object = ready_->objects[i];
    if (object != nullptr && object->kind == kind) return object;
  }
  return nullptr;
}

namespace {

std::string ArgumentText(const Call& call, size_t i) {
  const Argument& argument = call.arguments[i];
  switch (argument.kind) {
    case ArgumentKind::kNull:
      return "0";
    case ArgumentKind::kObject:
      return "object" + std::to_string(argument.number);
    case ArgumentKind::kObjects: {
      std::string text = "{";
      for (int e = 0; e < argument.count; ++e)
        text += (e == 0 ? "object" : ", object") + std::to_string(argument.list[e]);
      return text + "}";
    }
    case ArgumentKind::kRegion:
      return "region" + std::to_string(argument.number) + " + " + std::to_string(argument.offset);
    case ArgumentKind::kText:
      return argument.number == kImage ? "kKernels" : "\"" + std::string(TextOf(argument.number)) + "\"";
    case ArgumentKind::kOut:
      return "&" + call.row->parameters[i].name + std::to_string(call.id);
    case ArgumentKind::kFunction:
      return "CountUp";
    case ArgumentKind::kCounter:
      return "&counters[" + std::to_string(argument.number) + "]";
    default: {
      char text[32];
      const auto number = static_cast<long long>(argument.number);
      std::snprintf(text, sizeof text, number > 1'000'000 || number < -1 ? "0x%llx" : "%lld", number);
      return text;
    }
  }
}

}  // namespace

Answer Executor::RunHere(const Call& call) {
  const RowPlan& plan = plans_[call.row->index];
  Ready& ready = *ready_;
  Answer answer;
  if (explain_)
    answer.text = std::to_string(call.id) + ": t" + std::to_string(call.thread) + " " + call.row->name + "(";
  const bool ready_to_run = Prepare(call, plan, ready);
  Building building{world_,
                    Random(0),
                    call,
                    ready.stream_key,
                    plan.lasting || world_.AnyCapture(),
                    FirstObject(call, HandleKind::kFunction),
                    {},
                    ready.behind,
                    sizeof ready.behind,
                    explain_ ? &answer.text : nullptr};
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    if (ready.regions[i] != nullptr) building.used.push_back(ready.regions[i]);
  }
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    const Argument& argument = call.arguments[i];
    if (explain_ && i > 0) answer.text += ", ";
    if (argument.kind == ArgumentKind::kBuilt && plan.parameters[i].builder != nullptr && ready_to_run) {
      building.random = Random(argument.number);
      const bool value = call.row->parameters[i].type.depth == 0;
      if (explain_) answer.text += value ? "" : "&";
      plan.parameters[i].builder(building, value ? ready.slots[i] : ready.scratch[i]);
    } else if (explain_) {
      answer.text += ArgumentText(call, i);
    }
  }
  if (!ready_to_run) {
    if (explain_) answer.text += "): left out";
    return answer;
  }
  answer.ran = true;
  ready.result = call.row->invoke(call.row->function, ready.slots);
  if (plan.query && ready.result == CUDA_ERROR_NOT_READY) ready.result = CUDA_SUCCESS;
  answer.result = ready.result;
  Hash hash;
  hash.Add(call.row->index);
  int counts_as = answer.result;
  for (const auto& [result, other] : plan.same) counts_as = counts_as == result ? other : counts_as;
  hash.Add(static_cast<uint64_t>(counts_as));
  if (explain_) answer.text += ") = " + std::to_string(counts_as);
  if (answer.result == CUDA_SUCCESS) {
    for (size_t i = 0; i < plan.parameters.size(); ++i) {
      TakeOutput(call, plan, i, ready, hash, explain_ ? &answer.text : nullptr);
    }
    Apply(call, plan, ready);
  } else {
    world_.broken = world_.broken || IsSticky(answer.result);
    if (plan.effect == Effect::kEndsCapture) LookAtCapture(ready.stream_key);
  }
  answer.hash = hash.value();
  return answer;
}

// Whether a node that was added runs after all others of its graph, so that it may use their memory.
bool Executor::AddsInOrder(const Call& call, const Object& graph) {
  const Object* last = nullptr;
  const Object* child = nullptr;
  for (const Object& object : world_.objects) {
    const bool added = object.id >= MadeId(call.id, 0, 0);
    if (object.alive && object.parent == graph.id && object.kind == HandleKind::kGraphNode && !added)
      last = &object;
  }
  for (size_t i = 0; i < call.row->parameters.size(); ++i) {
    const Object* object = ready_->objects[i];
    if (object != nullptr && object->kind == HandleKind::kGraph && object->id != graph.id) child = object;
  }
  if (graph.opaque || (child != nullptr && child->unordered)) return false;
  if (last == nullptr) return true;
  for (size_t i = 0; i < call.row->parameters.size(); ++i) {
    const Argument& argument = call.arguments[i];
    if (argument.kind != ArgumentKind::kObjects) continue;
    for (int e = 0; e < argument.count; ++e) {
      if (argument.list[e] == last->id && ready_->Handed(call, argument.count)) return true;
    }
  }
  return false;
}

// After an end that failed: whether the stream still captures.
void Executor::LookAtCapture(uint64_t stream_key) {
  if (!world_.IsCapturing(stream_key)) return;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (DRIVER(cuStreamIsCapturing)(StreamOfKey(stream_key), &status) == CUDA_SUCCESS &&
      status == CU_STREAM_CAPTURE_STATUS_NONE) {
    world_.Capturing(stream_key, false);
  }
}

// What a call that succeeded has done to what exists.
void Executor::Apply(const Call& call, const RowPlan& plan, Ready& ready) {
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    if (plan.parameters[i].role != Role::kEndedHandle || ready.objects[i] == nullptr) continue;
    for (Region& region : world_.regions) {
      if (region.owner == ready.objects[i]->raw)
        region.owner = kEndedKey;  // a later stream may have the same handle
    }
    world_.End(ready.objects[i]->id);
  }
  Object* graph = FirstObject(call, HandleKind::kGraph);
  Object* exec = FirstObject(call, HandleKind::kGraphExec);
  switch (plan.effect) {
    case Effect::kFrees:
      for (size_t i = 0; i < plan.parameters.size(); ++i) {
        if (ready.regions[i] != nullptr) world_.EndRegion(ready.regions[i]->id);
      }
      break;
    case Effect::kBeginsCapture:
      world_.Capturing(ready.stream_key, true);
      if (graph != nullptr) graph->unordered = world_.capture_unordered = true;
      break;
    case Effect::kEndsCapture:
      world_.Capturing(ready.stream_key, false);
      break;
    case Effect::kAddsNode:
      if (graph != nullptr && !AddsInOrder(call, *graph)) graph->unordered = true;
      break;
    case Effect::kLosesEdges:
      world_.capture_unordered = true;
      for (Object& object : world_.objects) {
        if (object.kind == HandleKind::kGraph) object.unordered = true;
      }
      break;
    case Effect::kWaitsForEvent:
      if (world_.AnyCapture()) world_.capture_unordered = true;
      break;
    case Effect::kChangesNode: {
      // In a graph that was captured the node may now use what another branch uses.
      const Object* node = FirstObject(call, HandleKind::kGraphNode);
      Object* changed = exec != nullptr || node == nullptr ? exec : world_.Find(node->parent);
      if (changed != nullptr && changed->opaque) changed->unordered = true;
      break;
    }
    case Effect::kUpdatesExec:
      if (exec != nullptr && graph != nullptr) exec->unordered = exec->unordered || graph->unordered;
      break;
    case Effect::kLaunchesGraph:
      world_.Quiesce();
      break;
    case Effect::kEndsPrimary:
      for (size_t i = 0; i < world_.objects.size(); ++i) {
        const Object& object = world_.objects[i];
        if (object.kind == HandleKind::kContext && object.id >= kFirstMade && !object.own)
          world_.End(object.id);
      }
      break;
    case Effect::kSetsPool:
      pool_set_ = true;
      break;
    default:
      break;
  }
}

}  // namespace causeway::differential
