# NVIDIA's driver 580.159.04, its management library, after a worker has started: written from what its open kernel modules and
# other sandboxes list, to be made anew by tests/gpu_host/make_profile.py on a host with that driver.
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
ioctl 0xc23046d7    # NV_ESC_NUMA_INFO
ioctl 0xc90046c8    # NV_ESC_CARD_INFO
ioctl 0xc00446d4    # NV_ESC_ATTACH_GPUS_TO_FD, one GPU
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
unlink
stat
sched_get_priority_max
sched_get_priority_min
sched_getaffinity
dup
# Seen by make_profile.py in the conformance suite and nvidia-smi on an H100 host, beyond the above.
faccessat2
ioctl 0x27
readlinkat
sched_setaffinity
