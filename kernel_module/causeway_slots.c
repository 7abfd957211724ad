// SPDX-License-Identifier: GPL-2.0
/*
 * Slots and slices: who owns which granule of the region, and when it may pass to the next process.
 *
 * The host's words are read with acquire, ours are published with release; the partner is the host daemon's watcher of
 * slot words. The module decides from its private state only, never from what it reads back of its own words.
 */
#include <linux/bitmap.h>
#include <linux/cred.h>
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/moduleparam.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/uidgid.h>

#include "causeway.h"

static unsigned int slot_quota_percent = 100;
module_param(slot_quota_percent, uint, 0644);
MODULE_PARM_DESC(slot_quota_percent, "Most of the region's slices that one process may own, in percent (default 100)");

static unsigned int user_slot_percent = 90;
module_param(user_slot_percent, uint, 0644);
MODULE_PARM_DESC(user_slot_percent, "Most of the region's slots that processes of one user may have at once, in percent; below 100 one slot at least is left to others, and root may have all (default 90)");

static u32 causeway_next_session(u32 session)
{
	session = (session + 1) & 0xffffff;
	return session ? session : 1;
}

static u32 causeway_slice_total(const struct causeway *cw)
{
	return cw->granule_count - 1 - cw->slot_count;
}

static void causeway_set_owner(struct causeway *cw, u32 granule, u16 owner)
{
	u16 *table = cw->control + CAUSEWAY_OWNER_TABLE_OFFSET;

	cw->owner[granule] = owner;
	WRITE_ONCE(table[granule], owner);
}

static void causeway_set_word(struct causeway *cw, u32 slot, u32 state)
{
	/* Pairs with the host's acquire load: it then sees the owner table, pid and uid of this state. */
	smp_store_release(&causeway_guest(cw)->slot[slot], CAUSEWAY_SLOT_WORD(cw->slot[slot].session, state));
}

/* `lock` held. */
static void causeway_release_slot(struct causeway *cw, u32 slot)
{
	struct causeway_slot *s = &cw->slot[slot];
	u32 granule;

	for (granule = 1 + cw->slot_count; s->granules && granule < cw->granule_count; granule++) {
		if (cw->owner[granule] != slot + 1)
			continue;
		causeway_set_owner(cw, granule, 0);
		__clear_bit(granule, cw->in_use);
		s->granules--;
		cw->free_granules++;
	}
	s->state = CAUSEWAY_SLOT_FREE;
	WRITE_ONCE(causeway_guest(cw)->pid[slot], 0);
	WRITE_ONCE(causeway_guest(cw)->uid[slot], 0);
	causeway_set_word(cw, slot, CAUSEWAY_GUEST_FREE);
}

void causeway_reclaim_closed(struct causeway *cw)
{
	u32 slot;

	for (slot = 0; cw->dying_slots && slot < cw->slot_count; slot++) {
		struct causeway_slot *s = &cw->slot[slot];

		if (s->state != CAUSEWAY_SLOT_DYING)
			continue;
		/* Pairs with the host's release: its worker has gone and the slices are zeroed. */
		if (smp_load_acquire(&causeway_host(cw)->slot[slot]) !=
		    CAUSEWAY_SLOT_WORD(s->session, CAUSEWAY_HOST_CLOSED))
			continue;
		cw->dying_slots--;
		causeway_release_slot(cw, slot);
	}
}

void causeway_reclaim_work(struct work_struct *work)
{
	struct causeway *cw = container_of(to_delayed_work(work), struct causeway, reclaim);

	mutex_lock(&cw->lock);
	if (!cw->gone) {
		causeway_reclaim_closed(cw);
		if (cw->dying_slots) {
			cw->reclaim_delay_ms = min(2 * cw->reclaim_delay_ms, 1000U);
			schedule_delayed_work(&cw->reclaim, msecs_to_jiffies(cw->reclaim_delay_ms));
		}
	}
	mutex_unlock(&cw->lock);
}

