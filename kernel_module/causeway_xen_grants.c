// SPDX-License-Identifier: GPL-2.0
/*
 * The pages that domain 0 grants: their references, and mappings in guests whose memory the hypervisor translates.
 *
 * The directory has two levels, because xenstore holds too little for a reference of each page: the root page lists the
 * references of the directory's other pages, and these the references of the region's pages in their order. A page
 * holds 1024 references, so that the region has 4 GiB at most. The guest may only read the directory.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include <xen/page.h>

#include "causeway_xen.h"

/* So many pages are asked of the hypervisor at a time: one granule's. */
#define CAUSEWAY_BATCH CAUSEWAY_PAGES_PER_GRANULE

static unsigned long causeway_page_address(struct page *page)
{
	return (unsigned long)pfn_to_kaddr(page_to_pfn(page));
}

/* Maps `count` pages, at most a batch; on an error none of them is mapped. */
static int causeway_map_batch(domid_t owner, const grant_ref_t *reference, struct page **page, grant_handle_t *handle,
			      unsigned int count, u32 flags)
{
	struct gnttab_map_grant_ref *map = kvcalloc(count, sizeof(*map), GFP_KERNEL);
	struct gnttab_unmap_grant_ref undo;
	unsigned int i;
	int error;

	if (!map)
		return -ENOMEM;
	for (i = 0; i < count; i++)
		gnttab_set_map_op(&map[i], causeway_page_address(page[i]), flags, reference[i], owner);
	error = gnttab_map_refs(map, NULL, page, count);
	for (i = 0; i < count; i++) {
		if (!error && map[i].status != GNTST_okay)
			error = map[i].status == GNTST_no_space ? -ENOSPC : -EINVAL;
		handle[i] = map[i].handle;
	}
	for (i = 0; error && i < count; i++) {
		if (map[i].status != GNTST_okay)
			continue;
		gnttab_set_unmap_op(&undo, causeway_page_address(page[i]), flags, handle[i]);
		WARN_ON(gnttab_unmap_refs(&undo, NULL, &page[i], 1));
	}
	kvfree(map);
	return error;
}

static void causeway_unmap_batch(struct page **page, const grant_handle_t *handle, unsigned int count, u32 flags)
{
	struct gnttab_unmap_grant_ref *unmap = kvcalloc(count, sizeof(*unmap), GFP_KERNEL | __GFP_NOFAIL);
	unsigned int i;

	for (i = 0; i < count; i++)
		gnttab_set_unmap_op(&unmap[i], causeway_page_address(page[i]), flags, handle[i]);
	WARN_ON(gnttab_unmap_refs(unmap, NULL, page, count));
	kvfree(unmap);
}

/* Copies the references that a run of directory pages lists. */
static int causeway_read_directory(domid_t owner, const grant_ref_t *directory, unsigned long pages, grant_ref_t *list,
				   unsigned long count)
{
	unsigned long i, part;
	grant_handle_t handle;
	struct page *page;
	int error;

	error = gnttab_alloc_pages(1, &page);
	if (error)
		return error;
	for (i = 0; !error && i < pages; i++) {
		error = causeway_map_batch(owner, &directory[i], &page, &handle, 1, GNTMAP_host_map | GNTMAP_readonly);
		if (error)
			break;
		part = min(count - i * CAUSEWAY_REFERENCES_PER_PAGE, CAUSEWAY_REFERENCES_PER_PAGE);
		memcpy(list + i * CAUSEWAY_REFERENCES_PER_PAGE, (void *)causeway_page_address(page),
		       part * sizeof(*list));
		causeway_unmap_batch(&page, &handle, 1, GNTMAP_host_map | GNTMAP_readonly);
	}
	gnttab_free_pages(1, &page);
	return error;
}

int causeway_grants_read(struct causeway_grants *grants, domid_t owner, grant_ref_t root, u64 bytes)
{
	unsigned long count = bytes >> PAGE_SHIFT;
	unsigned long pages = DIV_ROUND_UP(count, CAUSEWAY_REFERENCES_PER_PAGE);
	grant_ref_t *directory;
	int error = -ENOMEM;

	if (pages > CAUSEWAY_REFERENCES_PER_PAGE)
		return -E2BIG;
	directory = kvcalloc(pages, sizeof(*directory), GFP_KERNEL);
	grants->owner = owner;
	grants->count = count;
	grants->reference = kvcalloc(count, sizeof(*grants->reference), GFP_KERNEL);
	if (directory && grants->reference)
		error = causeway_read_directory(owner, &root, 1, directory, pages);
	if (!error)
		error = causeway_read_directory(owner, directory, pages, grants->reference, count);
	kvfree(directory);
	return error;
}

int causeway_grants_map(struct causeway_grants *grants)
{
	struct page **page = kvcalloc(grants->count, sizeof(*page), GFP_KERNEL);
	int error = -ENOMEM;

	grants->handle = kvcalloc(grants->count, sizeof(*grants->handle), GFP_KERNEL);
	if (page && grants->handle)
		error = gnttab_alloc_pages(grants->count, page);
	if (error) {
		kvfree(page);
		return error;
	}
	grants->page = page;
	while (!error && grants->mapped < grants->count) {
		unsigned long i = grants->mapped;
		unsigned int part = min(grants->count - i, (unsigned long)CAUSEWAY_BATCH);

		error = causeway_map_batch(grants->owner, grants->reference + i, page + i, grants->handle + i, part,
					   GNTMAP_host_map);
		if (!error)
			grants->mapped += part;
	}
	return error;
}

void causeway_grants_free(struct causeway_grants *grants)
{
	while (grants->mapped) {
		unsigned int part = (grants->mapped - 1) % CAUSEWAY_BATCH + 1;

		grants->mapped -= part;
		causeway_unmap_batch(grants->page + grants->mapped, grants->handle + grants->mapped, part,
				     GNTMAP_host_map);
	}
	if (grants->page)
		gnttab_free_pages(grants->count, grants->page);
	kvfree(grants->page);
	kvfree(grants->handle);
	kvfree(grants->reference);
	memset(grants, 0, sizeof(*grants));
}
