/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * E-ECMP: the switch hashes RoCEv2 packets over addresses, ports and the BTH destination QP.
 *
 * At clsact ingress of every port of a switch. bpf_set_hash() marks the packet's hash as a layer-4 one, and with
 * net.ipv4.fib_multipath_hash_policy=1 fib_multipath_hash() then takes that hash (>> 1) instead of its own.
 * The hash is jhash2() of include/linux/jhash.h over four words, with the switch's seed as initval.
 */
#include "heddle.h"

#define MODE_FLOW 0   /* leave every packet alone: the kernel's policy decides */
#define MODE_E_ECMP 1

struct hash_config {
	__u32 mode;
	__u32 seed;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct hash_config);
} config SEC(".maps");

#define rol32(word, shift) ((word) << (shift) | (word) >> (32 - (shift)))

/* jhash2() for exactly four words. */
static __attribute__((always_inline)) __u32 jhash4(__u32 k0, __u32 k1, __u32 k2, __u32 k3, __u32 initval)
{
	__u32 a, b, c;

	a = b = c = 0xdeadbeef + (4 << 2) + initval;
	a += k0;
	b += k1;
	c += k2;
	/* __jhash_mix */
	a -= c; a ^= rol32(c, 4);  c += b;
	b -= a; b ^= rol32(a, 6);  a += c;
	c -= b; c ^= rol32(b, 8);  b += a;
	a -= c; a ^= rol32(c, 16); c += b;
	b -= a; b ^= rol32(a, 19); a += c;
	c -= b; c ^= rol32(b, 4);  b += a;
	a += k3;
	/* __jhash_final */
	c ^= b; c -= rol32(b, 14);
	a ^= c; a -= rol32(c, 11);
	b ^= a; b -= rol32(a, 25);
	c ^= b; c -= rol32(b, 16);
	a ^= c; a -= rol32(c, 4);
	b ^= a; b -= rol32(a, 14);
	c ^= b; c -= rol32(b, 24);
	return c;
}

SEC("tc")
int hash(struct __sk_buff *skb)
{
	struct hash_config *now;
	struct roce flow;
	__u32 zero = 0, value;

	now = bpf_map_lookup_elem(&config, &zero);
	if (!now || now->mode != MODE_E_ECMP)
		return TC_ACT_UNSPEC;
	if (!roce_flow(skb, &flow)) {
		/* A locally sent TCP or UDP packet carries its socket's hash (sk_txhash) through veth into the next
		 * namespace, and policy 1 would use that one number at every hop. Without it the kernel makes its own. */
		bpf_set_hash_invalid(skb);
		return TC_ACT_UNSPEC;
	}
	value = jhash4(flow.saddr, flow.daddr, flow.ports, flow.qpn, now->seed);
	bpf_set_hash(skb, value);
	skb->cb[0] = value; /* for BPF_PROG_TEST_RUN, which does not return skb->hash; ip_rcv_core() clears it */
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
