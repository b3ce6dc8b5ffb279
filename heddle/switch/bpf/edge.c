/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * The way from a user's device to the port that it is attached to.
 *
 * `edge` is at clsact ingress of the wire's end in the host's namespace. It drops and counts apart what a NIC with this
 * port's address does not send, and sends everything else by the port, where queue, gate and counters act on it.
 * `to_egress` and `to_ingress` connect the other end of the wire to a device that stays where it is.
 * Each filter's classid is the id of the port for `edge`, and the interface index of the target for the other two.
 */
#include "roce.h"
#include "wire.h"

#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88a8
#define BPF_F_INGRESS 1
#define IPPROTO_TCP 6
#define IPPROTO_ICMPV6 58
#define TCP_BYTES 20
#define ND_FIRST 133 /* router solicitation; the next two have advertisements, then solicitations of neighbours */
#define ND_SOLICIT 135
#define ND_ADVERT 136
#define PASSES -1

struct frame_start {
	__u8 dst[ETH_ALEN];
	__u8 src[ETH_ALEN];
	__u16 type;
};

struct udp_ports {
	__u16 sport;
	__u16 dport;
	__u16 length;
	__u16 checksum;
};

/* length: of the IP payload in bytes. A fragment behind the first one has no header. */
INLINE int transport_fault(struct __sk_buff *skb, __u32 at, __u32 protocol, __u32 length)
{
	struct udp_ports udp;

	if (protocol == IPPROTO_TCP)
		return length < TCP_BYTES ? MALFORMED : PASSES;
	if (protocol != IPPROTO_UDP)
		return PASSES;
	if (length < UDP_BYTES || bpf_skb_load_bytes(skb, at, &udp, sizeof(udp)) || ntohs(udp.length) < UDP_BYTES)
		return MALFORMED;
	if (udp.dport == htons(ROCE_PORT) && length < UDP_BYTES + BTH_BYTES + ICRC_BYTES)
		return MALFORMED;
	return PASSES;
}

INLINE int ipv4_fault(struct __sk_buff *skb, const struct wire *wire)
{
	__u32 ihl, length;
	struct ipv4 ip;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return MALFORMED;
	ihl = (ip.version_ihl & 0xf) * 4;
	length = ntohs(ip.length);
	if (ip.version_ihl >> 4 != 4 || ihl < sizeof(ip) || length < ihl || ETH_HLEN + length > skb->len)
		return MALFORMED;
	if (ip.saddr != wire->saddr[3])
		return SPOOFED;
	if ((ip.daddr & 0xf0) == 0xe0 || ip.daddr == 0xffffffff)
		return MULTICAST;
	if (ip.fragment & htons(0x1fff))
		return PASSES;
	return transport_fault(skb, ETH_HLEN + ihl, ip.protocol, length - ihl);
}

INLINE int ipv6_fault(struct __sk_buff *skb, const struct wire *wire)
{
	struct ipv6 ip;
	__u32 length;
	__u8 type;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return MALFORMED;
	length = ntohs(ip.length);
	if ((ip.version_flow & 0xf0) != 0x60 || ETH_HLEN + sizeof(ip) + length > skb->len)
		return MALFORMED;
	if (ip.next_header == IPPROTO_ICMPV6) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN + sizeof(ip), &type, sizeof(type)))
			return MALFORMED;
		if (type == ND_SOLICIT || type == ND_ADVERT)
			return PASSES;
	}
	if ((ip.daddr[0] & 0xff) == 0xff)
		return MULTICAST;
	if (ip.saddr[0] != wire->saddr[0] || ip.saddr[1] != wire->saddr[1] || ip.saddr[2] != wire->saddr[2] ||
	    ip.saddr[3] != wire->saddr[3])
		return SPOOFED;
	return transport_fault(skb, ETH_HLEN + sizeof(ip), ip.next_header, length);
}

INLINE int arp_fault(struct __sk_buff *skb, const struct wire *wire)
{
	__u32 sender;

	if (bpf_skb_load_bytes(skb, ARP_SPA, &sender, sizeof(sender)) || skb->len < ARP_THA + ETH_ALEN + 4)
		return MALFORMED;
	return sender && sender != wire->saddr[3] ? SPOOFED : PASSES; /* 0: is the address in use (RFC 5227)? */
}

INLINE int fault_of(struct __sk_buff *skb, const struct frame_start *start, const struct wire *wire)
{
	if (skb->vlan_present || start->type == htons(ETH_P_8021Q) || start->type == htons(ETH_P_8021AD))
		return TAGGED;
	if (skb->len > wire->mtu + ETH_HLEN)
		return JUMBO;
	if (start->type == htons(ETH_P_ARP))
		return arp_fault(skb, wire);
	if (start->dst[0] & 1 && start->type != htons(ETH_P_IPV6))
		return MULTICAST;
	if (start->type == htons(ETH_P_IP))
		return ipv4_fault(skb, wire);
	if (start->type == htons(ETH_P_IPV6))
		return ipv6_fault(skb, wire);
	return OTHER;
}

SEC("tc")
int edge(struct __sk_buff *skb)
{
	__u32 number = skb->tc_classid, bytes = skb->len;
	struct wire *wire = bpf_map_lookup_elem(&wires, &number);
	struct frame_start start;
	int fault = MALFORMED;

	if (!wire || skb->protocol == htons(ETH_P_KICK)) /* a kick is for the queue of the wire: plugins/attach */
		return TC_ACT_SHOT;
	if (!bpf_skb_load_bytes(skb, 0, &start, sizeof(start)))
		fault = fault_of(skb, &start, wire);
	if (fault >= 0) {
		if (fault < CAUSES_APART)
			__sync_fetch_and_add(&wire->apart[fault], 1);
		return TC_ACT_SHOT;
	}
	__sync_fetch_and_add(&wire->in_packets, 1);
	__sync_fetch_and_add(&wire->in_bytes, bytes);
	if (differ(start.src, wire->own))
		__builtin_memcpy(wire->own, start.src, ETH_ALEN);
	if (differ(start.src, wire->mac)) { /* a guest's device has a MAC of its own: the switch must not learn it */
		__builtin_memcpy(start.src, wire->mac, ETH_ALEN);
		bpf_skb_store_bytes(skb, ETH_ALEN, start.src, ETH_ALEN, 0);
		if (start.type == htons(ETH_P_ARP))
			bpf_skb_store_bytes(skb, ARP_SHA, start.src, ETH_ALEN, 0);
	}
	skb->mark = 0;
	return (int)bpf_redirect(wire->port, 0);
}

SEC("tc")
int to_egress(struct __sk_buff *skb)
{
	return (int)bpf_redirect(skb->tc_classid, 0);
}

SEC("tc")
int to_ingress(struct __sk_buff *skb)
{
	return (int)bpf_redirect(skb->tc_classid, BPF_F_INGRESS);
}

char _license[] SEC("license") = "Dual BSD/GPL";
