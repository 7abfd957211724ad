// SPDX-License-Identifier: Apache-2.0
#include "tests/differential/fixture.h"

#include <cstdlib>

#include "tests/differential/executor.h"
#include "tests/differential/kernels.h"

namespace causeway::differential {
namespace {

constexpr size_t kRegionBytes = 16384;

}  // namespace

bool Fixture::Step(const char* what, CUresult result) {
  if (result != CUDA_SUCCESS && error.empty())
    error = std::string(what) + " answered " + std::to_string(result);
  return error.empty();
}

void Fixture::AddObject(HandleKind kind, const void* raw, bool foreign, int kernel, bool is_kernel) {
  Object object;
  object.id = static_cast<uint32_t>(world.objects.size()) + 1;
  object.kind = kind;
  object.raw = reinterpret_cast<uint64_t>(raw);
  object.foreign = foreign;
  object.kernel = static_cast<int8_t>(kernel);
  object.is_kernel = is_kernel;
  world.Add(object);
}
void Fixture::AddMemory(Place place, uint64_t base) {
  Region region;
  region.id = static_cast<uint32_t>(world.regions.size());
  region.place = place;
  region.base = base;
  region.bytes = kRegionBytes;
  ResetRegion(world.AddRegion(region));
}

void Fixture::MakeContexts() {
  CUcontext base = nullptr, foreign = nullptr;
  if (!Step("cuInit", DRIVER(cuInit)(0)) || !Step("cuCtxCreate", DRIVER(cuCtxCreate_v2)(&foreign, 0, 0)) ||
      !Step("cuCtxCreate", DRIVER(cuCtxCreate_v2)(&base, 0, 0))) {
    return;
  }
  CUcontext popped = nullptr;
  DRIVER(cuCtxPopCurrent_v2)(&popped);
  DRIVER(cuCtxPopCurrent_v2)(&popped);
  Step("cuCtxSetCurrent", DRIVER(cuCtxSetCurrent)(base));
  world.base = base;
  AddObject(HandleKind::kContext, base);
  AddObject(HandleKind::kContext, foreign, true);
}

void Fixture::MakeCode() {
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  if (!Step("cuModuleLoadData", DRIVER(cuModuleLoadData)(&module, kKernels))) return;
  if (!Step("cuLibraryLoadData",
            DRIVER(cuLibraryLoadData)(&library, kKernels, nullptr, nullptr, 0, nullptr, nullptr, 0)))
    return;
  AddObject(HandleKind::kModule, module);
  AddObject(HandleKind::kLibrary, library);
  for (int i = 0; i < kKernelCount; ++i) {
    CUfunction function = nullptr;
    CUkernel kernel = nullptr;
    Step("cuModuleGetFunction", DRIVER(cuModuleGetFunction)(&function, module, kKernelNames[i]));
    Step("cuLibraryGetKernel", DRIVER(cuLibraryGetKernel)(&kernel, library, kKernelNames[i]));
    AddObject(HandleKind::kFunction, function, false, i);
    AddObject(HandleKind::kFunction, kernel, false, i, true);
  }
}

void Fixture::MakeStreams() {
  AddObject(HandleKind::kStream, CU_STREAM_LEGACY);
  AddObject(HandleKind::kStream, CU_STREAM_PER_THREAD);
  for (const unsigned flags : {1u, 1u, 0u}) {
    CUstream stream = nullptr;
    Step("cuStreamCreate", DRIVER(cuStreamCreate)(&stream, flags));
    AddObject(HandleKind::kStream, stream);
  }
  for (const unsigned flags : {0u, 2u}) {
    CUevent event = nullptr;
    Step("cuEventCreate", DRIVER(cuEventCreate)(&event, flags));
    AddObject(HandleKind::kEvent, event);
  }
  CUmemoryPool pool = nullptr;
  if (DRIVER(cuDeviceGetDefaultMemPool)(&pool, 0) == CUDA_SUCCESS) AddObject(HandleKind::kMemoryPool, pool);
  CUcontext popped = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  Step("cuCtxPushCurrent", DRIVER(cuCtxPushCurrent_v2)(reinterpret_cast<CUcontext>(world.objects[1].raw)));
  Step("cuStreamCreate", DRIVER(cuStreamCreate)(&stream, 1));
  Step("cuEventCreate", DRIVER(cuEventCreate)(&event, 0));
  Step("cuCtxPopCurrent", DRIVER(cuCtxPopCurrent_v2)(&popped));
  AddObject(HandleKind::kStream, stream, true);
  AddObject(HandleKind::kEvent, event, true);
}

void Fixture::MakeMemory() {
  for (const Place place : {Place::kDevice, Place::kDevice, Place::kDevice, Place::kDevice, Place::kWords}) {
    CUdeviceptr address = 0;
    if (!Step("cuMemAlloc", DRIVER(cuMemAlloc_v2)(&address, kRegionBytes))) return;
    AddMemory(place, address);
  }
  for (int i = 0; i < 2; ++i) {
    void* address = nullptr;
    if (!Step("cuMemHostAlloc", DRIVER(cuMemHostAlloc)(&address, kRegionBytes, 0))) return;
    pinned_.push_back(address);
    AddMemory(Place::kPinned, reinterpret_cast<uint64_t>(address));
  }
  for (int i = 0; i < 2; ++i) {
    pages_.push_back(std::aligned_alloc(kRegionBytes, kRegionBytes));
    AddMemory(Place::kPageable, reinterpret_cast<uint64_t>(pages_.back()));
  }
  CUdeviceptr managed = 0;
  if (DRIVER(cuMemAllocManaged)(&managed, kRegionBytes, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS)
    AddMemory(Place::kManaged, managed);
}

Fixture::Fixture() {
  MakeContexts();
  if (error.empty()) MakeCode();
  if (error.empty()) MakeStreams();
  if (error.empty()) MakeMemory();
  if (error.empty()) Step("cuCtxSynchronize", DRIVER(cuCtxSynchronize)());
}

Fixture::~Fixture() {
  for (void* address : pinned_) DRIVER(cuMemFreeHost)(address);
  for (const Object& object : world.objects) {
    if (object.kind == HandleKind::kContext && object.id < kFirstMade)
      DRIVER(cuCtxDestroy_v2)(reinterpret_cast<CUcontext>(object.raw));
  }
  for (void* page : pages_) std::free(page);
}

}  // namespace causeway::differential
