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
 */
#include "roce.h"

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

SEC("tc")
int nic(struct __sk_buff *skb)
{
	struct nic_count *count;
	struct roce flow;
	__u32 zero = 0;

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
