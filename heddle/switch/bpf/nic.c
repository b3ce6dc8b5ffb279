/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * Reserve RoCEv2 for the emulated NIC: the host's own kernel must not answer it.
 *
 * At clsact ingress of every NIC, after `dequeue`, so that the NIC's packet socket sees its changes (CE, if marks are
 * set at dequeue): __netif_receive_skb_core() delivers to sockets that are bound to one protocol (ETH_P_IP,
 * ETH_P_IPV6: Heddle's endpoints) after tc, and to those that receive all (ETH_P_ALL: tcpdump) before tc.
 * The packet continues as PACKET_OTHERHOST, which ip_rcv_core() and ip6_rcv_core() drop first, and silently. Otherwise
 * the host would answer it with an ICMP port unreachable, since no process has UDP port 4791 open.
 *
 * A port that is attached to a user's device passes all frames on to that.
 */
#include "port.h"
#include "roce.h"
#include "wire.h"

struct nic_count {
	__u64 packets;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nic_count);
} taken SEC(".maps");

/* By port id: 1 for a port that is attached. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} wired SEC(".maps");

INLINE int is_marked(struct __sk_buff *skb)
{
	__u8 head[2];

	if (skb->protocol != htons(ETH_P_IP) && skb->protocol != htons(ETH_P_IPV6))
		return 0;
	if (bpf_skb_load_bytes(skb, ETH_HLEN, head, sizeof(head)))
		return 0;
	return ((skb->protocol == htons(ETH_P_IP) ? head[1] : head[1] >> 4) & ECN_CE) == ECN_CE;
}

static __attribute__((noinline)) int pass_on(struct __sk_buff *skb, __u32 number)
{
	struct wire *wire = bpf_map_lookup_elem(&wires, &number);
	__u8 mac[ETH_ALEN];

	if (!wire)
		return TC_ACT_SHOT;
	__sync_fetch_and_add(&wire->out_packets, 1);
	__sync_fetch_and_add(&wire->out_bytes, skb->len);
	if (is_marked(skb))
		__sync_fetch_and_add(&wire->out_ce, 1);
	if (differ(wire->own, wire->mac) && !bpf_skb_load_bytes(skb, 0, mac, ETH_ALEN) && !(mac[0] & 1)) {
		__builtin_memcpy(mac, wire->own, ETH_ALEN);
		bpf_skb_store_bytes(skb, 0, mac, ETH_ALEN, 0);
		if (skb->protocol == htons(ETH_P_ARP))
			bpf_skb_store_bytes(skb, ARP_THA, mac, ETH_ALEN, 0);
	}
	return (int)bpf_redirect(wire->inner, 0);
}

SEC("tc")
int nic(struct __sk_buff *skb)
{
	struct nic_count *count;
	struct roce flow;
	__u32 zero = 0, number = port_of(skb), *attached = bpf_map_lookup_elem(&wired, &number);

	if (attached && *attached)
		return pass_on(skb, number);
	if (!roce_flow(skb, &flow))
		return TC_ACT_UNSPEC;
	count = bpf_map_lookup_elem(&taken, &zero);
	if (count) {
		__sync_fetch_and_add(&count->packets, 1);
		__sync_fetch_and_add(&count->bytes, skb->len);
	}
	bpf_skb_change_type(skb, PACKET_OTHERHOST);
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
