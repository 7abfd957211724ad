// SPDX-License-Identifier: GPL-2.0
/*
 * Finds the region in a guest of Xen. The host's daemon makes the xenbus device "causeway" for this domain, and says in
 * its own folder of xenstore what it grants:
 *
 *   version    1: these keys
 *   bytes      of the region
 *   directory  reference of the directory's root page (causeway_xen_grants.c)
 *   epoch      changes with the region: another one means that other pages are granted now
 *   port-work, port-control, port-interrupt
 *              event channels for this domain (causeway_xen_bell.c); none: the host looks at the rings itself
 *   state      XenbusStateConnected while all of this holds
 *
 * The guest writes nothing but its own state: Connected while it has pages mapped, Closed when it has none.
 */
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <xen/xen.h>
#include <xen/xenbus.h>

#include "causeway_xen.h"

#define CAUSEWAY_XEN_VERSION 1
#define CAUSEWAY_MAPPINGS_PER_FRAME 256 /* of Xen's maptrack */

/* One xenbus device. xenbus calls with one thread at a time, but for suspend: hence the lock. */
struct causeway_xen {
	struct mutex lock;
	struct causeway *cw; /* NULL: no region is mapped */
	struct causeway_grants grants;
	struct causeway_channels channels;
	u64 epoch; /* of the region that is mapped, or of one that could not be */
	struct xenbus_device *dev;
	struct xenbus_watch offered; /* see causeway_xen_offered */
	struct delayed_work stayed; /* see causeway_xen_suspend */
};

/* A device that is to be probed again, in a thread that holds no lock of xenbus. */
struct causeway_xen_again {
	struct work_struct work;
	struct device *dev;
};

static struct workqueue_struct *causeway_xen_queue;

static void causeway_xen_disconnect(struct causeway_xen *xen)
{
	if (xen->cw) {
		causeway_withdraw(xen->cw);
		/* Files that are open keep the device and touch its memory no more. */
		xen->cw->pages = NULL;
		put_device(&xen->cw->dev);
		xen->cw = NULL;
	}
	causeway_grants_free(&xen->grants);
}

/*
 * Names the option that is too small. The number of frames is computed as causewayd computes it for its own sentence
 * (NeedsOf of its Xen part; the table in docs/xen.md).
 */
static void causeway_xen_say_why(struct xenbus_device *dev, int error, u64 bytes)
{
	unsigned long long frames = DIV_ROUND_UP(bytes >> PAGE_SHIFT, CAUSEWAY_MAPPINGS_PER_FRAME) + 1;

	if (error == -ENOSPC)
		dev_err(&dev->dev, "not used: Xen's table of this domain's mappings is full: set max_maptrack_frames = %llu or more in the domain's configuration (xl.cfg), or gnttab_max_maptrack_frames= on Xen's command line\n",
			2 * frames);
	else
		dev_err(&dev->dev, "not used: the region's pages cannot be mapped (%d); /var/log/xen and `xl dmesg` of the host say why\n",
			error);
}

static int causeway_xen_connect(struct xenbus_device *dev, struct causeway_xen *xen, u64 bytes, u32 directory)
{
	bool pv = !xen_feature(XENFEAT_auto_translated_physmap);
	struct causeway *cw;
	int error;

	error = causeway_grants_read(&xen->grants, dev->otherend_id, directory, bytes);
	if (!error && !pv)
		error = causeway_grants_map(&xen->grants);
	if (error) {
		causeway_xen_say_why(dev, error, bytes);
		goto fail;
	}
	cw = causeway_allocate(&dev->dev, bytes);
	if (!cw) {
		error = -ENOMEM;
		goto fail;
	}
	cw->pages = xen->grants.page;
	if (xen->channels.offered_interrupt) {
		cw->bell = &causeway_channel_bell;
		cw->bell_data = &xen->channels;
	}
	if (pv) {
		cw->foreign = &causeway_pv_foreign;
		cw->foreign_data = &xen->grants;
	}
	error = causeway_publish(cw);
	if (error) {
		put_device(&cw->dev);
		goto fail;
	}
	xen->cw = cw;
	return 0;
fail:
	causeway_grants_free(&xen->grants);
	return error;
}

