/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Private to the module's Xen part: a region whose pages domain 0 has granted to this guest.
 * causeway_xen.c finds it in xenstore, causeway_xen_grants.c reads its references and maps it in guests whose memory the
 * hypervisor translates (PVH, HVM), and causeway_xen_pv.c in paravirtual ones. causeway_xen_bell.c has the doorbells.
 */
#ifndef CAUSEWAY_XEN_H
#define CAUSEWAY_XEN_H

#include <xen/grant_table.h>
#include <xen/interface/event_channel.h>

#include "causeway.h"

#define CAUSEWAY_REFERENCES_PER_PAGE (PAGE_SIZE / sizeof(grant_ref_t))

struct causeway_grants {
	domid_t owner; /* the domain that grants */
	unsigned long count; /* pages of the region */
	grant_ref_t *reference; /* of each page */
	/* Set where the pages have page frames of this guest. */
	struct page **page;
	grant_handle_t *handle;
	unsigned long mapped; /* so many from the first on */
};

/* Reads the references out of the directory of `bytes` of memory; its root page has the reference `root`. */
int causeway_grants_read(struct causeway_grants *grants, domid_t owner, grant_ref_t root, u64 bytes);
/* Unmaps what is mapped and frees all; repeatable. */
void causeway_grants_free(struct causeway_grants *grants);
/* Gives each page a page frame of this guest and maps it there. */
int causeway_grants_map(struct causeway_grants *grants);

/* Event channels: what the host offers, and what this guest has bound. */
struct causeway_channels {
	domid_t host;
	u32 offered[CAUSEWAY_VECTORS], offered_interrupt; /* ports of the host; 0: there are none */
	evtchn_port_t port[CAUSEWAY_VECTORS];
};

/* The device's bell_data is its struct causeway_channels. */
extern const struct causeway_bell causeway_channel_bell;

/* For a paravirtual guest: the device's foreign_data is its struct causeway_grants. */
extern const struct causeway_foreign causeway_pv_foreign;

#endif
