// SPDX-License-Identifier: Apache-2.0
// Managed variables: the worker reads and writes them as a program would, with its own loads and stores,
// which the driver keeps coherent with the device. Only what the driver said is a managed variable is ever
// touched.
#include <cstring>

#include "host_backend/session.h"
#include "ivshmem_ring/managed_messages.h"

namespace causeway::host {

namespace {

// The driver answers questions about pointers in a context, which a program's first look at a managed
// variable comes without.
class SomeContext {
 public:
  SomeContext() {
    CUcontext current = nullptr, primary = nullptr;
    if (TheDriver().cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != nullptr) return;
    if (TheDriver().cuDevicePrimaryCtxRetain(&primary, 0) != CUDA_SUCCESS) return;
    retained_ = true;
    TheDriver().cuCtxSetCurrent(primary);
  }
  ~SomeContext() {
    if (!retained_) return;
    TheDriver().cuCtxSetCurrent(nullptr);
    TheDriver().cuDevicePrimaryCtxRelease_v2(0);
  }
  SomeContext(const SomeContext&) = delete;
  SomeContext& operator=(const SomeContext&) = delete;

 private:
  bool retained_ = false;
};

// Asked anew each time: a module that is unloaded takes its variables with it.
bool IsManaged(const ManagedBody& body) {
  const SomeContext context;
  const auto is_managed = [](CUdeviceptr address) {
    int managed = 0;
    const CUresult result =
        TheDriver().cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address);
    return result == CUDA_SUCCESS && managed != 0;
  };
  return TheDriver().cuPointerGetAttribute != nullptr && body.bytes != 0 &&
         body.bytes <= kMaxManagedVariableBytes && body.address <= ~body.bytes && is_managed(body.address) &&
         is_managed(body.address + body.bytes - 1);
}

}  // namespace

CUresult Serve_kFindManaged(Session&, Request& request) {
  const auto body = request.in.Get<ManagedBody>();
  if (!request.in.ok()) return request.in.error();
  request.out.Put(static_cast<uint32_t>(IsManaged(body)));
  return request.out.error();
}

CUresult Serve_kWriteManaged(Session&, Request& request) {
  const auto body = request.in.Get<ManagedBody>();
  const std::byte* from = request.in.Take(body.bytes);
  if (from == nullptr) return request.in.error();
  if (!IsManaged(body)) return CUDA_SUCCESS;  // it went with its module, as the program's write would have
  std::memcpy(reinterpret_cast<void*>(body.address), from, body.bytes);
  return CUDA_SUCCESS;
}

CUresult Serve_kReadManaged(Session&, Request& request) {
  const auto body = request.in.Get<ManagedBody>();
  if (!request.in.ok() || request.bulk.size() != body.bytes || !IsManaged(body))
    return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(request.bulk.data(), reinterpret_cast<const void*>(body.address), body.bytes);
  request.bulk_written = static_cast<uint32_t>(body.bytes);
  return CUDA_SUCCESS;
}

}  // namespace causeway::host
