/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * The configuration of a switch: its rule and the tables of the rule, all in two halves. `active` selects one half.
 * User space fills the other one and then changes that one cell, so every packet sees one consistent state.
 * maps.py writes all of this; indexes into `groups` and `hops` count over both halves.
 */
#ifndef HEDDLE_RULES_H
#define HEDDLE_RULES_H
#include "heddle.h"

struct rule {
	__u32 mode; /* MODE_*; FLOW: leave RoCEv2 alone, the kernel's policy decides */
	__u32 seed;
	/* RULE_*. CLEAR: mode flow under policy 1: clear the hash that a packet arrives with. RESILIENT: a hash chooses a
	 * bucket, not a next hop. LOAD: flowlet: choose the port that has carried the fewest bytes. ROUND_ROBIN: spray.
	 * UDF: the user-defined field is not the destination QP. */
	__u32 flags;
	__u32 epoch; /* changes with each rule: flowlets of the previous rule are ignored */
	__u64 gap_ns;
	__u32 buckets; /* this and most fields below are only read back by user space */
	__u32 policy;
	__u32 fields;
	__u32 udf_base; /* 0: IP header, 1: UDP header, 2: BTH */
	__u32 udf_offset;
	__u32 udf_bytes; /* 1..4 */
	__u32 version; /* of IP */
	__u32 first_group; /* of this half */
	__u32 groups;
};

/* Next hops of some prefix, as ranges of `hops`. */
struct group {
	__u32 first_member;
	__u32 members;
	__u32 first_slot; /* the table that round-robin and buckets index */
	__u32 slots;
};

struct prefix_key {
	__u32 bits; /* 32 bits of `half`, plus the length of the prefix */
	__u32 half;
	__u32 address[4]; /* network byte order; IPv4 as ::ffff:a.b.c.d */
};

struct prefix_rule {
	__u32 group;
	__u32 id; /* the number of the prefix in exact entries */
	__u32 slice;
	__u32 shift; /* an address's slice is slice + (its host bits >> shift); 64 and more: only one slice */
	__u64 host_bits; /* mask of the host bits, in the address's last 64 bits */
};

struct exact_key {
	__u32 half;
	__u32 prefix; /* its id */
	__u32 sport;
};

/* ifindexes. The backup, 0 for none, is for packets that the port cannot take: it is no live next hop of theirs. */
struct exact_ports {
	__u32 port;
	__u32 backup;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} active SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct rule);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct group);
} groups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32); /* ifindex */
} hops SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct prefix_key);
	__type(value, struct prefix_rule);
} prefixes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct exact_key);
	__type(value, struct exact_ports);
} exact SEC(".maps");

/* Packets, by STAT_*. STEERED: the program sent them to a port. FELL_BACK: it left them to the kernel: the port is not a
 * live next hop, or steer() refused. REPICKS: flowlets that began after a gap. MISSES: without a row in the exact-match
 * table, or without room in the flowlet table. BACKUPS: those of STEERED that went to a row's backup. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, STATS);
	__type(key, __u32);
	__type(value, __u64);
} stats SEC(".maps");

/* Only real packets: in the oracle's BPF_PROG_TEST_RUN, ingress_ifindex is 0 unless it sets one. */
INLINE void count_one(const struct __sk_buff *skb, __u32 what)
{
	__u64 *cell = bpf_map_lookup_elem(&stats, &what);

	if (cell && skb->ingress_ifindex)
		*cell += 1;
}

#endif