/* Forgets what an earlier kernel left in the region and asks the host to end its sessions. */
void causeway_begin_life(struct causeway *cw)
{
	struct causeway_guest_page *guest = causeway_guest(cw);
	u32 i;

	for (i = 0; i < cw->slot_count; i++) {
		u32 ours = READ_ONCE(guest->slot[i]) >> 8, theirs = READ_ONCE(causeway_host(cw)->slot[i]) >> 8;

		/* Sessions go on growing, so that no late word of the earlier life can match one of this. */
		cw->slot[i].session = max(ours, theirs);
		cw->slot[i].state = CAUSEWAY_SLOT_FREE;
		WRITE_ONCE(guest->pid[i], 0);
		WRITE_ONCE(guest->uid[i], 0);
		causeway_set_word(cw, i, CAUSEWAY_GUEST_FREE);
	}
	for (i = 0; i < cw->granule_count; i++)
		causeway_set_owner(cw, i, 0);
	cw->free_granules = causeway_slice_total(cw);
	guest->features = cw->has_doorbell ? CAUSEWAY_GUEST_RINGS : 0;
	/* Pairs with the host's acquire load: with the new epoch it sees every slot free. */
	smp_store_release(&guest->epoch, cw->guest_epoch);
	causeway_ring_control(cw);
}

/*
 * `lock` held. 0, or -EBUSY: the caller's user has as many slots as one user may, so that others find one. -EAGAIN:
 * some of them are dying. The uid is the file system's of the opening process, which is what may open the device.
 */
static int causeway_check_user(const struct causeway *cw, kuid_t user)
{
	u32 percent = min(READ_ONCE(user_slot_percent), 100U);
	u32 most = cw->slot_count * percent / 100, used = 0, slot;
	bool dying = false;

	if (percent == 100 || uid_eq(user, GLOBAL_ROOT_UID))
		return 0;
	most = clamp(most, 1U, max(cw->slot_count - 1, 1U));
	for (slot = 0; slot < cw->slot_count; slot++) {
		const struct causeway_slot *s = &cw->slot[slot];

		if (s->state == CAUSEWAY_SLOT_FREE || !uid_eq(s->user, user))
			continue;
		used++;
		dying = dying || s->state == CAUSEWAY_SLOT_DYING;
	}
	if (used < most)
		return 0;
	return dying ? -EAGAIN : -EBUSY;
}

/* `lock` held. -EAGAIN: waiting may help. */
static int causeway_try_reserve(struct causeway *cw, struct causeway_file *cf)
{
	kuid_t user = current_fsuid();
	int error;
	u32 slot;

	if (cw->gone)
		return -ENODEV;
	if (READ_ONCE(causeway_guest(cw)->epoch) != cw->guest_epoch) {
		dev_warn_ratelimited(&cw->dev, "the host has formatted the region anew: unbind and bind this driver to use it\n");
		return -ESTALE;
	}
	if (!cw->acknowledged) {
		/* Pairs with the host's release: workers of earlier lives, and their DMA, have ended. */
		if (smp_load_acquire(&causeway_host(cw)->reset_acknowledged) != cw->guest_epoch)
			return -EAGAIN;
		cw->acknowledged = true;
	}
	causeway_reclaim_closed(cw);
	error = causeway_check_user(cw, user);
	if (error)
		return error;
	for (slot = 0; slot < cw->slot_count; slot++) {
		struct causeway_slot *s = &cw->slot[slot];

		if (s->state != CAUSEWAY_SLOT_FREE)
			continue;
		s->user = user;
		s->state = CAUSEWAY_SLOT_RESERVED;
		s->session = causeway_next_session(s->session);
		cf->slot = slot;
		cf->session = s->session;
		return 0;
	}
	return cw->dying_slots ? -EAGAIN : -EBUSY;
}

/* Sleeps for one poll interval. Returns 0, -ERESTARTSYS, or `expired` when the deadline has passed. */
static int causeway_wait_host(unsigned long deadline, int expired)
{
	if (time_after(jiffies, deadline))
		return expired;
	return msleep_interruptible(2) || signal_pending(current) ? -ERESTARTSYS : 0;
}

int causeway_reserve_slot(struct causeway *cw, struct causeway_file *cf, bool may_wait)
{
	unsigned long deadline = jiffies + msecs_to_jiffies(CAUSEWAY_HOST_WAIT_MS);
	bool acknowledged;
	int error;

	for (;;) {
		mutex_lock(&cw->lock);
		error = causeway_try_reserve(cw, cf);
		acknowledged = cw->acknowledged;
		mutex_unlock(&cw->lock);
		if (error != -EAGAIN || !may_wait)
			return error;
		error = causeway_wait_host(deadline, acknowledged ? -EBUSY : -ETIMEDOUT);
		if (error == -ETIMEDOUT)
			dev_warn_ratelimited(&cw->dev, "the host has not acknowledged this boot within %d s: is causewayd running?\n",
					     CAUSEWAY_HOST_WAIT_MS / 1000);
		if (error)
			return error;
	}
}

