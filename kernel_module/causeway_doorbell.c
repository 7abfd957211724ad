// SPDX-License-Identifier: GPL-2.0
/*
 * Doorbells. Where the device is QEMU's ivshmem-doorbell, the guest rings the host by a register that only this module
 * maps, and the host interrupts the guest by an MSI-X vector; under Xen both ring by event channels. Either side may ring for nothing, so a ring is only a hint
 * to look at shared words, and both directions are bounded in rate. What comes faster is not lost but comes together,
 * one timer tick later at the latest.
 *
 * A thread sleeps until a word of its slot changes (CAUSEWAY_IOC_WAIT), as by a futex. The interrupt handler compares
 * the words and wakes only threads whose word has changed. poll() and read() tell of interrupts of the whole device.
 */
#include <linux/hrtimer.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/jiffies.h>
#include <linux/ktime.h>
#include <linux/poll.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "causeway.h"

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
#define timer_delete_sync del_timer_sync
#endif

#define CAUSEWAY_REGISTER_BAR 0
#define CAUSEWAY_DOORBELL_REGISTER 12
/* Registers and MSI-X table: what is claimed here, not even root maps. */
#define CAUSEWAY_DOORBELL_BARS (BIT(0) | BIT(1))
/* Rings of one file, and interrupts of one device, in one timer tick (1 to 10 ms). */
#define CAUSEWAY_RINGS_PER_TICK 128
#define CAUSEWAY_INTERRUPTS_PER_TICK 512
/* Threads that sleep in one device: the interrupt handler looks at the word of each. */
#define CAUSEWAY_MAX_SLEEPERS 2048
#define CAUSEWAY_WAKE_ALL ((void *)1)

struct causeway_sleeper {
	struct wait_queue_entry entry;
	const u32 *word;
	u32 seen;
};

static void causeway_write_register(struct causeway *cw, u32 vector)
{
	iowrite32(CAUSEWAY_HOST_PEER << 16 | vector, cw->registers + CAUSEWAY_DOORBELL_REGISTER);
}

void causeway_ring_control(struct causeway *cw)
{
	if (cw->has_doorbell && cw->bell)
		cw->bell->ring(cw, CAUSEWAY_RING_CONTROL);
}

static void causeway_late_ring(struct work_struct *work)
{
	struct causeway *cw = container_of(to_delayed_work(work), struct causeway, late_ring);
	u32 vector;

	for (vector = 0; vector < CAUSEWAY_VECTORS; vector++)
		if (test_and_clear_bit(vector, &cw->late_vectors))
			cw->bell->ring(cw, vector);
}

int causeway_ring(struct causeway_file *cf, unsigned long vector)
{
	struct causeway *cw = cf->cw;
	unsigned long now = jiffies;
	int error = 0;

	if (vector >= CAUSEWAY_VECTORS)
		return -EINVAL;
	down_read(&cw->registers_lock);
	if (!cw->has_doorbell) {
		error = -EOPNOTSUPP;
	} else if (READ_ONCE(cw->gone) || READ_ONCE(cf->ended)) {
		error = -ENODEV;
	} else {
		/* Threads of one process that race here may ring a few times more. */
		if (READ_ONCE(cf->ring_tick) != now) {
			WRITE_ONCE(cf->ring_tick, now);
			atomic_set(&cf->rings, 0);
		}
		if (atomic_inc_return(&cf->rings) <= CAUSEWAY_RINGS_PER_TICK) {
			cw->bell->ring(cw, vector);
		} else {
			set_bit(vector, &cw->late_vectors);
			schedule_delayed_work(&cw->late_ring, 1);
		}
	}
	up_read(&cw->registers_lock);
	return error;
}

/* Called under the queue's lock, in the interrupt handler too. */
static int causeway_wake_sleeper(struct wait_queue_entry *entry, unsigned int mode, int flags, void *key)
{
	struct causeway_sleeper *sleeper = container_of(entry, struct causeway_sleeper, entry);

	if (key != CAUSEWAY_WAKE_ALL && READ_ONCE(*sleeper->word) == sleeper->seen)
		return 0;
	return autoremove_wake_function(entry, mode, flags, NULL);
}

void causeway_wake_all(struct causeway *cw)
{
	__wake_up(&cw->sleepers, TASK_NORMAL, 0, CAUSEWAY_WAKE_ALL);
	wake_up_interruptible_all(&cw->pollers);
}

static void causeway_answer(struct causeway *cw)
{
	atomic64_inc(&cw->interrupts);
	__wake_up(&cw->sleepers, TASK_NORMAL, 0, NULL);
	wake_up_interruptible_poll(&cw->pollers, EPOLLIN | EPOLLRDNORM);
}

