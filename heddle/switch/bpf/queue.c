/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * Exact queues of every port: `enqueue` at clsact egress, before the port's qdisc; `dequeue` at clsact ingress of the
 * port at the other end, which sees a packet after it has left that qdisc. The bytes between the two are the depth.
 * One object for a whole lab. Each filter's classid leads to the id of its port (port_of).
 *
 * Metadata of a packet: `enqueue` sets skb->hash to a stamp, which survives the link; `dequeue` sets skb->mark to the
 * ingress port, which survives the switch. skb->priority selects the class in the qdisc.
 */
#include "port.h"
#include "ecn.h"
#include "pfc.h"
#include "fault.h"
#include "trim.h"
#include "cut.h"

#define IPPROTO_ICMPV6 58
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88a8
#define VLAN_HLEN 4
#define ND_FIRST 133 /* router solicitation */
#define ND_LAST 137 /* redirect */

#define STAMP 0x1a5au /* 13 bits; then 3 of the class, RED_MAY_MARK, and 15 of the ingress port's index, from 1 */
#define STAMP_SHIFT 19
#define STAMP_PORT 0x7fff
#define RED_MAY_MARK 0x8000u /* arrived ECN-capable and unmarked: if marked after the queue, `dequeue` counts it */
/* The class of a packet, by its DSCP. Packets other than IP, and IPv6 neighbour discovery, are control.
 * ecn: set to the two bits of RFC 3168; 0 (not ECN-capable) for packets other than IP. */
INLINE __u32 class_of(struct __sk_buff *skb, const struct classes *classes, __u32 *ecn)
{
	void *data = (void *)(unsigned long)skb->data, *end = (void *)(unsigned long)skb->data_end;
	__u8 copied[7], *ip = data + ETH_HLEN, type, tos;

	*ecn = 0;
	if (skb->protocol != htons(ETH_P_IP) && skb->protocol != htons(ETH_P_IPV6))
		return classes->control;
	if (data + ETH_HLEN + sizeof(copied) > end) { /* a host's packet socket leaves all but 14 bytes in pages */
		if (bpf_skb_load_bytes(skb, ETH_HLEN, copied, sizeof(copied)))
			return classes->control;
		ip = copied;
	}
	tos = skb->protocol == htons(ETH_P_IP) ? ip[1] : (ip[0] & 0xf) << 4 | ip[1] >> 4;
	*ecn = tos & ECN_CE;
	if (skb->protocol == htons(ETH_P_IPV6) && ip[6] == IPPROTO_ICMPV6 &&
	    !bpf_skb_load_bytes(skb, ETH_HLEN + 40, &type, 1) && type >= ND_FIRST && type <= ND_LAST)
		return classes->control;
	return classes->of_dscp[tos >> 2];
}

/* Bytes of a packet when it reaches the peer. The queue may hold it as one packet, which is segmented on leaving (the
 * kernel segments a host's TCP and UDP in any case). A VLAN tag is removed before the peer's programs see the frame. */
INLINE __u32 length_of(const struct __sk_buff *skb)
{
	__u32 bytes = skb->wire_len;

	if (!skb->vlan_present && (skb->protocol == htons(ETH_P_8021Q) || skb->protocol == htons(ETH_P_8021AD)))
		return bytes - VLAN_HLEN;
	return bytes;
}

/* The agent's row of a class that may be paused; 0 for all others. */
INLINE struct agent *agent_row(const struct policy *rule, __u32 port, __u32 number)
{
	__u32 row = port * CLASSES + number;

	return rule->flags & POLICY_PFC ? bpf_map_lookup_elem(&agent, &row) : 0;
}

/* The agent opens a gate in time, or else its keeper does. If both were killed at once, the class bypasses its gate. */
INLINE int gate_is_overdue(const struct agent *by_agent)
{
	__u64 until = by_agent->until_ns;

	return until && bpf_ktime_get_ns() > until + GATE_GRACE_NS;
}

/* Whether the watchdog drops the class at this port. The agent ends a storm that has had no pause frame for the
 * restoration time. If agent and keeper were both killed at once, it ends here. */
INLINE int storm_drops(const struct agent *by_agent, const struct policy *rule, __u32 port, __u32 number)
{
	__u32 row = port * CLASSES + number;
	struct gate *gate;
	__u64 last;

	if (!by_agent || by_agent->watchdog != WATCHDOG_DROP)
		return 0;
	last = by_agent->storm_since_ns;
	gate = bpf_map_lookup_elem(&gates, &row);
	if (gate && gate->last_ns > last)
		last = gate->last_ns;
	return bpf_ktime_get_ns() <= last + rule->restore_ns + GATE_GRACE_NS;
}

