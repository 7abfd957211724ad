// SPDX-License-Identifier: Apache-2.0
// How driver objects are named in messages. The guest makes a wire handle, a number, for every object; the
// worker keeps a table from numbers to the driver's own pointers (host_backend/worker/objects/handles.h). So
// nothing that a guest sends is ever dereferenced.
#pragma once
#include <cstdint>

#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway {

enum class HandleKind : uint8_t {
  kNone = 0,
  kContext,
  kModule,
  kFunction,  // CUfunction and CUkernel share one space of numbers, because launches take either
  kLibrary,
  kStream,
  kEvent,
  kGraph,
  kGraphExec,
  kGraphNode,
  kMemoryPool,
  kArray,
  kMipmappedArray,
  kLink,
  kUserObject,
  kExternalMemory,
  kExternalSemaphore,
  kGreenContext,
  kResourceDescriptor,
  kLogsCallback,
  kAsyncCallback,
  kGraphicsResource,
  kTextureReference,
  kSurfaceReference,
  kAllocation,
  kKernel,  // asks for a CUkernel and no CUfunction; the number of either is a kFunction's
  kCount
};

// The kind of a handle's C type; kNone if the type is no handle.
template <class T>
inline constexpr HandleKind kKindOf = HandleKind::kNone;
template <>
inline constexpr HandleKind kKindOf<CUcontext> = HandleKind::kContext;
template <>
inline constexpr HandleKind kKindOf<CUmodule> = HandleKind::kModule;
template <>
inline constexpr HandleKind kKindOf<CUfunction> = HandleKind::kFunction;
template <>
inline constexpr HandleKind kKindOf<CUkernel> = HandleKind::kFunction;
template <>
inline constexpr HandleKind kKindOf<CUlibrary> = HandleKind::kLibrary;
template <>
inline constexpr HandleKind kKindOf<CUstream> = HandleKind::kStream;
template <>
inline constexpr HandleKind kKindOf<CUevent> = HandleKind::kEvent;
template <>
inline constexpr HandleKind kKindOf<CUgraph> = HandleKind::kGraph;
template <>
inline constexpr HandleKind kKindOf<CUgraphExec> = HandleKind::kGraphExec;
template <>
inline constexpr HandleKind kKindOf<CUgraphNode> = HandleKind::kGraphNode;
template <>
inline constexpr HandleKind kKindOf<CUmemoryPool> = HandleKind::kMemoryPool;
template <>
inline constexpr HandleKind kKindOf<CUarray> = HandleKind::kArray;
template <>
inline constexpr HandleKind kKindOf<CUmipmappedArray> = HandleKind::kMipmappedArray;
template <>
inline constexpr HandleKind kKindOf<CUlinkState> = HandleKind::kLink;
template <>
inline constexpr HandleKind kKindOf<CUuserObject> = HandleKind::kUserObject;
template <>
inline constexpr HandleKind kKindOf<CUexternalMemory> = HandleKind::kExternalMemory;
template <>
inline constexpr HandleKind kKindOf<CUexternalSemaphore> = HandleKind::kExternalSemaphore;
template <>
inline constexpr HandleKind kKindOf<CUgreenCtx> = HandleKind::kGreenContext;
template <>
inline constexpr HandleKind kKindOf<CUdevResourceDesc> = HandleKind::kResourceDescriptor;
template <>
inline constexpr HandleKind kKindOf<CUasyncCallbackHandle> = HandleKind::kAsyncCallback;
template <>
inline constexpr HandleKind kKindOf<CUtexref> = HandleKind::kTextureReference;
template <>
inline constexpr HandleKind kKindOf<CUsurfref> = HandleKind::kSurfaceReference;

// A type for CUmemGenericAllocationHandle, which shares its C type with plain numbers.
using Allocation = struct AllocationObject*;
template <>
inline constexpr HandleKind kKindOf<Allocation> = HandleKind::kAllocation;

// The kind that the host accepts for a parameter of that type. NVIDIA's driver (580.159) accepts a CUkernel
// as a CUfunction in launches, occupancy queries and nodes, answers CUDA_ERROR_INVALID_HANDLE for it
// elsewhere, and never accepts a CUfunction as a CUkernel.
template <class T>
inline constexpr HandleKind kTakenKind = kKindOf<T>;
template <>
inline constexpr HandleKind kTakenKind<CUkernel> = HandleKind::kKernel;

template <class T>
concept Handle = kKindOf<T>
!= HandleKind::kNone;

// A wire handle is kind << 56 | generation << 32 | index; 0 is the null handle. CUDA's streams 1 and 2
// (legacy, per-thread) never travel as such: the guest sends kLegacyStreamWire, or the stream that it made
// for the thread.
using WireHandle = uint64_t;
inline constexpr uint32_t kMaxHandles = 1u << 22;
inline constexpr uint32_t kGenerationMask = 0xffffff;
inline constexpr WireHandle kLegacyStreamWire = uint64_t{1} << 63;

constexpr WireHandle MakeWireHandle(HandleKind kind, uint32_t generation, uint32_t index) {
  return static_cast<uint64_t>(kind) << 56 | static_cast<uint64_t>(generation & kGenerationMask) << 32 |
         index;
}
constexpr HandleKind WireKind(WireHandle wire) {
  return static_cast<HandleKind>(wire >> 56);
}
constexpr uint32_t WireIndex(WireHandle wire) {
  return static_cast<uint32_t>(wire);
}

// The kind in the wire handle of an object of that kind.
constexpr HandleKind NumberKind(HandleKind kind) {
  return kind == HandleKind::kKernel ? HandleKind::kFunction : kind;
}

// Whether the number can be one of an object of that kind. The host asks before it calls the driver for a new object: what the driver
// has made and no number can have would be nobody's.
constexpr bool IsNumberOf(HandleKind kind, WireHandle wire) {
  return kind < HandleKind::kCount && WireKind(wire) == NumberKind(kind) && WireIndex(wire) < kMaxHandles;
}

// The same as what a handler returns otherwise.
constexpr CUresult RequireNumber(HandleKind kind, WireHandle wire) {
  return IsNumberOf(kind, wire) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// What the driver answers for a handle of that kind whose object does not exist (any more).
constexpr CUresult InvalidHandleError(HandleKind kind) {
  if (kind == HandleKind::kMemoryPool) return CUDA_ERROR_INVALID_VALUE;
  return kind == HandleKind::kContext ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace causeway
