// SPDX-License-Identifier: Apache-2.0
// The number by which the host chooses the worker of a guest: a hash of the text of the driver's rows and of
// NVML's rows. Guest and worker talk only if theirs are equal (build_stamp.h tells it to all others). The number in front of NVML's rows is raised by
// hand when messages of a management session change otherwise.
#pragma once
#include "ivshmem_ring/protocol/call.h"

namespace causeway {

#define NVML_CALL(...) "N" #__VA_ARGS__
#define NVML_GUEST(...) "N" #__VA_ARGS__
inline constexpr uint64_t kWireHash = kApiHash ^ Fnv1a("3"
#include "ivshmem_ring/nvml_calls.def"
                                                 );

}  // namespace causeway
