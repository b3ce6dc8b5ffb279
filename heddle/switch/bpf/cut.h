/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * A link whose ends are on two kernels. Each end has a stub: the peer of its port, in a namespace of the lab. At the
 * stub a packet leaves the port's queue, as at a peer switch. Behind it is a VXLAN device in external mode, which takes
 * the tunnel key from the packet: the address of the other kernel, and the number that the receiving port has in the
 * whole fabric as VNI: ids of ports are a kernel's own.
 * Pause frames cross as any other frame; only the port that receives them counts them.
 * Beats of the shards (shards/carrier.py) use the same tunnel, with a bit in the VNI that no port's number has.
 */
#ifndef HEDDLE_CUT_H
#define HEDDLE_CUT_H
#include "accounting.h"

#define BPF_F_TUNINFO_IPV6 1 /* UDP over IPv6 needs a checksum: RFC 8200, 8.1 */
#define BPF_F_ZERO_CSUM_TX 2 /* the packets inside have checksums of their own: as a switch, the tunnel adds none */
#define TUNNEL_TTL 64
#define BEAT (1u << 23) /* in the VNI */
#define TC_ACT_OK 0
#define CROSSED 0x1a5bu /* instead of STAMP: the packet has left its queue on the other kernel */

/* By port id. Of the port at the other end: tunnel, remote, vni, sent. Of an own port: stub, received. */
struct cut {
	__u32 tunnel; /* ifindex of the VXLAN device */
	__u32 ipv6; /* of the address below */
	__u32 stub; /* ifindex of the port's peer here */
	__u32 vni; /* number of the port in the whole fabric */
	__u32 remote[4]; /* address of the other kernel: IPv6 in network order; IPv4 in the first word, in host order */
	__u64 sent; /* frames */
	__u64 sent_bytes;
	__u64 received;
	__u64 received_bytes;
};
SHARED_MAP(cuts, struct cut);
SHARED_MAP(arrivals, __u64); /* by VNI: the id of the port here; 0: none */

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

/* Give the packet the tunnel key of a cut; 0 if it has one. bit: of the VNI, too. */
INLINE long set_key(struct __sk_buff *skb, struct cut *cut, __u32 bit)
{
	struct tunnel_key key = {};

	key.id = bit | cut->vni;
	__builtin_memcpy(key.remote, cut->remote, sizeof(key.remote));
	key.ttl = TUNNEL_TTL;
	return bpf_skb_set_tunnel_key(skb, &key, sizeof(key), cut->ipv6 ? BPF_F_TUNINFO_IPV6 : BPF_F_ZERO_CSUM_TX);
}

/* Send the packet to the port `far` on another kernel. */
INLINE int cross(struct __sk_buff *skb, __u32 far)
{
	struct cut *cut = bpf_map_lookup_elem(&cuts, &far);

	if (!cut || !cut->tunnel || set_key(skb, cut, 0))
		return TC_ACT_SHOT;
	add(&cut->sent, 1);
	add(&cut->sent_bytes, skb->len);
	return bpf_redirect(cut->tunnel, 0);
}

/* At egress of the VXLAN device, for beats only: to the shard of the port whose id is the end of the destination. */
SEC("tc")
int cut_beat(struct __sk_buff *skb)
{
	struct cut *cut;
	__u32 far;

	if (bpf_skb_load_bytes(skb, 2, &far, sizeof(far)))
		return TC_ACT_SHOT;
	far = ntohl(far);
	cut = bpf_map_lookup_elem(&cuts, &far);
	return !cut || !cut->tunnel || set_key(skb, cut, BEAT) ? TC_ACT_SHOT : TC_ACT_OK;
}

/* At ingress of the VXLAN device: the packet goes to the stub of its port, a beat to the socket of this shard. */
SEC("tc")
int cut_in(struct __sk_buff *skb)
{
	struct tunnel_key key = {};
	struct cut *cut;
	__u64 *found;
	__u32 port;

	if (bpf_skb_get_tunnel_key(skb, &key, sizeof(key), 0) &&
	    bpf_skb_get_tunnel_key(skb, &key, sizeof(key), BPF_F_TUNINFO_IPV6))
		return TC_ACT_SHOT;
	if (key.id & BEAT)
		return TC_ACT_OK;
	found = bpf_map_lookup_elem(&arrivals, &key.id);
	if (!found || !*found)
		return TC_ACT_SHOT;
	port = *found;
	cut = bpf_map_lookup_elem(&cuts, &port);
	if (!cut || !cut->stub)
		return TC_ACT_SHOT;
	add(&cut->received, 1);
	add(&cut->received_bytes, skb->len);
	bpf_set_hash(skb, CROSSED << 19);
	return bpf_redirect(cut->stub, 0);
}

#endif
