// SPDX-License-Identifier: Apache-2.0
// Copies of ordinary memory to the device that nobody waits for and that are too large for a message: the
// bytes go into a bulk buffer, a posted record names it, and a mark behind the copy, which the GPU writes
// (Op::kMark), says that the buffer is free again.
#pragma once
#include "ivshmem_ring/driver_api.h"

#include <cstdint>

#include "guest_lib/copy.h"
#include "ivshmem_ring/layout.h"
#include "ivshmem_ring/record.h"

namespace causeway::guest {

class Session;

// Takes the source at once. False: nothing was sent, it cannot be done so now (too many buffers are lent, no
// shared memory, a device that writes no words, a capture).
bool PostFromBuffer(CUdeviceptr to, const void* from, uint64_t bytes, CUstream stream, CopyForm form,
                    CUresult* result);

// Shared memory for the marks, one for each bulk buffer, registered with the driver.
inline constexpr uint64_t kLentWordsBytes = kBulkBuffers * sizeof(HotWord);
void UseLentWords(HotWord* memory);
// Gives back to the session what the GPU is done with.
void ReclaimLentBuffers(Session& session);

}  // namespace causeway::guest
