/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * A link that loses, corrupts, duplicates or delays packets. `dequeue` calls it when a packet has left its queue and all
 * counters of it: shaping, marks, pauses and depths are not affected. Pause frames do not come here.
 *
 * The kernel delays a packet only in a qdisc (netem), and the port's own qdisc is in front of the counters. So the
 * receiving node has a delay line for such a link: a pair of veths, netem at the one, and at the other `back`, which
 * returns each packet to the ingress of its port (not act_mirred: it counts its redirects of one packet on all hops, and
 * newer kernels drop the packet at the fourth). There `dequeue` sees it again and knows it by its mark: within one
 * namespace a mark survives a veth (skb_scrub_packet).
 */
#ifndef HEDDLE_FAULT_H
#define HEDDLE_FAULT_H
#include "accounting.h"
#include "roce.h"

#define MARK 0x5eddu /* 16 bits, and 16 of the ingress port's index, from 1: counted by `dequeue` */
#define LINKED 0x5edeu /* the same, on its link: `dequeue` has counted the packet, and will see it again */
#define BPF_F_INGRESS 1

/* Whether the packet comes from its link, not from a queue. It then gets the mark that `dequeue` gave it. */
INLINE int left_its_link(struct __sk_buff *skb)
{
	__u32 index = skb->mark & 0xffff;

	if (skb->mark >> 16 != LINKED)
		return 0;
	skb->mark = index ? MARK << 16 | index : 0;
	return 1;
}

INLINE int happens(__u32 chance)
{
	return chance && bpf_get_prandom_u32() <= chance;
}

/* Invert one random bit behind the BTH of a RoCEv2 packet: of extended headers, payload or ICRC. Returns 0 when it is
 * another packet: its receiver trusts a veth's checksums. */
static __attribute__((noinline)) int corrupt(struct __sk_buff *skb)
{
	__u32 first, at, random = bpf_get_prandom_u32();
	struct roce flow = {};
	__u8 byte;

	if (!roce_flow(skb, &flow))
		return 0;
	first = flow.l4 + UDP_BYTES + BTH_BYTES;
	if (skb->len <= first)
		return 0;
	at = first + (random >> 3) % (skb->len - first);
	if (bpf_skb_load_bytes(skb, at, &byte, 1))
		return 0;
	byte ^= 1 << (random & 7);
	return !bpf_skb_store_bytes(skb, at, &byte, 1, 0);
}

/* The fate of a packet on its link. Each is drawn on its own: a duplicate of a corrupt packet is corrupt. */
INLINE int fate_of(struct __sk_buff *skb, struct fault *fault, struct counters *counters, __u32 bytes)
{
	__u32 mark = skb->mark, line = fault->line;

	if (happens(fault->loss)) {
		add(&fault->lost, 1);
		add(&counters->cell->fault_bytes, bytes);
		return refuse(counters, DROP_FAULT, bytes);
	}
	if (happens(fault->corrupt) && corrupt(skb))
		add(&fault->corrupted, 1);
	skb->mark = LINKED << 16 | (mark & 0xffff);
	if (happens(fault->duplicate) &&
	    !bpf_clone_redirect(skb, line ? line : skb->ifindex, line ? 0 : BPF_F_INGRESS)) {
		add(&fault->duplicated, 1);
		add(&counters->cell->copies, 1);
		if (line)
			add(&fault->delayed, 1);
	}
	if (line) {
		add(&fault->delayed, 1);
		return bpf_redirect(line, 0);
	}
	skb->mark = mark;
	return TC_ACT_UNSPEC;
}

/* The packet itself is counted last: then all other counters include it. */
INLINE int meet_fault(struct __sk_buff *skb, struct counters *counters, __u32 port, __u32 bytes)
{
	struct fault *fault = bpf_map_lookup_elem(&faults, &port);
	int fate;

	if (!fault)
		return TC_ACT_UNSPEC;
	fate = fate_of(skb, fault, counters, bytes);
	add(&fault->packets, 1);
	return fate;
}

#endif
