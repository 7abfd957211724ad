/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Private to the causeway module: one device (a region that the host shares with this VM), its slots and files.
 *
 * Lock order: mmap_lock (taken by the caller of mmap and fault handlers) -> causeway.lock -> i_mmap_rwsem ->
 * page-table locks. So nothing copies from or to user memory while it holds causeway.lock. registers_lock is taken with
 * no other lock of these.
 */
#ifndef CAUSEWAY_H
#define CAUSEWAY_H

#include <linux/bits.h>
#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/interrupt.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/rwsem.h>
#include <linux/timer.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "causeway_uapi.h"

#define CAUSEWAY_GRANULE_SHIFT 21
#define CAUSEWAY_PAGES_PER_GRANULE (CAUSEWAY_GRANULE_BYTES >> PAGE_SHIFT)
#define CAUSEWAY_MIN_REGION_BYTES (64ULL << 20)
#define CAUSEWAY_MAX_GRANULES 32768
/* Superblock, host page, guest page and owner table: all that the module itself touches. */
#define CAUSEWAY_CONTROL_BYTES (CAUSEWAY_OWNER_TABLE_OFFSET + 2 * CAUSEWAY_MAX_GRANULES)
/* How long open() and allocations wait for the host to confirm that earlier sessions have ended. */
#define CAUSEWAY_HOST_WAIT_MS 5000
/* The host's number among the peers of an ivshmem-doorbell device. */
#define CAUSEWAY_HOST_PEER 0U

enum causeway_slot_state {
	CAUSEWAY_SLOT_FREE,
	CAUSEWAY_SLOT_RESERVED, /* a file holds it, the host does not know of it */
	CAUSEWAY_SLOT_OPEN, /* the host serves it */
	CAUSEWAY_SLOT_DYING, /* its file is gone; the host may still use its memory */
	CAUSEWAY_SLOT_LOST, /* could not be cleaned; unusable until the driver is bound again */
};

struct causeway_slot {
	enum causeway_slot_state state;
	u32 session; /* of the newest open(); 24 bits, never 0 */
	u32 granules; /* owned, whether in use or freed */
	kuid_t user; /* of the newest open() */
};

struct causeway;

/*
 * How memory is mapped that the kernel's page tables cannot name by a page frame: other domains' pages in a paravirtual
 * guest of Xen, whose page-table entries the hypervisor writes. All return 0 or a negative error but for map_kernel.
 */
struct causeway_foreign {
	/* An address, or NULL. */
	void *(*map_kernel)(struct causeway *cw, unsigned long first_page, unsigned int count);
	void (*unmap_kernel)(struct causeway *cw, const void *address);
	/* mmap has checked the area; it sets the area's vm_ops. */
	int (*begin)(struct vm_area_struct *vma);
	/* For fill(), to be called before `lock` is taken: tells it whether the kernel has changed entries of the area since. May sleep. */
	unsigned long (*look)(struct vm_area_struct *vma);
	/* Maps these pages of the region where the area shows them; `lock` held. -EAGAIN: entries have changed, the access is to be tried again. */
	int (*fill)(struct vm_area_struct *vma, unsigned long first_page, unsigned long count, unsigned long looked);
};

/* How guest and host ring each other: QEMU's ivshmem-doorbell (causeway_doorbell.c) or Xen's event channels. */
struct causeway_bell {
	/* Has causeway_interrupt() called, with `cw`, and sets causeway.irq. 0, or a negative error: nothing is left. */
	int (*begin)(struct causeway *cw);
	/* The interrupt is at rest. */
	void (*end)(struct causeway *cw);
	/* Any context that may not sleep. `vector` is below CAUSEWAY_VECTORS. */
	void (*ring)(struct causeway *cw, u32 vector);
};

struct causeway {
	struct device dev;
	struct cdev cdev;
	int index;

	/* Set at probe. Where the region's pages are: one after the other, or a page each, or reached by `foreign`. */
	struct pci_dev *pdev; /* NULL under Xen */
	unsigned long first_pfn;
	struct page **pages;
	const struct causeway_foreign *foreign;
	void *foreign_data;
	u64 region_bytes;
	u32 slot_count;
	u32 granule_count;
	u64 guest_epoch;
	u32 read_mib_per_s;
	struct inode *inode; /* one address space for all files, so that mappings can be zapped */

	/* Doorbells: set at probe, where the device has them. */
	const struct causeway_bell *bell; /* NULL: it has none */
	bool has_doorbell;
	void __iomem *registers; /* of ivshmem */
	void *bell_data; /* of Xen: struct causeway_channels */
	int irq;
	const void *host_control[CAUSEWAY_MAX_SLOTS]; /* the words of each slot that the host writes */
	struct rw_semaphore registers_lock; /* read: while ringing; write: to wait for those who ring */
	wait_queue_head_t sleepers; /* of causeway_wait() */
	wait_queue_head_t pollers;
	wait_queue_head_t drained; /* `sleeping` has become 0 */
	atomic_t sleeping;
	atomic64_t interrupts;
	unsigned long late_vectors; /* to be rung by late_ring */
	struct delayed_work late_ring;
	unsigned long burst_tick; /* this and burst: the interrupt handler's own */
	unsigned int burst;
	struct timer_list calm; /* pending while a storm has disabled the interrupt */

