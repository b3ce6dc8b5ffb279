/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * How a switch chooses among equal-cost next hops for RoCEv2. At clsact ingress of every port of a switch.
 *
 * It does one of two things. It sets the packet's hash: bpf_set_hash() marks it as a layer-4 hash, and with
 * net.ipv4.fib_multipath_hash_policy=1 fib_multipath_hash() uses it (>> 1) in place of its own. Or it steers the
 * packet: it sends it to a port, if that is a live next hop (steer.h); if not, it sets a hash instead.
 * The hash is jhash2() over addresses, ports and a user-defined field (by default the destination QP),
 * with the switch's seed as initval.
 */
#include "flowlet.h"
#include "jhash.h"

struct bpf_spin_lock {
	__u32 val;
};

/* The round-robin counter of each group: exact over all CPUs, so under a lock. */
struct turn {
	struct bpf_spin_lock lock;
	__u32 next;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct turn);
} turns SEC(".maps");

INLINE __u32 port_at(__u32 index)
{
	__u32 *port = bpf_map_lookup_elem(&hops, &index);

	return port ? *port : 0;
}

/* The bytes of the rule's user-defined field, as one number; 0 if the packet is too short. */
INLINE __u32 udf_of(struct __sk_buff *skb, const struct rule *rule, const struct roce *flow)
{
	__u32 start, word = 0, bits = rule->udf_bytes * 8;

	if (!(rule->flags & RULE_UDF))
		return flow->qpn;
	start = rule->udf_base == 0 ? ETH_HLEN : rule->udf_base == 1 ? flow->l4 : flow->l4 + 8;
	/* The word that ends with the field; it starts in the Ethernet header at the earliest. */
	if (bpf_skb_load_bytes(skb, start + rule->udf_offset + rule->udf_bytes - 4, &word, sizeof(word)))
		return 0;
	word = ntohl(word);
	return bits >= 32 ? word : word & ((1U << bits) - 1);
}

INLINE __u32 value_of(const struct roce *flow, __u32 seed)
{
	if (flow->family == AF_INET)
		return jhash_4(ntohl(flow->saddr[3]), ntohl(flow->daddr[3]), ntohl(flow->ports), flow->udf, seed);
	return jhash_10(flow->saddr, flow->udf, seed);
}

INLINE int set_hash(struct __sk_buff *skb, __u32 value)
{
	bpf_set_hash(skb, value);
	skb->cb[0] = value; /* for BPF_PROG_TEST_RUN, which does not return skb->hash; ip_rcv_core() clears it */
	return TC_ACT_UNSPEC;
}

struct ranking {
	__u32 value;
	__u32 seed;
	__u32 most; /* the highest weight so far */
	__u32 port; /* its port; 0: none yet */
};

/* Compare one member's weight. A separate function, as consider(). */
OUTLINE int rank(struct __sk_buff *skb, const struct roce *flow, const struct group *group, __u32 number,
		 struct ranking *ranking)
{
	struct fib_lookup fib;
	__u32 weight, port;

	if (!flow || !group || !ranking)
		return 0;
	weight = jhash_2(ranking->value, number, ranking->seed);
	port = port_at(group->first_member + number);
	if ((ranking->port && weight <= ranking->most) || !port || !is_next_hop(skb, flow, port, &fib))
		return 0;
	ranking->most = weight;
	ranking->port = port;
	return 1;
}

/* The live member with the highest weight for a hash (rendezvous hashing: Thaler and Ravishankar, IEEE/ACM ToN 1998).
 * Weights do not depend on the other members. So a member that dies or comes back moves only packets from or to it. */
OUTLINE __u32 heaviest(struct __sk_buff *skb, const struct roce *flow, const struct group *group, __u32 value,
		       __u32 seed)
{
	struct ranking ranking = {value, seed, 0, 0};
	__u32 i;

	if (!flow || !group)
		return 0;
#pragma clang loop unroll(disable)
	for (i = 0; i < MAX_MEMBERS; i++) {
		if (i >= group->members)
			break;
		rank(skb, flow, group, i, &ranking);
	}
	return ranking.port;
}

/* Forward by hash, through the buckets of a resilient group. Packets in the bucket of a dead member go to the live
 * member with the highest weight; no other packets move. Without a live member the kernel chooses by another hash. */
OUTLINE int forward_by_hash(struct __sk_buff *skb, const struct rule *rule, const struct roce *flow,
			    const struct group *group, __u32 value)
{
	__u32 port;

	if (!rule || !flow)
		return TC_ACT_UNSPEC;
	if (rule->flags & RULE_RESILIENT && group && group->slots) {
		port = port_at(group->first_slot + value % group->slots);
		if (steer(skb, flow, port))
			return send_to(skb, port);
		port = heaviest(skb, flow, group, value, rule->seed);
		if (steer(skb, flow, port))
			return send_to(skb, port);
		count_one(skb, STAT_FELL_BACK);
		value = jhash_1(value, rule->seed);
	}
	return set_hash(skb, value);
}

INLINE __u32 next_turn(__u32 group)
{
	struct turn *turn = bpf_map_lookup_elem(&turns, &group);
	__u32 now;

	if (!turn)
		return 0;
	bpf_spin_lock(&turn->lock);
	now = turn->next++;
	bpf_spin_unlock(&turn->lock);
	return now;
}

