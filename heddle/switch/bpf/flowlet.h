/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * Flowlets: a queue pair keeps its path while it sends, and may change it after a gap without packets.
 */
#ifndef HEDDLE_FLOWLET_H
#define HEDDLE_FLOWLET_H
#include "cell.h"
#include "steer.h"

struct flowlet_key {
	__u32 saddr[4];
	__u32 daddr[4];
	__u32 ports;
	__u32 udf;
};

struct flowlet {
	__u64 last_ns;
	__u32 number; /* gaps so far */
	__u32 port; /* the port chosen by load or depth; 0: none yet */
	__u32 epoch; /* of its rule */
	__u32 pad;
};

/* The least recently used entries are evicted. If two packets of one flow on two CPUs both see the gap, one number is
 * skipped, without other effects. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flowlet_key);
	__type(value, struct flowlet);
} flowlets SEC(".maps");

/* Bytes that were sent to a port, halved after each gap's length. It is updated without a lock: a race between two CPUs
 * makes the load slightly too small, but never selects a dead port. */
struct load {
	__u64 bytes;
	__u64 since_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, __u32); /* ifindex */
	__type(value, struct load);
} loads SEC(".maps");

INLINE __u64 load_of(__u32 port, __u64 now, __u64 half_life)
{
	struct load *load = bpf_map_lookup_elem(&loads, &port);
	__u64 halves;

	if (!load || now < load->since_ns || !half_life)
		return load ? load->bytes : 0;
	halves = (now - load->since_ns) / half_life;
	return halves > 63 ? 0 : load->bytes >> halves;
}

INLINE void charge(__u32 port, __u32 bytes, __u64 now, __u64 half_life)
{
	struct load *load = bpf_map_lookup_elem(&loads, &port), first = {bytes, now};

	if (!load) {
		bpf_map_update_elem(&loads, &port, &first, 0);
		return;
	}
	if (half_life && now > load->since_ns + half_life) {
		load->bytes = load_of(port, now, half_life);
		load->since_ns += (now - load->since_ns) / half_life * half_life;
	}
	__sync_fetch_and_add(&load->bytes, bytes);
}

/* Ports of this switch as the lab's queues number them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u32); /* ifindex */
	__type(value, __u32);
} ids SEC(".maps");

/* The exact bytes of a class that wait at a port now: from the cell of its `enqueue` and its peer's `dequeue`. */
INLINE __u64 depth_of(__u32 port, __u32 number)
{
	__u32 *id = bpf_map_lookup_elem(&ids, &port), row;
	struct cell *cell;

	if (!id)
		return 0;
	row = *id * CLASSES + number;
	cell = bpf_map_lookup_elem(&cells, &row);
	return cell ? cell->depth : 0;
}

INLINE __u32 class_of(const struct roce *flow)
{
	__u32 zero = 0, tos = flow->family == AF_INET ? flow->tos_flow : ntohl(flow->tos_flow) >> 20;
	struct classes *classes = bpf_map_lookup_elem(&dscp, &zero);

	return classes ? classes->of_dscp[tos >> 2 & 63] : 0;
}

struct search {
	__u64 now;
	__u64 half_life;
	__u64 least;
	__u32 best; /* 0: none yet */
	__u32 ties; /* members with the least depth so far */
	__u32 by_depth; /* 1 + class: compare the depth of its queue; 0: compare the bytes that a port has carried */
	__u32 pad;
};

/* Compare one candidate. A separate function, which the verifier checks once and not for each iteration of the loop. */
OUTLINE int consider(struct __sk_buff *skb, const struct roce *flow, __u32 index, struct search *search)
{
	struct fib_lookup fib;
	__u32 *port = bpf_map_lookup_elem(&hops, &index);
	__u64 load;

	if (!flow || !search || !port)
		return 0;
	load = search->by_depth ? depth_of(*port, search->by_depth - 1) : load_of(*port, search->now, search->half_life);
	if (search->best && (load > search->least || (load == search->least && !search->by_depth)))
		return 0;
	if (!is_next_hop(skb, flow, *port, &fib))
		return 0;
	/* Select among n equal (often empty) queues with equal probability: the nth replaces the choice with chance 1/n. */
	search->ties = search->best && load == search->least ? search->ties + 1 : 1;
	if (search->ties > 1 && bpf_get_prandom_u32() % search->ties)
		return 0;
	search->best = *port;
	search->least = load;
	return 1;
}

/* The live member with the least load or depth. The search starts at a random member, to share flows at equal loads. */
OUTLINE __u32 least_loaded(struct __sk_buff *skb, const struct roce *flow, const struct group *group, __u64 now,
			   const struct rule *rule)
{
	struct search search = {now, 0, 0, 0, 0, 0, 0};
	__u32 start = bpf_get_prandom_u32(), i;

	if (!flow || !group || !rule)
		return 0;
	search.half_life = rule->gap_ns;
	if (rule->mode == MODE_ADAPTIVE)
		search.by_depth = 1 + class_of(flow);
#pragma clang loop unroll(disable)
	for (i = 0; i < MAX_MEMBERS; i++) {
		if (i >= group->members)
			break;
		consider(skb, flow, group->first_member + (start + i) % group->members, &search);
	}
	return search.best;
}

/* The flowlet of the packet; a new one starts if there is none, or after a gap. */
INLINE struct flowlet *flowlet_of(struct __sk_buff *skb, const struct rule *rule, const struct roce *flow, __u64 now)
{
	struct flowlet_key key;
	struct flowlet *found, fresh = {now, 0, 0, rule->epoch, 0};

	__builtin_memcpy(key.saddr, flow->saddr, sizeof(key.saddr));
	__builtin_memcpy(key.daddr, flow->daddr, sizeof(key.daddr));
	key.ports = flow->ports;
	key.udf = flow->udf;
	found = bpf_map_lookup_elem(&flowlets, &key);
	if (!found || found->epoch != rule->epoch) {
		bpf_map_update_elem(&flowlets, &key, &fresh, 0);
		return bpf_map_lookup_elem(&flowlets, &key);
	}
	if (now > found->last_ns && now - found->last_ns > rule->gap_ns) {
		found->number += 1;
		found->port = 0;
		count_one(skb, STAT_REPICKS);
	}
	found->last_ns = now;
	return found;
}

#endif