	struct mutex lock; /* guards everything below */
	bool gone; /* the PCI device is unbound: `control` is no longer mapped */
	bool acknowledged; /* the host has ended all sessions of earlier lives */
	void *control; /* the first CAUSEWAY_CONTROL_BYTES of the region, write-back */
	u32 free_granules;
	u32 dying_slots;
	/*
	 * The authoritative owners (slot + 1); the table in the region is a copy for the host. A granule that
	 * its slot has freed keeps its owner, with in_use cleared: the host may still have DMA in flight that
	 * the process asked for, which must never land in another process's memory.
	 */
	u16 *owner;
	unsigned long *in_use;
	u64 user_pte; /* of the newest user mapping, for sysfs */
	struct causeway_slot slot[CAUSEWAY_MAX_SLOTS];
	struct delayed_work reclaim;
	unsigned int reclaim_delay_ms;
};

/* One open(): guarded by causeway.lock but for the constant fields. */
struct causeway_file {
	struct causeway *cw;
	fl_owner_t opener; /* constant */
	u32 slot; /* constant */
	u32 session; /* constant */
	bool started;
	bool ended;
	atomic64_t interrupts; /* of causeway.interrupts, those that were read */
	unsigned long ring_tick;
	atomic_t rings; /* in ring_tick */
	atomic_long_t foreign_pages; /* of areas that causeway_foreign.begin() has let pass */
};

static inline const struct causeway_host_page *causeway_host(const struct causeway *cw)
{
	return cw->control + CAUSEWAY_HOST_PAGE_OFFSET;
}

static inline struct causeway_guest_page *causeway_guest(struct causeway *cw)
{
	return cw->control + CAUSEWAY_GUEST_PAGE_OFFSET;
}

static inline unsigned long causeway_pfn(const struct causeway *cw, unsigned long page)
{
	return cw->pages ? page_to_pfn(cw->pages[page]) : cw->first_pfn + page;
}

static inline u32 causeway_slot_granule(u32 slot)
{
	return 1 + slot;
}

/* causeway_slots.c: calls causeway_memory.c */
int causeway_reserve_slot(struct causeway *cw, struct causeway_file *cf, bool may_wait);
int causeway_start_session(struct causeway_file *cf);
/* Ends what the file began and takes its mappings away; later calls do nothing. */
void causeway_end_session(struct causeway_file *cf);
/* The host is told that all sessions have ended; `lock` held. */
void causeway_abandon_slots(struct causeway *cw);
int causeway_alloc_slices(struct causeway_file *cf, struct causeway_slices *slices);
int causeway_free_slices(struct causeway_file *cf, const struct causeway_slices *slices);
/* Whether the file may map the granule; `lock` held. */
bool causeway_may_map(const struct causeway_file *cf, u32 granule, bool writable);
/* Takes back the slots that the host has closed; `lock` held. */
void causeway_reclaim_closed(struct causeway *cw);
void causeway_reclaim_work(struct work_struct *work);
void causeway_begin_life(struct causeway *cw);
u32 causeway_slots_used(const struct causeway *cw);

/* causeway_doorbell.c: calls causeway_memory.c */
extern const struct causeway_bell causeway_ivshmem_bell;
irqreturn_t causeway_interrupt(int irq, void *cw);
void causeway_init_doorbell(struct causeway *cw);
void causeway_begin_doorbell(struct causeway *cw);
void causeway_end_doorbell(struct causeway *cw);
/* Tells the host of a change in the guest's page, if there is a doorbell; `lock` held, or before the first file. */
void causeway_ring_control(struct causeway *cw);
/* Has threads that sleep look whether their session or the device has ended. */
void causeway_wake_all(struct causeway *cw);
int causeway_ring(struct causeway_file *cf, unsigned long vector);
int causeway_wait(struct causeway_file *cf, const struct causeway_wait *wait);
__poll_t causeway_poll(struct file *file, struct poll_table_struct *table);
ssize_t causeway_read(struct file *file, char __user *user, size_t bytes, loff_t *offset);

/* causeway_mmap.c */
int causeway_mmap(struct file *file, struct vm_area_struct *vma);
vm_fault_t causeway_fault(struct vm_fault *vmf);

/*
 * causeway_main.c, for what finds regions (the ivshmem driver there, and causeway_xen.c). A device that was allocated
 * lives until put_device(); its finder sets first_pfn, pages or foreign, and bell, before it publishes the device.
 */
struct causeway *causeway_allocate(struct device *parent, u64 region_bytes);
/* Checks the superblock and makes the device's node; on an error nothing is mapped any more. */
int causeway_publish(struct causeway *cw);
/* Takes the node and all mappings away. Files that are still open answer -ENODEV from then on. */
void causeway_withdraw(struct causeway *cw);

/* causeway_xen.c: where the kernel is no guest of Xen these do nothing. */
#if IS_ENABLED(CONFIG_XEN) && IS_BUILTIN(CONFIG_XEN_XENBUS_FRONTEND)
int causeway_xen_init(void);
void causeway_xen_exit(void);
#else
static inline int causeway_xen_init(void)
{
	return 0;
}
static inline void causeway_xen_exit(void)
{
}
#endif

/* causeway_memory.c: calls nothing of the others */
void *causeway_map_kernel(struct causeway *cw, u64 offset, size_t bytes);
void causeway_unmap_kernel(struct causeway *cw, const void *address);
int causeway_zero_granule(struct causeway *cw, u32 granule);
/* Takes the user mappings of these granules away, in every process. */
void causeway_zap(struct causeway *cw, u32 first, u32 count);
u32 causeway_measure_read(const struct causeway *cw);
/* "WB", "WC", "UC-", ... of a page-table entry's bits. */
const char *causeway_cache_mode(u64 pte);
u64 causeway_kernel_pte(const void *address);

#endif
