/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * A link whose ends are on two kernels. Each end has a stub: the peer of its port, in a namespace of the lab. At the
 * stub a packet leaves the port's queue, as at a peer switch. Behind it is a VXLAN device in external mode, which takes
 * the tunnel key from the packet: the address of the other kernel, and the id of the receiving port as VNI.
 * Pause frames cross as any other frame; only the port that receives them counts them.
 */
#ifndef HEDDLE_CUT_H
#define HEDDLE_CUT_H
#include "accounting.h"

#define BPF_F_ZERO_CSUM_TX 2 /* the packets inside have checksums of their own: as a switch, the tunnel adds none */
#define TUNNEL_TTL 64
#define CROSSED 0x1a5bu /* instead of STAMP: the packet has left its queue on the other kernel */

/* By port id. Of the port at the other end: tunnel, remote, sent. Of an own port: stub, received. */
struct cut {
	__u32 tunnel; /* ifindex of the VXLAN device */
	__u32 remote; /* IPv4 address of the other kernel, in host order */
	__u32 stub; /* ifindex of the port's peer here */
	__u32 pad;
	__u64 sent; /* frames */
	__u64 sent_bytes;
	__u64 received;
	__u64 received_bytes;
};
SHARED_MAP(cuts, struct cut);

/* include/uapi/linux/bpf.h: struct bpf_tunnel_key, up to tunnel_label. */
struct tunnel_key {
	__u32 id;
	__u32 remote[4];
	__u8 tos;
	__u8 ttl;
	__u16 ext;
	__u32 label;
};

static long (*bpf_skb_get_tunnel_key)(struct __sk_buff *skb, void *key, __u32 size, __u64 flags) = (void *)20;
static long (*bpf_skb_set_tunnel_key)(struct __sk_buff *skb, void *key, __u32 size, __u64 flags) = (void *)21;

/* Send the packet to the port `far` on another kernel. */
INLINE int cross(struct __sk_buff *skb, __u32 far)
{
	struct cut *cut = bpf_map_lookup_elem(&cuts, &far);
	struct tunnel_key key = {};

	if (!cut || !cut->tunnel)
		return TC_ACT_SHOT;
	key.id = far;
	key.remote[0] = cut->remote;
	key.ttl = TUNNEL_TTL;
	if (bpf_skb_set_tunnel_key(skb, &key, sizeof(key), BPF_F_ZERO_CSUM_TX))
		return TC_ACT_SHOT;
	add(&cut->sent, 1);
	add(&cut->sent_bytes, skb->len);
	return bpf_redirect(cut->tunnel, 0);
}

/* At ingress of the VXLAN device: the packet goes to the stub of its port. */
SEC("tc")
int cut_in(struct __sk_buff *skb)
{
	struct tunnel_key key = {};
	struct cut *cut;

	if (bpf_skb_get_tunnel_key(skb, &key, sizeof(key), 0))
		return TC_ACT_SHOT;
	cut = bpf_map_lookup_elem(&cuts, &key.id);
	if (!cut || !cut->stub)
		return TC_ACT_SHOT;
	add(&cut->received, 1);
	add(&cut->received_bytes, skb->len);
	bpf_set_hash(skb, CROSSED << 19);
	return bpf_redirect(cut->stub, 0);
}

#endif
