/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * Buffer accounting of a switch: which packets are admitted, which counters they are charged to, and when to pause a
 * peer.
 * Every sum is updated by atomic additions. The change of a switch's shares is a difference f(new) - f(old) of one
 * queue's depth, with the values that the atomic addition to that depth returned. So the shares are exact under
 * concurrency, and all are 0 when the last packet has left.
 */
#ifndef HEDDLE_ACCOUNTING_H
#define HEDDLE_ACCOUNTING_H
#include "queue.h"

#define add(cell, value) __sync_fetch_and_add(cell, value)

static long (*bpf_ringbuf_output)(void *ring, void *data, __u64 size, __u64 flags) = (void *)130;
#define BPF_RB_FORCE_WAKEUP 2

/* All counters of one packet. node, transit: 0 at a host. in: 0 for packets that the switch itself has sent. */
struct counters {
	struct cell *cell;
	struct policy *rule;
	struct node *node;
	__u64 *transit;
	struct ingress *in;
	struct policy *in_rule;
	__u32 in_port;
	__u32 packets; /* number of packets that it counts as */
};

/* local: index of the ingress port in its node, from 1. Returns 0 when a map has no such row. */
INLINE int find_counters(struct counters *counters, const struct link *link, __u32 port, __u32 number, __u32 local)
{
	__u32 zero = 0, row = port * CLASSES + number, cross, node = link->node, *changes, half;

	counters->node = 0;
	counters->in = 0;
	counters->packets = 1;
	changes = bpf_map_lookup_elem(&active, &zero);
	counters->cell = bpf_map_lookup_elem(&cells, &row);
	if (!changes || !counters->cell)
		return 0;
	half = *changes & 1;
	row = row * 2 + half;
	counters->rule = bpf_map_lookup_elem(&policies, &row);
	if (!counters->rule)
		return 0;
	if (link->flags & LINK_HOST)
		return 1;
	if (local > link->ports_of_node) /* the mark of other software */
		local = 0;
	cross = link->matrix_base + (local * link->ports_of_node + link->local) * CLASSES + number;
	counters->transit = bpf_map_lookup_elem(&transit, &cross);
	counters->node = bpf_map_lookup_elem(&switches, &node);
	if (!counters->transit || !counters->node)
		return 0;
	if (!local)
		return 1;
	counters->in_port = port - link->local + local - 1;
	row = counters->in_port * CLASSES + number;
	counters->in = bpf_map_lookup_elem(&ingress, &row);
	row = row * 2 + half;
	counters->in_rule = bpf_map_lookup_elem(&policies, &row);
	return counters->in && counters->in_rule;
}

INLINE __u64 excess(__u64 size, __u64 limit)
{
	return size > limit ? size - limit : 0;
}

/* The part of an ingress queue in the shared buffer: below it is the reserve, above it the headroom. */
INLINE __u64 shared_part(const struct policy *rule, __u64 occupancy)
{
	return excess(occupancy < rule->xoff ? occupancy : rule->xoff, rule->reserve);
}

INLINE void raise_maximum(__u64 *most, __u64 now)
{
	__u64 was = *most;

	if (now > was)
		__sync_val_compare_and_swap(most, was, now); /* a lost race makes it wrong by a packet at most */
}

/* peak is never above high_water: one comparison is enough for most packets. */
INLINE void raise_maxima(__u64 *peak, __u64 *high_water, __u64 now)
{
	if (now > *peak) {
		raise_maximum(peak, now);
		raise_maximum(high_water, now);
	}
}

/* The dynamic threshold: the limit of one queue, alpha times the free shared buffer (Choudhury and Hahne 1998), and at
 * least its reserve. */
INLINE __u64 threshold(const struct policy *rule, const struct node *node)
{
	long long used = node->shared_used; /* may be below 0 for a moment, when a later difference is added first */
	__u64 most = excess(rule->shared, used < 0 ? 0 : used) * rule->alpha >> ALPHA_SHIFT;

	return most > rule->reserve ? most : rule->reserve;
}

INLINE __u64 xoff_now(const struct policy *rule, const struct node *node)
{
	__u64 most = threshold(rule, node);

	return most < rule->xoff ? most : rule->xoff;
}

INLINE void send_event(__u32 port, __u32 number, __u32 kind, __u64 now)
{
	struct event event = {now, port, kind, number, 0, {}};

	bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
}

/* Resume the peer when the occupancy has fallen to Xon. Xon is as far below the current Xoff as the configured Xon is
 * below the configured Xoff, but at least one frame. If the class does not pause any more, resume at once. */
static __attribute__((noinline)) int resume(struct ingress *in, struct policy *rule, struct node *node, __u32 port,
					    __u32 number)
{
	__u64 low = excess(xoff_now(rule, node), excess(rule->xoff, rule->xon)), now;

	if (low < rule->frame)
		low = rule->frame;
	if (rule->flags & POLICY_PFC && *(volatile __u64 *)&in->occupancy > low)
		return 0;
	if (__sync_val_compare_and_swap(&in->state, 1, 0) != 1)
		return 0;
	now = bpf_ktime_get_ns();
	in->since_ns = now;
	send_event(port, number, EVENT_XON, now);
	return 1;
}

static __attribute__((noinline)) int pause(struct ingress *in, struct policy *rule, struct node *node, __u32 port,
					   __u32 number)
{
	__u64 now;

	if (__sync_val_compare_and_swap(&in->state, 0, 1) != 0)
		return 0;
	now = bpf_ktime_get_ns();
	in->since_ns = now;
	in->lost = 0;
	add(&in->xoffs, 1);
	send_event(port, number, EVENT_XOFF, now);
	/* Another CPU may have emptied the queue meanwhile and found the state open: then nothing else would send Xon. */
	return resume(in, rule, node, port, number);
}

