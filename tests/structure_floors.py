# SPDX-License-Identifier: Apache-2.0
"""The floors on which the folders stand, for structure.py: what may use what.

Each tree is a list of floors, the lowest first. What lies in a folder may use its own folder, lower floors of its tree, and
ivshmem_ring. Folders of one floor may use each other in one direction, so long as no cycle comes of it.
"""

FLOORS = {
    "ivshmem_ring": [
        ["ivshmem_ring/system"],
        ["ivshmem_ring/nvml"],
        ["ivshmem_ring/protocol"],
        ["ivshmem_ring/release"],
        ["ivshmem_ring/transport"],
        ["ivshmem_ring/compression"],
        ["ivshmem_ring/tcp"],
        ["ivshmem_ring/tls"],
        ["ivshmem_ring/messages"],
        ["ivshmem_ring/hosts"],
    ],
    "guest_lib": [
        ["guest_lib/old_glibc"],
        ["guest_lib/process", "guest_lib/tls"],
        ["guest_lib/connection", "guest_lib/page_watch"],
        ["guest_lib/session"],
        ["guest_lib/stream"],
        ["guest_lib/callbacks"],
        ["guest_lib/addresses"],
        ["guest_lib/managed"],
        ["guest_lib/host_register"],
        ["guest_lib/memory"],
        ["guest_lib/staging"],
        ["guest_lib/code", "guest_lib/device"],
        ["guest_lib/graph"],
        ["guest_lib/copy"],
        ["guest_lib/runtime"],
        ["guest_lib/api", "guest_lib/nvml"],
    ],
    "host_backend": [
        ["host_backend/common"],
        ["host_backend/common/remote", "host_backend/common/shares"],
        ["host_backend/sandbox", "host_backend/granted"],
        ["host_backend/launcher"],
        ["host_backend/worker/process", "host_backend/worker/gate", "host_backend/daemon/loop",
         "host_backend/daemon/toml"],
        ["host_backend/worker/driver", "host_backend/worker/slices", "host_backend/daemon/process",
         "host_backend/daemon/shares"],
        ["host_backend/daemon/takeover"],
        ["host_backend/worker/accounting", "host_backend/daemon/scopes", "host_backend/daemon/region"],
        ["host_backend/daemon/xen"],
        ["host_backend/worker/objects", "host_backend/daemon/workers", "host_backend/daemon/sharing",
         "host_backend/daemon/doorbell"],
        ["host_backend/worker/session", "host_backend/daemon/pool"],
        ["host_backend/worker/stream", "host_backend/worker/addresses"],
        ["host_backend/worker/memory", "host_backend/worker/managed", "host_backend/worker/host_register",
         "host_backend/daemon/servers"],
        ["host_backend/worker/staging", "host_backend/daemon/control", "host_backend/daemon/remote"],
        ["host_backend/worker/copy"],
        ["host_backend/worker/code", "host_backend/worker/device"],
        ["host_backend/worker/graph"],
        ["host_backend/worker/api"],
        ["host_backend/worker/start"],
        ["host_backend/worker/nvml"],
        ["host_backend/worker", "host_backend/daemon"],
        ["host_backend/tls"],
        ["host_backend/command/libvirt", "host_backend/command/ask"],
        ["host_backend/command/attach", "host_backend/command/top", "host_backend/command/trace"],
        ["host_backend/command"],
    ],
}

# Parts that know nothing of each other, in neither direction; a part is a folder with all below it.
APART = [
    ("guest_lib", "host_backend"),
    ("host_backend/worker", "host_backend/daemon"),
    ("host_backend/worker", "host_backend/command"),
    ("host_backend/worker", "host_backend/launcher"),
    ("host_backend/daemon", "host_backend/command"),
    ("host_backend/launcher", "host_backend/command"),
    ("host_backend/worker", "host_backend/tls"),
    ("host_backend/command", "host_backend/tls"),
]

# Not counted among the product's lines, wherever it lies.
BENCHMARK = ("tools/bench",)

# A folder shows at a glance what is in it: .h and .cc files, each counted.
MAX_FILES = 15
