/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * Hosts whose own kernel sends and receives RoCEv2 (soft-RoCE): pass its packets to the kernel, and count them.
 *
 * `came` runs at clsact ingress of a NIC after `dequeue` and before `nic`. For RoCEv2 it ends the chain, so `nic` does
 * not hide the packet from the kernel. `sent` runs at clsact egress before `enqueue`, so a packet counts although the
 * NIC's own queue may drop it. Rows exist before the first packet (switch/counters.py); other packets do not count.
 * The sequence is that of go-back-N: a packet after a gap is `ahead`, and the receiver does not accept it; a packet
 * with an earlier number is `behind`: it was sent again. Packets of one QP come from one CPU at a time, so only sums
 * need atomic additions.
 */
#include "roce.h"

#define BTH_OFFSET 8 /* from the UDP header */
#define TC_ACT_OK 0 /* ends the chain of programs; the packet continues to the kernel */

struct verbs_key {
	__u16 zero; /* the port, in the map of switches: count.c */
	__u16 sport; /* UDP source port; host byte order, like qpn */
	__u32 qpn; /* destination QP */
	__u32 saddr[4]; /* network byte order; IPv4 as ::ffff:a.b.c.d */
	__u32 daddr[4];
};

struct verbs_row {
	__u64 packets;
	__u64 bytes; /* from the Ethernet header to the ICRC */
	__u64 ce; /* packets with the mark Congestion Experienced */
	__u64 ahead;
	__u64 behind;
	__u64 naks; /* packets that are a NAK, but not of the following kind */
	__u64 rnr; /* packets that say: receiver not ready */
	__u32 next; /* the expected PSN */
	__u32 zero;
};

struct bth_aeth {
	__u8 opcode;
	__u8 flags;
	__u16 pkey;
	__u32 qpn;
	__u32 psn;
	__u8 syndrome; /* of an ACK or NAK */
	__u8 msn[3];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct verbs_key);
	__type(value, struct verbs_row);
} sent_rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct verbs_key);
	__type(value, struct verbs_row);
} came_rows SEC(".maps");

INLINE void count_row(struct __sk_buff *skb, const struct roce *flow, struct verbs_row *row)
{
	struct bth_aeth head;
	__u32 ahead, tos;

	__sync_fetch_and_add(&row->packets, 1);
	__sync_fetch_and_add(&row->bytes, skb->len);
	tos = flow->family == AF_INET ? flow->tos_flow : ntohl(flow->tos_flow) >> 20;
	if ((tos & ECN_CE) == ECN_CE)
		__sync_fetch_and_add(&row->ce, 1);
	/* 16 bytes are always there: the shortest packet has a BTH and an ICRC. */
	if (bpf_skb_load_bytes(skb, flow->l4 + BTH_OFFSET, &head, sizeof(head)))
		return;
	if (head.opcode == OP_ACK && (head.syndrome & SYNDROME_KIND) == (NAK_SEQUENCE & SYNDROME_KIND))
		__sync_fetch_and_add(&row->naks, 1);
	if (head.opcode == OP_ACK && (head.syndrome & SYNDROME_KIND) == RNR_NAK)
		__sync_fetch_and_add(&row->rnr, 1);
	if (head.opcode >= READ_RESPONSE_FIRST && head.opcode <= ATOMIC_ACK)
		return; /* an answer: its PSN is that of a request */
	ahead = (ntohl(head.psn) - row->next) & PSN_MASK;
	if (!ahead)
		row->next = (row->next + 1) & PSN_MASK;
	else if (ahead < PSN_HALF)
		__sync_fetch_and_add(&row->ahead, 1);
	else
		__sync_fetch_and_add(&row->behind, 1);
}

/* Count a packet in its row of `rows`, if there is one. verdict: of RoCEv2 packets. */
INLINE int count_in(struct __sk_buff *skb, void *rows, int verdict)
{
	struct verbs_key key = {};
	struct roce flow = {};
	struct verbs_row *row;

	if (!roce_flow(skb, &flow))
		return TC_ACT_UNSPEC;
	key.sport = ntohs((__u16)flow.ports);
	key.qpn = flow.qpn;
	__builtin_memcpy(key.saddr, flow.saddr, sizeof(key.saddr));
	__builtin_memcpy(key.daddr, flow.daddr, sizeof(key.daddr));
	row = bpf_map_lookup_elem(rows, &key);
	if (row)
		count_row(skb, &flow, row);
	return verdict;
}

SEC("tc")
int came(struct __sk_buff *skb)
{
	return count_in(skb, &came_rows, TC_ACT_OK);
}

SEC("tc")
int sent(struct __sk_buff *skb)
{
	return count_in(skb, &sent_rows, TC_ACT_UNSPEC);
}

char _license[] SEC("license") = "Dual BSD/GPL";
