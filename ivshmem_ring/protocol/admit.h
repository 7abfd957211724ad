// SPDX-License-Identifier: Apache-2.0
// The worker's check of a value that came from the guest, before the driver sees it. Admit clears what the
// driver must not see (pointers for Windows, members of a union that are not meant, bits that the driver
// ignores) and returns CUDA_SUCCESS, or it returns the error with which the call is refused; the value then
// means nothing. Numbers pass as they are: addresses and sizes are checked by the code that uses them. A type
// without an Admit cannot travel to the host: a row with it does not compile. The functions keep nothing, so
// any thread may call them; the value must be the worker's own copy, not in the region.
#pragma once
#include <algorithm>
#include <iterator>

#include "ivshmem_ring/protocol/flat.h"
#include "ivshmem_ring/protocol/known_values.h"

namespace causeway {

template <class T>
requires std::is_arithmetic_v<T> CUresult Admit(T&) {
  return CUDA_SUCCESS;
}
template <class E>
requires std::is_enum_v<E> CUresult Admit(E& value) {
  return IsKnown(value) ? CUDA_SUCCESS : kUnknownValue<E>;
}

// Managed allocations and memory that lies on the host are refused (CUDA_ERROR_NOT_SUPPORTED), because the
// guest could not touch such memory at the address that the driver returns.
CUresult Admit(CUmemAllocationType& type);
CUresult Admit(CUmemLocation& location);

// Checks several values in order and returns the first refusal. CUDA_ERROR_NOT_SUPPORTED is returned only if no other value is refused:
// the driver supports that value, so a program expects the error for the other one.
template <class... T>
CUresult AdmitAll(T&... values) {
  CUresult result = CUDA_SUCCESS;
  const auto check = [&result](auto& value) {
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_SUPPORTED) return;
    const CUresult found = Admit(value);
    if (found != CUDA_SUCCESS) result = found;
  };
  (check(values), ...);
  return result;
}
// Whether all elements of an array are 0.
template <class T>
bool IsZero(const T& bytes) {
  return std::all_of(std::begin(bytes), std::end(bytes), [](auto byte) { return byte == 0; });
}

