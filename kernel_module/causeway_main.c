// SPDX-License-Identifier: GPL-2.0
/*
 * The devices of this VM's processes on their way to the host's GPU, and the driver for QEMU's ivshmem device where its
 * memory is a Causeway region. ivshmem devices cannot be told apart by ids, so a region is recognised by its superblock,
 * and a device with other content is left to other drivers. Under Xen the region comes by grants (causeway_xen.c).
 */
#include <linux/bitmap.h>
#include <linux/crc32.h>
#include <linux/idr.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/pseudo_fs.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "causeway.h"

#define CAUSEWAY_BAR 2
#define CAUSEWAY_MAX_DEVICES 16

static dev_t causeway_first_devt;
static DEFINE_IDA(causeway_ids);

/*
 * A file system of one inode per device: its address space is what causeway_zap() walks, whatever node was opened. It has
 * no owner, else a bound device would keep the module loaded; its mount ends with the last device, before the module.
 */
static struct vfsmount *causeway_mount;
static int causeway_mount_count;

static int causeway_init_fs_context(struct fs_context *fc)
{
	return init_pseudo(fc, 0x43574159) ? 0 : -ENOMEM;
}

static struct file_system_type causeway_fs_type = {
	.name = "causeway",
	.init_fs_context = causeway_init_fs_context,
	.kill_sb = kill_anon_super,
};

static int causeway_open(struct inode *inode, struct file *file)
{
	struct causeway *cw = container_of(inode->i_cdev, struct causeway, cdev);
	struct causeway_file *cf = kzalloc(sizeof(*cf), GFP_KERNEL);
	int error;

	if (!cf)
		return -ENOMEM;
	cf->cw = cw;
	cf->opener = current->files;
	atomic64_set(&cf->interrupts, atomic64_read(&cw->interrupts));
	error = causeway_reserve_slot(cw, cf, !(file->f_flags & O_NONBLOCK));
	if (error) {
		kfree(cf);
		return error;
	}
	get_device(&cw->dev);
	file->private_data = cf;
	file->f_mapping = cw->inode->i_mapping;
	return 0;
}

/*
 * The session ends when its process closes the file or exits, although a forked child may have inherited the
 * descriptor (as data loaders do) and live on.
 */
static int causeway_flush(struct file *file, fl_owner_t closer)
{
	struct causeway_file *cf = file->private_data;

	if (closer == cf->opener)
		causeway_end_session(cf);
	return 0;
}

static int causeway_release(struct inode *inode, struct file *file)
{
	struct causeway_file *cf = file->private_data;
	struct causeway *cw = cf->cw;

	causeway_end_session(cf);
	kfree(cf);
	put_device(&cw->dev);
	return 0;
}

static int causeway_info(struct causeway_file *cf, struct causeway_info *info)
{
	const struct causeway *cw = cf->cw;

	if (READ_ONCE(cw->gone) || READ_ONCE(cf->ended))
		return -ENODEV;
	info->region_bytes = cw->region_bytes;
	info->slot = cf->slot;
	info->slot_count = cw->slot_count;
	info->granule_count = cw->granule_count;
	info->session = cf->session;
	return 0;
}

