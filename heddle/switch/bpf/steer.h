/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * Send a packet to a chosen port, in the same form as the kernel would forward it there.
 *
 * The kernel checks the port for each packet: bpf_fib_lookup() with the port as output finds a route only if the port
 * is a live next hop of it, and a second lookup finds the best route. So a link that goes down and a route that BGP
 * withdraws have an immediate effect, and nothing has to watch them.
 */
#ifndef HEDDLE_STEER_H
#define HEDDLE_STEER_H
#include "roce.h"
#include "rules.h"

#define BPF_FIB_LOOKUP_OUTPUT 2
#define ETH_ALEN 6
#define AF_PACKET 17
#define ENOMEM 12

/* include/uapi/linux/bpf.h: struct bpf_fib_lookup. */
struct fib_lookup {
	__u8 family;
	__u8 l4_protocol;
	__u16 ports[2]; /* source, destination */
	__u16 tot_len;
	__u32 ifindex;
	__u32 tos_flow;
	__u32 src[4];
	__u32 dst[4];
	__u32 vlan;
	__u8 smac[ETH_ALEN];
	__u8 dmac[ETH_ALEN];
};

INLINE void fill_lookup(const struct roce *flow, __u32 ifindex, struct fib_lookup *fib)
{
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->family = flow->family;
	fib->l4_protocol = IPPROTO_UDP;
	fib->ports[0] = flow->ports;
	fib->ports[1] = flow->ports >> 16;
	fib->ifindex = ifindex;
	fib->tos_flow = flow->tos_flow;
	if (flow->family == AF_INET) {
		fib->src[0] = flow->saddr[3];
		fib->dst[0] = flow->daddr[3];
	} else {
		__builtin_memcpy(fib->src, flow->saddr, sizeof(fib->src));
		__builtin_memcpy(fib->dst, flow->daddr, sizeof(fib->dst));
	}
}

/* Whether `port` is a live next hop for the packet. If so, fib has the MAC addresses of the link, and tos_flow the
 * metric of the route. */
OUTLINE int is_next_hop(struct __sk_buff *skb, const struct roce *flow, __u32 port, struct fib_lookup *fib)
{
	if (!flow || !fib)
		return 0;
	fill_lookup(flow, port, fib);
	fib->tot_len = flow->length; /* a packet longer than the link's MTU is left to the kernel */
	/* IPv6 returns another next hop if this one is dead. For a nexthop object it always returns the first next hop
	 * (rt6_nh_find_match), so frr.conf.j2 keeps zebra from creating those. */
	return !bpf_fib_lookup(skb, fib, sizeof(*fib), BPF_FIB_LOOKUP_OUTPUT) && fib->ifindex == port;
}

/* Whether the route with that metric, found by a lookup by port, is the one that the kernel would use. In IPv4 a lookup
 * by port skips a route without the port, and finds a worse one or one of a shorter prefix (fib_table_lookup). Two
 * routes with the same metric, to prefixes of different lengths, cannot be distinguished: no result of a lookup depends
 * on the length. IPv6 prefers the port among the routes of the longest prefix only (find_rr_leaf). */
INLINE int is_best(struct __sk_buff *skb, const struct roce *flow, __u32 metric)
{
	struct fib_lookup fib;

	if (flow->family != AF_INET)
		return 1;
	fill_lookup(flow, skb->ifindex, &fib);
	bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	return fib.tos_flow == metric;
}

/* Rewrite the packet for fib's port: MAC addresses, and a TTL decremented by one with a matching checksum (RFC 1141).
 * Returns 0 if it could not be written. */
INLINE int rewrite(struct __sk_buff *skb, const struct roce *flow, const struct fib_lookup *fib)
{
	__u8 macs[2 * ETH_ALEN];
	__u8 ttl = flow->ttl - 1;
	__u32 sum;
	__u16 checksum;

	__builtin_memcpy(macs, fib->dmac, ETH_ALEN);
	__builtin_memcpy(macs + ETH_ALEN, fib->smac, ETH_ALEN);
	if (flow->family == AF_INET) {
		sum = (__u32)flow->checksum + htons(0x0100);
		checksum = sum + (sum >= 0xffff);
		if (bpf_skb_store_bytes(skb, ETH_HLEN + 8, &ttl, sizeof(ttl), 0) ||
		    bpf_skb_store_bytes(skb, ETH_HLEN + 10, &checksum, sizeof(checksum), 0))
			return 0;
	} else if (bpf_skb_store_bytes(skb, ETH_HLEN + 7, &ttl, sizeof(ttl), 0)) {
		return 0;
	}
	return !bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0);
}

/* Prepare the packet for `port` and return 1: the caller then returns send_to(). 0: the kernel has to choose. */
OUTLINE int steer(struct __sk_buff *skb, const struct roce *flow, __u32 port)
{
	struct fib_lookup fib;

	if (!flow)
		return 0;
	/* Broadcast, multicast, packets for other hosts or of a VLAN, IP options, an expiring TTL: left to the kernel. */
	if (!port || skb->pkt_type != PACKET_HOST || skb->vlan_present || !flow->plain || flow->ttl <= 1 ||
	    !is_next_hop(skb, flow, port, &fib) || !is_best(skb, flow, fib.tos_flow) || !rewrite(skb, flow, &fib))
		return 0;
	skb->cb[1] = port; /* for BPF_PROG_TEST_RUN, as cb[0] */
	count_one(skb, STAT_STEERED);
	return 1;
}

/* BPF_PROG_TEST_RUN, which must not send anything, gives the packet a socket: of the packet's family, without a port.
 * Sockets of hosts are packet sockets, or have a port; a raw socket has its protocol there. */
INLINE int is_test_run(const struct __sk_buff *skb, const struct bpf_sock *sk)
{
	return !skb->ingress_ifindex || (sk->family != AF_PACKET && !sk->src_port);
}

/* Send a packet that steer() has prepared, without the socket that it is charged to. The kernel removes the socket from
 * each packet that it forwards (skb_orphan() in ip_rcv_core() and ip6_rcv_core()), but a redirected packet does not get
 * there. With the socket, packets that wait in this switch would count as unsent at the host: a back-pressure that no
 * real fabric has. A clone has no socket. Only a host's packets are cloned, at their first switch. */
OUTLINE int send_to(struct __sk_buff *skb, __u32 port)
{
	struct bpf_sock *sk = skb->sk;

	if (!sk || is_test_run(skb, sk) || bpf_clone_redirect(skb, port, 0) == -ENOMEM)
		return bpf_redirect(port, 0);
	return TC_ACT_STOLEN;
}

#endif