inline CUresult Admit(CUmemAllocationType& type) {
  if (type == CU_MEM_ALLOCATION_TYPE_MANAGED) return CUDA_ERROR_NOT_SUPPORTED;
  return IsKnown(type) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
inline CUresult Admit(CUmemLocation& location) {
  const bool on_host = location.type == CU_MEM_LOCATION_TYPE_HOST ||
                       location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                       location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
  return on_host ? CUDA_ERROR_NOT_SUPPORTED : Admit(location.type);
}
inline CUresult AdmitQuestion(CUmemLocation& location) {
  return Admit(location.type);
}
// Unlike elsewhere, a location on the host passes, since the driver itself refuses it.
inline CUresult Admit(CUmemAccessDesc& access) {
  return AdmitAll(access.location.type, access.flags);
}
// For calls that only ask about such memory, of which a guest cannot have every kind.
inline CUresult AdmitQuestion(CUmemAllocationProp& prop) {
  prop.win32HandleMetaData = nullptr;
  auto compression = static_cast<CUmemAllocationCompType>(prop.allocFlags.compressionType);
  prop.allocFlags.usage &= kMemoryUsage;  // the driver ignores the other bits
  const bool known = OnlyFlags(static_cast<uint32_t>(prop.requestedHandleTypes), kHandleTypes) &&
                     Admit(compression) == CUDA_SUCCESS && IsZero(prop.allocFlags.reserved);
  return known ? AdmitAll(prop.type, prop.location.type) : CUDA_ERROR_INVALID_VALUE;
}
inline CUresult Admit(CUmemAllocationProp& prop) {
  const CUresult result = AdmitQuestion(prop);
  return result != CUDA_SUCCESS ? result : Admit(prop.location);
}
inline CUresult Admit(CUmemPoolProps& props) {
  props.win32SecurityAttributes = nullptr;
  const bool known = OnlyFlags(static_cast<uint32_t>(props.handleTypes), kHandleTypes) &&
                     OnlyFlags(props.usage, kMemoryUsage) && IsZero(props.reserved);
  return known ? AdmitAll(props.allocType, props.location) : CUDA_ERROR_INVALID_VALUE;
}
inline CUresult Admit(CUmulticastObjectProp& prop) {
  const bool known = OnlyFlags(prop.handleTypes, kHandleTypes) && OnlyFlags(prop.flags, kNoFlags);
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
inline CUresult Admit(CUexecAffinityParam& param) {
  return Admit(param.type);
}
inline CUresult Admit(CUDA_ARRAY_DESCRIPTOR& array) {
  return Admit(array.Format);
}
inline CUresult Admit(CUDA_ARRAY3D_DESCRIPTOR& array) {
  return OnlyFlags(array.Flags, kArrayFlags) ? Admit(array.Format) : CUDA_ERROR_INVALID_VALUE;
}
inline CUresult Admit(CUDA_TEXTURE_DESC& texture) {
  if (!OnlyFlags(texture.flags, kTextureFlags) || !IsZero(texture.reserved)) return CUDA_ERROR_INVALID_VALUE;
  return AdmitAll(texture.addressMode[0], texture.addressMode[1], texture.addressMode[2], texture.filterMode,
                  texture.mipmapFilterMode);
}
inline CUresult Admit(CUDA_RESOURCE_VIEW_DESC& view) {
  std::fill(std::begin(view.reserved), std::end(view.reserved), 0);
  return Admit(view.format);
}
inline CUresult Admit(CUDA_MEMSET_NODE_PARAMS& memset) {
  const bool known = memset.elementSize == 1 || memset.elementSize == 2 || memset.elementSize == 4;
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
// Edges have ports only where they leave a kernel node.
inline CUresult Admit(CUgraphEdgeData& edge) {
  auto type = static_cast<CUgraphDependencyType>(edge.type);
  const bool known =
      edge.from_port <= CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER && edge.to_port == 0 && IsZero(edge.reserved);
  return known ? Admit(type) : CUDA_ERROR_INVALID_VALUE;
}

// The parameters are a union: the member that the operation names is rebuilt in a cleared union, so that
// nothing else of the guest's is left, above all in `alias`, where the driver keeps an address for itself.
inline CUresult Admit(CUstreamBatchMemOpParams& operation) {
  const CUstreamBatchMemOpParams given = operation;
  operation = {};
  operation.operation = given.operation;
  const auto take = [](auto& to, const auto& from, uint64_t flags) {
    to.address = from.address;
    to.value64 = from.value64;
    to.flags = from.flags;
    return OnlyFlags(from.flags, flags) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  };
  switch (given.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return take(operation.waitValue, given.waitValue, kWaitValueFlags);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return take(operation.writeValue, given.writeValue, kWriteValueFlags);
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      return OnlyFlags(given.flushRemoteWrites.flags, kNoFlags) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_STREAM_MEM_OP_BARRIER:
      operation.memoryBarrier.flags = given.memoryBarrier.flags;
      return OnlyFlags(given.memoryBarrier.flags, kBarrierFlags) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// The same for the value of a launch attribute, a union too, whose member `id` names. An event inside still
// is the guest's wire handle afterwards; the caller puts the driver's event in its place.
inline CUresult AdmitLaunchAttribute(CUlaunchAttributeID id, CUlaunchAttributeValue& value) {
  const CUlaunchAttributeValue given = value;
  value = {};
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:  // the address inside is the device's
      value.accessPolicyWindow = given.accessPolicyWindow;
      return AdmitAll(value.accessPolicyWindow.hitProp, value.accessPolicyWindow.missProp);
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      value.syncPolicy = given.syncPolicy;
      return Admit(value.syncPolicy);
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      value.clusterSchedulingPolicyPreference = given.clusterSchedulingPolicyPreference;
      return Admit(value.clusterSchedulingPolicyPreference);
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      value.memSyncDomain = given.memSyncDomain;
      return Admit(value.memSyncDomain);
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
      value.programmaticEvent = given.programmaticEvent;
      return OnlyFlags(value.programmaticEvent.flags, kEventRecordFlags) ? CUDA_SUCCESS
                                                                         : CUDA_ERROR_INVALID_VALUE;
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
      value.launchCompletionEvent = given.launchCompletionEvent;
      return OnlyFlags(value.launchCompletionEvent.flags, kEventRecordFlags) ? CUDA_SUCCESS
                                                                             : CUDA_ERROR_INVALID_VALUE;
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:  // the driver returns the node inside
      value.deviceUpdatableKernelNode.deviceUpdatable = given.deviceUpdatableKernelNode.deviceUpdatable;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
      value.clusterDim = given.clusterDim;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
      value.memSyncDomainMap = given.memSyncDomainMap;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
    case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING:
      value.priority = given.priority;  // all five are one 32-bit number at the beginning of the union
      return CUDA_SUCCESS;
    default:
      return kUnknownValue<CUlaunchAttributeID>;
  }
}

}  // namespace causeway