int causeway_start_session(struct causeway_file *cf)
{
	struct causeway *cw = cf->cw;
	int error = 0;

	mutex_lock(&cw->lock);
	if (cw->gone || cf->ended) {
		error = -ENODEV;
	} else if (cf->started) {
		error = -EALREADY;
	} else {
		cf->started = true;
		cw->slot[cf->slot].state = CAUSEWAY_SLOT_OPEN;
		WRITE_ONCE(causeway_guest(cw)->pid[cf->slot], task_tgid_nr(current));
		WRITE_ONCE(causeway_guest(cw)->uid[cf->slot], from_kuid(&init_user_ns, current_uid()));
		causeway_set_word(cw, cf->slot, CAUSEWAY_GUEST_OPEN);
		causeway_ring_control(cw);
	}
	mutex_unlock(&cw->lock);
	return error;
}

/*
 * The host never knew of this slot, so the module wipes what the process wrote before another one gets it. `lock` is
 * taken for each granule, so that others wait for 2 MiB at most and the device cannot vanish meanwhile.
 */
static int causeway_wipe(struct causeway *cw, u32 slot)
{
	u32 granule = causeway_slot_granule(slot);
	int error = 0;

	for (; !error && granule < cw->granule_count; granule++) {
		mutex_lock(&cw->lock);
		if (cw->gone)
			error = -ENODEV;
		else if (granule == causeway_slot_granule(slot) || cw->owner[granule] == slot + 1)
			error = causeway_zero_granule(cw, granule);
		mutex_unlock(&cw->lock);
		cond_resched();
	}
	return error;
}

/* Also what is in use no more: causeway_free_slices() may not have come to it yet. */
static void causeway_zap_slot(struct causeway *cw, u32 slot)
{
	u32 granule;

	causeway_zap(cw, causeway_slot_granule(slot), 1);
	for (granule = 1 + cw->slot_count; granule < cw->granule_count; granule++)
		if (READ_ONCE(cw->owner[granule]) == slot + 1)
			causeway_zap(cw, granule, 1);
}

void causeway_end_session(struct causeway_file *cf)
{
	struct causeway *cw = cf->cw;
	struct causeway_slot *s = &cw->slot[cf->slot];
	int error;

	mutex_lock(&cw->lock);
	if (cf->ended || cw->gone) {
		cf->ended = true;
		mutex_unlock(&cw->lock);
		return;
	}
	cf->ended = true;
	causeway_wake_all(cw);
	mutex_unlock(&cw->lock);

	/* Nothing of it is mapped any more from here on. Without the lock: a process may have very many areas, and others would wait. */
	causeway_zap_slot(cw, cf->slot);
	mutex_lock(&cw->lock);
	if (cw->gone) {
		mutex_unlock(&cw->lock);
		return;
	}
	if (cf->started) {
		s->state = CAUSEWAY_SLOT_DYING;
		cw->dying_slots++;
		causeway_set_word(cw, cf->slot, CAUSEWAY_GUEST_DYING);
		causeway_ring_control(cw);
		cw->reclaim_delay_ms = 5;
		mod_delayed_work(system_wq, &cw->reclaim, msecs_to_jiffies(cw->reclaim_delay_ms));
		mutex_unlock(&cw->lock);
		return;
	}
	mutex_unlock(&cw->lock);

	error = causeway_wipe(cw, cf->slot);
	mutex_lock(&cw->lock);
	if (cw->gone) {
		/* Nothing to give back to. */
	} else if (error) {
		s->state = CAUSEWAY_SLOT_LOST;
		dev_err(&cw->dev, "slot %u could not be wiped (%d) and stays unused until the driver is bound again\n",
			cf->slot, error);
	} else {
		causeway_release_slot(cw, cf->slot);
	}
	mutex_unlock(&cw->lock);
}

void causeway_abandon_slots(struct causeway *cw)
{
	u32 slot;

	for (slot = 0; slot < cw->slot_count; slot++)
		if (cw->slot[slot].state == CAUSEWAY_SLOT_OPEN)
			causeway_set_word(cw, slot, CAUSEWAY_GUEST_DYING);
}

/*
 * First fit. With `own_only` the run consists of granules that the slot has freed before; otherwise of those and of
 * free ones, `*fresh` of which are new to the slot. Returns 0 (granule 0 is never a slice) when there is none.
 */
