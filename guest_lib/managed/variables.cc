// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/managed/variables.h"

#include "guest_lib/addresses/address_windows.h"
#include "guest_lib/managed/pager.h"
#include "guest_lib/session/context.h"
#include "guest_lib/session/session.h"
#include "ivshmem_ring/messages/managed_messages.h"

namespace causeway::guest {

CUresult AdmitManaged(CUdeviceptr address, size_t bytes, WireHandle owner) {
  HostAllocation variable;
  if (FindMigrating(address, &variable, true)) return CUDA_SUCCESS;
  {
    PendingCall call(Op::kFindManaged);
    call.writer().Put(ManagedPiece{address, bytes});
    const CUresult result = call.Finish();
    if (result != CUDA_SUCCESS) return result;
    if (call.reader().Get<uint32_t>() == 0) return CUDA_SUCCESS;  // ordinary device memory
  }
  if (bytes == 0 || bytes > kMaxManagedVariableBytes || !IsDeviceAddress(address))
    return CUDA_ERROR_NOT_SUPPORTED;
  variable = {.address = address, .bytes = bytes, .kind = HostKind::kManaged, .device_address = address};
  variable.context = CurrentContextObject();
  variable.id = NextId();
  return AddMigrating(variable, owner, false);
}

}  // namespace causeway::guest