static long causeway_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct causeway_file *cf = file->private_data;
	void __user *user = (void __user *)argument;
	struct causeway_slices slices;
	struct causeway_info info;
	struct causeway_wait wait;
	int error;

	switch (command) {
	case CAUSEWAY_IOC_INFO:
		error = causeway_info(cf, &info);
		if (!error && copy_to_user(user, &info, sizeof(info)))
			error = -EFAULT;
		return error;
	case CAUSEWAY_IOC_START:
		return causeway_start_session(cf);
	case CAUSEWAY_IOC_ALLOC_SLICES:
		if (copy_from_user(&slices, user, sizeof(slices)))
			return -EFAULT;
		error = causeway_alloc_slices(cf, &slices);
		if (!error && copy_to_user(user, &slices, sizeof(slices))) {
			causeway_free_slices(cf, &slices);
			error = -EFAULT;
		}
		return error;
	case CAUSEWAY_IOC_FREE_SLICES:
		if (copy_from_user(&slices, user, sizeof(slices)))
			return -EFAULT;
		return causeway_free_slices(cf, &slices);
	case CAUSEWAY_IOC_RING:
		return causeway_ring(cf, argument);
	case CAUSEWAY_IOC_WAIT:
		return copy_from_user(&wait, user, sizeof(wait)) ? -EFAULT : causeway_wait(cf, &wait);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations causeway_fops = {
	.owner = THIS_MODULE,
	.open = causeway_open,
	.flush = causeway_flush,
	.release = causeway_release,
	.mmap = causeway_mmap,
	.poll = causeway_poll,
	.read = causeway_read,
	.unlocked_ioctl = causeway_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
};

static struct causeway *to_causeway(struct device *dev)
{
	return container_of(dev, struct causeway, dev);
}

#define CAUSEWAY_ATTRIBUTE(name, format, value)                                              \
	static ssize_t name##_show(struct device *dev, struct device_attribute *a, char *buffer) \
	{                                                                                        \
		struct causeway *cw = to_causeway(dev);                                          \
		ssize_t bytes = -ENODEV;                                                         \
												 \
		mutex_lock(&cw->lock);                                                           \
		if (!cw->gone)                                                                   \
			bytes = sysfs_emit(buffer, format "\n", value);                          \
		mutex_unlock(&cw->lock);                                                         \
		return bytes;                                                                    \
	}                                                                                        \
	static DEVICE_ATTR_RO(name)

CAUSEWAY_ATTRIBUTE(region_bytes, "%llu", cw->region_bytes);
CAUSEWAY_ATTRIBUTE(slots_total, "%u", cw->slot_count);
CAUSEWAY_ATTRIBUTE(slots_used, "%u", causeway_slots_used(cw));
CAUSEWAY_ATTRIBUTE(slots_dying, "%u", cw->dying_slots);
CAUSEWAY_ATTRIBUTE(slices_total, "%u", cw->granule_count - 1 - cw->slot_count);
CAUSEWAY_ATTRIBUTE(slices_free, "%u", cw->free_granules);
CAUSEWAY_ATTRIBUTE(host_epoch, "%016llx", READ_ONCE(((struct causeway_superblock *)cw->control)->host_epoch));
CAUSEWAY_ATTRIBUTE(guest_epoch, "%016llx", cw->guest_epoch);
CAUSEWAY_ATTRIBUTE(cache_mode, "%s", causeway_cache_mode(causeway_kernel_pte(cw->control)));
CAUSEWAY_ATTRIBUTE(user_cache_mode, "%s", cw->user_pte ? causeway_cache_mode(cw->user_pte) : "never mapped");
CAUSEWAY_ATTRIBUTE(read_mib_per_s, "%u", cw->read_mib_per_s);
CAUSEWAY_ATTRIBUTE(doorbell, "%s", cw->has_doorbell ? "yes" : "no");
CAUSEWAY_ATTRIBUTE(interrupts, "%llu", (unsigned long long)atomic64_read(&cw->interrupts));

static struct attribute *causeway_attrs[] = {
	&dev_attr_region_bytes.attr,
	&dev_attr_slots_total.attr,
	&dev_attr_slots_used.attr,
	&dev_attr_slots_dying.attr,
	&dev_attr_slices_total.attr,
	&dev_attr_slices_free.attr,
	&dev_attr_host_epoch.attr,
	&dev_attr_guest_epoch.attr,
	&dev_attr_cache_mode.attr,
	&dev_attr_user_cache_mode.attr,
	&dev_attr_read_mib_per_s.attr,
	&dev_attr_doorbell.attr,
	&dev_attr_interrupts.attr,
	NULL,
};
ATTRIBUTE_GROUPS(causeway);

static struct class causeway_class = {
	.name = "causeway",
	.dev_groups = causeway_groups,
};

/* Name and minor number are free for the next device as soon as the node is gone, not when the last file is. */
static void causeway_free_index(struct causeway *cw)
{
	if (cw->index >= 0)
		ida_free(&causeway_ids, cw->index);
	cw->index = -1;
}

static void causeway_free(struct device *dev)
{
	struct causeway *cw = to_causeway(dev);

	if (cw->inode) {
		iput(cw->inode);
		simple_release_fs(&causeway_mount, &causeway_mount_count);
	}
	causeway_free_index(cw);
	bitmap_free(cw->in_use);
	kvfree(cw->owner);
	kvfree(cw);
}

struct causeway *causeway_allocate(struct device *parent, u64 region_bytes)
{
	struct causeway *cw = kvzalloc(sizeof(*cw), GFP_KERNEL);

	if (!cw)
		return NULL;
	cw->index = ida_alloc_max(&causeway_ids, CAUSEWAY_MAX_DEVICES - 1, GFP_KERNEL);
	if (cw->index < 0) {
		kvfree(cw);
		return NULL;
	}
	mutex_init(&cw->lock);
	INIT_DELAYED_WORK(&cw->reclaim, causeway_reclaim_work);
	causeway_init_doorbell(cw);
	device_initialize(&cw->dev);
	cw->dev.class = &causeway_class;
	cw->dev.parent = parent;
	cw->dev.release = causeway_free;
	cw->dev.devt = MKDEV(MAJOR(causeway_first_devt), cw->index);
	cw->region_bytes = region_bytes;
	cw->in_use = bitmap_zalloc(CAUSEWAY_MAX_GRANULES, GFP_KERNEL);
	cw->owner = kvcalloc(CAUSEWAY_MAX_GRANULES, sizeof(*cw->owner), GFP_KERNEL);
	if (!cw->in_use || !cw->owner ||
	    (cw->index ? dev_set_name(&cw->dev, "causeway%d", cw->index) : dev_set_name(&cw->dev, "causeway")))
		goto fail;
	if (simple_pin_fs(&causeway_fs_type, &causeway_mount, &causeway_mount_count))
		goto fail;
	cw->inode = alloc_anon_inode(causeway_mount->mnt_sb);
	if (IS_ERR(cw->inode)) {
		cw->inode = NULL;
		simple_release_fs(&causeway_mount, &causeway_mount_count);
		goto fail;
	}
	return cw;
fail:
	put_device(&cw->dev);
	return NULL;
}

/* Why the memory is not a region that this driver can use, or NULL. */
static const char *causeway_refuse_superblock(const struct causeway_superblock *sb, u64 bar_bytes)
{
	if (sb->magic != CAUSEWAY_MAGIC)
		return "its memory holds no Causeway superblock (another program's device, or causewayd has not formatted it yet)";
	if (sb->abi_major != CAUSEWAY_ABI_MAJOR)
		return "the host speaks another major version of the region's layout: install the matching module";
	if (sb->header_bytes < sizeof(*sb))
		return "the superblock is shorter than this version requires";
	if ((crc32_le(~0U, (const u8 *)sb, offsetof(struct causeway_superblock, crc32)) ^ ~0U) != sb->crc32)
		return "the superblock's checksum is wrong";
	if (sb->region_bytes != bar_bytes)
		return "the region's size differs from the device's memory";
	if (sb->granule_bytes != CAUSEWAY_GRANULE_BYTES ||
	    (u64)sb->granule_count << CAUSEWAY_GRANULE_SHIFT != sb->region_bytes ||
	    sb->granule_count > CAUSEWAY_MAX_GRANULES)
		return "the superblock's granule size or count is impossible";
	if (!sb->slot_count || sb->slot_count > CAUSEWAY_MAX_SLOTS || sb->slot_count + 1 >= sb->granule_count)
		return "the superblock's slot count is impossible";
	return NULL;
}

static int causeway_attach(struct causeway *cw)
{
	struct causeway_superblock sb;
	const char *refusal;

	cw->control = causeway_map_kernel(cw, 0, CAUSEWAY_CONTROL_BYTES);
	if (!cw->control)
		return -ENOMEM;
	memcpy(&sb, cw->control, sizeof(sb));
	refusal = causeway_refuse_superblock(&sb, cw->region_bytes);
	if (refusal) {
		dev_info(cw->dev.parent, "not used: %s\n", refusal);
		causeway_unmap_kernel(cw, cw->control);
		return -ENODEV;
	}
	cw->slot_count = sb.slot_count;
	cw->granule_count = sb.granule_count;
	cw->read_mib_per_s = causeway_measure_read(cw);
	do {
		cw->guest_epoch = get_random_u64();
	} while (!cw->guest_epoch);
	causeway_begin_doorbell(cw);
	causeway_begin_life(cw);
	return 0;
}

/* Processes and host lose the region: from here on open files answer -ENODEV and faults SIGBUS. */
static void causeway_detach(struct causeway *cw)
{
	mutex_lock(&cw->lock);
	cw->gone = true;
	causeway_abandon_slots(cw);
	/* Another driver may come, which rings nobody. */
	WRITE_ONCE(causeway_guest(cw)->features, 0);
	causeway_ring_control(cw);
	mutex_unlock(&cw->lock);
	causeway_end_doorbell(cw);
	cancel_delayed_work_sync(&cw->reclaim);
	causeway_zap(cw, 0, cw->granule_count);
	causeway_unmap_kernel(cw, cw->control);
	cw->control = NULL;
}

int causeway_publish(struct causeway *cw)
{
	int error = causeway_attach(cw);

	if (error)
		return error;
	cdev_init(&cw->cdev, &causeway_fops);
	cw->cdev.owner = THIS_MODULE;
	error = cdev_device_add(&cw->cdev, &cw->dev);
	if (error) {
		causeway_detach(cw); /* a node that somebody made by its number may be open */
		return error;
	}
	dev_info(cw->dev.parent, "%s: region of %llu MiB, %u slots, %u slices, mapped %s, read %u MiB/s%s\n",
		 dev_name(&cw->dev), cw->region_bytes >> 20, cw->slot_count, cw->free_granules,
		 causeway_cache_mode(causeway_kernel_pte(cw->control)), cw->read_mib_per_s,
		 cw->has_doorbell ? ", with a doorbell" : "");
	return 0;
}

void causeway_withdraw(struct causeway *cw)
{
	cdev_device_del(&cw->cdev, &cw->dev);
	causeway_free_index(cw);
	causeway_detach(cw);
}

static int causeway_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct causeway *cw;
	int error;

	if (!pci_resource_len(pdev, CAUSEWAY_BAR)) {
		dev_err(&pdev->dev, "not used: BAR 2 has no address space; for hot-plug on q35 give the root port pref64-reserve of at least twice the region, or plug it in before boot\n");
		return -ENODEV;
	}
	if (!(pci_resource_flags(pdev, CAUSEWAY_BAR) & IORESOURCE_MEM) ||
	    pci_resource_len(pdev, CAUSEWAY_BAR) < CAUSEWAY_MIN_REGION_BYTES) {
		dev_info(&pdev->dev, "not used: BAR 2 is smaller than the smallest Causeway region (64 MiB)\n");
		return -ENODEV;
	}
	error = pci_enable_device(pdev);
	if (error)
		return error;
	error = pci_request_region(pdev, CAUSEWAY_BAR, "causeway");
	if (error)
		goto disable;
	cw = causeway_allocate(&pdev->dev, pci_resource_len(pdev, CAUSEWAY_BAR));
	if (!cw) {
		error = -ENOMEM;
		goto release_region;
	}
	cw->pdev = pdev;
	if (pci_msix_vec_count(pdev) > 0)
		cw->bell = &causeway_ivshmem_bell;
	cw->first_pfn = pci_resource_start(pdev, CAUSEWAY_BAR) >> PAGE_SHIFT;
	error = causeway_publish(cw);
	if (error)
		goto put;
	pci_set_drvdata(pdev, cw);
	return 0;

put:
	put_device(&cw->dev);
release_region:
	pci_release_region(pdev, CAUSEWAY_BAR);
disable:
	pci_disable_device(pdev);
	return error;
}

