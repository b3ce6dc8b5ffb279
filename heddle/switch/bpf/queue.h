/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * The shared state of a lab's queues: one set of maps for all ports of switches and hosts. cells.py has the same
 * layouts, and maps most of them into memory.
 *
 * Ports have ids from 1 (classes.py), consecutive within a node. "row" is port * 8 + class.
 */
#ifndef HEDDLE_QUEUE_H
#define HEDDLE_QUEUE_H
#include "cell.h"

#define BPF_MAP_TYPE_RINGBUF 27

/* A class of an ingress port: the packets that arrived by it and are still in the switch. */
struct ingress {
	__u64 occupancy;
	__u64 high_water;
	__u64 peak;
	__u64 xoffs; /* number of times that it crossed xoff */
	__u64 headroom_high; /* maximum beyond xoff, including packets that were dropped for it */
	__u64 drops; /* packets dropped because the headroom was full */
	__u32 state; /* 0: open; 1: the peer is asked to pause. Authoritative; an event is only a wake-up */
	__u32 pad;
	__u64 since_ns; /* of that state */
	__u64 drop_bytes; /* of drops */
	__u64 lost; /* bytes dropped because the headroom was full, since the start of the last pause */
	__u64 lost_high; /* maximum of that in one pause: the missing headroom */
	__u64 spare[5];
};

/* Pause frames that a port received, by class. */
struct gate {
	__u64 pfc_received;
	__u64 since_ns; /* arrival of the first frame of a pause; 0: none. The agent also resets it when a pause ends */
	__u64 last_ns; /* arrival of the last frame, Xoff or Xon */
	__u64 lost; /* written by user space: packets that entered the class's queue here and never left it */
};

/* Written by the agent of a lab, by row. The programs read `watchdog`, `storm_since_ns` and `until_ns`. */
struct agent {
	__u64 pfc_sent;
	__u64 closed_since_ns; /* 0: the gate is open */
	__u64 until_ns; /* when the gate must open; set before it is closed, reset to 0 after it is opened */
	__u64 paused_ns; /* sum of pauses that have ended */
	__u32 watchdog; /* 0: no storm; 1: storm, drop; 2: storm, forward */
	__u32 pad;
	__u64 storms;
	__u64 storm_since_ns;
	__u64 reactions;
	__u64 reaction_last_ns;
	__u64 reaction_max_ns;
	__u64 reaction_sum_ns;
	__u64 spare[5];
};

/* Written by the agent of a lab and its keeper, in one cell: world.py. */
struct pulse {
	__u64 heartbeat_ns; /* when the agent last worked */
	__u64 ending; /* 1: both have to end */
	__u64 keeper_ns; /* when the keeper last worked */
	__u64 agent; /* its pid */
	__u64 agent_start; /* in clock ticks since boot: pids are used again */
	__u64 keeper;
	__u64 keeper_start;
	__u64 spare;
};

#define GATE_GRACE_NS 300000000ULL /* when a gate or the end of a storm is overdue by this time, no process is left */

struct link {
	__u32 peer; /* the port at the other end; 0: not a port of the lab */
	__u32 node; /* index in `switches` */
	__u32 local; /* index among the ports of its node, from 0 */
	__u32 ports_of_node;
	__u32 matrix_base; /* first cell of its node in `transit` */
	__u32 flags; /* LINK_*; DOWN: packets are dropped, and counted neither in nor out; FAULT: they meet a row of `faults` */
	__u64 rate; /* bit/s */
};

/* What packets meet on the link behind a port. build.py gives both lists of names, from spec/impairments.py:
 * FAULT_CHANCES, __u32 loss and so on, are probabilities: 0 is never, else (p + 1) / 2^32 of all packets.
 * FAULT_COUNTS, __u64 lost and so on, are the packets that met them since the fault was set. */
struct fault {
	FAULT_CHANCES
	__u32 line; /* ifindex, at the receiving node, of the delay line: a veth with netem; 0: none */
	__u64 packets; /* that left by this port since the fault was set */
	FAULT_COUNTS
	__u64 delayed; /* packets that entered the delay line, duplicates included */
	__u32 port; /* ifindex, at the receiving node, of the port that packets return to from the line */
	__u32 spare;
};

/* A switch's buffer. */
struct node {
	__u64 shared_used; /* bytes of queues beyond their reserves, without headroom */
	__u64 headroom_used; /* bytes of ingress ports beyond xoff */
	__u64 used; /* all bytes */
	__u64 high_water; /* of used */
	__u64 peak;
	__u64 headroom_high;
	__u64 drops; /* packets, of any cause */
	__u64 spare;
};

/* The policy of a class of a port, for egress; xoff to quanta for ingress. There are two copies: see `active`. */
struct policy {
	__u32 kind; /* 0: no class, 1: control, 2: lossless, 3: lossy */
	__u32 flags; /* POLICY_*; PFC: the class is lossless, and may pause: charged to its ingress port;
		      * RED: the kernel's RED marks, in the qdisc, and `dequeue` counts its marks;
		      * LAST_HOP: trimmed packets get their original IP length back: there is a host at the other end */
	__u64 kmin;
	__u64 kmax;
	__u64 pmax; /* 2^32: all */
	__u64 xoff;
	__u64 xon;
	__u64 headroom;
	__u64 reserve;
	__u64 alpha; /* 2^16: 1 */
	__u64 shared; /* size of the switch's shared buffer, in bytes, beyond the reserves */
	__u64 buffer; /* of the switch; of a host's port: of this class */
	__u64 detect_ns; /* only the agent uses this, quanta and action */
	__u64 restore_ns;
	__u32 quanta;
	__u32 action;
	__u32 priority; /* skb->priority: the qdisc's class */
	__u32 fallback; /* the same for packets that bypass the class's gate, when it was left closed */
	__u32 frame; /* maximum frame of this port: Xon is sent at the latest when no more than this is left */
	__u32 trim; /* 0: packets that the buffer refuses are dropped. Else: they are trimmed to this IP length, with this
		     * DSCP, into this class: bits from 0, TRIM_DSCP and TRIM_QUEUE on */
};

/* EVENT_XOFF: ask the peer of `port` to pause `class`. EVENT_XON: ask it to resume. EVENT_PFC: a pause frame arrived by
 * `port`; `class` is its vector, with lossless classes only. */
struct event {
	__u64 ns;
	__u32 port;
	__u8 kind;
	__u8 class;
	__u16 pad;
	__u16 quanta[CLASSES];
};

/* Sized by cells.py, which also maps them into memory. */
SHARED_MAP(ingress, struct ingress); /* row of an ingress port */
SHARED_MAP(gates, struct gate); /* row of the port that is paused */
SHARED_MAP(agent, struct agent); /* the same row; pfc_sent: row of the port that sends the frame */
SHARED_MAP(pulse, struct pulse);
SHARED_MAP(links, struct link); /* port */
SHARED_MAP(faults, struct fault); /* port */
SHARED_MAP(switches, struct node); /* node; the rows of hosts stay empty */
SHARED_MAP(transit, __u64); /* bytes by (ingress, egress, class) of a node; ingress 0: sent by the switch itself */
SHARED_MAP(policies, struct policy); /* row * 2 + half */
SHARED_MAP(active, __u32); /* one cell, incremented with each change: its last bit is the active half of `policies` */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

#endif
