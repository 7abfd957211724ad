// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/objects/objects.h"

#include <algorithm>
#include <span>

#include "host_backend/worker/driver/capture.h"
#include "host_backend/worker/driver/driver.h"
#include "host_backend/worker/driver/user_objects.h"

namespace causeway::host {
namespace {

// The objects that the message being served has named: as far as they may own what it makes, and what of them
// one thread may use at a time.
struct Named {
  Found context, code, graph, node, array, green;
  static constexpr uint32_t kMostExclusive = 16;
  uint32_t exclusive_count = 0;
  uint16_t op = 0;
  bool is_prepared = false;
  bool is_capture = false, ends_capture = false;  // a graph of a capture is new; one is over
  bool has_bound = false;                         // something was to get a number, or failed to get one
  Found exclusive[kMostExclusive] = {};           // the roots (HandleTable::Root)
  uint32_t taken_count = 0;
  WireHandle taken[2 * kMostExclusive] = {};  // those, and the names of their relatives
  WireHandle made = 0, reference = 0;         // graph or executable graph; texture or surface reference
  WireHandle captured_into = 0;               // holds what was captured, beside what is made

  // Each for itself: of `a = b = {}` GCC 12 makes two stores and a load of both, for which the processor waits.
  void Reset() {
    context = Found{};
    code = Found{};
    graph = Found{};
    node = Found{};
    array = Found{};
    green = Found{};
    exclusive_count = taken_count = 0;
    is_prepared = is_capture = ends_capture = has_bound = false;
    made = reference = captured_into = 0;
  }
  // Where the first of such a kind is noted; null: nowhere.
  Found* PlaceOf(HandleKind kind) {
    switch (kind) {
      case HandleKind::kModule:
      case HandleKind::kLibrary:
      case HandleKind::kFunction:
      case HandleKind::kKernel:
        return &code;
      case HandleKind::kGraph:
        return &graph;
      case HandleKind::kGreenContext:
        return &green;
      case HandleKind::kGraphNode:
        return &node;
      case HandleKind::kArray:
      case HandleKind::kMipmappedArray:
        return &array;
      default:
        return nullptr;
    }
  }
  std::span<Found> all_exclusive() { return {exclusive, exclusive_count}; }
  std::span<WireHandle> all_taken() { return {taken, taken_count}; }
  bool HasTaken(WireHandle wire) {
    const auto known = all_taken();
    return std::find(known.begin(), known.end(), wire) != known.end();
  }
  void AddTaken(WireHandle wire) {
    if (!HasTaken(wire)) taken[taken_count++] = wire;
  }
  // False: more than any call names.
  bool AddExclusive(Found root) {
    for (const Found& known : all_exclusive()) {
      if (known.wire == root.wire) return true;
    }
    if (exclusive_count == kMostExclusive) return false;
    exclusive[exclusive_count++] = root;
    return true;
  }
};
constinit thread_local Named named;
// What the message has found of what one thread may use at a time. Empty but in such calls.
thread_local std::vector<Found> parts;
// What the requests of others used when the capture ended. Empty but in such calls.
thread_local std::vector<WireHandle> beside;

// What the driver holds as this thread's own, as far as messages set it.
struct CallerState {
  CUcontext context = nullptr;
  uint64_t changes = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};
constinit thread_local CallerState caller;

bool BeginsCapture() {
  const auto op = static_cast<Op>(named.op);
  return op == Op::cuStreamBeginCapture_v2 || op == Op::cuStreamBeginCaptureToGraph;
}

// What a stream is asked may add to the graph of a capture, and what a graph or node is asked may be about a graph
// that a stream adds to: while anything is captured, one request at a time does either. What only waits for a
// stream adds nothing, and would keep others waiting.
[[gnu::hot]] bool TouchesCaptures() {
  const auto op = static_cast<Op>(named.op);
  const bool touches = Captures::Any() ? !TraitsOf(op).Has(traits::kAwaits) : BeginsCapture();
  return touches &&
         (Objects::whereabouts().stream.wire != 0 || named.graph.wire != 0 || named.node.wire != 0);
}

bool NameCapturing() {
  if (named.is_prepared) return true;
  if (named.exclusive_count == 0) parts.clear();
  return named.AddExclusive({HandleTable::kCapturing, nullptr});
}

// A launch takes the executable graph alone: it may wait for the GPU, and another launch may be what ends that wait. One that is
// captured waits for nothing.
bool TakesRelatives() {
  return !TraitsOf(static_cast<Op>(named.op)).Has(traits::kSubmits) || Captures::Any();
}

// The roots of what the message names, and their relatives.
void NameTaken(const HandleTable& handles) {
  named.taken_count = 0;
  for (const Found& root : named.all_exclusive()) named.AddTaken(root.wire);
  if (!TakesRelatives()) return;
  for (const Found& root : named.all_exclusive()) {
    if (const WireHandle relatives = handles.RelativesOf(root.value)) named.AddTaken(relatives);
  }
}

// Whether the roots have no relatives by another name than when they were taken.
bool HasAllRelatives(const HandleTable& handles) {
  const auto has = [&](const Found& root) {
    const WireHandle relatives = handles.RelativesOf(root.value);
    return relatives == 0 || named.HasTaken(relatives);
  };
  const auto roots = named.all_exclusive();
  return !TakesRelatives() || std::all_of(roots.begin(), roots.end(), has);
}

bool IsGraphPart(HandleKind kind) {
  return kind == HandleKind::kGraph || kind == HandleKind::kGraphNode;
}

// Of such objects one thread at a time may use one.
bool IsUsedByOne(HandleKind kind) {
  return IsGraphPart(kind) || kind == HandleKind::kGraphExec || kind == HandleKind::kLink;
}

// Whether a pool that is known by no number may get one: what an import has just made, and a pool of the driver's own, which never ends.
// Any other was made by the guest, and has had its number since then: where it has none any more, it has ended or is about to. In the place
// of pools on the host the guest uses a device's.
bool MayPoolBeNew(const void* pool) {
  const Driver& driver = TheDriver();
  const auto op = static_cast<Op>(named.op);
  if (op == Op::cuDeviceGetDefaultMemPool || op == Op::cuMemGetDefaultMemPool ||
      op == Op::cuMemPoolImportFromShareableHandle)
    return true;
  int count = 0;
  if (!Has(driver.cuDeviceGetDefaultMemPool) || driver.cuDeviceGetCount(&count) != CUDA_SUCCESS) return false;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice device = 0;
    CUmemoryPool own = nullptr;
    if (driver.cuDeviceGet(&device, ordinal) == CUDA_SUCCESS &&
        driver.cuDeviceGetDefaultMemPool(&own, device) == CUDA_SUCCESS && own == pool)
      return true;
  }
  return false;
}

// A message with two graphs adds the second to the first. NVIDIA's driver (580.159) crashes when the first is
// the second or lies within it; a second that is a node's own it refuses as stated here.
CUresult CheckNesting(const HandleTable& handles) {
  const auto is_graph = [](const Found& part) { return WireKind(part.wire) == HandleKind::kGraph; };
  const auto first = std::find_if(parts.begin(), parts.end(), is_graph);
  if (first == parts.end()) return CUDA_SUCCESS;
  const auto second = std::find_if(first + 1, parts.end(), is_graph);
  if (second == parts.end() || !handles.IsWithin(first->wire, second->wire)) return CUDA_SUCCESS;
  return handles.Root(second->wire).wire != second->wire ? CUDA_ERROR_NOT_SUPPORTED
                                                         : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

Objects::Objects() {
  handles_.try_exclusive = [this](WireHandle wire) { return exclusive_.TryTake(wire); };
  handles_.make_call = [this](std::span<const HandleTable::Ended> ended, const HandleTable::Call& call) {
    return EndInBooks(ended, call);
  };
  handles_.end_exclusive = [this](WireHandle wire) { exclusive_.Return({&wire, 1}); };
  handles_.is_capturing = [] { return Captures::Any(); };
  handles_.is_captured_into = [](const void* graph) {
    return TheCaptures().IsInto(static_cast<CUgraph>(const_cast<void*>(graph)));
  };
}

[[gnu::hot]] CUresult Objects::SetCaller(CUcontext context, CUstreamCaptureMode mode) const {
  // The driver may have taken the context from this thread, or given its address to a new one.
  const uint64_t seen = context_changes_.load(std::memory_order_acquire);
  if (context == caller.context && caller.changes == seen && mode == caller.mode) [[likely]]
    return CUDA_SUCCESS;
  return ChangeCaller(context, mode, seen);
}

CUresult Objects::ChangeCaller(CUcontext context, CUstreamCaptureMode mode, uint64_t seen) {
  const Driver& driver = TheDriver();
  if (context != caller.context || caller.changes != seen) {
    if (const CUresult result = driver.cuCtxSetCurrent(context)) return result;
    CUdevice device = -1;
    whereabouts_.device = context != nullptr && driver.cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : -1;
    caller.context = context;
    caller.changes = seen;
  }
  if (mode != caller.mode && mode <= CU_STREAM_CAPTURE_MODE_RELAXED &&
      Has(driver.cuThreadExchangeStreamCaptureMode)) {
    CUstreamCaptureMode exchanged = mode;
    if (const CUresult result = driver.cuThreadExchangeStreamCaptureMode(&exchanged)) return result;
    caller.mode = mode;
  }
  return CUDA_SUCCESS;
}

[[gnu::hot]] CUresult Objects::Enter(const RecordPrefix& header) {
  named.Reset();
  named.op = header.op;
  whereabouts_.context = header.context;
  whereabouts_.stream = Found{};
  void* context = nullptr;
  if (header.context != 0) {
    context = Find(HandleKind::kContext, header.context);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  }
  named.context = {header.context, context};
  // Asking for the events of a copy's pieces must not end another thread's capture.
  const auto mode = (header.flags & kStaged) != 0
                        ? CU_STREAM_CAPTURE_MODE_RELAXED
                        : static_cast<CUstreamCaptureMode>(header.flags & kCaptureModeMask);
  return SetCaller(static_cast<CUcontext>(context), mode);
}

CUcontext Objects::entered_context() {
  return static_cast<CUcontext>(named.context.value);
}

bool Objects::OwnUse::Enter(WireHandle context) {
  auto* found = static_cast<CUcontext>(use_.Find(HandleKind::kContext, context));
  const auto mode = Captures::Any() ? CU_STREAM_CAPTURE_MODE_RELAXED : caller.mode;
  return found != nullptr && objects_.SetCaller(found, mode) == CUDA_SUCCESS;
}

[[gnu::hot]] void Objects::Leave(CUresult result) {
  const bool has_news =
      named.exclusive_count != 0 || named.made != 0 || named.reference != 0 || Captures::Any();
  if (!has_news && !named.ends_capture) return;
  // The driver has what it made also where that got no number, and the request an error.
  if (named.ends_capture || named.has_bound || result == CUDA_SUCCESS) Remember();
  if (result != CUDA_SUCCESS && BeginsCapture()) handles_.NoteCaptureEnd();
  Yield();
  named.exclusive_count = 0;
}

bool Objects::HasAny() const {
  return named.is_prepared && named.exclusive_count != 0;
}

void Objects::Yield() {
  if (!HasAny()) return;
  exclusive_.Return(named.all_taken());
  named.is_prepared = false;
  handles_.NoteReturned();
}

// What graphs and references may point to from now on.
void Objects::Remember() {
  WireHandle holders[Named::kMostExclusive + 4];
  size_t count = 0;
  const auto add = [&](WireHandle holder) {
    if (holder != 0) holders[count++] = holder;
  };
  for (const Found& root : named.all_exclusive()) {
    if (root.wire != HandleTable::kCapturing) add(root.wire);
  }
  add(named.made);
  add(named.reference);
  add(named.captured_into);
  if (Captures::Any() || named.ends_capture) add(HandleTable::kCapturing);
  if (!named.ends_capture) return handles_.HoldUsed({holders, count});
  handles_.HoldUsed({holders, count}, beside);
  beside.clear();
  handles_.NoteCaptureEnd();
}

void Objects::NameCapture() {
  NameCapturing();
}

WireHandle Objects::BindCaptured(WireHandle fresh, CUgraph graph, Writer& w) {
  CUstream stream = TheCaptures().StreamOf(graph);
  return BindOrKnownTo({Known(HandleKind::kStream, stream), stream}, HandleKind::kGraph, fresh, graph, w);
}

WireHandle Objects::ReleaseCaptured(WireHandle fresh, CUgraph graph, Writer& w) {
  named.is_capture = true;
  const WireHandle wire = BindOrKnown(HandleKind::kGraph, fresh, graph, w);
  handles_.Adopt({wire, graph}, {});
  return wire;
}

CUresult Objects::EndCapture(CUstream stream, const HandleTable::Call& call) {
  // A capture that fails takes its graph with it, unless that was there before.
  const auto takes_graph = [](CUresult result) {
    return result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED || result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  };
  // It may end with this; afterwards there is no telling.
  CUgraph graph = TheCaptures().GraphOf(stream);
  // The request has all captures to itself from Prepare on. Before that another one may have given the graph its number.
  const WireHandle captured = Known(HandleKind::kGraph, graph);
  UserObjects::Held held;
  // Also that of a graph whose number is another's by now.
  if (graph != nullptr) held = TheUserObjects().GraphEnds(graph);
  std::optional<Captures::Capture> capture;
  // From when nobody can end the graph by its number until then it must be known as captured.
  const auto hidden = [&] {
    capture = TheCaptures().HideGraph(stream);
    return call();
  };
  const CUresult result = handles_.CallThatMayEnd({captured, graph}, hidden, takes_graph);
  if (!takes_graph(result)) TheUserObjects().GraphLives(graph, held);
  if (result == CUDA_SUCCESS || takes_graph(result)) {
    // A request that was captured, and leaves after this, may see nothing captured any more. So what it uses is noted before.
    beside = handles_.UsedByOthers();
    if (capture && capture->into_existing) named.captured_into = handles_.HolderOf(capture->graph);
    if (TheCaptures().Take(stream)) named.ends_capture = true;
  } else if (capture) {
    TheCaptures().Begin(stream, *capture);
  }
  return result;
}

// This is inlined into one function per kind that each launch looks up, so that the kind is a constant there. A switch over kinds costs
// a launch a mispredicted branch.
inline void* Objects::Look(HandleKind kind, WireHandle wire, Reader& r) {
  if (wire == 0) return nullptr;
  if (kind == HandleKind::kStream && wire == kLegacyStreamWire) return CU_STREAM_LEGACY;
  void* value = handles_.Use(kind, wire);
  if (value == nullptr) r.Fail(InvalidHandleError(kind));
  Found* const place = kind == HandleKind::kStream ? &whereabouts_.stream : named.PlaceOf(kind);
  if (place != nullptr && place->wire == 0) *place = {wire, value};
  if (kind == HandleKind::kTextureReference || kind == HandleKind::kSurfaceReference) named.reference = wire;
  if (value != nullptr && IsUsedByOne(kind)) NameExclusive(kind, {wire, value}, r);
  return value;
}

void* Objects::ToDriver(HandleKind kind, WireHandle wire, Reader& r) {
  return Look(kind, wire, r);
}

[[gnu::hot]] CUfunction Objects::FunctionToDriver(WireHandle wire, Reader& r) {
  return static_cast<CUfunction>(Look(HandleKind::kFunction, wire, r));
}

[[gnu::hot]] CUstream Objects::StreamToDriver(WireHandle wire, Reader& r) {
  return static_cast<CUstream>(Look(HandleKind::kStream, wire, r));
}

// Apart from ToDriver, because each launch goes through that.
void Objects::NameExclusive(HandleKind kind, Found object, Reader& r) {
  if (named.exclusive_count == 0) parts.clear();
  if (!named.AddExclusive(handles_.Root(object.wire))) r.Fail(CUDA_ERROR_INVALID_VALUE);
  parts.push_back(object);
  // Its number was another's by the time that was asked.
  if (handles_.Find(kind, object.wire) != object.value) r.Fail(InvalidHandleError(kind));
}

void* Objects::ToEnd(HandleKind kind, WireHandle wire, Reader& r) {
  if (wire == 0) return nullptr;
  if (kind == HandleKind::kStream && wire == kLegacyStreamWire) return CU_STREAM_LEGACY;
  void* value = handles_.UseToEnd(kind, wire);
  if (value == nullptr) r.Fail(InvalidHandleError(kind));
  return value;
}

[[gnu::hot]] CUresult Objects::Prepare() {
  return named.exclusive_count != 0 || TouchesCaptures() ? PrepareExclusive() : CUDA_SUCCESS;
}

CUresult Objects::PrepareExclusive() {
  while (!named.is_prepared) {
    if (TouchesCaptures() && !NameCapturing()) return CUDA_ERROR_INVALID_VALUE;
    if (named.exclusive_count == 0) break;
    NameTaken(handles_);
    if (!exclusive_.Take(named.all_taken())) return CUDA_ERROR_DEINITIALIZED;
    named.is_prepared = true;
    // Meanwhile another request may have begun a capture, put one of these graphs into another graph, or made it another's relative.
    bool moved = TouchesCaptures() && !named.HasTaken(HandleTable::kCapturing);
    Named now;
    for (const Found& root : named.all_exclusive()) {
      const Found above = root.wire != HandleTable::kCapturing ? handles_.Root(root.wire) : root;
      moved |= above.wire != root.wire;
      now.AddExclusive(above.wire != root.wire ? above : root);
    }
    if (!moved && HasAllRelatives(handles_)) break;
    exclusive_.Return(named.all_taken());
    named.is_prepared = false;
    handles_.NoteReturned();
    named.exclusive_count = now.exclusive_count;
    std::copy_n(now.exclusive, now.exclusive_count, named.exclusive);
  }
  // A capture that failed has ended its graph meanwhile.
  if (named.exclusive_count == 0) return CUDA_SUCCESS;
  for (const Found& part : parts) {
    if (handles_.Find(WireKind(part.wire), part.wire) != part.value)
      return InvalidHandleError(WireKind(part.wire));
  }
  const CUresult nesting = CheckNesting(handles_);
  if (nesting == CUDA_SUCCESS && named.exclusive_count > 1 && TakesRelatives())
    handles_.JoinRelatives(named.all_exclusive());
  return nesting;
}

CUresult Objects::End(HandleKind kind, WireHandle wire, const void* value, HandleTable::Call call) {
  if (wire == 0 || wire == kLegacyStreamWire) return call();
  if (kind == HandleKind::kGraph && TheCaptures().Has(static_cast<CUgraph>(const_cast<void*>(value))))
    return CUDA_ERROR_INVALID_VALUE;
  // A context ends without another: the thread's last may have ended, and would serve what is registered.
  if (kind == HandleKind::kContext) {
    auto alone = [this, mode = caller.mode, call = std::move(call)] {
      const CUresult result = SetCaller(nullptr, mode);
      return result == CUDA_SUCCESS ? call() : result;
    };
    return handles_.EndObject(kind, wire, value, false, std::move(alone));
  }
  auto in_context = [this, found = named.context, mode = caller.mode, call = std::move(call)] {
    void* context = found.value;
    // It may have ended, or its number be another's.
    if (HandleTable::MakesLeftOverCall() && Find(HandleKind::kContext, found.wire) != context)
      context = nullptr;
    const CUresult result = SetCaller(static_cast<CUcontext>(context), mode);
    return result == CUDA_SUCCESS ? call() : result;
  };
  const bool exclusive = IsGraphPart(kind) || HasRelatives(kind) || kind == HandleKind::kStream;
  return handles_.EndObject(kind, wire, value, exclusive, std::move(in_context));
}

CUresult Objects::EndContents(Found context, const HandleTable::Call& call) {
  constexpr std::chrono::milliseconds kPatience(2000);  // a correct program has nobody in there
  return handles_.EndContents(HandleKind::kContext, context, kPatience, call);
}

// ---- what is made

// What the driver ends a new object with.
Found Objects::OwnerOf(HandleKind kind) const {
  const HandleKind code = WireKind(named.code.wire);
  switch (kind) {
    case HandleKind::kFunction:
    case HandleKind::kKernel:
      return code == HandleKind::kFunction ? OwnerOfPart(named.code) : named.code;
    case HandleKind::kGraphNode:
      return named.graph.wire != 0 ? named.graph : OwnerOfPart(named.node);
    case HandleKind::kGraph:
      return named.graph.wire == 0 ? named.node : Found{};  // a node's own graph
    case HandleKind::kContext:
      return named.green;  // the context that stands for a green one
    case HandleKind::kModule: {
      const Found of = code == HandleKind::kFunction ? OwnerOfPart(named.code) : named.code;
      return WireKind(of.wire) == HandleKind::kLibrary ? of : named.context;
    }
    case HandleKind::kTextureReference:
    case HandleKind::kSurfaceReference:
      return code == HandleKind::kModule ? named.code : named.context;
    case HandleKind::kArray:  // a level or a plane of another, or one of its own
      return named.array.wire != 0 ? named.array : named.context;
    case HandleKind::kStream:
      return named.green.wire != 0 ? named.green : named.context;
    case HandleKind::kMipmappedArray:
    case HandleKind::kEvent:
    case HandleKind::kGreenContext:
      return named.context;
    default:
      return {};
  }
}

// What the part of another object ends with. The part itself if it is dead: nothing is bound to that.
Found Objects::OwnerOfPart(Found part) const {
  const Found owner = handles_.ParentOf(part);
  return owner.wire != 0 ? owner : part;
}

void Objects::Bind(HandleKind kind, WireHandle wire, void* value, Writer& w) {
  named.has_bound = true;
  if (HasRelatives(kind)) named.made = wire;
  const auto relatives = HasRelatives(kind) ? named.all_exclusive() : std::span<Found>();
  if (!handles_.Bind(kind, wire, value, OwnerOf(kind), relatives)) w.Fail(InvalidHandleError(kind));
}

WireHandle Objects::BindOrKnown(HandleKind kind, WireHandle fresh, void* value, Writer& w) {
  return value != nullptr ? BindOrKnownTo(OwnerOf(kind), kind, fresh, value, w) : 0;
}

WireHandle Objects::BindOrKnownTo(Found parent, HandleKind kind, WireHandle fresh, void* value, Writer& w) {
  if (value == nullptr) return 0;
  named.has_bound = true;
  // What the driver merely remembers, or what another request is just ending, gets no number again: only what
  // ends with an owner that lives, or has a reference of its own, or is the driver's own and never ends.
  // All else is known since it was made.
  bool may_be_new = parent.wire != 0;
  switch (kind) {
    case HandleKind::kEvent:
    case HandleKind::kLibrary:
    case HandleKind::kMipmappedArray:
    case HandleKind::kGreenContext:
      may_be_new = false;
      break;
    case HandleKind::kArray:  // a level or a plane
      may_be_new =
          WireKind(parent.wire) == HandleKind::kArray || WireKind(parent.wire) == HandleKind::kMipmappedArray;
      break;
    case HandleKind::kModule:
      may_be_new = WireKind(parent.wire) == HandleKind::kLibrary;
      break;
    case HandleKind::kAllocation:
      may_be_new = true;
      break;
    case HandleKind::kGraph:  // of a node, or of a capture
      may_be_new = parent.wire != 0 || named.is_capture;
      break;
    case HandleKind::kMemoryPool:
      may_be_new = handles_.Reverse(kind, value) == 0 && MayPoolBeNew(value);
      break;
    default:
      break;
  }
  // The driver gives a handle each time that an allocation is looked up or imported; each is released.
  const WireHandle wire =
      may_be_new ? handles_.BindOrKnown(kind, fresh, value, parent, kind == HandleKind::kAllocation)
                 : handles_.Reverse(kind, value);
  if (wire == 0) w.Fail(InvalidHandleError(kind));
  if (kind == HandleKind::kGraph) named.made = wire;
  return wire;
}

}  // namespace causeway::host
