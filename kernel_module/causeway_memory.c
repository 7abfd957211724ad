// SPDX-License-Identifier: GPL-2.0
/*
 * The module's own mappings of the region, and the end of all others (causeway_mmap.c makes those). All are write-back:
 * the ring's ordering rules hold only for cached memory, and uncached reads are a thousand times slower.
 *
 * remap_pfn_range(), vmf_insert_pfn() and memremap() ask the memory-type tables, which under OVMF (and for small
 * regions under SeaBIOS) call the BAR uncached because the virtual MTRRs do. The region is RAM of the host, so
 * page-table entries are written directly, here and there, with the default (write-back) protection.
 */
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "causeway.h"

void *causeway_map_kernel(struct causeway *cw, u64 offset, size_t bytes)
{
	unsigned int i, count = bytes >> PAGE_SHIFT;
	unsigned long first = offset >> PAGE_SHIFT;
	unsigned long *pfns;
	void *address;

	if (cw->foreign)
		return cw->foreign->map_kernel(cw, first, count);
	if (cw->pages)
		return vmap(cw->pages + first, count, VM_MAP, PAGE_KERNEL);
	pfns = kvmalloc_array(count, sizeof(*pfns), GFP_KERNEL);
	if (!pfns)
		return NULL;
	for (i = 0; i < count; i++)
		pfns[i] = causeway_pfn(cw, first + i);
	address = vmap_pfn(pfns, count, pgprot_decrypted(PAGE_KERNEL));
	kvfree(pfns);
	return address;
}

void causeway_unmap_kernel(struct causeway *cw, const void *address)
{
	if (cw->foreign)
		cw->foreign->unmap_kernel(cw, address);
	else
		vunmap(address);
}

int causeway_zero_granule(struct causeway *cw, u32 granule)
{
	void *address = causeway_map_kernel(cw, (u64)granule << CAUSEWAY_GRANULE_SHIFT, CAUSEWAY_GRANULE_BYTES);

	if (!address)
		return -ENOMEM;
	memset(address, 0, CAUSEWAY_GRANULE_BYTES);
	causeway_unmap_kernel(cw, address);
	return 0;
}

void causeway_zap(struct causeway *cw, u32 first, u32 count)
{
	unmap_mapping_range(cw->inode->i_mapping, (loff_t)first << CAUSEWAY_GRANULE_SHIFT,
			    (loff_t)count << CAUSEWAY_GRANULE_SHIFT, 1);
}

/* The second pass over the control pages: some GB/s when cached, some 10 MB/s when not. */
u32 causeway_measure_read(const struct causeway *cw)
{
	const u64 *words = cw->control;
	unsigned int pass, i;
	u64 ns = 1;

	for (pass = 0; pass < 2; pass++) {
		u64 start = ktime_get_ns();

		for (i = 0; i < CAUSEWAY_CONTROL_BYTES / sizeof(*words); i++)
			(void)READ_ONCE(words[i]);
		ns = max_t(u64, ktime_get_ns() - start, 1);
	}
	return div64_u64((u64)CAUSEWAY_CONTROL_BYTES * NSEC_PER_SEC >> 20, ns);
}

const char *causeway_cache_mode(u64 pte)
{
#ifdef CONFIG_X86
	/* Linux's own page attribute table; index = PAT << 2 | PCD << 1 | PWT. */
	static const char *const mode[8] = { "WB", "WC", "UC-", "UC", "WB", "WP", "UC-", "WT" };

	if (pte)
		return mode[(pte >> 7 & 1) << 2 | (pte >> 3 & 3)];
#endif
	return "unknown";
}

u64 causeway_kernel_pte(const void *address)
{
#ifdef CONFIG_X86
	unsigned int level;
	pte_t *pte = lookup_address((unsigned long)address, &level);

	if (pte && level == PG_LEVEL_4K)
		return pte_val(*pte);
#endif
	return 0;
}
