/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * Packets by egress port: the measured part of every path proof.
 *
 * At clsact egress of every port of a switch, before the port's queue: a packet is counted when it is enqueued.
 * Bytes are skb->len: from the Ethernet header to the ICRC.
 *
 * One object for a whole lab, since a packet is counted at every hop: the second hop finds code and maps in the caches
 * that the first one has filled. Each filter's classid is the number of its port (portids.py).
 */
#include "roce.h"

struct flow_key {
	__u16 port;
	__u16 sport; /* UDP source port; host byte order, like port and qpn */
	__u32 qpn; /* destination QP */
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

SEC("tc")
int count(struct __sk_buff *skb)
{
	__u32 number = skb->tc_classid;
	struct port_count *port = bpf_map_lookup_elem(&ports, &number);
	__u64 bytes = skb->len;
	struct flow_count *row;
	struct flow_key key;
	struct roce flow = {};

	if (!port)
		return TC_ACT_UNSPEC;
	port->packets += 1;
	port->bytes += bytes;
	if (!roce_flow(skb, &flow))
		return TC_ACT_UNSPEC;
	port->roce_packets += 1;
	port->roce_bytes += bytes;
	key.port = number;
	key.sport = ntohs((__u16)flow.ports);
	key.qpn = flow.qpn;
	__builtin_memcpy(key.saddr, flow.saddr, sizeof(key.saddr));
	__builtin_memcpy(key.daddr, flow.daddr, sizeof(key.daddr));
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
