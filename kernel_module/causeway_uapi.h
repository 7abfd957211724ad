/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * What the causeway module offers to user space, and the part of the region that it writes.
 * The whole region is described in ivshmem_ring/transport/layout.h; a test compares the two.
 *
 * open("/dev/causeway") reserves a slot. mmap offsets are offsets in the region: a process can map,
 * read-only, granule 0, and, read-write, its own slot's granule and its own slices; everything else is
 * -EPERM.
 *
 * Where the device has a doorbell (ivshmem-doorbell, Xen's event channels), poll() reports POLLIN after its interrupt, read() returns how
 * many came since the file was last read, as a u64. Interrupts are the device's, so one may be for another process.
 */
#ifndef CAUSEWAY_UAPI_H
#define CAUSEWAY_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define CAUSEWAY_MAGIC 0x5941574553554143ULL
#define CAUSEWAY_ABI_MAJOR 1
#define CAUSEWAY_GRANULE_BYTES (2UL << 20)
#define CAUSEWAY_HOST_PAGE_OFFSET 0x1000
#define CAUSEWAY_GUEST_PAGE_OFFSET 0x2000
#define CAUSEWAY_OWNER_TABLE_OFFSET 0x10000
#define CAUSEWAY_MAX_SLOTS 256

#define CAUSEWAY_GUEST_FREE 0
#define CAUSEWAY_GUEST_OPEN 1
#define CAUSEWAY_GUEST_DYING 2
#define CAUSEWAY_HOST_CLOSED 0
/* causeway_guest_page.features: the guest's kernel rings for each change of its page, and is interrupted by the host. */
#define CAUSEWAY_GUEST_RINGS 1ULL
/* Where in a slot the words lie that the host writes. */
#define CAUSEWAY_HOST_CONTROL_OFFSET 0x10000
#define CAUSEWAY_HOST_CONTROL_BYTES 0x8000
#define CAUSEWAY_SLOT_WORD(session, state) ((__u32)(session) << 8 | (state))

struct causeway_superblock {
  __u64 magic;
  __u16 abi_major;
  __u16 abi_minor;
  __u32 header_bytes;
  __u64 region_bytes;
  __u64 features;
  __u64 host_epoch;
  __u64 api_hash;
  __u32 slot_count;
  __u32 granule_bytes;
  __u32 granule_count;
  __u32 channel_count;
  __u64 window_address;
  __u8 uuid[16];
  __u32 crc32;
  __u32 reserved;
};

struct causeway_host_page {
  __u64 beat;
  __u32 state;
  __u32 doorbell;
  __u64 reset_acknowledged;
  __u8 reserved1[104];
  __u32 slot[CAUSEWAY_MAX_SLOTS];
};

struct causeway_guest_page {
  __u64 epoch;
  __u64 features;
  __u8 reserved[112];
  __u32 slot[CAUSEWAY_MAX_SLOTS];
  __u32 pid[CAUSEWAY_MAX_SLOTS];
  __u32 uid[CAUSEWAY_MAX_SLOTS];
};

/* Filled by CAUSEWAY_IOC_INFO. */
struct causeway_info {
  __u64 region_bytes;
  __u32 slot; /* this file's slot */
  __u32 slot_count;
  __u32 granule_count;
  __u32 session; /* of this file; what the slot words carry */
};

/* Slices: a run of `count` neighbouring granules. ALLOC fills `first`; FREE takes both. */
struct causeway_slices {
  __u32 first; /* granule index in the region */
  __u32 count;
};

/* Argument of CAUSEWAY_IOC_WAIT. */
struct causeway_wait {
  __u32 offset; /* of the word, from CAUSEWAY_HOST_CONTROL_OFFSET in this file's slot; a multiple of 4 */
  __u32 seen;
  __u64 timeout_ns; /* at most a minute is waited */
};

/* What the host is rung for. */
#define CAUSEWAY_RING_WORK 0    /* a ring of this slot holds something for a thread that sleeps */
#define CAUSEWAY_RING_CONTROL 1 /* the host shall look at the guest's page, and beat */
#define CAUSEWAY_VECTORS 2

#define CAUSEWAY_IOC_INFO _IOR('K', 0x40, struct causeway_info)
/* The process has filled its slot's OpenBlock: tells the host (slot word becomes OPEN). */
#define CAUSEWAY_IOC_START _IO('K', 0x41)
/* -ENOMEM when no run of that length is free, -EINVAL for count 0. */
#define CAUSEWAY_IOC_ALLOC_SLICES _IOWR('K', 0x42, struct causeway_slices)
/* -EPERM unless every granule of the run belongs to this file's slot. Existing mappings are zapped. */
#define CAUSEWAY_IOC_FREE_SLICES _IOW('K', 0x43, struct causeway_slices)
/*
 * Rings the host; the argument says for what. -EOPNOTSUPP: the device has no doorbell. Rings beyond 128 in
 * a tick of the kernel's timer come together in the next one.
 */
#define CAUSEWAY_IOC_RING _IO('K', 0x44)
/*
 * Sleeps until the word differs from `seen`, which is looked at when the call begins and after each interrupt, as
 * FUTEX_WAIT does. -ETIMEDOUT, -EINTR: a signal came, -EBUSY: too many threads of this VM sleep so, -EOPNOTSUPP: the
 * device has no doorbell.
 */
#define CAUSEWAY_IOC_WAIT _IOW('K', 0x45, struct causeway_wait)

#endif
