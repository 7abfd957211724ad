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
  uint32_t is_managed = 0;
  if (const CUresult result = AskHost(Op::kFindManaged, ManagedPiece{address, bytes}, &is_managed))
    return result;
  if (is_managed == 0) return CUDA_SUCCESS;  // ordinary device memory
  if (bytes == 0 || bytes > kMaxManagedVariableBytes || !IsDeviceAddress(address))
    return CUDA_ERROR_NOT_SUPPORTED;
  variable = {.address = address, .bytes = bytes, .kind = HostKind::kManaged, .device_address = address};
  variable.context = CurrentContextObject();
  variable.id = NextId();
  return AddMigrating(variable, owner, false);
}

}  // namespace causeway::guest
