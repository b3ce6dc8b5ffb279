/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * Packet trimming: a UDP datagram that its class's buffer refuses is cut to its headers, and offered to the trim queue.
 *
 * Between switches a trimmed packet has the IP length of what is left, since Linux drops packets whose IP length is
 * beyond the frame (ip_rcv_core). The UDP length stays. So the port to a host can put the original IP length back: the
 * form in which switch chips send it.
 */
#ifndef HEDDLE_TRIM_H
#define HEDDLE_TRIM_H
#include "ecn.h"
#include "roce.h"

#define KEEP 64 /* no DSCP */
#define IPPROTO_IPIP 4
#define IPPROTO_IPV6 41
#define IPPROTO_ROUTING 43
#define MRC_ANSWERS 0xdc /* to 0xde: SACK, NACK, probe */

static long (*bpf_skb_change_tail)(struct __sk_buff *skb, __u32 len, __u64 flags) = (void *)38;

/* Where the UDP header behind the IP header at `at` starts; 0: none, a fragment, or behind options. */
static __attribute__((noinline)) int udp_at(struct __sk_buff *skb, __u32 at)
{
	__u8 ip[10];

	if (bpf_skb_load_bytes(skb, at, ip, sizeof(ip)))
		return 0;
	if (ip[0] == 0x45)
		return ip[9] == IPPROTO_UDP && !(ip[6] & 0x3f) && !ip[7] ? at + IPV4_BYTES : 0;
	return ip[0] >> 4 == 6 && ip[6] == IPPROTO_UDP ? at + IPV6_BYTES : 0;
}

/* Where the IP header inside of an IPv6 one starts, also behind a segment routing header (RFC 8754); 0: none. */
INLINE __u32 inner_at(struct __sk_buff *skb)
{
	__u32 at = ETH_HLEN + IPV6_BYTES;
	__u8 next, routing[2];

	if (skb->protocol != htons(ETH_P_IPV6) || bpf_skb_load_bytes(skb, ETH_HLEN + 6, &next, 1))
		return 0;
	if (next == IPPROTO_ROUTING && !bpf_skb_load_bytes(skb, at, routing, sizeof(routing))) {
		next = routing[0];
		at += 8 + routing[1] * 8;
	}
	return next == IPPROTO_IPIP || next == IPPROTO_IPV6 ? at : 0;
}

/* Set DSCP and length of the IP header at `at`. The IPv4 checksum follows (RFC 1624, equation 3); the order of bytes in
 * a word does not matter to it. length: from this header on. */
static __attribute__((noinline)) int set_head(struct __sk_buff *skb, __u32 at, __u32 dscp, __u32 length)
{
	__u16 words[6];
	__u8 *ip = (__u8 *)words;
	__u32 sum;

	if (bpf_skb_load_bytes(skb, at, words, sizeof(words)))
		return 0;
	if (ip[0] >> 4 == 6) {
		if (dscp != KEEP) {
			ip[0] = 0x60 | dscp >> 2;
			ip[1] = (ip[1] & 0x3f) | dscp << 6;
		}
		words[2] = htons(length - IPV6_BYTES);
	} else {
		sum = (0xffff & ~words[5]) + (0xffff & ~words[0]) + (0xffff & ~words[1]);
		if (dscp != KEEP)
			ip[1] = (ip[1] & ECN_CE) | dscp << 2;
		words[1] = htons(length);
		sum += words[0] + words[1];
		sum = (sum & 0xffff) + (sum >> 16);
		words[5] = ~(sum + (sum >> 16));
	}
	return !bpf_skb_store_bytes(skb, at, words, sizeof(words), BPF_F_RECOMPUTE_CSUM);
}

/* Whether a RoCEv2 packet answers others: ACK, CNP, and those of MRC. */
INLINE int is_answer(const struct udp_bth *udp)
{
	__u8 kind = udp->opcode & 0x1f;

	return (udp->ports & htonl(0xffff)) == htonl(ROCE_PORT) &&
	       (kind == OP_ACK || kind == ATOMIC_ACK || udp->opcode == OP_CNP ||
		(udp->opcode >= MRC_ANSWERS && udp->opcode <= MRC_ANSWERS + 2));
}

/* Cut the packet; 0 if it stays whole: short, not eligible, or without room for a BTH. to: policy.trim. */
static __attribute__((noinline)) int cut(struct __sk_buff *skb, __u32 to)
{
	__u32 end = ETH_HLEN + (to & TRIM_SIZE), at = ETH_HLEN, mark = to >> TRIM_DSCP & 63, zero = 0, l4;
	struct classes *classes = bpf_map_lookup_elem(&dscp, &zero);
	struct udp_bth udp;
	__u16 tos;

	if (!classes || skb->len <= end || skb->gso_segs || bpf_skb_load_bytes(skb, ETH_HLEN, &tos, sizeof(tos)))
		return 0;
	tos = ntohs(tos);
	if (classes->whole >> ((tos >> 12 == 6 ? tos >> 6 : tos >> 2) & 63) & 1)
		return 0;
	l4 = udp_at(skb, at);
	if (!l4) {
		at = inner_at(skb);
		l4 = at ? udp_at(skb, at) : 0;
	}
	if (!l4 || l4 + sizeof(udp) > end || bpf_skb_load_bytes(skb, l4, &udp, sizeof(udp)) || is_answer(&udp) ||
	    bpf_skb_change_tail(skb, end, 0))
		return 0;
	if (at != ETH_HLEN)
		set_head(skb, at, mark, end - at);
	return set_head(skb, ETH_HLEN, mark, end - ETH_HLEN);
}

/* Put the original IP length back into a trimmed packet. */
static __attribute__((noinline)) int restore(struct __sk_buff *skb)
{
	__u32 l4 = udp_at(skb, ETH_HLEN), length;
	__u16 udp;

	if (!l4 || bpf_skb_load_bytes(skb, l4 + 4, &udp, sizeof(udp)))
		return 0;
	length = l4 - ETH_HLEN + ntohs(udp);
	return length > skb->len - ETH_HLEN && set_head(skb, ETH_HLEN, KEEP, length);
}

#endif
