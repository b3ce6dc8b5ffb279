/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * Packets by egress port: the measured part of every path proof, of RoCEv2, TCP and UDP.
 *
 * At clsact egress of every port of a switch, before the port's queue: a packet is counted when it is enqueued.
 * Bytes are skb->len: from the Ethernet header to the ICRC.
 *
 * One object for a whole lab, since a packet is counted at every hop: the second hop finds code and maps in the caches
 * that the first one has filled. Each filter's classid leads to the number of its port (port_of).
 */
#include "port.h"
#include "roce.h"

#define IPPROTO_TCP 6
#define IPPROTO_FRAGMENT 44 /* IPv6's header of a fragment */

struct flow_key {
	__u16 port;
	__u16 sport; /* source port; host byte order, like port and qpn */
	__u32 qpn; /* RoCEv2: destination QP, 24 bits. Other TCP and UDP: protocol << 24 | destination port */
	__u32 saddr[4]; /* network byte order; IPv4 as ::ffff:a.b.c.d */
	__u32 daddr[4];
};

struct flow_count {
	__u64 packets;
	__u64 bytes;
};

struct port_count {
	__u64 packets; /* all, RoCEv2 or not */
	__u64 bytes;
	__u64 roce_packets;
	__u64 roce_bytes;
	__u64 misses; /* packets that found `flows` full: if not 0, its rows do not add up to the totals above */
};

/* Not preallocated: an idle lab needs memory only for the bucket array. One cell per flow, updated atomically, since
 * packets of one flow may be forwarded on any CPU. counters.py sets its size, and clears it before each run. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct flow_count);
} flows SEC(".maps");

/* By port id. Each CPU has its own cell, with softirqs off: no atomic operation is needed. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct port_count);
} ports SEC(".maps");

/* Create the row of a new key. Two CPUs may race to create it: with BPF_NOEXIST the first one wins. */
static __attribute__((noinline)) struct flow_count *first_of(const struct flow_key *key)
{
	struct flow_count none = {};

	if (!key)
		return 0;
	bpf_map_update_elem(&flows, key, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&flows, key);
}

/* Read the flow of a forwarded TCP or UDP packet. 0: it is something else, or the switch itself sends it (BGP).
 * A fragment has the ports 0: the kernel does not hash those of the first one either (__skb_flow_dissect). */
static __attribute__((noinline)) int other_flow(struct __sk_buff *skb, struct flow_key *key)
{
	struct ipv6 ip;
	struct ipv4 *ip4 = (struct ipv4 *)&ip;
	__u32 protocol, ports = 0, l4, whole = 1;

	if (!key || !skb->ingress_ifindex)
		return 0;
	if (skb->protocol == htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(*ip4)))
			return 0;
		key->saddr[0] = key->saddr[1] = 0;
		key->daddr[0] = key->daddr[1] = 0;
		key->saddr[2] = key->daddr[2] = htonl(0xffff);
		key->saddr[3] = ip4->saddr;
		key->daddr[3] = ip4->daddr;
		protocol = ip4->protocol;
		whole = !(ip4->fragment & htons(IP_FRAGMENT));
		l4 = ETH_HLEN + (ip4->version_ihl & 0xf) * 4;
	} else if (skb->protocol == htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
			return 0;
		__builtin_memcpy(key->saddr, ip.saddr, sizeof(ip.saddr));
		__builtin_memcpy(key->daddr, ip.daddr, sizeof(ip.daddr));
		protocol = ip.next_header;
		l4 = ETH_HLEN + sizeof(ip);
		if (protocol == IPPROTO_FRAGMENT) {
			__u8 next = 0;

			if (bpf_skb_load_bytes(skb, l4, &next, sizeof(next)))
				return 0;
			protocol = next;
			whole = 0;
		}
	} else {
		return 0;
	}
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return 0;
	if (whole && bpf_skb_load_bytes(skb, l4, &ports, sizeof(ports)))
		return 0;
	ports = ntohl(ports);
	key->sport = ports >> 16;
	key->qpn = protocol << 24 | (ports & 0xffff);
	return 1;
}

SEC("tc")
int count(struct __sk_buff *skb)
{
	__u32 number = port_of(skb);
	struct port_count *port = bpf_map_lookup_elem(&ports, &number);
	__u64 bytes = skb->len;
	struct flow_count *row;
	struct flow_key key = {};
	struct roce flow = {};

	if (!port || skb->mark >> 16 == TRIMMED)
		return TC_ACT_UNSPEC;
	port->packets += 1;
	port->bytes += bytes;
	if (roce_flow(skb, &flow)) {
		port->roce_packets += 1;
		port->roce_bytes += bytes;
		key.sport = ntohs((__u16)flow.ports);
		key.qpn = flow.qpn;
		__builtin_memcpy(key.saddr, flow.saddr, sizeof(key.saddr));
		__builtin_memcpy(key.daddr, flow.daddr, sizeof(key.daddr));
	} else if (!other_flow(skb, &key)) {
		return TC_ACT_UNSPEC;
	}
	key.port = number;
	row = bpf_map_lookup_elem(&flows, &key);
	if (!row)
		row = first_of(&key);
	if (row) {
		__sync_fetch_and_add(&row->packets, 1);
		__sync_fetch_and_add(&row->bytes, bytes);
	} else {
		port->misses += 1;
	}
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