static u32 causeway_find_run(const struct causeway *cw, u32 slot, u32 count, bool own_only, u32 *fresh)
{
	u32 granule, run = 0, run_fresh = 0;

	for (granule = 1 + cw->slot_count; granule < cw->granule_count; granule++) {
		bool own = cw->owner[granule] == slot + 1 && !test_bit(granule, cw->in_use);
		bool free = !cw->owner[granule];

		if (!own && (own_only || !free)) {
			run = 0;
			run_fresh = 0;
			continue;
		}
		run++;
		run_fresh += free;
		if (run == count) {
			*fresh = run_fresh;
			return granule + 1 - count;
		}
	}
	return 0;
}

/* `lock` held. -EAGAIN: waiting for dying slots may help. */
static int causeway_try_alloc(struct causeway_file *cf, struct causeway_slices *slices)
{
	struct causeway *cw = cf->cw;
	struct causeway_slot *s = &cw->slot[cf->slot];
	u32 total = causeway_slice_total(cw);
	u32 quota = (u64)total * min(READ_ONCE(slot_quota_percent), 100U) / 100;
	u32 fresh = 0, first, i;

	if (cw->gone || cf->ended)
		return -ENODEV;
	if (slices->count > quota)
		return -ENOMEM;
	causeway_reclaim_closed(cw);
	first = causeway_find_run(cw, cf->slot, slices->count, true, &fresh);
	if (!first)
		first = causeway_find_run(cw, cf->slot, slices->count, false, &fresh);
	if (!first)
		return cw->dying_slots ? -EAGAIN : -ENOMEM;
	if (s->granules + fresh > quota)
		return -ENOMEM;
	for (i = first; i < first + slices->count; i++) {
		if (!cw->owner[i])
			causeway_set_owner(cw, i, cf->slot + 1);
		__set_bit(i, cw->in_use);
	}
	s->granules += fresh;
	cw->free_granules -= fresh;
	slices->first = first;
	/* The host reads the table after a ring message of this process, which comes after this call's return. */
	smp_wmb();
	return 0;
}

int causeway_alloc_slices(struct causeway_file *cf, struct causeway_slices *slices)
{
	unsigned long deadline = jiffies + msecs_to_jiffies(CAUSEWAY_HOST_WAIT_MS);
	struct causeway *cw = cf->cw;
	int error;

	if (!slices->count)
		return -EINVAL;
	for (;;) {
		mutex_lock(&cw->lock);
		error = causeway_try_alloc(cf, slices);
		mutex_unlock(&cw->lock);
		if (error != -EAGAIN)
			return error;
		error = causeway_wait_host(deadline, -ENOMEM);
		if (error)
			return error;
	}
}

int causeway_free_slices(struct causeway_file *cf, const struct causeway_slices *slices)
{
	struct causeway *cw = cf->cw;
	u32 first = slices->first, count = slices->count, i;
	int error = 0;

	if (!count)
		return -EINVAL;
	mutex_lock(&cw->lock);
	if (cw->gone || cf->ended)
		error = -ENODEV;
	else if (first <= cw->slot_count || first >= cw->granule_count || count > cw->granule_count - first)
		error = -EPERM;
	for (i = 0; !error && i < count; i++)
		if (cw->owner[first + i] != cf->slot + 1 || !test_bit(first + i, cw->in_use))
			error = -EPERM;
	if (!error)
		bitmap_clear(cw->in_use, first, count);
	mutex_unlock(&cw->lock);
	/* As in causeway_end_session(). They stay this slot's: only its own process could get them meanwhile. */
	if (!error)
		causeway_zap(cw, first, count);
	return error;
}

bool causeway_may_map(const struct causeway_file *cf, u32 granule, bool writable)
{
	const struct causeway *cw = cf->cw;

	if (cw->gone || cf->ended || granule >= cw->granule_count)
		return false;
	if (!granule)
		return !writable;
	return granule == causeway_slot_granule(cf->slot) ||
	       (cw->owner[granule] == cf->slot + 1 && test_bit(granule, cw->in_use));
}

u32 causeway_slots_used(const struct causeway *cw)
{
	u32 slot, used = 0;

	for (slot = 0; slot < cw->slot_count; slot++)
		used += cw->slot[slot].state != CAUSEWAY_SLOT_FREE;
	return used;
}
