// SPDX-License-Identifier: GPL-2.0
/*
 * Doorbells under Xen: the host offers three ports in xenstore, and this guest binds an event channel to each of them. By
 * two it rings the host, and the third one is this guest's interrupt. A channel lasts until it is closed here, and the host's
 * port can then be bound again.
 */
#include <xen/events.h>
#include <xen/interface/event_channel.h>
#include <xen/xen.h>
#include <asm/xen/hypercall.h>

#include "causeway_xen.h"

static int causeway_bind_port(const struct causeway_channels *channels, u32 remote, evtchn_port_t *port)
{
	struct evtchn_bind_interdomain bind = { .remote_dom = channels->host, .remote_port = remote };
	int error = HYPERVISOR_event_channel_op(EVTCHNOP_bind_interdomain, &bind);

	*port = error ? 0 : bind.local_port;
	return error;
}

static void causeway_close_port(evtchn_port_t *port)
{
	struct evtchn_close close = { .port = *port };

	if (*port && HYPERVISOR_event_channel_op(EVTCHNOP_close, &close))
		BUG();
	*port = 0;
}

static int causeway_begin_channels(struct causeway *cw)
{
	struct causeway_channels *channels = cw->bell_data;
	evtchn_port_t interrupt = 0;
	u32 vector;
	int error = 0;

	for (vector = 0; !error && vector < CAUSEWAY_VECTORS; vector++)
		error = causeway_bind_port(channels, channels->offered[vector], &channels->port[vector]);
	if (!error)
		error = causeway_bind_port(channels, channels->offered_interrupt, &interrupt);
	if (!error)
		error = bind_evtchn_to_irqhandler(interrupt, causeway_interrupt, 0, "causeway", cw);
	if (error > 0) {
		cw->irq = error;
		return 0;
	}
	/* bind_evtchn_to_irqhandler() may have closed that port, and it may be another driver's by now: rather is one lost, when memory is short. */
	for (vector = 0; vector < CAUSEWAY_VECTORS; vector++)
		causeway_close_port(&channels->port[vector]);
	return error ? error : -EIO;
}

static void causeway_end_channels(struct causeway *cw)
{
	struct causeway_channels *channels = cw->bell_data;
	u32 vector;

	unbind_from_irqhandler(cw->irq, cw);
	for (vector = 0; vector < CAUSEWAY_VECTORS; vector++)
		causeway_close_port(&channels->port[vector]);
}

static void causeway_ring_channel(struct causeway *cw, u32 vector)
{
	const struct causeway_channels *channels = cw->bell_data;

	notify_remote_via_evtchn(channels->port[vector]);
}

const struct causeway_bell causeway_channel_bell = {
	.begin = causeway_begin_channels,
	.end = causeway_end_channels,
	.ring = causeway_ring_channel,
};
