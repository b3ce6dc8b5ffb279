/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * Marking by exact depth: no packet below kmin, then with a probability that grows to pmax at kmax, all packets from
 * kmax on. Each packet is decided independently, as in DCQCN (Zhu et al., SIGCOMM 2015, figure 5), not at even
 * distances as in the kernel's RED. Packets that are not ECN-capable stay unchanged.
 */
#ifndef HEDDLE_ECN_H
#define HEDDLE_ECN_H
#include "queue.h"

#define BPF_F_RECOMPUTE_CSUM 1
#define IPV4_TOS 1 /* offsets behind the Ethernet header */
#define IPV4_CHECKSUM 10

INLINE int is_marked(const struct policy *rule, __u64 depth)
{
	if (depth < rule->kmin)
		return 0;
	if (depth >= rule->kmax)
		return 1;
	return bpf_get_prandom_u32() < rule->pmax * (depth - rule->kmin) / (rule->kmax - rule->kmin);
}

/* The two bits of RFC 3168; 0 (not ECN-capable) for packets other than IP. */
static __attribute__((noinline)) __u32 ecn_of(struct __sk_buff *skb)
{
	__u8 head[2];

	if (bpf_skb_load_bytes(skb, ETH_HLEN, head, sizeof(head)))
		return 0;
	if (skb->protocol == htons(ETH_P_IPV6)) /* the traffic class's low four bits are the second byte's high ones */
		return head[1] >> 4 & ECN_CE;
	return skb->protocol == htons(ETH_P_IP) ? head[IPV4_TOS] & ECN_CE : 0;
}

INLINE int can_be_marked(__u32 ecn)
{
	return ecn && ecn != ECN_CE;
}

/* Returns 1 if the packet was ECN-capable and is now marked. The ICRC excludes the changed bytes (IBTA, annex 17).
 * Not bpf_skb_ecn_set_ce(): it skips packets that share their head with a capture. */
static __attribute__((noinline)) int set_ce(struct __sk_buff *skb)
{
	__u8 head[IPV4_CHECKSUM + 2];
	__u32 ecn, sum;
	__u16 checksum;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, head, sizeof(head)))
		return 0;
	if (skb->protocol == htons(ETH_P_IPV6)) { /* the traffic class's low four bits are the second byte's high ones */
		ecn = head[1] >> 4 & ECN_CE;
		head[1] |= ECN_CE << 4;
		return ecn && ecn != ECN_CE && !bpf_skb_store_bytes(skb, ETH_HLEN + 1, head + 1, 1, BPF_F_RECOMPUTE_CSUM);
	}
	ecn = head[IPV4_TOS] & ECN_CE;
	if (skb->protocol != htons(ETH_P_IP) || !ecn || ecn == ECN_CE)
		return 0;
	head[IPV4_TOS] |= ECN_CE;
	/* RFC 1624, equation 3, for a word that grows by CE - ecn. The sum over the header stays the same. */
	sum = (0xffff & ~(head[IPV4_CHECKSUM] << 8 | head[IPV4_CHECKSUM + 1])) + ECN_CE - ecn;
	checksum = htons((__u16) ~((sum & 0xffff) + (sum >> 16)));
	return !bpf_skb_store_bytes(skb, ETH_HLEN + IPV4_CHECKSUM, &checksum, sizeof(checksum), 0) &&
	       !bpf_skb_store_bytes(skb, ETH_HLEN + IPV4_TOS, head + IPV4_TOS, 1, 0);
}

INLINE void mark(struct __sk_buff *skb, const struct policy *rule, struct cell *cell, __u64 depth)
{
	if (is_marked(rule, depth) && set_ce(skb))
		__sync_fetch_and_add(&cell->marks, 1);
}

#endif
