/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * What every program here shares: the kernel's ABI as far as it is used, and the parser for RoCEv2 headers.
 * Self-contained on purpose: no libbpf or kernel headers are needed to build, and the objects (whose BTF describes
 * the types below) do not change with the headers of the machine that builds them.
 */
#ifndef HEDDLE_H
#define HEDDLE_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;

/* include/uapi/linux/bpf.h: the context of a tc program, up to the last field that is used here. */
struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
	__u32 tc_index;
	__u32 cb[5];
	__u32 hash;
};

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_F_NO_PREALLOC 1
#define BPF_NOEXIST 1
#define TC_ACT_UNSPEC -1
#define TC_ACT_SHOT 2

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name

/* Helpers by number (enum bpf_func_id): fixed for good. */
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*bpf_skb_load_bytes)(const void *skb, __u32 offset, void *to, __u32 len) = (void *)26;
static void (*bpf_set_hash_invalid)(struct __sk_buff *skb) = (void *)41;
static long (*bpf_set_hash)(struct __sk_buff *skb, __u32 hash) = (void *)48;

#define ntohs(x) __builtin_bswap16(x) /* objects are built for little-endian machines only */
#define ntohl(x) __builtin_bswap32(x)

#define ETH_HLEN 14
#define ETH_P_IP 0x0800
#define IPPROTO_UDP 17
#define IP_FRAGMENT 0x3fff /* more-fragments bit and offset: anything but a whole datagram */
#define ROCE_PORT 4791

struct ipv4 {
	__u8 version_ihl;
	__u8 tos;
	__u16 length;
	__u16 id;
	__u16 fragment;
	__u8 ttl;
	__u8 protocol;
	__u16 checksum;
	__u32 saddr;
	__u32 daddr;
};

struct udp_bth {
	__u16 sport;
	__u16 dport;
	__u16 length;
	__u16 checksum;
	__u8 opcode;
	__u8 flags;
	__u16 pkey;
	__u32 dest_qp; /* 8 reserved bits (fecn and becn among them), 24 bits of QP number */
	__u32 psn;
};

/* What identifies a RoCEv2 flow; all in host byte order. */
struct roce {
	__u32 saddr;
	__u32 daddr;
	__u32 ports; /* source << 16 | destination */
	__u32 qpn;
};

/* Read the flow of a RoCEv2 packet. 0: it is something else (not IPv4, a fragment, another port, cut short).
 * bpf_skb_load_bytes rather than direct access: it does not care how the kernel has cut the packet into pages. */
static __attribute__((always_inline)) int roce_flow(struct __sk_buff *skb, struct roce *flow)
{
	struct ipv4 ip;
	struct udp_bth udp;
	__u32 ihl;

	if (skb->protocol != ntohs(ETH_P_IP))
		return 0;
	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return 0;
	ihl = (ip.version_ihl & 0xf) * 4;
	if (ip.version_ihl >> 4 != 4 || ihl < sizeof(ip) || ip.protocol != IPPROTO_UDP)
		return 0;
	if (ip.fragment & ntohs(IP_FRAGMENT))
		return 0;
	if (bpf_skb_load_bytes(skb, ETH_HLEN + ihl, &udp, sizeof(udp)))
		return 0;
	if (udp.dport != ntohs(ROCE_PORT))
		return 0;
	flow->saddr = ntohl(ip.saddr);
	flow->daddr = ntohl(ip.daddr);
	flow->ports = (__u32)ntohs(udp.sport) << 16 | ROCE_PORT;
	flow->qpn = ntohl(udp.dest_qp) & 0xffffff;
	return 1;
}

#endif