static void causeway_xen_read_ports(struct xenbus_device *dev, struct causeway_channels *channels)
{
	memset(channels, 0, sizeof(*channels));
	channels->host = dev->otherend_id;
	if (xenbus_gather(XBT_NIL, dev->otherend, "port-work", "%u", &channels->offered[CAUSEWAY_RING_WORK],
			  "port-control", "%u", &channels->offered[CAUSEWAY_RING_CONTROL], "port-interrupt", "%u",
			  &channels->offered_interrupt, NULL))
		channels->offered_interrupt = 0;
}

/* Makes what is mapped here agree with what the host says. `lock` held. */
static void causeway_xen_follow(struct xenbus_device *dev, enum xenbus_state theirs)
{
	struct causeway_xen *xen = dev_get_drvdata(&dev->dev);
	unsigned int version, directory;
	unsigned long long bytes, epoch;
	int error;

	if (theirs != XenbusStateConnected) {
		causeway_xen_disconnect(xen);
		xen->epoch = 0;
		if (theirs == XenbusStateClosing || theirs == XenbusStateClosed)
			xenbus_switch_state(dev, XenbusStateClosed);
		return;
	}
	error = xenbus_gather(XBT_NIL, dev->otherend, "version", "%u", &version, "bytes", "%llu", &bytes,
			      "directory", "%u", &directory, "epoch", "%llu", &epoch, NULL);
	if (error) {
		dev_err(&dev->dev, "not used: the host's keys in xenstore cannot be read (%d)\n", error);
		return;
	}
	if (epoch == xen->epoch)
		return;
	causeway_xen_disconnect(xen);
	xen->epoch = epoch;
	causeway_xen_read_ports(dev, &xen->channels);
	if (version != CAUSEWAY_XEN_VERSION) {
		dev_err(&dev->dev, "not used: the host offers version %u of the keys, this module knows %u: install the matching module\n",
			version, CAUSEWAY_XEN_VERSION);
	} else if (bytes < CAUSEWAY_MIN_REGION_BYTES || bytes & (CAUSEWAY_GRANULE_BYTES - 1) ||
		   bytes >> CAUSEWAY_GRANULE_SHIFT > CAUSEWAY_MAX_GRANULES) {
		dev_err(&dev->dev, "not used: a region of %llu bytes is impossible\n", bytes);
	} else if (!causeway_xen_connect(dev, xen, bytes, directory)) {
		xenbus_switch_state(dev, XenbusStateConnected);
		return;
	}
	xenbus_switch_state(dev, XenbusStateClosed);
}

static void causeway_xen_changed(struct xenbus_device *dev, enum xenbus_state theirs)
{
	struct causeway_xen *xen = dev_get_drvdata(&dev->dev);

	mutex_lock(&xen->lock);
	causeway_xen_follow(dev, theirs);
	mutex_unlock(&xen->lock);
}

/* The kernel's own function for it has other parameters in other kernels, whatever their version says. */
static enum xenbus_state causeway_xen_their_state(struct xenbus_device *dev)
{
	unsigned int state;

	return xenbus_scanf(XBT_NIL, dev->otherend, "state", "%u", &state) == 1 ? state : XenbusStateUnknown;
}

static void causeway_xen_probe_again(struct work_struct *work)
{
	struct causeway_xen_again *again = container_of(work, struct causeway_xen_again, work);

	if (!to_xenbus_device(again->dev)->otherend && device_reprobe(again->dev))
		dev_err(again->dev, "not used: the device cannot be probed after the domain was restored\n");
	put_device(again->dev);
	kfree(again);
}

/*
 * A restored domain may run before the host has written its keys. The kernel's xenbus then gives the device up, without
 * a call of this driver, and does not look again when they appear: hence a watch of our own, and a new probe.
 */
static void causeway_xen_offered(struct xenbus_watch *watch, const char *path, const char *token)
{
	struct causeway_xen *xen = container_of(watch, struct causeway_xen, offered);
	struct causeway_xen_again *again;

	if (xen->dev->otherend || !xenbus_exists(XBT_NIL, xen->dev->nodename, "backend"))
		return;
	again = kmalloc(sizeof(*again), GFP_KERNEL);
	if (!again)
		return;
	INIT_WORK(&again->work, causeway_xen_probe_again);
	again->dev = get_device(&xen->dev->dev);
	queue_work(causeway_xen_queue, &again->work);
}