SEC("tc")
int enqueue(struct __sk_buff *skb)
{
	__u32 port = port_of(skb), zero = 0, bytes = length_of(skb), mark_in = skb->mark, number, local, stamp, ecn;
	struct link *link = bpf_map_lookup_elem(&links, &port);
	struct classes *classes = bpf_map_lookup_elem(&dscp, &zero);
	struct cell *cut_at = 0; /* the class that refused the packet, which was then trimmed */
	__u32 whole = bytes, verdict;
	struct agent *by_agent;
	struct counters counters;
	__u64 ahead;

	if (!link || !link->peer || !classes || mark_in >> 16 == TRIMMED)
		return TC_ACT_UNSPEC;
	if (skb->protocol == htons(ETH_P_KICK)) {
		skb->priority = KICK_PRIORITY;
		return TC_ACT_UNSPEC;
	}
	number = class_of(skb, classes, &ecn) & (CLASSES - 1);
	local = mark_in >> 16 == MARK ? mark_in & 0xffff : 0;
again:
	if (!find_counters(&counters, link, port, number, local) || !counters.rule->kind)
		return TC_ACT_UNSPEC; /* no policy yet: the lab is being set up, and not every `dequeue` is in place */
	if (skb->gso_segs)
		counters.packets = skb->gso_segs;
	by_agent = agent_row(counters.rule, port, number);
	if (link->flags & LINK_DOWN)
		verdict = DROP_DOWN;
	else if (storm_drops(by_agent, counters.rule, port, number))
		verdict = DROP_WATCHDOG;
	else
		verdict = charge(&counters, number, bytes, &ahead);
	if (verdict != ADMITTED) {
		if (cut_at) {
			counters.cell = cut_at;
			return refuse(&counters, DROP_TRIM, whole);
		}
		if (!counters.rule->trim || (verdict != DROP_BUFFER && verdict != DROP_THRESHOLD) ||
		    !cut(skb, counters.rule->trim))
			return refuse(&counters, verdict, bytes);
		number = counters.rule->trim >> TRIM_QUEUE & (CLASSES - 1);
		bytes = skb->len;
		cut_at = counters.cell;
		add(&cut_at->trims, 1);
		asm volatile("" : "+r"(cut_at)); /* one copy of this code, not one for trimmed packets */
		goto again;
	}
	if (cut_at) {
		add(&cut_at->trim_sent, 1);
		add(&cut_at->trim_bytes, whole - bytes);
	}
	if (ecn == ECN_CE)
		add(&counters.cell->ce_in, counters.packets);
	skb->priority = by_agent && gate_is_overdue(by_agent) ? counters.rule->fallback : counters.rule->priority;
	stamp = STAMP << STAMP_SHIFT | number << 16 | (counters.in ? local & STAMP_PORT : 0);
	if (counters.rule->flags & POLICY_RED && can_be_marked(ecn))
		stamp |= RED_MAY_MARK;
	bpf_set_hash(skb, stamp);
	if ((counters.rule->flags & (POLICY_ECN | POLICY_AT_DEQUEUE)) == POLICY_ECN)
		mark(skb, counters.rule, counters.cell, ahead);
	if (counters.rule->flags & POLICY_LAST_HOP && !counters.rule->trim)
		restore(skb);
	if (!cut_at)
		return TC_ACT_UNSPEC;
	skb->mark = TRIMMED << 16;
	return (int)bpf_redirect(skb->ifindex, 0);
}

