// SPDX-License-Identifier: Apache-2.0
// Settings of GPU core dumps. A dump is written by the process that owns the driver, and then that process
// aborts: on this side that is a file of the guest's choosing in the host's file system, and a worker that
// dies before anyone could bring it to the guest. So the settings can be read and set as natively, but
// whatever would produce a dump cannot be switched on. A file's or pipe's name is the guest's own business
// (guest_lib/device/coredump.cc).
#include <array>
#include <cstring>

#include "host_backend/worker/memory/sharing.h"
#include "ivshmem_ring/protocol/known_values.h"

namespace causeway::host {
namespace {

// With room behind it: the driver ends a file's name with a zero beyond the size that it was given.
using Value = std::array<std::byte, kMaxCoredumpValueBytes + 64>;

CUresult ServeGet(Request& request, CUresult (*get)(CUcoredumpSettings, void*, size_t*)) {
  const auto body = request.in.Get<CoredumpBody>();
  if (!request.in.ok()) return request.in.error();
  CUcoredumpSettings attribute;
  if (const CUresult result = TakeKnown(body.attribute, &attribute)) return result;
  alignas(8) Value value{};
  size_t size = std::min(body.size, kMaxCoredumpValueBytes);
  const size_t room = size;
  const CUresult result = get(attribute, body.wants_value != 0 ? value.data() : nullptr, &size);
  if (result != CUDA_SUCCESS) return result;
  request.out.Put(uint64_t{size});
  if (body.wants_value != 0) request.out.PutBytes(value.data(), std::min(size, room));
  return request.out.error();
}

CUresult ServeSet(Request& request, CUresult (*set)(CUcoredumpSettings, void*, size_t*)) {
  const auto body = request.in.Get<CoredumpBody>();
  if (!request.in.ok()) return request.in.error();
  alignas(8) Value value{};
  size_t size = body.size;
  const bool has_value = body.wants_value != 0;
  const std::byte* from = size <= kMaxCoredumpValueBytes && has_value ? request.in.Take(size) : nullptr;
  if (size > kMaxCoredumpValueBytes || (has_value && from == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  if (has_value) std::memcpy(value.data(), from, size);
  CUcoredumpSettings attribute;
  if (const CUresult result = TakeKnown(body.attribute, &attribute)) return result;
  switch (attribute) {
    case CU_COREDUMP_ENABLE_ON_EXCEPTION:
    case CU_COREDUMP_ENABLE_USER_TRIGGER:
      if (!has_value || size == 0 || value[0] != std::byte{0}) return CUDA_ERROR_NOT_SUPPORTED;
      break;
    case CU_COREDUMP_FILE:
    case CU_COREDUMP_PIPE:
      return CUDA_ERROR_NOT_SUPPORTED;
    case CU_COREDUMP_GENERATION_FLAGS: {
      uint32_t flags = 0;
      std::memcpy(&flags, value.data(), sizeof flags);
      constexpr uint64_t kKnown = CU_COREDUMP_LIGHTWEIGHT_FLAGS | CU_COREDUMP_SKIP_ABORT;
      if (has_value && !OnlyFlags(flags, kKnown)) return CUDA_ERROR_INVALID_VALUE;
      break;
    }
    default:
      break;
  }
  return set(attribute, has_value ? value.data() : nullptr, &size);
}

}  // namespace

CUresult Serve_cuCoredumpGetAttribute(Session&, Request& request) {
  return ServeGet(request, TheDriver().cuCoredumpGetAttribute);
}
CUresult Serve_cuCoredumpGetAttributeGlobal(Session&, Request& request) {
  return ServeGet(request, TheDriver().cuCoredumpGetAttributeGlobal);
}
CUresult Serve_cuCoredumpSetAttribute(Session&, Request& request) {
  return ServeSet(request, TheDriver().cuCoredumpSetAttribute);
}
CUresult Serve_cuCoredumpSetAttributeGlobal(Session&, Request& request) {
  return ServeSet(request, TheDriver().cuCoredumpSetAttributeGlobal);
}

}  // namespace causeway::host
