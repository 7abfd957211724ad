// SPDX-License-Identifier: GPL-2.0
/*
 * Mappings of the region in user space: a process may map what its slot has been lent, with page-table entries that are
 * written directly (causeway_memory.c says why).
 */
#include <linux/mm.h>
#include <linux/version.h>

#include "causeway.h"

struct causeway_fill {
	struct causeway *cw;
	struct mm_struct *mm;
	unsigned long page; /* of the region */
	pgprot_t prot;
};

/* Called under the page-table lock, for each page in turn. */
static int causeway_fill_pte(pte_t *pte, unsigned long address, void *data)
{
	struct causeway_fill *fill = data;
	pte_t value = pte_mkspecial(pfn_pte(causeway_pfn(fill->cw, fill->page++), fill->prot));

	if (pte_none(*pte)) {
		set_pte_at(fill->mm, address, pte, value);
		fill->cw->user_pte = pte_val(value);
	}
	return 0;
}

/* Fills all of the granule that the mapping shows, so that a 2 MiB slice costs one fault. */
vm_fault_t causeway_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct causeway_file *cf = vma->vm_file->private_data;
	struct causeway *cw = cf->cw;
	unsigned long granule_first = vmf->pgoff & ~(CAUSEWAY_PAGES_PER_GRANULE - 1);
	unsigned long first = max(granule_first, vma->vm_pgoff);
	unsigned long end = min(granule_first + CAUSEWAY_PAGES_PER_GRANULE, vma->vm_pgoff + vma_pages(vma));
	struct causeway_fill fill = {
		.cw = cw,
		.mm = vma->vm_mm,
		.page = first,
		.prot = pgprot_decrypted(vma->vm_page_prot),
	};
	unsigned long looked = cw->foreign ? cw->foreign->look(vma) : 0;
	vm_fault_t result = VM_FAULT_SIGBUS;
	int error;

	/* Held until the entries are written, so that a zap cannot fall between check and entry. */
	mutex_lock(&cw->lock);
	if (causeway_may_map(cf, vmf->pgoff / CAUSEWAY_PAGES_PER_GRANULE, vma->vm_flags & VM_WRITE)) {
		if (cw->foreign)
			error = cw->foreign->fill(vma, first, end - first, looked);
		else
			error = apply_to_page_range(vma->vm_mm,
						    vma->vm_start + ((first - vma->vm_pgoff) << PAGE_SHIFT),
						    (end - first) << PAGE_SHIFT, causeway_fill_pte, &fill);
		/* With VM_FAULT_OOM the kernel tries again for ever, or ends some process: only for what memory may mend. */
		if (!error || error == -EAGAIN)
			result = VM_FAULT_NOPAGE;
		else if (error == -ENOMEM)
			result = VM_FAULT_OOM;
	}
	mutex_unlock(&cw->lock);
	return result;
}

static const struct vm_operations_struct causeway_vm_ops = {
	.fault = causeway_fault,
};

static void causeway_set_vm_flags(struct vm_area_struct *vma, bool writable)
{
	/* A forked child has no mapping: a slot belongs to one process. */
	unsigned long set = VM_PFNMAP | VM_IO | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY;
	unsigned long clear = VM_MAYEXEC | (writable ? 0 : VM_MAYWRITE);

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_mod(vma, set, clear);
#else
	vma->vm_flags = (vma->vm_flags | set) & ~clear;
#endif
}

int causeway_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct causeway_file *cf = file->private_data;
	struct causeway *cw = cf->cw;
	unsigned long region_pages = cw->region_bytes >> PAGE_SHIFT;
	bool writable = vma->vm_flags & VM_WRITE;
	u32 granule, last;
	int error = 0;

	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC)
		return -EPERM;
	if (vma->vm_pgoff >= region_pages || vma_pages(vma) > region_pages - vma->vm_pgoff)
		return -EINVAL;
	granule = vma->vm_pgoff / CAUSEWAY_PAGES_PER_GRANULE;
	last = (vma->vm_pgoff + vma_pages(vma) - 1) / CAUSEWAY_PAGES_PER_GRANULE;

	mutex_lock(&cw->lock);
	if (cw->gone)
		error = -ENODEV;
	for (; !error && granule <= last; granule++)
		if (!causeway_may_map(cf, granule, writable))
			error = -EPERM;
	mutex_unlock(&cw->lock);
	if (error)
		return error;

	/* A later mprotect() may make any other mapping writable: only granule 0 is read-only for good. */
	causeway_set_vm_flags(vma, vma->vm_pgoff >= CAUSEWAY_PAGES_PER_GRANULE);
	if (cw->foreign)
		return cw->foreign->begin(vma);
	vma->vm_ops = &causeway_vm_ops;
	return 0;
}
