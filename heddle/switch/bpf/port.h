/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
#ifndef HEDDLE_PORT_H
#define HEDDLE_PORT_H

#include "heddle.h"

/* 16 bits of the mark of a packet that `enqueue` has trimmed and queued. It then sends the packet to its port again: only
 * there the kernel takes its new length for the qdisc (qdisc_pkt_len_init). The programs have counted it. */
#define TRIMMED 0x5edfu

/* The id of the port that the packet is at: ports of a node share a filter, whose classid is the difference between
 * ids and interface indexes (classes.py). 0 without a classid: in a test run. */
INLINE __u32 port_of(const struct __sk_buff *skb)
{
	__u32 base = skb->tc_classid;

	return base ? (base + skb->ifindex - 1) % MOST_PORTS + 1 : 0;
}

#endif
