/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * The parser of RoCEv2 headers, over IPv4 or IPv6.
 */
#ifndef HEDDLE_ROCE_H
#define HEDDLE_ROCE_H
#include "heddle.h"

#define IP_FRAGMENT 0x3fff /* more-fragments bit and offset: 0 only for a whole datagram */

struct ipv4 {
	__u8 version_ihl;
	__u8 tos;
	__u16 length;
	__u16 id;
	__u16 fragment;
	__u8 ttl;
	__u8 protocol;
	__u16 checksum;
	__u32 saddr;
	__u32 daddr;
};

struct ipv6 {
	__u32 version_flow; /* 4 bits of version, 8 of traffic class, 20 of flow label */
	__u16 length; /* of what follows this header */
	__u8 next_header;
	__u8 hop_limit;
	__u32 saddr[4];
	__u32 daddr[4];
};

struct udp_bth {
	__u32 ports;
	__u16 length;
	__u16 checksum;
	__u8 opcode;
	__u8 flags;
	__u16 pkey;
	__u32 dest_qp; /* 8 reserved bits (fecn and becn among them), 24 bits of QP number */
	__u32 psn;
};

/* The fields that identify a RoCEv2 flow, and those needed to forward it. */
struct roce {
	__u32 saddr[4]; /* network byte order; IPv4 as ::ffff:a.b.c.d */
	__u32 daddr[4];
	__u32 ports; /* source, destination: the first word of the UDP header, also in network byte order */
	__u32 qpn; /* host byte order, as all fields below */
	__u32 udf; /* the field that hash.c's rule hashes in addition to addresses and ports */
	__u32 l4; /* where the UDP header starts in the frame */
	__u32 tos_flow; /* IPv4: type of service; IPv6: traffic class and flow label, network byte order */
	__u16 length; /* of the packet, from its IP header on */
	__u8 family;
	__u8 ttl;
	__u8 plain; /* no IP options */
	__u8 pad;
	__u16 checksum; /* IPv4: of the header, unchanged from the packet */
};

struct ipv4_udp {
	struct ipv4 ip;
	struct udp_bth udp;
};

struct ipv6_udp {
	struct ipv6 ip;
	struct udp_bth udp;
};

INLINE int roce_udp(const struct udp_bth *udp, struct roce *flow)
{
	if ((udp->ports & htonl(0xffff)) != htonl(ROCE_PORT))
		return 0;
	flow->ports = udp->ports;
	flow->qpn = ntohl(udp->dest_qp) & 0xffffff;
	return 1;
}

/* All headers in one call: a packet's payload, and often its UDP header, is in pages, which each call has to search. */
INLINE int roce_ipv4(struct __sk_buff *skb, struct roce *flow)
{
	struct ipv4_udp head;
	struct ipv4 *ip = &head.ip;
	__u32 ihl;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &head, sizeof(head)))
		return 0;
	ihl = (ip->version_ihl & 0xf) * 4;
	if (ip->version_ihl >> 4 != 4 || ihl < sizeof(*ip) || ip->protocol != IPPROTO_UDP)
		return 0;
	if (ip->fragment & htons(IP_FRAGMENT))
		return 0;
	flow->l4 = ETH_HLEN + ihl;
	flow->plain = ihl == sizeof(*ip);
	if (!flow->plain && bpf_skb_load_bytes(skb, flow->l4, &head.udp, sizeof(head.udp)))
		return 0;
	flow->saddr[0] = flow->saddr[1] = 0;
	flow->daddr[0] = flow->daddr[1] = 0;
	flow->saddr[2] = flow->daddr[2] = htonl(0xffff);
	flow->saddr[3] = ip->saddr;
	flow->daddr[3] = ip->daddr;
	flow->tos_flow = ip->tos;
	flow->length = ntohs(ip->length);
	flow->family = AF_INET;
	flow->ttl = ip->ttl;
	flow->checksum = ip->checksum;
	return roce_udp(&head.udp, flow);
}

/* Extension headers are not followed: RoCEv2 packets have none. */
INLINE int roce_ipv6(struct __sk_buff *skb, struct roce *flow)
{
	struct ipv6_udp head;
	struct ipv6 *ip = &head.ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &head, sizeof(head)))
		return 0;
	if ((ip->version_flow & 0xf0) != 0x60 || ip->next_header != IPPROTO_UDP)
		return 0;
	__builtin_memcpy(flow->saddr, ip->saddr, sizeof(ip->saddr));
	__builtin_memcpy(flow->daddr, ip->daddr, sizeof(ip->daddr));
	flow->l4 = ETH_HLEN + sizeof(*ip);
	flow->tos_flow = ip->version_flow & htonl(0x0fffffff);
	flow->length = ntohs(ip->length) + sizeof(*ip);
	flow->family = AF_INET6;
	flow->ttl = ip->hop_limit;
	flow->plain = 1;
	flow->checksum = 0;
	return roce_udp(&head.udp, flow);
}

/* Read the flow of a RoCEv2 packet. 0: it is something else (not IP, a fragment, another port, cut short).
 * bpf_skb_load_bytes, not direct access: it works for every layout of the packet in pages. */
INLINE int roce_flow(struct __sk_buff *skb, struct roce *flow)
{
	if (skb->protocol == htons(ETH_P_IP))
		return roce_ipv4(skb, flow);
	if (skb->protocol == htons(ETH_P_IPV6))
		return roce_ipv6(skb, flow);
	return 0;
}

#endif