/* A packet leaves the queue of `port`, as its stamp says; `me` is the port at the other end of the link. */
static __attribute__((noinline)) int leave(struct __sk_buff *skb, struct link *link, __u32 stamp)
{
	__u32 bytes = skb->len, number = stamp >> 16 & (CLASSES - 1), port = link->peer;
	struct link *sender = bpf_map_lookup_elem(&links, &port);
	struct agent *by_agent;
	struct counters counters;
	__u64 left;

	if (!sender || !find_counters(&counters, sender, port, number, stamp & STAMP_PORT))
		return TC_ACT_UNSPEC;
	bpf_set_hash_invalid(skb); /* the stamp must not be used as the hash of a flow */
	if (sender->flags & LINK_DOWN)
		return TC_ACT_SHOT; /* user space corrects these counters */
	left = release(&counters, number, bytes);
	add(&counters.cell->out_packets, 1);
	by_agent = agent_row(counters.rule, port, number);
	if (by_agent && by_agent->until_ns)
		counters.cell->last_out_ns = bpf_ktime_get_ns();
	if (!(link->flags & LINK_HOST))
		skb->mark = MARK << 16 | (link->local + 1);
	if ((counters.rule->flags & (POLICY_ECN | POLICY_AT_DEQUEUE)) == (POLICY_ECN | POLICY_AT_DEQUEUE) && left != -1ULL)
		mark(skb, counters.rule, counters.cell, left);
	if (stamp & RED_MAY_MARK && ecn_of(skb) == ECN_CE)
		add(&counters.cell->marks, 1);
	if (storm_drops(by_agent, counters.rule, port, number))
		return refuse(&counters, DROP_WATCHDOG, bytes);
	if (sender->flags & LINK_FAULT)
		return meet_fault(skb, &counters, port, bytes);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int dequeue(struct __sk_buff *skb)
{
	__u32 me = port_of(skb), stamp = skb->hash, kind = stamp >> STAMP_SHIFT;
	struct link *link;

	if (skb->protocol == htons(ETH_P_MAC_CONTROL))
		return mac_control(skb);
	if (left_its_link(skb) || (kind != STAMP && kind != CROSSED))
		return TC_ACT_UNSPEC;
	link = bpf_map_lookup_elem(&links, &me);
	if (!link)
		return TC_ACT_UNSPEC;
	if (kind == STAMP)
		return leave(skb, link, stamp);
	bpf_set_hash_invalid(skb);
	if (!(link->flags & LINK_HOST))
		skb->mark = MARK << 16 | (link->local + 1);
	return TC_ACT_UNSPEC;
}

/* At ingress of a stub: `dequeue` of the other end, which is on another kernel: port_of is the id of that port. */
SEC("tc")
int cut_out(struct __sk_buff *skb)
{
	__u32 far = port_of(skb), stamp = skb->hash;
	struct link *link = bpf_map_lookup_elem(&links, &far);
	int fate;

	if (!link)
		return TC_ACT_SHOT;
	if (skb->protocol != htons(ETH_P_MAC_CONTROL) && !left_its_link(skb) && stamp >> STAMP_SHIFT == STAMP) {
		fate = leave(skb, link, stamp);
		if (fate != TC_ACT_UNSPEC)
			return fate;
	}
	return cross(skb, far);
}

/* At the end of a delay line; its classid is the id of the sending port. */
SEC("tc")
int back(struct __sk_buff *skb)
{
	__u32 sender = skb->tc_classid;
	struct fault *fault = bpf_map_lookup_elem(&faults, &sender);

	return fault && fault->port ? (int)bpf_redirect(fault->port, BPF_F_INGRESS) : TC_ACT_SHOT;
}

/* For user space, by BPF_PROG_TEST_RUN: bytes were lost after a port's `enqueue`, because its link went down, or on
 * their way to the peer's `dequeue`. cb: the port; class (8 bits) and ingress index above it; bytes. When no bytes are
 * left, the lost packets are counted, too. */
SEC("tc")
int credit(struct __sk_buff *skb)
{
	__u32 port = skb->cb[0], number = skb->cb[1] & (CLASSES - 1), local = skb->cb[1] >> 8;
	__u64 bytes = skb->cb[2] | (__u64)skb->cb[3] << 32, left, lost;
	struct link *link = bpf_map_lookup_elem(&links, &port);
	struct counters counters;

	if (!link || !find_counters(&counters, link, port, number, local))
		return TC_ACT_SHOT;
	left = release(&counters, number, bytes);
	if (left == -1ULL)
		return TC_ACT_SHOT;
	add(&counters.cell->drop_bytes, bytes);
	if (left)
		return TC_ACT_UNSPEC;
	lost = counters.cell->in_packets - counters.cell->out_packets;
	add(&counters.cell->out_packets, lost);
	if (link->flags & LINK_DOWN)
		add(&counters.cell->drops[DROP_DOWN], lost);
	return TC_ACT_UNSPEC;
}

/* Also by BPF_PROG_TEST_RUN: add to a switch's used shared buffer and headroom. cb: node; both, in two words each. */
SEC("tc")
int settle(struct __sk_buff *skb)
{
	__u32 index = skb->cb[0];
	struct node *node = bpf_map_lookup_elem(&switches, &index);

	if (!node)
		return TC_ACT_SHOT;
	add(&node->shared_used, skb->cb[1] | (__u64)skb->cb[2] << 32);
	add(&node->headroom_used, skb->cb[3] | (__u64)skb->cb[4] << 32);
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