irqreturn_t causeway_interrupt(int irq, void *data)
{
	struct causeway *cw = data;

	if (cw->burst_tick != jiffies) {
		cw->burst_tick = jiffies;
		cw->burst = 0;
	}
	if (++cw->burst == CAUSEWAY_INTERRUPTS_PER_TICK) {
		disable_irq_nosync(irq);
		mod_timer(&cw->calm, jiffies + 1);
	}
	causeway_answer(cw);
	return IRQ_HANDLED;
}

/* After a storm: what came meanwhile is answered together. */
static void causeway_calm(struct timer_list *timer)
{
	struct causeway *cw = container_of(timer, struct causeway, calm);

	enable_irq(cw->irq);
	causeway_answer(cw);
}

/* Counts the caller among the sleepers, so that what they read stays mapped. */
static int causeway_enter_wait(struct causeway_file *cf)
{
	struct causeway *cw = cf->cw;
	int error = 0;

	mutex_lock(&cw->lock);
	if (cw->gone || cf->ended)
		error = -ENODEV;
	else if (!cw->has_doorbell)
		error = -EOPNOTSUPP;
	else if (atomic_read(&cw->sleeping) >= CAUSEWAY_MAX_SLEEPERS)
		error = -EBUSY;
	else
		atomic_inc(&cw->sleeping);
	mutex_unlock(&cw->lock);
	return error;
}

/*
 * Sleeps until the word differs, the device or the session ends, a signal comes or the time is over. Each wake-up is
 * looked into: one may be meant for something that the thread slept for before, such as the lock that it has just left
 * (the kernel's mutexes wake a waiter late, after it may have got the lock by itself).
 */
static int causeway_sleep(struct causeway_file *cf, struct causeway_sleeper *sleeper, u64 timeout_ns)
{
	struct causeway *cw = cf->cw;
	ktime_t end = ktime_add_ns(ktime_get(), min_t(u64, timeout_ns, 60ULL * NSEC_PER_SEC));
	bool over = !timeout_ns;

	for (;;) {
		prepare_to_wait(&cw->sleepers, &sleeper->entry, TASK_INTERRUPTIBLE);
		/* Pairs with the host's release: it publishes the word before it rings. */
		if (smp_load_acquire(sleeper->word) != sleeper->seen || READ_ONCE(cw->gone) || READ_ONCE(cf->ended))
			return 0;
		if (signal_pending(current))
			return -EINTR;
		if (over)
			return -ETIMEDOUT;
		over = !schedule_hrtimeout_range(&end, 50 * NSEC_PER_USEC, HRTIMER_MODE_ABS);
	}
}

int causeway_wait(struct causeway_file *cf, const struct causeway_wait *wait)
{
	struct causeway *cw = cf->cw;
	struct causeway_sleeper sleeper = { .seen = wait->seen };
	int error;

	if (wait->offset % sizeof(u32) || wait->offset > CAUSEWAY_HOST_CONTROL_BYTES - sizeof(u32))
		return -EINVAL;
	error = causeway_enter_wait(cf);
	if (error)
		return error;
	sleeper.word = cw->host_control[cf->slot] + wait->offset;
	init_wait(&sleeper.entry);
	sleeper.entry.func = causeway_wake_sleeper;
	error = causeway_sleep(cf, &sleeper, wait->timeout_ns);
	finish_wait(&cw->sleepers, &sleeper.entry);
	if (atomic_dec_and_test(&cw->sleeping))
		wake_up_all(&cw->drained);
	return error;
}

__poll_t causeway_poll(struct file *file, struct poll_table_struct *table)
{
	struct causeway_file *cf = file->private_data;
	struct causeway *cw = cf->cw;

	poll_wait(file, &cw->pollers, table);
	if (READ_ONCE(cw->gone) || READ_ONCE(cf->ended))
		return EPOLLERR | EPOLLHUP;
	return atomic64_read(&cw->interrupts) != atomic64_read(&cf->interrupts) ? EPOLLIN | EPOLLRDNORM : 0;
}

ssize_t causeway_read(struct file *file, char __user *user, size_t bytes, loff_t *offset)
{
	struct causeway_file *cf = file->private_data;
	struct causeway *cw = cf->cw;
	u64 count;

	if (bytes < sizeof(count))
		return -EINVAL;
	if (!cw->has_doorbell)
		return -EOPNOTSUPP;
	for (;;) {
		s64 now = atomic64_read(&cw->interrupts);

		if (READ_ONCE(cw->gone) || READ_ONCE(cf->ended))
			return -ENODEV;
		count = now - atomic64_xchg(&cf->interrupts, now);
		if (count)
			break;
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		if (wait_event_interruptible(cw->pollers, atomic64_read(&cw->interrupts) != now ||
							  READ_ONCE(cw->gone) || READ_ONCE(cf->ended)))
			return -ERESTARTSYS;
	}
	return copy_to_user(user, &count, sizeof(count)) ? -EFAULT : sizeof(count);
}