static void causeway_remove(struct pci_dev *pdev)
{
	struct causeway *cw = pci_get_drvdata(pdev);

	causeway_withdraw(cw);
	pci_release_region(pdev, CAUSEWAY_BAR);
	pci_disable_device(pdev);
	put_device(&cw->dev);
}

static const struct pci_device_id causeway_pci_ids[] = {
	{ PCI_DEVICE(0x1af4, 0x1110), .class = PCI_CLASS_MEMORY_RAM << 8, .class_mask = 0xffff00 },
	{}
};
MODULE_DEVICE_TABLE(pci, causeway_pci_ids);

static struct pci_driver causeway_driver = {
	.name = "causeway",
	.id_table = causeway_pci_ids,
	.probe = causeway_probe,
	.remove = causeway_remove,
};

static int __init causeway_init(void)
{
	int error;

	BUILD_BUG_ON(sizeof(struct causeway_superblock) != 96);
	BUILD_BUG_ON(offsetof(struct causeway_superblock, crc32) != 88);
	BUILD_BUG_ON(offsetof(struct causeway_host_page, slot) != 128);
	BUILD_BUG_ON(offsetof(struct causeway_guest_page, slot) != 128);
	BUILD_BUG_ON(CAUSEWAY_CONTROL_BYTES > CAUSEWAY_GRANULE_BYTES);

	error = alloc_chrdev_region(&causeway_first_devt, 0, CAUSEWAY_MAX_DEVICES, "causeway");
	if (error)
		return error;
	error = class_register(&causeway_class);
	if (error)
		goto unregister_region;
	error = pci_register_driver(&causeway_driver);
	if (error)
		goto unregister_class;
	error = causeway_xen_init();
	if (error)
		goto unregister_driver;
	return 0;

unregister_driver:
	pci_unregister_driver(&causeway_driver);
unregister_class:
	class_unregister(&causeway_class);
unregister_region:
	unregister_chrdev_region(causeway_first_devt, CAUSEWAY_MAX_DEVICES);
	return error;
}

static void __exit causeway_exit(void)
{
	causeway_xen_exit();
	pci_unregister_driver(&causeway_driver);
	class_unregister(&causeway_class);
	unregister_chrdev_region(causeway_first_devt, CAUSEWAY_MAX_DEVICES);
}

module_init(causeway_init);
module_exit(causeway_exit);
MODULE_DESCRIPTION("Causeway: the host's GPU for this VM, through ivshmem or Xen's grants");
MODULE_AUTHOR("The Causeway authors");
MODULE_LICENSE("GPL");
