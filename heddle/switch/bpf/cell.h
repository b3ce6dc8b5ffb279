/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * The maps of the queues that `hash` also reads: depths, and the class of each DSCP. cells.py has the same layouts.
 */
#ifndef HEDDLE_CELL_H
#define HEDDLE_CELL_H
#include "heddle.h"

#define BPF_F_MMAPABLE 1024

/* A class of an egress port. Sizes in bytes of frames, from the Ethernet header to the ICRC. */
struct cell {
	__u64 depth; /* enqueued and not yet at the peer's ingress */
	__u64 high_water; /* of depth, since the last reset */
	__u64 peak; /* the same, reset by the sampling process: never above high_water */
	__u64 in_packets; /* admitted */
	__u64 in_bytes;
	__u64 out_packets;
	__u64 out_bytes;
	__u64 marks; /* packets that were marked CE here; those that arrived with CE are in ce_in */
	/* Packets, by cause. threshold: the class exceeds its dynamic threshold in the shared buffer. headroom: lossless,
	 * beyond xoff and its headroom. buffer: the whole buffer is full. watchdog: the class is paused forever; also those
	 * that were released from the closed gate, to be dropped. down: the port has no link. fault: lost on the link.
	 * trim: of this class, trimmed here, and then the trim queue was full. */
	__u64 drops[CAUSES];
	__u64 drop_bytes;
	__u64 last_out_ns; /* when the last packet left while the class's gate should be closed (CLOCK_MONOTONIC) */
	__u64 strays; /* packets that left but are not in depth, which was reset meanwhile */
	__u64 ce_in; /* admitted packets that already had CE, from an upstream queue; ce_in + marks leave with CE */
	__u64 copies; /* packets that left and were duplicated on the link: a fault */
	__u64 fault_bytes; /* of drops of cause fault, which are in drop_bytes too */
	/* Of this class, trimmed here: all, those that the trim queue took, and the bytes that these lost. Three cache lines:
	 * the fields that every packet changes are in the first one. */
	__u64 trims;
	__u64 trim_sent;
	__u64 trim_bytes;
};

struct classes {
	__u8 of_dscp[64];
	__u8 control; /* the class of packets other than IP, and of IPv6's neighbour discovery */
	__u8 pad[7];
	__u64 whole; /* a bit for each DSCP whose packets are never trimmed */
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
