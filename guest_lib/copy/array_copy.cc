// SPDX-License-Identifier: Apache-2.0
// Copies to and from one-dimensional arrays, and boxes between contexts: all of them are boxes.
#include "guest_lib/copy/copy.h"

#include <cstddef>
#include <cstring>

#include "guest_lib/memory/memory.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

CUDA_MEMCPY3D Row(uint64_t bytes) {
  CUDA_MEMCPY3D box{};
  box.WidthInBytes = bytes;
  box.Height = 1;
  box.Depth = 1;
  return box;
}

void FromArray(CUDA_MEMCPY3D* box, CUarray array, uint64_t offset) {
  box->srcMemoryType = CU_MEMORYTYPE_ARRAY;
  box->srcArray = array;
  box->srcXInBytes = offset;
}

void ToArray(CUDA_MEMCPY3D* box, CUarray array, uint64_t offset) {
  box->dstMemoryType = CU_MEMORYTYPE_ARRAY;
  box->dstArray = array;
  box->dstXInBytes = offset;
}

CUresult HostToArray(CUarray to, uint64_t offset, const void* from, uint64_t bytes, CUstream stream,
                     CopyForm form) {
  if (bytes != 0 && (from == nullptr || to == nullptr)) return RefuseCopy(stream, form);
  CUDA_MEMCPY3D box = Row(bytes);
  ToArray(&box, to, offset);
  box.srcMemoryType = CU_MEMORYTYPE_HOST;
  box.srcHost = from;
  return CopyBox(box, stream, form);
}

CUresult ArrayToHost(void* to, CUarray from, uint64_t offset, uint64_t bytes, CUstream stream,
                     CopyForm form) {
  if (bytes != 0 && (from == nullptr || to == nullptr)) return RefuseCopy(stream, form);
  CUDA_MEMCPY3D box = Row(bytes);
  FromArray(&box, from, offset);
  box.dstMemoryType = CU_MEMORYTYPE_HOST;
  box.dstHost = to;
  return CopyBox(box, stream, form);
}

CUresult CopyPeerBox(const CUDA_MEMCPY3D_PEER* peer, CUstream stream, CopyForm form) {
  if (peer == nullptr) return RefuseCopy(stream, form);
  const WithContextOf scope(stream);
  if (form == CopyForm::kAsynchronous) {
    if (const CUresult result = BeginPeerCopy(stream)) return result;
  }
  // Where the one has contexts the other has reserved words.
  CUDA_MEMCPY3D box;
  static_assert(sizeof box == sizeof *peer &&
                offsetof(CUDA_MEMCPY3D, reserved0) == offsetof(CUDA_MEMCPY3D_PEER, srcContext) &&
                offsetof(CUDA_MEMCPY3D, reserved1) == offsetof(CUDA_MEMCPY3D_PEER, dstContext) &&
                offsetof(CUDA_MEMCPY3D, Depth) == offsetof(CUDA_MEMCPY3D_PEER, Depth));
  std::memcpy(&box, peer, sizeof box);
  box.reserved0 = box.reserved1 = nullptr;
  // The driver ignores the context of an array.
  const bool from_array = peer->srcMemoryType == CU_MEMORYTYPE_ARRAY;
  const bool to_array = peer->dstMemoryType == CU_MEMORYTYPE_ARRAY;
  return CopyBox(box, stream, form, from_array ? nullptr : peer->srcContext,
                 to_array ? nullptr : peer->dstContext);
}

// On the device the synchronous forms do not wait either: these are asynchronous, on the thread's own stream. Beside a capture
// they are refused as if they waited.
CUresult CopyOnThread(const CUDA_MEMCPY3D& box) {
  if (const CUresult result = BeginCopy(CU_STREAM_PER_THREAD, CopyForm::kStreamThenWait)) return result;
  return CopyBox(box, CU_STREAM_PER_THREAD, CopyForm::kAsynchronous);
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuMemcpyHtoA_v2(CUarray to, size_t offset, const void* from, size_t bytes) {
  return HostToArray(to, offset, from, bytes, nullptr, CopyForm::kSynchronous);
}
CUresult cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void* from, size_t bytes, CUstream stream) {
  return HostToArray(to, offset, from, bytes, stream, CopyForm::kAsynchronous);
}
CUresult cuMemcpyHtoA_v2_ptds(CUarray to, size_t offset, const void* from, size_t bytes) {
  return HostToArray(to, offset, from, bytes, CU_STREAM_PER_THREAD, CopyForm::kStreamThenWait);
}
CUresult cuMemcpyAtoH_v2(void* to, CUarray from, size_t offset, size_t bytes) {
  return ArrayToHost(to, from, offset, bytes, nullptr, CopyForm::kSynchronous);
}
CUresult cuMemcpyAtoHAsync_v2(void* to, CUarray from, size_t offset, size_t bytes, CUstream stream) {
  return ArrayToHost(to, from, offset, bytes, stream, CopyForm::kAsynchronous);
}
CUresult cuMemcpyAtoH_v2_ptds(void* to, CUarray from, size_t offset, size_t bytes) {
  return ArrayToHost(to, from, offset, bytes, CU_STREAM_PER_THREAD, CopyForm::kStreamThenWait);
}

CUresult cuMemcpyDtoA_v2_ptds(CUarray to, size_t offset, CUdeviceptr from, size_t bytes) {
  CUDA_MEMCPY3D box = Row(bytes);
  ToArray(&box, to, offset);
  box.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = from;
  return CopyOnThread(box);
}
CUresult cuMemcpyAtoD_v2_ptds(CUdeviceptr to, CUarray from, size_t offset, size_t bytes) {
  CUDA_MEMCPY3D box = Row(bytes);
  FromArray(&box, from, offset);
  box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.dstDevice = to;
  return CopyOnThread(box);
}
CUresult cuMemcpyAtoA_v2_ptds(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes) {
  CUDA_MEMCPY3D box = Row(bytes);
  FromArray(&box, from, from_offset);
  ToArray(&box, to, to_offset);
  return CopyOnThread(box);
}

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* peer) {
  return CopyPeerBox(peer, nullptr, CopyForm::kSynchronous);
}
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* peer, CUstream stream) {
  return CopyPeerBox(peer, stream, CopyForm::kAsynchronous);
}
CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER* peer) {
  return CopyPeerBox(peer, CU_STREAM_PER_THREAD, CopyForm::kStreamThenWait);
}

}  // extern "C"
