// SPDX-License-Identifier: Apache-2.0
// One template makes a driver function of every declaration in cuda.h: its handles are checked, its pointers
// touched, and what it returns is new.
#include "tests/fuzz/fake_driver.h"

#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "host_backend/worker/api/guarded_driver.h"
#include "host_backend/worker/driver/driver.h"
#include "tests/fuzz/fake_objects.h"
#include "tests/fuzz/fuzz_input.h"

namespace causeway::fuzz {
namespace {

struct Object {
  HandleKind kind;
  uintptr_t parent;
};
std::unordered_map<uintptr_t, Object> objects;  // by value; values are never used twice
// A table that one input has made large would be cleared whole after each that follows.
void ClearObjects() {
  constexpr size_t kLarge = 256;
  if (objects.bucket_count() > kLarge)
    std::unordered_map<uintptr_t, Object>().swap(objects);  // = {} would keep it
  if (!objects.empty()) objects.clear();
}
uintptr_t last_object = 0x1000;
uint64_t random_state = 1;
uint64_t calls = 0;
uintptr_t current_context = 0;
volatile uint8_t sink;
constexpr CUdeviceptr kFirstAddress = 0x7a0000000000;
CUdeviceptr last_address = kFirstAddress;

uint64_t Random() {
  random_state = random_state * 6364136223846793005 + 1442695040888963407;
  return random_state >> 33;
}

uintptr_t Create(HandleKind kind, uintptr_t parent) {
  objects[last_object += 16] = {kind, parent};
  return last_object;
}

void Destroy(uintptr_t object) {
  std::vector<uintptr_t> ended{object};
  while (!ended.empty()) {
    const uintptr_t parent = ended.back();
    ended.pop_back();
    objects.erase(parent);
    for (const auto& [value, child] : objects) {
      if (child.parent == parent && parent != 0) ended.push_back(value);
    }
  }
}

void RequireLive(const char* function, HandleKind kind, uintptr_t value) {
  if (value == 0 || (kind == HandleKind::kStream && value == reinterpret_cast<uintptr_t>(CU_STREAM_LEGACY))) {
    return;
  }
  const auto found = objects.find(value);
  if (found != objects.end() && found->second.kind == kind) return;
  fprintf(stderr, "%s was given %s object of kind %d\n", function,
          found == objects.end() ? "a dead" : "the wrong kind of", static_cast<int>(kind));
  Require(false);
}

}  // namespace

uintptr_t MakeFakeObject(HandleKind kind, uintptr_t parent) {
  return Create(kind, parent);
}
void RequireFakeObject(const char* function, HandleKind kind, const void* object) {
  RequireLive(function, kind, reinterpret_cast<uintptr_t>(object));
}
uintptr_t CurrentFakeContext() {
  return current_context;
}
bool IsFakeDeviceMemory(CUdeviceptr address) {
  return address >= kFirstAddress && address < last_address + (1u << 20);
}
bool ByChance(uint64_t once_in) {
  return Random() % once_in == 0;
}
CUresult SomeError() {
  constexpr CUresult kErrors[] = {
      CUDA_ERROR_INVALID_VALUE,   CUDA_ERROR_OUT_OF_MEMORY,  CUDA_ERROR_NOT_READY,
      CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED,  CUDA_ERROR_NOT_SUPPORTED,
      CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_UNKNOWN};
  return kErrors[Random() % std::size(kErrors)];
}

namespace {

// What ends with what: an object's owner among a call's arguments, else the context where the driver says so.
uintptr_t OwnerOf(HandleKind kind, uintptr_t argument) {
  const auto found = objects.find(argument);
  const HandleKind owner = found == objects.end() ? HandleKind::kNone : found->second.kind;
  switch (kind) {
    case HandleKind::kFunction:
      if (owner == HandleKind::kFunction) return found->second.parent;
      return owner == HandleKind::kModule || owner == HandleKind::kLibrary ? argument : 0;
    case HandleKind::kGraphNode:
      if (owner == HandleKind::kGraphNode) return found->second.parent;
      return owner == HandleKind::kGraph ? argument : 0;
    case HandleKind::kModule:
      return owner == HandleKind::kLibrary ? argument : current_context;
    case HandleKind::kStream:
    case HandleKind::kEvent:
      return current_context;
    default:
      return 0;
  }
}

// One argument of a call: handles must be alive, texts end, a returned value can be written.
template <class P>
void Look(const char* function, P argument, uintptr_t* owner) {
  if constexpr (Handle<P>) {
    const auto value = reinterpret_cast<uintptr_t>(argument);
    RequireLive(function, kKindOf<P>, value);
    // A node that is found in a clone is the clone's.
    const auto first = objects.find(*owner);
    const bool of_graph = kKindOf<P> == HandleKind::kGraph && first != objects.end() &&
                          first->second.kind == HandleKind::kGraphNode;
    if (*owner == 0 || of_graph) *owner = value;
  } else if constexpr (std::is_same_v<P, const char*>) {
    if (argument != nullptr) sink = static_cast<uint8_t>(strlen(argument));
  } else if constexpr (std::is_pointer_v<P> && std::is_const_v<std::remove_pointer_t<P>>) {
    using T = std::remove_const_t<std::remove_pointer_t<P>>;
    if constexpr (Handle<T>) {
      if (argument != nullptr) RequireLive(function, kKindOf<T>, reinterpret_cast<uintptr_t>(*argument));
    }
  }
}

template <class P>
void Answer(P argument, uintptr_t owner) {
  if constexpr (std::is_pointer_v<P> && !std::is_function_v<std::remove_pointer_t<P>>) {
    using T = std::remove_pointer_t<P>;
    if constexpr (Handle<P> || std::is_void_v<T> || std::is_const_v<T>) {
      return;
    } else if constexpr (Handle<T>) {
      if (argument == nullptr) return;
      *argument = reinterpret_cast<T>(Create(kKindOf<T>, OwnerOf(kKindOf<T>, owner)));
    } else if constexpr (std::is_same_v<T, const char*>) {
      if (argument != nullptr) *argument = "name";
    } else if constexpr (std::is_same_v<T, char>) {
      if (argument != nullptr) *argument = '\0';
    } else if constexpr (std::is_same_v<T, int> || std::is_same_v<T, unsigned>) {
      if (argument != nullptr) *argument = static_cast<T>(Random() % 4);
    } else if constexpr (std::is_same_v<T, unsigned long long>) {  // an address, where it is one
      if (argument != nullptr) *argument = last_address += 1u << 20;
    } else if constexpr (std::is_same_v<T, size_t>) {  // also a room to stay within
      if (argument != nullptr && *argument != ~size_t{0}) *argument = Random() % (*argument + 1);
    }
  }
}

template <class Name, bool kDrops, class Function>
struct Fake;
template <class Name, bool kDrops, class... P>
struct Fake<Name, kDrops, CUresult (*)(P...)> {
  static CUresult Call(P... arguments) {
    ++calls;
    uintptr_t owner = 0;
    (Look(Name::Text(), arguments, &owner), ...);
    if (ByChance(24)) return SomeError();
    if constexpr (kDrops) Destroy(owner);
    (Answer(arguments, owner), ...);
    return CUDA_SUCCESS;
  }
};

void Touch(const void* bytes, size_t count) {
  if (count != 0) sink = static_cast<const volatile uint8_t*>(bytes)[count - 1];
}
void Fill(void* bytes, size_t count) {
  if (count != 0) std::memset(bytes, 1, count);
}

CUresult SetCurrent(CUcontext context) {
  RequireLive("cuCtxSetCurrent", HandleKind::kContext, reinterpret_cast<uintptr_t>(context));
  current_context = reinterpret_cast<uintptr_t>(context);
  return CUDA_SUCCESS;
}
CUresult GetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(current_context);
  return CUDA_SUCCESS;
}
CUresult DestroyContext(CUcontext context) {
  RequireLive("cuCtxDestroy", HandleKind::kContext, reinterpret_cast<uintptr_t>(context));
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  Destroy(reinterpret_cast<uintptr_t>(context));
  if (current_context == reinterpret_cast<uintptr_t>(context)) current_context = 0;
  return CUDA_SUCCESS;
}
CUresult UnloadLibrary(CUlibrary library) {
  RequireLive("cuLibraryUnload", HandleKind::kLibrary, reinterpret_cast<uintptr_t>(library));
  Destroy(reinterpret_cast<uintptr_t>(library));
  return CUDA_SUCCESS;
}
template <class Function>
CUresult ParameterInfo(Function function, size_t index, size_t* offset, size_t* bytes) {
  RequireLive("cuFuncGetParamInfo", HandleKind::kFunction, reinterpret_cast<uintptr_t>(function));
  if (index >= Random() % 8) return CUDA_ERROR_INVALID_VALUE;
  *offset = 8 * index;
  *bytes = 8;
  return CUDA_SUCCESS;
}
template <class T, class Owner>
CUresult Enumerate(T* list, unsigned count, Owner owner) {
  RequireLive("enumerate", kKindOf<Owner>, reinterpret_cast<uintptr_t>(owner));
  const auto value = reinterpret_cast<uintptr_t>(owner);
  constexpr unsigned kFunctions = 48;  // that it has
  for (unsigned i = 0; i < std::min(count, kFunctions); ++i)
    list[i] = reinterpret_cast<T>(Create(HandleKind::kFunction, OwnerOf(HandleKind::kFunction, value)));
  return CUDA_SUCCESS;
}

template <class... D>
inline constexpr bool kEnds = (std::is_same_v<D, Drop> || ...);

void InstallEntries(host::Driver& driver) {
#define ENTRY(fn, ...)                                           \
  {                                                              \
    struct Name {                                                \
      static const char* Text() { return #fn; }                  \
    };                                                           \
    driver.fn = &Fake<Name, __VA_ARGS__, decltype(&::fn)>::Call; \
  }
#define CALL(fn, meaning, ...) ENTRY(fn, kEnds<__VA_ARGS__>)
#define GUEST CALL
#define CUSTOM(fn, ...) ENTRY(fn, false)
#define LOCAL(fn) ENTRY(fn, false)
#include "ivshmem_ring/calls.def"
#undef ENTRY
}

// Resources that this driver has made carry its mark; it must never see others.
constexpr uint64_t kResourceMark = 0x6b72616d20746867;
void MakeResource(CUdevResource* resource) {
  *resource = {};
  resource->type = CU_DEV_RESOURCE_TYPE_SM;
  resource->sm.smCount = static_cast<unsigned>(Random() % 64);
  std::memcpy(resource->_internal_padding, &kResourceMark, sizeof kResourceMark);
}
void RequireResource(const CUdevResource& resource) {
  Require(std::memcmp(resource._internal_padding, &kResourceMark, sizeof kResourceMark) == 0);
}
CUresult DeviceResource(CUdevice, CUdevResource* resource, CUdevResourceType) {
  MakeResource(resource);
  return CUDA_SUCCESS;
}
template <class Context>
CUresult ContextResource(Context context, CUdevResource* resource, CUdevResourceType) {
  RequireLive("cuCtxGetDevResource", kKindOf<Context>, reinterpret_cast<uintptr_t>(context));
  MakeResource(resource);
  return CUDA_SUCCESS;
}
CUresult SplitResource(CUdevResource* groups, unsigned* count, const CUdevResource* input,
                       CUdevResource* rest, unsigned, unsigned) {
  RequireResource(*input);
  if (groups == nullptr) *count = static_cast<unsigned>(Random());
  for (unsigned i = 0; groups != nullptr && i < *count; ++i) MakeResource(&groups[i]);
  if (rest != nullptr) MakeResource(rest);
  return CUDA_SUCCESS;
}
CUresult DescribeResources(CUdevResourceDesc* description, CUdevResource* resources, unsigned count) {
  for (unsigned i = 0; i < count; ++i) RequireResource(resources[i]);
  *description = reinterpret_cast<CUdevResourceDesc>(Create(HandleKind::kResourceDescriptor, 0));
  return CUDA_SUCCESS;
}
CUresult GetCoredump(CUcoredumpSettings, void* value, size_t* size) {
  if (value != nullptr) Fill(value, *size);
  if (Random() % 4 == 0) *size = Random();
  return CUDA_SUCCESS;
}
CUresult SetCoredump(CUcoredumpSettings attribute, void* value, size_t* size) {
  if (value != nullptr) Touch(value, *size);
  Require(attribute != CU_COREDUMP_FILE && attribute != CU_COREDUMP_PIPE);
  const bool enables =
      attribute == CU_COREDUMP_ENABLE_ON_EXCEPTION || attribute == CU_COREDUMP_ENABLE_USER_TRIGGER;
  Require(!enables || value == nullptr || *static_cast<const char*>(value) == 0);
  return CUDA_SUCCESS;
}

// A descriptor is the caller's; of another kind 64 bytes.
template <class Object>
CUresult Export(void* handle, Object, CUmemAllocationHandleType type, unsigned long long) {
  if (ByChance(16)) return SomeError();
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    const int descriptor = dup(2);
    std::memcpy(handle, &descriptor, sizeof descriptor);
  } else {
    Fill(handle, sizeof(CUmemFabricHandle));
  }
  return CUDA_SUCCESS;
}

// Their destructors run when their last reference goes.
struct UserObject {
  void* data;
  CUhostFn destroy;
  unsigned references;
};
std::unordered_map<uintptr_t, UserObject> user_objects;
CUresult CreateUserObject(CUuserObject* object, void* data, CUhostFn destroy, unsigned references, unsigned) {
  if (references == 0 || ByChance(16)) return SomeError();
  const uintptr_t value = Create(HandleKind::kUserObject, 0);
  user_objects[value] = {data, destroy, references};
  *object = reinterpret_cast<CUuserObject>(value);
  return CUDA_SUCCESS;
}
CUresult ReleaseUserObject(CUuserObject object, unsigned count) {
  RequireLive("cuUserObjectRelease", HandleKind::kUserObject, reinterpret_cast<uintptr_t>(object));
  const auto found = user_objects.find(reinterpret_cast<uintptr_t>(object));
  if (found == user_objects.end() || count > found->second.references) return CUDA_ERROR_INVALID_VALUE;
  if ((found->second.references -= count) != 0) return CUDA_SUCCESS;
  const UserObject ended = found->second;
  user_objects.erase(found);
  objects.erase(reinterpret_cast<uintptr_t>(object));
  ended.destroy(ended.data);
  return CUDA_SUCCESS;
}

CUresult RetainUserObject(CUuserObject object, unsigned count) {
  RequireLive("cuUserObjectRetain", HandleKind::kUserObject, reinterpret_cast<uintptr_t>(object));
  if (count == 0 || ByChance(16)) return SomeError();
  if (const auto kept = user_objects.find(reinterpret_cast<uintptr_t>(object)); kept != user_objects.end())
    kept->second.references += count;
  return CUDA_SUCCESS;
}
// What a graph holds it keeps: an object lives too long here rather than too short.
CUresult RetainUserObjectByGraph(CUgraph graph, CUuserObject object, unsigned count, unsigned) {
  RequireLive("cuGraphRetainUserObject", HandleKind::kGraph, reinterpret_cast<uintptr_t>(graph));
  RequireLive("cuGraphRetainUserObject", HandleKind::kUserObject, reinterpret_cast<uintptr_t>(object));
  if (count == 0 || ByChance(16)) return SomeError();
  if (const auto kept = user_objects.find(reinterpret_cast<uintptr_t>(object)); kept != user_objects.end())
    kept->second.references += count;
  return CUDA_SUCCESS;
}

void InstallResources(host::Driver& driver) {
  driver.cuDeviceGetDevResource = &DeviceResource;
  driver.cuCtxGetDevResource = &ContextResource<CUcontext>;
  driver.cuGreenCtxGetDevResource = &ContextResource<CUgreenCtx>;
  driver.cuDevSmResourceSplitByCount = &SplitResource;
  driver.cuDevResourceGenerateDesc = &DescribeResources;
  driver.cuCoredumpGetAttribute = &GetCoredump;
  driver.cuCoredumpSetAttribute = &SetCoredump;
  driver.cuUserObjectRelease = &ReleaseUserObject;
  driver.cuUserObjectRetain = &RetainUserObject;
  driver.cuGraphRetainUserObject = &RetainUserObjectByGraph;
  driver.cuMemExportToShareableHandle = &Export<CUmemGenericAllocationHandle>;
  driver.cuMemPoolExportToShareableHandle = &Export<CUmemoryPool>;
  driver.cuUserObjectCreate = CreateUserObject;
}

}  // namespace

