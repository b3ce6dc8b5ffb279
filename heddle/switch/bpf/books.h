/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * Buffer accounting of a switch: which packets are admitted, which counters they are charged to, and when to pause a
 * peer.
 * Every sum is updated by atomic additions. The change of a switch's shares is a difference f(new) - f(old) of one
 * queue's depth, with the values that the atomic addition to that depth returned. So the shares are exact under
 * concurrency, and all are 0 when the last packet has left.
 */
#ifndef HEDDLE_BOOKS_H
#define HEDDLE_BOOKS_H
#include "queue.h"

#define ALPHA_SHIFT 16
#define add(cell, value) __sync_fetch_and_add(cell, value)

static long (*bpf_ringbuf_output)(void *ring, void *data, __u64 size, __u64 flags) = (void *)130;
#define BPF_RB_FORCE_WAKEUP 2

/* All counters of one packet. node, transit: 0 at a host. in: 0 for packets that the switch itself has sent. */
struct books {
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
INLINE int open_books(struct books *books, const struct link *link, __u32 port, __u32 number, __u32 local)
{
	__u32 zero = 0, row = port * CLASSES + number, cross, node = link->node, *changes, half;

	books->node = 0;
	books->in = 0;
	books->packets = 1;
	changes = bpf_map_lookup_elem(&active, &zero);
	books->cell = bpf_map_lookup_elem(&cells, &row);
	if (!changes || !books->cell)
		return 0;
	half = *changes & 1;
	row = row * 2 + half;
	books->rule = bpf_map_lookup_elem(&policies, &row);
	if (!books->rule)
		return 0;
	if (link->flags & LINK_HOST)
		return 1;
	if (local > link->ports_of_node) /* the mark of other software */
		local = 0;
	cross = link->matrix_base + (local * link->ports_of_node + link->local) * CLASSES + number;
	books->transit = bpf_map_lookup_elem(&transit, &cross);
	books->node = bpf_map_lookup_elem(&switches, &node);
	if (!books->transit || !books->node)
		return 0;
	if (!local)
		return 1;
	books->in_port = port - link->local + local - 1;
	row = books->in_port * CLASSES + number;
	books->in = bpf_map_lookup_elem(&ingress, &row);
	row = row * 2 + half;
	books->in_rule = bpf_map_lookup_elem(&policies, &row);
	return books->in && books->in_rule;
}

INLINE __u64 beyond(__u64 size, __u64 limit)
{
	return size > limit ? size - limit : 0;
}

/* The part of an ingress queue in the shared buffer: below it is the reserve, above it the headroom. */
INLINE __u64 shared_part(const struct policy *rule, __u64 held)
{
	return beyond(held < rule->xoff ? held : rule->xoff, rule->reserve);
}

INLINE void raise(__u64 *most, __u64 now)
{
	__u64 was = *most;

	if (now > was)
		__sync_val_compare_and_swap(most, was, now); /* a lost race makes it wrong by a packet at most */
}

/* peak is never above high_water: one comparison is enough for most packets. */
INLINE void raise_both(__u64 *peak, __u64 *high_water, __u64 now)
{
	if (now > *peak) {
		raise(peak, now);
		raise(high_water, now);
	}
}

/* The dynamic threshold: the limit of one queue, alpha times the free shared buffer (Choudhury and Hahne 1998), and at
 * least its reserve. */
INLINE __u64 threshold(const struct policy *rule, const struct node *node)
{
	long long used = node->shared_used; /* may be below 0 for a moment, when a later difference is added first */
	__u64 most = beyond(rule->shared, used < 0 ? 0 : used) * rule->alpha >> ALPHA_SHIFT;

	return most > rule->reserve ? most : rule->reserve;
}

INLINE __u64 xoff_now(const struct policy *rule, const struct node *node)
{
	__u64 most = threshold(rule, node);

	return most < rule->xoff ? most : rule->xoff;
}

INLINE void tell(__u32 port, __u32 number, __u32 kind, __u64 now)
{
	struct event event = {now, port, kind, number, 0, {}};

	bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
}

/* Resume the peer when the occupancy has fallen to Xon. Xon is as far below the current Xoff as the configured Xon is
 * below the configured Xoff, but at least one frame. If the class does not pause any more, resume at once. */
static __attribute__((noinline)) int resume(struct ingress *in, struct policy *rule, struct node *node, __u32 port,
					    __u32 number)
{
	__u64 low = beyond(xoff_now(rule, node), beyond(rule->xoff, rule->xon)), now;

	if (low < rule->frame)
		low = rule->frame;
	if (rule->flags & POLICY_PFC && *(volatile __u64 *)&in->occupancy > low)
		return 0;
	if (__sync_val_compare_and_swap(&in->state, 1, 0) != 1)
		return 0;
	now = bpf_ktime_get_ns();
	in->since_ns = now;
	tell(port, number, EVENT_XON, now);
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
	tell(port, number, EVENT_XOFF, now);
	/* Another CPU may have emptied the queue meanwhile and found the state open: then nothing else would send Xon. */
	return resume(in, rule, node, port, number);
}

INLINE int refuse(struct books *books, __u32 cause, __u32 bytes)
{
	add(&books->cell->drops[cause], books->packets);
	add(&books->cell->drop_bytes, bytes);
	if (books->node)
		add(&books->node->drops, books->packets);
	return TC_ACT_SHOT;
}

INLINE int refuse_for_headroom(struct books *books, __u32 bytes)
{
	struct ingress *in = books->in;

	add(&in->drops, books->packets);
	add(&in->drop_bytes, bytes);
	raise(&in->headroom_high, beyond(in->occupancy + bytes, books->in_rule->xoff));
	raise(&in->lost_high, add(&in->lost, bytes) + bytes);
	return refuse(books, DROP_HEADROOM, bytes);
}

/* An empty switch has nothing charged. After a change of thresholds, or a link that went down with packets, a remainder
 * may be left: the first packet resets it. It reads `used` again, since another packet may have followed it. */
INLINE void forget(struct node *node, __u32 bytes)
{
	__u64 shared = node->shared_used, headroom = node->headroom_used;

	if ((shared || headroom) && *(volatile __u64 *)&node->used == bytes) {
		add(&node->shared_used, -shared);
		add(&node->headroom_used, -headroom);
	}
}

/* Update the shares of a switch for an ingress queue that changes from `was` to `held` bytes. */
INLINE void share_ingress(const struct books *books, __u64 was, __u64 held)
{
	const struct policy *rule = books->in_rule;
	__u64 shared = shared_part(rule, held) - shared_part(rule, was);
	__u64 headroom = beyond(held, rule->xoff) - beyond(was, rule->xoff);

	if (shared)
		add(&books->node->shared_used, shared);
	if (headroom)
		raise(&books->node->headroom_high, add(&books->node->headroom_used, headroom) + headroom);
}

INLINE void share_egress(const struct books *books, __u64 was, __u64 depth)
{
	__u64 shared = beyond(depth, books->rule->reserve) - beyond(was, books->rule->reserve);

	if (shared)
		add(&books->node->shared_used, shared);
}

/* Admit and count the packet if there is room; else return TC_ACT_SHOT. ahead: set to the bytes before it. */
INLINE int charge(struct books *books, __u32 number, __u32 bytes, __u64 *ahead)
{
	struct cell *cell = books->cell;
	struct policy *rule = books->rule;
	struct node *node = books->node;
	struct ingress *in = books->in;
	__u32 lossless = rule->flags & POLICY_PFC;
	__u64 used, held = 0;

	if ((node ? node->used : cell->depth) + bytes > rule->buffer)
		return refuse(books, DROP_BUFFER, bytes);
	if (node && lossless && in) {
		if (in->occupancy + bytes > books->in_rule->xoff + books->in_rule->headroom)
			return refuse_for_headroom(books, bytes);
	} else if (node && cell->depth + bytes > threshold(rule, node)) {
		return refuse(books, DROP_THRESHOLD, bytes);
	}
	if (node) { /* `used` is added first and subtracted last: see forget() */
		used = add(&node->used, bytes);
		if (!used)
			forget(node, bytes);
		raise_both(&node->peak, &node->high_water, used + bytes);
		add(books->transit, bytes);
	}
	*ahead = add(&cell->depth, bytes);
	raise_both(&cell->peak, &cell->high_water, *ahead + bytes);
	add(&cell->in_packets, books->packets);
	add(&cell->in_bytes, bytes);
	if (node && !lossless)
		share_egress(books, *ahead, *ahead + bytes);
	if (!node || !in)
		return TC_ACT_UNSPEC;
	held = add(&in->occupancy, bytes) + bytes;
	raise_both(&in->peak, &in->high_water, held);
	if (lossless) {
		share_ingress(books, held - bytes, held);
		raise(&in->headroom_high, beyond(held, books->in_rule->xoff));
		if (!in->state && held > xoff_now(books->in_rule, node))
			pause(in, books->in_rule, node, books->in_port, number);
	}
	return TC_ACT_UNSPEC;
}

/* Count bytes as having left; return the bytes that remain, or all ones if they were never counted in. */
INLINE __u64 release(struct books *books, __u32 number, __u64 bytes)
{
	__u32 lossless = books->rule->flags & POLICY_PFC;
	struct cell *cell = books->cell;
	struct node *node = books->node;
	struct ingress *in = books->in;
	__u64 depth = add(&cell->depth, -bytes), held;

	if (depth < bytes) {
		add(&cell->depth, bytes);
		add(&cell->strays, 1);
		return -1;
	}
	add(&cell->out_bytes, bytes);
	if (!node)
		return depth - bytes;
	add(books->transit, -bytes);
	if (!lossless)
		share_egress(books, depth, depth - bytes);
	if (in) {
		held = add(&in->occupancy, -bytes);
		if (lossless)
			share_ingress(books, held, held - bytes);
		if (in->state)
			resume(in, books->in_rule, node, books->in_port, number);
	}
	add(&node->used, -bytes);
	return depth - bytes;
}

#endif
