// SPDX-License-Identifier: GPL-2.0
/*
 * Mappings of granted pages in a paravirtual guest. Its page tables are the hypervisor's affair: an entry for another
 * domain's page is written and cleared by the hypervisor alone, together with its count of the mapping, so each entry,
 * of the kernel as of processes, is a grant that is mapped into the page table (GNTMAP_contains_pte). Before the kernel
 * takes a process's entries away, its notifier of such changes (mmu_interval_notifier) has us hand them back.
 */
#include <linux/mmu_notifier.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include <asm/xen/hypercall.h>
#include <asm/xen/page.h>

#include "causeway_xen.h"

#define CAUSEWAY_NO_HANDLE ((grant_handle_t)-1)
#define CAUSEWAY_KERNEL_FLAGS (GNTMAP_host_map | GNTMAP_contains_pte)
/* With the bit that marks an entry as special, so that nothing takes it for a page of this guest. */
#define CAUSEWAY_USER_FLAGS (CAUSEWAY_KERNEL_FLAGS | GNTMAP_application_map | (1 << _GNTMAP_guest_avail0))

/* Page-table entries by their machine addresses, and the grants behind them. */
struct causeway_pv_entry {
	u64 pte;
	grant_handle_t handle;
};

/* One mapping of the kernel's. */
struct causeway_pv_kernel {
	struct list_head list;
	void *address;
	unsigned int count;
	struct causeway_pv_entry entry[];
};

static DEFINE_MUTEX(causeway_pv_kernel_lock);
static LIST_HEAD(causeway_pv_kernels);

/* One mmap(). */
struct causeway_pv_area {
	struct mmu_interval_notifier notifier;
	struct causeway_file *file; /* which the area's parts hold */
	refcount_t users; /* parts into which the area was split */
	unsigned long start;
	unsigned long first_page;
	unsigned long count;
	/* Taken after causeway.lock, and by the notifier below i_mmap_rwsem. */
	struct mutex lock;
	struct causeway_pv_entry entry[];
};

/*
 * Maps pages of the region into the entries whose handle is missing and whose pte is set. All or nothing is not needed:
 * what was mapped has its handle.
 */
static int causeway_pv_map(const struct causeway_grants *grants, unsigned long first_page,
			   struct causeway_pv_entry *entry, unsigned int count, u32 flags)
{
	struct gnttab_map_grant_ref *map = kvcalloc(count, sizeof(*map), GFP_KERNEL);
	unsigned int i, used = 0;
	int error = 0;

	if (!map)
		return -ENOMEM;
	for (i = 0; i < count; i++)
		if (entry[i].pte && entry[i].handle == CAUSEWAY_NO_HANDLE)
			gnttab_set_map_op(&map[used++], entry[i].pte, flags, grants->reference[first_page + i],
					  grants->owner);
	if (used)
		gnttab_batch_map(map, used);
	for (i = 0, used = 0; i < count; i++) {
		if (!entry[i].pte || entry[i].handle != CAUSEWAY_NO_HANDLE)
			continue;
		if (map[used].status == GNTST_okay)
			entry[i].handle = map[used].handle;
		else
			error = map[used].status == GNTST_no_space ? -ENOSPC : -EINVAL;
		used++;
	}
	kvfree(map);
	return error;
}

/* Never fails: a few at a time, so that it needs no memory. */
static void causeway_pv_unmap(struct causeway_pv_entry *entry, unsigned long count, u32 flags)
{
	struct gnttab_unmap_grant_ref unmap[16];
	unsigned long i = 0;

	while (i < count) {
		unsigned int used = 0, j;

		for (; i < count && used < ARRAY_SIZE(unmap); i++) {
			if (entry[i].handle == CAUSEWAY_NO_HANDLE)
				continue;
			gnttab_set_unmap_op(&unmap[used++], entry[i].pte, flags, entry[i].handle);
			entry[i].handle = CAUSEWAY_NO_HANDLE;
			entry[i].pte = 0;
		}
		if (used && HYPERVISOR_grant_table_op(GNTTABOP_unmap_grant_ref, unmap, used))
			BUG();
		for (j = 0; j < used; j++)
			WARN_ON_ONCE(unmap[j].status != GNTST_okay);
	}
}