void InstallFakeDriver() {
  host::Driver& driver = host::DriverToFill();
  InstallEntries(driver);
  InstallResources(driver);
  InstallFakeMemory();
  driver.cuCtxSetCurrent = SetCurrent;
  driver.cuCtxGetCurrent = GetCurrent;
  driver.cuCtxDestroy_v2 = DestroyContext;
  driver.cuLibraryUnload = UnloadLibrary;
  driver.cuFuncGetParamInfo = ParameterInfo<CUfunction>;
  driver.cuKernelGetParamInfo = ParameterInfo<CUkernel>;
  driver.cuModuleEnumerateFunctions = Enumerate<CUfunction, CUmodule>;
  driver.cuLibraryEnumerateKernels = Enumerate<CUkernel, CUlibrary>;
  host::GuardDriver(driver);
}

void ResetFakeDriver(uint64_t seed) {
  ClearObjects();
  current_context = 0;
  random_state = seed;
  last_object = 0x1000;
  last_address = kFirstAddress;
}

void EndFakeObjects() {
  if (!user_objects.empty()) {
    for (const auto& [value, object] : std::exchange(user_objects, {})) object.destroy(object.data);
  }
  ClearObjects();
  ResetFakeMemory();
}

uint64_t FakeDriverCalls() {
  return calls;
}

}  // namespace causeway::fuzz