static void causeway_xen_stayed(struct work_struct *work)
{
	struct causeway_xen *xen = container_of(work, struct causeway_xen, stayed.work);

	if (xen->dev->otherend)
		causeway_xen_changed(xen->dev, causeway_xen_their_state(xen->dev));
}

static int causeway_xen_probe(struct xenbus_device *dev, const struct xenbus_device_id *id)
{
	struct causeway_xen *xen = kzalloc(sizeof(*xen), GFP_KERNEL);
	int error;

	if (!xen)
		return -ENOMEM;
	mutex_init(&xen->lock);
	INIT_DELAYED_WORK(&xen->stayed, causeway_xen_stayed);
	xen->dev = dev;
	xen->offered.node = kasprintf(GFP_KERNEL, "%s/backend", dev->nodename);
	xen->offered.callback = causeway_xen_offered;
	error = xen->offered.node ? register_xenbus_watch(&xen->offered) : -ENOMEM;
	if (error) {
		kfree(xen->offered.node);
		kfree(xen);
		return error;
	}
	dev_set_drvdata(&dev->dev, xen);
	/* So that the node is there when the module has been loaded; later changes come by the watch. */
	causeway_xen_changed(dev, causeway_xen_their_state(dev));
	return 0;
}

static void causeway_xen_end(struct xenbus_device *dev)
{
	struct causeway_xen *xen = dev_get_drvdata(&dev->dev);

	unregister_xenbus_watch(&xen->offered);
	kfree(xen->offered.node);
	cancel_delayed_work_sync(&xen->stayed);
	mutex_lock(&xen->lock);
	causeway_xen_disconnect(xen);
	mutex_unlock(&xen->lock);
	kfree(xen);
	dev_set_drvdata(&dev->dev, NULL);
}

#ifdef CAUSEWAY_XEN_REMOVE_RETURNS_NOTHING /* Kbuild */
static void causeway_xen_remove(struct xenbus_device *dev)
{
	causeway_xen_end(dev);
}
#else
static int causeway_xen_remove(struct xenbus_device *dev)
{
	causeway_xen_end(dev);
	return 0;
}
#endif

/* How long after a suspend it is looked whether the domain has stayed where it was. */
#define CAUSEWAY_XEN_STAYED_MS 5000

/*
 * A domain with other domains' pages cannot be saved: its processes lose their sessions, and new ones find a new region. After
 * a suspend that was cancelled (xl save -c) xenbus does not call resume: then the same region is there still.
 */
static int causeway_xen_suspend(struct xenbus_device *dev)
{
	struct causeway_xen *xen = dev_get_drvdata(&dev->dev);

	mutex_lock(&xen->lock);
	causeway_xen_disconnect(xen);
	xen->epoch = 0;
	mutex_unlock(&xen->lock);
	mod_delayed_work(system_freezable_wq, &xen->stayed, msecs_to_jiffies(CAUSEWAY_XEN_STAYED_MS));
	return 0;
}

static int causeway_xen_resume(struct xenbus_device *dev)
{
	causeway_xen_changed(dev, causeway_xen_their_state(dev));
	return 0;
}

static const struct xenbus_device_id causeway_xen_ids[] = {
	{ "causeway" },
	{ "" }
};
MODULE_ALIAS("xen:causeway");

static struct xenbus_driver causeway_xen_driver = {
	.name = "causeway",
	.ids = causeway_xen_ids,
	.probe = causeway_xen_probe,
	.remove = causeway_xen_remove,
	.suspend = causeway_xen_suspend,
	.resume = causeway_xen_resume,
	.otherend_changed = causeway_xen_changed,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 16, 0)
	.not_essential = true, /* nothing waits for it at boot */
#endif
};

int causeway_xen_init(void)
{
	int error;

	if (!xen_domain())
		return 0;
	causeway_xen_queue = alloc_workqueue("causeway_xen", 0, 1);
	if (!causeway_xen_queue)
		return -ENOMEM;
	error = xenbus_register_frontend(&causeway_xen_driver);
	if (error)
		destroy_workqueue(causeway_xen_queue);
	return error;
}

void causeway_xen_exit(void)
{
	if (!xen_domain())
		return;
	xenbus_unregister_driver(&causeway_xen_driver);
	destroy_workqueue(causeway_xen_queue);
}