void causeway_init_doorbell(struct causeway *cw)
{
	init_rwsem(&cw->registers_lock);
	init_waitqueue_head(&cw->sleepers);
	init_waitqueue_head(&cw->pollers);
	init_waitqueue_head(&cw->drained);
	INIT_DELAYED_WORK(&cw->late_ring, causeway_late_ring);
	timer_setup(&cw->calm, causeway_calm, 0);
}

static int causeway_map_host_controls(struct causeway *cw)
{
	u32 slot;

	for (slot = 0; slot < cw->slot_count; slot++) {
		u64 offset = ((u64)causeway_slot_granule(slot) << CAUSEWAY_GRANULE_SHIFT) + CAUSEWAY_HOST_CONTROL_OFFSET;

		cw->host_control[slot] = causeway_map_kernel(cw, offset, CAUSEWAY_HOST_CONTROL_BYTES);
		if (!cw->host_control[slot])
			return -ENOMEM;
	}
	return 0;
}

static void causeway_unmap_host_controls(struct causeway *cw)
{
	u32 slot;

	for (slot = 0; slot < cw->slot_count && cw->host_control[slot]; slot++) {
		causeway_unmap_kernel(cw, cw->host_control[slot]);
		cw->host_control[slot] = NULL;
	}
}

static int causeway_map_registers(struct causeway *cw)
{
	int error = pci_request_selected_regions(cw->pdev, CAUSEWAY_DOORBELL_BARS, "causeway doorbell");

	if (error)
		return error;
	cw->registers = pci_iomap(cw->pdev, CAUSEWAY_REGISTER_BAR, 0);
	if (cw->registers)
		return 0;
	pci_release_selected_regions(cw->pdev, CAUSEWAY_DOORBELL_BARS);
	return -ENOMEM;
}

static void causeway_unmap_registers(struct causeway *cw)
{
	pci_iounmap(cw->pdev, cw->registers);
	cw->registers = NULL;
	pci_release_selected_regions(cw->pdev, CAUSEWAY_DOORBELL_BARS);
}

static int causeway_begin_ivshmem(struct causeway *cw)
{
	int vectors = pci_msix_vec_count(cw->pdev), error;

	if (vectors < CAUSEWAY_VECTORS) {
		dev_warn(&cw->pdev->dev, "its doorbell has %d vector instead of %d (QEMU's option vectors)\n", vectors,
			 CAUSEWAY_VECTORS);
		return -EINVAL;
	}
	error = causeway_map_registers(cw);
	if (error)
		return error;
	pci_set_master(cw->pdev);
	error = pci_alloc_irq_vectors(cw->pdev, 1, 1, PCI_IRQ_MSIX);
	if (error < 0)
		goto unmap;
	cw->irq = pci_irq_vector(cw->pdev, 0);
	error = request_irq(cw->irq, causeway_interrupt, 0, "causeway", cw);
	if (!error)
		return 0;
	pci_free_irq_vectors(cw->pdev);
unmap:
	causeway_unmap_registers(cw);
	return error;
}

static void causeway_end_ivshmem(struct causeway *cw)
{
	free_irq(cw->irq, cw);
	pci_free_irq_vectors(cw->pdev);
	causeway_unmap_registers(cw);
}

const struct causeway_bell causeway_ivshmem_bell = {
	.begin = causeway_begin_ivshmem,
	.end = causeway_end_ivshmem,
	.ring = causeway_write_register,
};

/* Any failure leaves plain mode, which needs nothing of this. */
void causeway_begin_doorbell(struct causeway *cw)
{
	int error;

	if (!cw->bell)
		return; /* ivshmem-plain, or a host of Xen that gives no event channels */
	error = causeway_map_host_controls(cw);
	if (!error)
		error = cw->bell->begin(cw);
	cw->has_doorbell = !error;
	if (!error)
		return;
	causeway_unmap_host_controls(cw);
	dev_warn(cw->dev.parent, "its doorbell cannot be used (%d): waits are timed\n", error);
}

/* No file reaches the device any more: it is gone, or never came. */
void causeway_end_doorbell(struct causeway *cw)
{
	causeway_wake_all(cw);
	if (!cw->has_doorbell)
		return;
	wait_event(cw->drained, !atomic_read(&cw->sleeping));
	/* Waits for the calls of causeway_ring() that have not seen the end. */
	down_write(&cw->registers_lock);
	up_write(&cw->registers_lock);
	cancel_delayed_work_sync(&cw->late_ring);
	/* With its handler at rest nothing sets the timer again. */
	disable_irq(cw->irq);
	timer_delete_sync(&cw->calm);
	cw->bell->end(cw);
	cw->bell = NULL;
	causeway_unmap_host_controls(cw);
}
