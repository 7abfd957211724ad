# NVIDIA's driver 580.159.04, after a worker has started: what 177 workers were seen to call (conformance suite,
# PyTorch), ioctls of three of them, the rest of the ioctls as its open kernel modules and other sandboxes list
# them; to be made anew by tests/gpu_host/make_profile.py on a host with that driver.
# The command behind an ioctl's pointer cannot be seen by a filter.
ioctl 0xc00446c9    # NV_ESC_REGISTER_FD
ioctl 0xc00846d6    # NV_ESC_SYS_PARAMS
ioctl 0xc00846da    # NV_ESC_WAIT_OPEN_COMPLETE
ioctl 0xc01046ce    # NV_ESC_ALLOC_OS_EVENT
ioctl 0xc01046cf    # NV_ESC_FREE_OS_EVENT
ioctl 0xc0104629    # NV_ESC_RM_FREE
ioctl 0xc01c4634    # NV_ESC_RM_DUP_OBJECT
ioctl 0xc020462a    # NV_ESC_RM_CONTROL
ioctl 0xc020462b    # NV_ESC_RM_ALLOC, short form
ioctl 0xc020464f    # NV_ESC_RM_UNMAP_MEMORY
ioctl 0xc0204635    # NV_ESC_RM_SHARE
ioctl 0xc028465e    # NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO
ioctl 0xc030462b    # NV_ESC_RM_ALLOC
ioctl 0xc0304658    # NV_ESC_RM_UNMAP_MEMORY_DMA
ioctl 0xc0284658    # NV_ESC_RM_UNMAP_MEMORY_DMA, older form
ioctl 0xc0384627    # NV_ESC_RM_ALLOC_MEMORY
ioctl 0xc0384641    # NV_ESC_RM_IDLE_CHANNELS
ioctl 0xc038464e    # NV_ESC_RM_MAP_MEMORY
ioctl 0xc0384657    # NV_ESC_RM_MAP_MEMORY_DMA
ioctl 0xc0404657    # NV_ESC_RM_MAP_MEMORY_DMA, longer form
ioctl 0xc04846d2    # NV_ESC_CHECK_VERSION_STR
ioctl 0xc0b8464a    # NV_ESC_RM_VID_HEAP_CONTROL
ioctl 0xc90046c8    # NV_ESC_CARD_INFO
ioctl 0xc00446d4    # NV_ESC_ATTACH_GPUS_TO_FD, one GPU
ioctl 0xc23046d7    # NV_ESC_NUMA_INFO
ioctl 0x30000001    # UVM_INITIALIZE
ioctl 0x30000002    # UVM_DEINITIALIZE
ioctl 23            # UVM_CREATE_RANGE_GROUP
ioctl 24            # UVM_DESTROY_RANGE_GROUP
ioctl 25            # UVM_REGISTER_GPU_VASPACE
ioctl 26            # UVM_UNREGISTER_GPU_VASPACE
ioctl 27            # UVM_REGISTER_CHANNEL
ioctl 28            # UVM_UNREGISTER_CHANNEL
ioctl 29            # UVM_ENABLE_PEER_ACCESS
ioctl 30            # UVM_DISABLE_PEER_ACCESS
ioctl 31            # UVM_SET_RANGE_GROUP
ioctl 33            # UVM_MAP_EXTERNAL_ALLOCATION
ioctl 34            # UVM_FREE
ioctl 37            # UVM_REGISTER_GPU
ioctl 38            # UVM_UNREGISTER_GPU
ioctl 39            # UVM_PAGEABLE_MEM_ACCESS
ioctl 40            # UVM_PREVENT_MIGRATION_RANGE_GROUPS
ioctl 41            # UVM_ALLOW_MIGRATION_RANGE_GROUPS
ioctl 42            # UVM_SET_PREFERRED_LOCATION
ioctl 43            # UVM_UNSET_PREFERRED_LOCATION
ioctl 44            # UVM_ENABLE_READ_DUPLICATION
ioctl 45            # UVM_DISABLE_READ_DUPLICATION
ioctl 46            # UVM_SET_ACCESSED_BY
ioctl 47            # UVM_UNSET_ACCESSED_BY
ioctl 51            # UVM_MIGRATE
ioctl 53            # UVM_MIGRATE_RANGE_GROUP
ioctl 65            # UVM_MAP_DYNAMIC_PARALLELISM_REGION
ioctl 66            # UVM_UNMAP_EXTERNAL
ioctl 68            # UVM_ALLOC_SEMAPHORE_POOL
ioctl 69            # UVM_CLEAN_UP_ZOMBIE_RESOURCES
ioctl 70            # UVM_PAGEABLE_MEM_ACCESS_ON_GPU
ioctl 72            # UVM_VALIDATE_VA_RANGE
ioctl 73            # UVM_CREATE_EXTERNAL_RANGE
ioctl 74            # UVM_MAP_EXTERNAL_SPARSE
ioctl 75            # UVM_MM_INITIALIZE
fcntl 6            # F_SETLK, and below: the index of the cache of compiled kernels
fcntl 7            # F_SETLKW
flock
stat
lstat
statfs
mkdir
unlink
rename
chmod
umask
fsync
getdents64
pipe2
dup
dup2               # and below: the device nodes, opened again when a checkpointed process is restored
dup3
mlock
munlock
mbind
get_mempolicy
set_mempolicy
sched_setaffinity
sched_get_priority_max
sched_get_priority_min
getrusage
# Seen by make_profile.py in the conformance suite and nvidia-smi on an H100 host, beyond the above.
ioctl 0xc0184635
ioctl 0xc08046d4
