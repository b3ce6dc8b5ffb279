/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * Which packets leave by which port: the measured third of every path proof.
 *
 * At clsact egress of every port of a switch, before the port's queue: a packet is counted when it is enqueued.
 * Bytes are skb->len: from the Ethernet header to the ICRC.
 */
#include "roce.h"

struct flow_key {
	__u32 ifindex;
	__u32 qpn; /* destination QP, host byte order */
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
};

/* Not preallocated: an idle switch pays for the bucket array only. One cell a flow, added to atomically, since the
 * packets of one flow may be forwarded on any CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct flow_count);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct port_count);
} ports SEC(".maps");

/* Packets that found their map full: with one of these, flow rows do not sum to the ports' totals. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} misses SEC(".maps");

/* The cell of a key, made when it is new. Two CPUs may race to make it: BPF_NOEXIST lets the first one win. */
INLINE void *cell(void *map, const void *key, const void *empty)
{
	void *found = bpf_map_lookup_elem(map, key);

	if (found)
		return found;
	bpf_map_update_elem(map, key, empty, BPF_NOEXIST);
	return bpf_map_lookup_elem(map, key);
}

INLINE void miss(void)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&misses, &zero);

	if (count)
		__sync_fetch_and_add(count, 1);
}

SEC("tc")
int count(struct __sk_buff *skb)
{
	struct port_count *port, no_packets = {};
	struct flow_count *row, no_row = {};
	struct flow_key key = {};
	struct roce flow = {};
	__u32 ifindex = skb->ifindex;
	__u64 bytes = skb->len;
	int is_roce = roce_flow(skb, &flow);

	port = cell(&ports, &ifindex, &no_packets);
	if (port) {
		__sync_fetch_and_add(&port->packets, 1);
		__sync_fetch_and_add(&port->bytes, bytes);
		if (is_roce) {
			__sync_fetch_and_add(&port->roce_packets, 1);
			__sync_fetch_and_add(&port->roce_bytes, bytes);
		}
	} else {
		miss();
	}
	if (!is_roce)
		return TC_ACT_UNSPEC;
	key.ifindex = ifindex;
	key.qpn = flow.qpn;
	__builtin_memcpy(key.saddr, flow.saddr, sizeof(key.saddr));
	__builtin_memcpy(key.daddr, flow.daddr, sizeof(key.daddr));
	row = cell(&flows, &key, &no_row);
	if (row) {
		__sync_fetch_and_add(&row->packets, 1);
		__sync_fetch_and_add(&row->bytes, bytes);
	} else {
		miss();
	}
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