INLINE int refuse(struct counters *counters, __u32 cause, __u32 bytes)
{
	add(&counters->cell->drops[cause], counters->packets);
	add(&counters->cell->drop_bytes, bytes);
	if (counters->node)
		add(&counters->node->drops, counters->packets);
	return TC_ACT_SHOT;
}

INLINE int lack_headroom(struct counters *counters, __u32 bytes)
{
	struct ingress *in = counters->in;

	add(&in->drops, counters->packets);
	add(&in->drop_bytes, bytes);
	raise_maximum(&in->headroom_high, excess(in->occupancy + bytes, counters->in_rule->xoff));
	raise_maximum(&in->lost_high, add(&in->lost, bytes) + bytes);
	return DROP_HEADROOM;
}

/* An empty switch has nothing charged. After a change of thresholds, or a link that went down with packets, a remainder
 * may be left: the first packet resets it. It reads `used` again, since another packet may have followed it. */
INLINE void reset_remainder(struct node *node, __u32 bytes)
{
	__u64 shared = node->shared_used, headroom = node->headroom_used;

	if ((shared || headroom) && *(volatile __u64 *)&node->used == bytes) {
		add(&node->shared_used, -shared);
		add(&node->headroom_used, -headroom);
	}
}

/* Update the shares of a switch for an ingress queue that changes from `was` to `occupancy` bytes. */
INLINE void share_ingress(const struct counters *counters, __u64 was, __u64 occupancy)
{
	const struct policy *rule = counters->in_rule;
	__u64 shared = shared_part(rule, occupancy) - shared_part(rule, was);
	__u64 headroom = excess(occupancy, rule->xoff) - excess(was, rule->xoff);

	if (shared)
		add(&counters->node->shared_used, shared);
	if (headroom)
		raise_maximum(&counters->node->headroom_high, add(&counters->node->headroom_used, headroom) + headroom);
}

INLINE void share_egress(const struct counters *counters, __u64 was, __u64 depth)
{
	__u64 shared = excess(depth, counters->rule->reserve) - excess(was, counters->rule->reserve);

	if (shared)
		add(&counters->node->shared_used, shared);
}

#define ADMITTED CAUSES

/* Admit and count the packet if there is room; else return the cause. ahead: set to the bytes before it. */
INLINE int charge(struct counters *counters, __u32 number, __u32 bytes, __u64 *ahead)
{
	struct cell *cell = counters->cell;
	struct policy *rule = counters->rule;
	struct node *node = counters->node;
	struct ingress *in = counters->in;
	__u32 lossless = rule->flags & POLICY_PFC;
	__u64 used, occupancy = 0;

	if ((node ? node->used : cell->depth) + bytes > rule->buffer)
		return DROP_BUFFER;
	if (node && lossless && in) {
		if (in->occupancy + bytes > counters->in_rule->xoff + counters->in_rule->headroom)
			return lack_headroom(counters, bytes);
	} else if (node && cell->depth + bytes > threshold(rule, node)) {
		return DROP_THRESHOLD;
	}
	if (node) { /* `used` is added first and subtracted last: see reset_remainder() */
		used = add(&node->used, bytes);
		if (!used)
			reset_remainder(node, bytes);
		raise_maxima(&node->peak, &node->high_water, used + bytes);
		add(counters->transit, bytes);
	}
	*ahead = add(&cell->depth, bytes);
	raise_maxima(&cell->peak, &cell->high_water, *ahead + bytes);
	add(&cell->in_packets, counters->packets);
	add(&cell->in_bytes, bytes);
	if (node && !lossless)
		share_egress(counters, *ahead, *ahead + bytes);
	if (!node || !in)
		return ADMITTED;
	occupancy = add(&in->occupancy, bytes) + bytes;
	raise_maxima(&in->peak, &in->high_water, occupancy);
	if (lossless) {
		share_ingress(counters, occupancy - bytes, occupancy);
		raise_maximum(&in->headroom_high, excess(occupancy, counters->in_rule->xoff));
		if (!in->state && occupancy > xoff_now(counters->in_rule, node))
			pause(in, counters->in_rule, node, counters->in_port, number);
	}
	return ADMITTED;
}

/* Count bytes as having left; return the bytes that remain, or all ones if they were never counted in. */
INLINE __u64 release(struct counters *counters, __u32 number, __u64 bytes)
{
	__u32 lossless = counters->rule->flags & POLICY_PFC;
	struct cell *cell = counters->cell;
	struct node *node = counters->node;
	struct ingress *in = counters->in;
	__u64 depth = add(&cell->depth, -bytes), occupancy;

	if (depth < bytes) {
		add(&cell->depth, bytes);
		add(&cell->strays, 1);
		return -1;
	}
	add(&cell->out_bytes, bytes);
	if (!node)
		return depth - bytes;
	add(counters->transit, -bytes);
	if (!lossless)
		share_egress(counters, depth, depth - bytes);
	if (in) {
		occupancy = add(&in->occupancy, -bytes);
		if (lossless)
			share_ingress(counters, occupancy, occupancy - bytes);
		if (in->state)
			resume(in, counters->in_rule, node, counters->in_port, number);
	}
	add(&node->used, -bytes);
	return depth - bytes;
}

#endif
