/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * A host's NIC takes RoCEv2 for itself: the host's own kernel must not see it.
 *
 * At clsact ingress of every NIC. Packet sockets that take all protocols (ETH_P_ALL: Heddle's endpoints, tcpdump) have
 * had the frame by then: __netif_receive_skb_core() delivers to them before tc, and to sockets bound to one protocol
 * after it, so those see no RoCEv2 here. Going on to IP would answer each frame with an ICMP port unreachable, since
 * nobody has UDP port 4791 open.
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
	return TC_ACT_SHOT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
