/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * Shared by all programs: the parts of the kernel's ABI that they use.
 * Self-contained on purpose: no libbpf or kernel headers are needed to build, and the objects (whose BTF describes
 * the types below) do not depend on the headers of the build machine.
 */
#ifndef HEDDLE_H
#define HEDDLE_H

#include "constants.h"

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;

/* include/uapi/linux/bpf.h: a socket, up to the field that is used here. */
struct bpf_sock {
	__u32 bound_dev_if;
	__u32 family;
	__u32 not_read[9]; /* type to src_ip6 */
	__u32 src_port;
};

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
	__u32 tc_classid;
	__u32 data;
	__u32 data_end;
	__u32 not_read[15]; /* napi_id to data_meta */
	__u64 flow_keys;
	__u64 tstamp;
	__u32 wire_len; /* of what the packet is cut into (GSO), headers and all */
	__u32 gso_segs; /* 0: it is not cut */
	struct bpf_sock *sk; /* the socket that the packet is charged to; 0: none */
};

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_LRU_HASH 9
#define BPF_MAP_TYPE_LPM_TRIE 11
#define BPF_F_NO_PREALLOC 1
#define BPF_NOEXIST 1
#define TC_ACT_UNSPEC -1
#define TC_ACT_SHOT 2
#define TC_ACT_STOLEN 4 /* as SHOT, but the kernel counts no drop */
#define PACKET_HOST 0
#define PACKET_OTHERHOST 3

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name
/* nodebug: inlined code gets the line number of its caller, which halves the BTF. */
#define INLINE static __attribute__((always_inline, nodebug, unused))
#define OUTLINE __attribute__((noinline)) /* a BPF function, verified once for all callers: kernels since 5.12 */

/* Helpers by number (enum bpf_func_id): stable ABI. */
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static __u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static __u32 (*bpf_get_prandom_u32)(void) = (void *)7;
static long (*bpf_skb_store_bytes)(struct __sk_buff *skb, __u32 offset, const void *from, __u32 len, __u64 flags) = (void *)9;
static long (*bpf_clone_redirect)(struct __sk_buff *skb, __u32 ifindex, __u64 flags) = (void *)13;
static long (*bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static long (*bpf_skb_load_bytes)(const void *skb, __u32 offset, void *to, __u32 len) = (void *)26;
static long (*bpf_skb_change_type)(struct __sk_buff *skb, __u32 type) = (void *)32;
static void (*bpf_set_hash_invalid)(struct __sk_buff *skb) = (void *)41;
static long (*bpf_set_hash)(struct __sk_buff *skb, __u32 hash) = (void *)48;
static long (*bpf_fib_lookup)(void *skb, void *params, int size, __u32 flags) = (void *)69;
static long (*bpf_spin_lock)(void *lock) = (void *)93;
static long (*bpf_spin_unlock)(void *lock) = (void *)94;

#define htons(x) __builtin_bswap16(x) /* objects are built for little-endian machines only */
#define ntohs(x) __builtin_bswap16(x)
#define htonl(x) __builtin_bswap32(x)
#define ntohl(x) __builtin_bswap32(x)

#endif
