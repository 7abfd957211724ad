// SPDX-License-Identifier: Apache-2.0
// Which process runs the VM of a region: ivshmem-plain tells nobody when its VM is powered off, the kernel
// does.
#pragma once
#include <sys/types.h>

#include "host_backend/unique_fd.h"

namespace causeway::daemon {

// A pidfd of the process that maps the file and is neither this one nor a child of it (a worker); empty when
// there is none, or when this process may not look (then only the guest's own words end sessions). Costs a
// walk over /proc: call it when a VM's first session opens, not more often.
UniqueFd FindVmProcess(dev_t device, ino_t inode);

}  // namespace causeway::daemon