/* An ordinary page stands in for each page, so that there are entries that the hypervisor can replace. */
static void *causeway_pv_map_kernel(struct causeway *cw, unsigned long first_page, unsigned int count)
{
	struct causeway_pv_kernel *kernel = kvzalloc(struct_size(kernel, entry, count), GFP_KERNEL);
	struct page **page = kvcalloc(count, sizeof(*page), GFP_KERNEL);
	struct page *stand_in = alloc_page(GFP_KERNEL);
	unsigned int i, level;

	for (i = 0; page && i < count; i++)
		page[i] = stand_in;
	if (kernel && page && stand_in)
		kernel->address = vmap(page, count, VM_MAP, PAGE_KERNEL);
	kvfree(page);
	if (!kernel || !kernel->address)
		goto fail;
	kernel->count = count;
	for (i = 0; i < count; i++) {
		pte_t *pte = lookup_address((unsigned long)kernel->address + ((unsigned long)i << PAGE_SHIFT), &level);

		kernel->entry[i].handle = CAUSEWAY_NO_HANDLE;
		kernel->entry[i].pte = pte ? arbitrary_virt_to_machine(pte).maddr : 0;
	}
	if (causeway_pv_map(cw->foreign_data, first_page, kernel->entry, count, CAUSEWAY_KERNEL_FLAGS)) {
		causeway_pv_unmap(kernel->entry, count, CAUSEWAY_KERNEL_FLAGS);
		vunmap(kernel->address);
		goto fail;
	}
	__free_page(stand_in);
	mutex_lock(&causeway_pv_kernel_lock);
	list_add(&kernel->list, &causeway_pv_kernels);
	mutex_unlock(&causeway_pv_kernel_lock);
	return kernel->address;
fail:
	if (stand_in)
		__free_page(stand_in);
	kvfree(kernel);
	return NULL;
}

static void causeway_pv_unmap_kernel(struct causeway *cw, const void *address)
{
	struct causeway_pv_kernel *kernel;

	mutex_lock(&causeway_pv_kernel_lock);
	list_for_each_entry(kernel, &causeway_pv_kernels, list)
		if (kernel->address == address)
			break;
	list_del(&kernel->list);
	mutex_unlock(&causeway_pv_kernel_lock);
	causeway_pv_unmap(kernel->entry, kernel->count, CAUSEWAY_KERNEL_FLAGS);
	vunmap(address);
	kvfree(kernel);
}

/* The kernel is about to change page-table entries of [start, end): they are handed back, and faults map them anew. */
static bool causeway_pv_invalidate(struct mmu_interval_notifier *notifier, const struct mmu_notifier_range *range,
				   unsigned long sequence)
{
	struct causeway_pv_area *area = container_of(notifier, struct causeway_pv_area, notifier);
	unsigned long area_end = area->start + (area->count << PAGE_SHIFT);
	unsigned long start = max(range->start, area->start), end = min(range->end, area_end);

	if (start >= end)
		return true;
	if (mmu_notifier_range_blockable(range))
		mutex_lock(&area->lock);
	else if (!mutex_trylock(&area->lock))
		return false;
	mmu_interval_set_seq(notifier, sequence);
	causeway_pv_unmap(area->entry + ((start - area->start) >> PAGE_SHIFT),
			  DIV_ROUND_UP(end - start, PAGE_SIZE), CAUSEWAY_USER_FLAGS);
	mutex_unlock(&area->lock);
	return true;
}

static const struct mmu_interval_notifier_ops causeway_pv_notifier_ops = {
	.invalidate = causeway_pv_invalidate,
};

static void causeway_pv_vma_open(struct vm_area_struct *vma)
{
	struct causeway_pv_area *area = vma->vm_private_data;

	refcount_inc(&area->users);
}

static void causeway_pv_vma_close(struct vm_area_struct *vma)
{
	struct causeway_pv_area *area = vma->vm_private_data;

	if (!refcount_dec_and_test(&area->users))
		return;
	mmu_interval_notifier_remove(&area->notifier);
	causeway_pv_unmap(area->entry, area->count, CAUSEWAY_USER_FLAGS);
	atomic_long_sub(area->count, &area->file->foreign_pages);
	kvfree(area);
}

/* The notifier knows the area's first place alone. */
static int causeway_pv_vma_mremap(struct vm_area_struct *vma)
{
	return -EINVAL;
}

static const struct vm_operations_struct causeway_pv_vm_ops = {
	.open = causeway_pv_vma_open,
	.close = causeway_pv_vma_close,
	.mremap = causeway_pv_vma_mremap,
	.fault = causeway_fault,
};

