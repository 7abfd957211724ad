// SPDX-License-Identifier: Apache-2.0
// Virtual memory management: allocations by address or from another process, and wishes for addresses.
#include "host_backend/worker/addresses/guest_addresses.h"
#include "host_backend/worker/driver/guard.h"
#include "host_backend/worker/memory/sharing.h"
#include "ivshmem_ring/messages/address_windows.h"

namespace causeway::host {
namespace {

// An allocation that the driver has handed out once more: the handle that it has, with one more reference.
CUresult ReplyAllocation(Session& session, Request& request, WireHandle fresh,
                         CUmemGenericAllocationHandle allocation) {
  request.out.Put(session.objects().BindOrKnown(HandleKind::kAllocation, fresh,
                                                reinterpret_cast<void*>(allocation), request.out));
  return request.out.error();
}

using InWindows = Guards<struct KeepsWishesInWindows>;

// A wish is granted where nothing is, and so would tell a guest where this process has its program, heap and
// stack. Those lie in none of the device windows, where every wish of a guest library lies.
CUresult Reserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr wish,
                 unsigned long long flags) {
  return InWindows::own<&Driver::cuMemAddressReserve>(address, bytes, alignment,
                                                      InDeviceWindow(wish, bytes) ? wish : 0, flags);
}

}  // namespace

void KeepWishesInWindows(Driver& driver) {
  InWindows::Put<&Driver::cuMemAddressReserve>(driver, &Reserve);
}

CUresult Serve_cuMemRetainAllocationHandle(Session& session, Request& request) {
  const auto body = request.in.Get<ShareAddressBody>();
  if (!request.in.ok()) return request.in.error();
  CUmemGenericAllocationHandle allocation = 0;
  if (const CUresult result =
          TheDriver().cuMemRetainAllocationHandle(&allocation, reinterpret_cast<void*>(body.address)))
    return result;
  return ReplyAllocation(session, request, body.fresh, allocation);
}

CUresult Serve_cuMemExportToShareableHandle(Session& session, Request& request) {
  const auto body = request.in.Get<ShareableBody>();
  const auto allocation = reinterpret_cast<CUmemGenericAllocationHandle>(
      session.objects().ToDriver(HandleKind::kAllocation, body.object, request.in));
  return ShareHandle(session, request, body, false, [&](void* handle, CUmemAllocationHandleType type) {
    return TheDriver().cuMemExportToShareableHandle(handle, allocation, type, body.flags);
  });
}

CUresult Serve_cuMemImportFromShareableHandle(Session& session, Request& request) {
  const auto body = request.in.Get<ShareableBody>();
  CUmemGenericAllocationHandle allocation = 0;
  const auto import = [&](void* handle, CUmemAllocationHandleType type) {
    return TheDriver().cuMemImportFromShareableHandle(&allocation, handle, type);
  };
  if (const CUresult result = OpenHandle(session, request, body, false, import)) return result;
  return ReplyAllocation(session, request, body.object, allocation);
}

CUresult Serve_kDropShared(Session& session, Request& request) {
  const auto body = request.in.Get<DropSharedBody>();
  if (!request.in.ok()) return request.in.error();
  // Unknown: the session gave it up twice, or the daemon did already.
  if (session.daemon() != nullptr) session.daemon()->Drop(body.token);
  return CUDA_SUCCESS;
}

}  // namespace causeway::host
