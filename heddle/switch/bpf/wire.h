/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * Ports of hosts that are attached to a device of a user: what `nic` (to the device) and `edge` (from it) share.
 */
#ifndef HEDDLE_WIRE_H
#define HEDDLE_WIRE_H
#include "heddle.h"

#define ETH_ALEN 6
#define ETH_P_ARP 0x0806
#define ARP_SHA 22 /* places in the frame: the sender's MAC and address, the target's MAC */
#define ARP_SPA 28
#define ARP_THA 32

/* Why `edge` drops a frame: the order of APART in plugins/attach/wires.py. */
enum apart { SPOOFED, JUMBO, TAGGED, MULTICAST, MALFORMED, OTHER, CAUSES_APART };

struct wire {
	__u32 port; /* interface indexes, in the host's namespace: of its port, and of the end of the wire */
	__u32 inner;
	__u32 mtu;
	__u8 mac[ETH_ALEN]; /* of the port: the only one that the switch knows */
	__u8 own[ETH_ALEN]; /* of the endpoint, from its last frame */
	__u32 saddr[4]; /* of the port, network byte order; IPv4 as ::ffff:a.b.c.d */
	__u64 in_packets; /* from the endpoint, without those that are dropped here */
	__u64 in_bytes;
	__u64 out_packets; /* to the endpoint */
	__u64 out_bytes;
	__u64 out_ce; /* with the mark Congestion Experienced */
	__u64 apart[CAUSES_APART];
};

/* By port id. Few ports are attached, so no row is preallocated. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct wire);
} wires SEC(".maps");

INLINE int differ(const __u8 *a, const __u8 *b)
{
	return a[0] != b[0] || a[1] != b[1] || a[2] != b[2] || a[3] != b[3] || a[4] != b[4] || a[5] != b[5];
}

#endif