/* Twice what the process may map at all: each page that is mapped takes one of the domain's, and so of all its processes', handles. */
static bool causeway_pv_take_pages(struct causeway_file *cf, unsigned long count)
{
	unsigned long most = 2 * CAUSEWAY_PAGES_PER_GRANULE * (2 + READ_ONCE(cf->cw->slot[cf->slot].granules));

	if (atomic_long_add_return(count, &cf->foreign_pages) <= most)
		return true;
	atomic_long_sub(count, &cf->foreign_pages);
	return false;
}

static int causeway_pv_begin(struct vm_area_struct *vma)
{
	struct causeway_file *cf = vma->vm_file->private_data;
	struct causeway_pv_area *area;
	unsigned long i;
	int error;

	if (!causeway_pv_take_pages(cf, vma_pages(vma)))
		return -ENOMEM;
	area = kvzalloc(struct_size(area, entry, vma_pages(vma)), GFP_KERNEL_ACCOUNT);
	if (!area) {
		atomic_long_sub(vma_pages(vma), &cf->foreign_pages);
		return -ENOMEM;
	}
	area->file = cf;
	mutex_init(&area->lock);
	refcount_set(&area->users, 1);
	area->start = vma->vm_start;
	area->first_page = vma->vm_pgoff;
	area->count = vma_pages(vma);
	for (i = 0; i < area->count; i++)
		area->entry[i].handle = CAUSEWAY_NO_HANDLE;
	error = mmu_interval_notifier_insert_locked(&area->notifier, vma->vm_mm, vma->vm_start,
						    vma->vm_end - vma->vm_start, &causeway_pv_notifier_ops);
	if (error) {
		atomic_long_sub(area->count, &cf->foreign_pages);
		kvfree(area);
		return error;
	}
	vma->vm_private_data = area;
	vma->vm_ops = &causeway_pv_vm_ops;
	return 0;
}

/* Called for each page in turn: notes the entries that are empty. */
static int causeway_pv_note_pte(pte_t *pte, unsigned long address, void *data)
{
	struct causeway_pv_area *area = data;
	struct causeway_pv_entry *entry = &area->entry[(address - area->start) >> PAGE_SHIFT];

	if (entry->handle == CAUSEWAY_NO_HANDLE)
		entry->pte = pte_none(*pte) ? arbitrary_virt_to_machine(pte).maddr : 0;
	return 0;
}

/* What the hypervisor has written there. */
static int causeway_pv_read_pte(pte_t *pte, unsigned long address, void *data)
{
	*(u64 *)data = pte_val(*pte);
	return 0;
}

static unsigned long causeway_pv_look(struct vm_area_struct *vma)
{
	struct causeway_pv_area *area = vma->vm_private_data;

	return mmu_interval_read_begin(&area->notifier);
}

static int causeway_pv_fill(struct vm_area_struct *vma, unsigned long first_page, unsigned long count,
			    unsigned long looked)
{
	struct causeway_file *cf = vma->vm_file->private_data;
	struct causeway_pv_area *area = vma->vm_private_data;
	unsigned long index = first_page - area->first_page;
	u32 flags = CAUSEWAY_USER_FLAGS | (vma->vm_flags & VM_WRITE ? 0 : GNTMAP_readonly);
	unsigned long i;
	int error;

	mutex_lock(&area->lock);
	/* The kernel may be between its notice and its change of an entry: a grant that was mapped there now would be overwritten. */
	if (mmu_interval_read_retry(&area->notifier, looked)) {
		mutex_unlock(&area->lock);
		return -EAGAIN;
	}
	error = apply_to_page_range(vma->vm_mm, area->start + (index << PAGE_SHIFT), count << PAGE_SHIFT,
				    causeway_pv_note_pte, area);
	if (!error)
		error = causeway_pv_map(cf->cw->foreign_data, first_page, area->entry + index, count, flags);
	if (!error)
		error = apply_to_page_range(vma->vm_mm, area->start + (index << PAGE_SHIFT), PAGE_SIZE,
					    causeway_pv_read_pte, &cf->cw->user_pte);
	for (i = index; error && i < index + count; i++)
		if (area->entry[i].handle == CAUSEWAY_NO_HANDLE)
			area->entry[i].pte = 0;
	mutex_unlock(&area->lock);
	return error;
}

const struct causeway_foreign causeway_pv_foreign = {
	.map_kernel = causeway_pv_map_kernel,
	.unmap_kernel = causeway_pv_unmap_kernel,
	.begin = causeway_pv_begin,
	.look = causeway_pv_look,
	.fill = causeway_pv_fill,
};
