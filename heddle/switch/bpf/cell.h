/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * What `hash` reads of the queues, too: how deep each is, and which class a packet is of. cells.py has the other half.
 */
#ifndef HEDDLE_CELL_H
#define HEDDLE_CELL_H
#include "heddle.h"

#define BPF_F_MMAPABLE 1024
#define CLASSES 8
#define DROP_THRESHOLD 0 /* more than the dynamic threshold lets the class have of the shared buffer */
#define DROP_HEADROOM 1  /* lossless: beyond xoff and its headroom */
#define DROP_BUFFER 2    /* the whole buffer is full */
#define DROP_WATCHDOG 3  /* the class is cut off at this port, since it is paused for ever */
#define DROP_DOWN 4      /* the port has no link */
#define CAUSES 5

/* A class of an egress port. Everything is in frames' bytes, from the Ethernet header to the ICRC. */
struct cell {
	__u64 depth; /* enqueued and not yet at the peer's ingress */
	__u64 high_water; /* of depth, since somebody put it to 0 */
	__u64 peak; /* the same, for whoever samples: never above high_water */
	__u64 in_packets; /* admitted */
	__u64 in_bytes;
	__u64 out_packets;
	__u64 out_bytes;
	__u64 marks; /* packets that turned CE here; those that came with CE are in ce_in */
	__u64 drops[CAUSES]; /* packets; watchdog: also those that were let out of the closed gate, to be dropped */
	__u64 drop_bytes;
	__u64 last_out_ns; /* when a packet was last seen to leave while the class's gate was to be closed (CLOCK_MONOTONIC) */
	__u64 strays; /* packets that left and had never come: their depth had been put to 0 meanwhile */
	__u64 ce_in; /* admitted packets that had CE already, from a queue further back: with marks, all that leave with CE */
	__u64 spare[7]; /* three cache lines: what every packet changes is in the first one */
};

struct classes {
	__u8 of_dscp[64];
	__u8 control; /* of what is no IP, and of IPv6's neighbour discovery */
	__u8 pad[7];
};

/* Sized by cells.py. */
#define SHARED_MAP(name, value_type) struct { \
	__uint(type, BPF_MAP_TYPE_ARRAY); \
	__uint(map_flags, BPF_F_MMAPABLE); \
	__uint(max_entries, CLASSES); \
	__type(key, __u32); \
	__type(value, value_type); \
} name SEC(".maps")

SHARED_MAP(cells, struct cell); /* row of an egress port */
SHARED_MAP(dscp, struct classes); /* one cell; fixed while a lab is up */

#endif