INLINE __u32 pinned_port(const struct group *group, const struct prefix_rule *prefix, const struct roce *flow)
{
	__u64 low = (__u64)ntohl(flow->daddr[2]) << 32 | ntohl(flow->daddr[3]);
	__u32 slice = prefix->slice;

	if (prefix->shift < 64)
		slice += (low & prefix->host_bits) >> prefix->shift;
	return group->members ? port_at(group->first_member + slice % group->members) : 0;
}

INLINE const struct exact_ports *exact_row(__u32 half, const struct prefix_rule *prefix, const struct roce *flow)
{
	struct exact_key key = {half, prefix->id, ntohl(flow->ports) >> 16};

	return bpf_map_lookup_elem(&exact, &key);
}

/* The port that a rule steers the packet to; 0: none. backup: the port to try next, 0: none. */
INLINE __u32 chosen_port(struct __sk_buff *skb, const struct rule *rule, __u32 half, const struct roce *flow,
			 const struct prefix_rule *prefix, const struct group *group, struct flowlet *flowlet,
			 __u64 now, __u32 *backup)
{
	const struct exact_ports *row;
	__u32 port;

	if (rule->mode == MODE_PINNED)
		return pinned_port(group, prefix, flow);
	if (rule->mode == MODE_EXACT_MATCH) {
		row = exact_row(half, prefix, flow);
		*backup = row ? row->backup : 0;
		return row ? row->port : 0;
	}
	if (rule->mode == MODE_SPRAY)
		return group->slots ? port_at(group->first_slot + next_turn(prefix->group) % group->slots) : 0;
	if (!flowlet)
		return 0;
	port = flowlet->port;
	if (!port)
		flowlet->port = port = least_loaded(skb, flow, group, now, rule);
	return port;
}

/* All rules that need more than the packet's own hash. */
OUTLINE int forward_by_rule(struct __sk_buff *skb, const struct rule *rule, __u32 half, const struct roce *flow,
			    __u32 value)
{
	struct prefix_key key = {160, half, {}};
	struct prefix_rule *prefix;
	struct group *group;
	struct flowlet *flowlet = 0;
	__u32 mode, port, backup = 0;
	__u64 now = 0;

	if (!rule || !flow)
		return TC_ACT_UNSPEC;
	mode = rule->mode;
	__builtin_memcpy(key.address, flow->daddr, sizeof(key.address));
	prefix = bpf_map_lookup_elem(&prefixes, &key);
	group = prefix ? bpf_map_lookup_elem(&groups, &prefix->group) : 0;
	if (!prefix || !group) /* a single next hop, or a prefix without configured next hops */
		return set_hash(skb, value);
	if (mode == MODE_FLOW || mode == MODE_E_ECMP)
		return forward_by_hash(skb, rule, flow, group, value);
	if (mode == MODE_SPRAY && !(rule->flags & RULE_ROUND_ROBIN))
		return set_hash(skb, bpf_get_prandom_u32());
	if (mode == MODE_FLOWLET || mode == MODE_ADAPTIVE) {
		now = bpf_ktime_get_ns();
		flowlet = flowlet_of(skb, rule, flow, now);
		if (flowlet && mode == MODE_FLOWLET && !(rule->flags & RULE_LOAD)) {
			if (flowlet->number)
				value = jhash_2(value, flowlet->number, rule->seed);
			return forward_by_hash(skb, rule, flow, group, value);
		}
	}
	port = chosen_port(skb, rule, half, flow, prefix, group, flowlet, now, &backup);
	if (!port) {
		count_one(skb, STAT_MISSES);
		return forward_by_hash(skb, rule, flow, group, value);
	}
	if (!steer(skb, flow, port)) {
		if (steer(skb, flow, backup)) {
			count_one(skb, STAT_BACKUPS);
			return send_to(skb, backup);
		}
		count_one(skb, STAT_FELL_BACK);
		if (flowlet)
			flowlet->port = 0; /* the port is dead: the next packet chooses again */
		return forward_by_hash(skb, rule, flow, group, value);
	}
	if (flowlet && mode == MODE_FLOWLET)
		charge(port, skb->len, now, rule->gap_ns);
	return send_to(skb, port);
}

SEC("tc")
int hash(struct __sk_buff *skb)
{
	__u32 zero = 0, *half, value;
	struct rule *rule;
	struct roce flow;

	half = bpf_map_lookup_elem(&active, &zero);
	if (!half)
		return TC_ACT_UNSPEC;
	zero = *half;
	rule = bpf_map_lookup_elem(&rules, &zero);
	if (!rule || (rule->mode == MODE_FLOW && !(rule->flags & (RULE_RESILIENT | RULE_CLEAR))))
		return TC_ACT_UNSPEC;
	if ((rule->mode == MODE_FLOW && !(rule->flags & RULE_RESILIENT)) || !roce_flow(skb, &flow)) {
		/* A locally sent TCP or UDP packet keeps its socket's hash (sk_txhash) through veth into the next
		 * namespace, and policy 1 would use the same number at every hop. Without it the kernel computes one. */
		bpf_set_hash_invalid(skb);
		return TC_ACT_UNSPEC;
	}
	flow.udf = rule->mode == MODE_FLOW ? 0 : udf_of(skb, rule, &flow);
	value = value_of(&flow, rule->seed);
	if (rule->mode == MODE_E_ECMP && !(rule->flags & RULE_RESILIENT))
		return set_hash(skb, value);
	return forward_by_rule(skb, rule, zero, &flow, value);
}

char _license[] SEC("license") = "Dual BSD/GPL";
