/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0)
 *
 * What the queues of a lab share: one set of maps for all its ports, switches' and hosts'. cells.py has the other half
 * of these layouts, and maps most of them into memory.
 *
 * Ports have numbers from 1 (portids.py), and those of one node follow each other. "row" is port * 8 + class.
 */
#ifndef HEDDLE_QUEUE_H
#define HEDDLE_QUEUE_H
#include "cell.h"

#define BPF_MAP_TYPE_RINGBUF 27

/* A class of an ingress port: what came in by it and is still in the switch. */
struct ingress {
	__u64 occupancy;
	__u64 high_water;
	__u64 peak;
	__u64 xoffs; /* times that it crossed xoff */
	__u64 headroom_high; /* the most beyond xoff that it held, or would have held with a packet that was dropped */
	__u64 drops; /* for want of headroom */
	__u32 state; /* 0: open; 1: the peer is asked to pause. This is the truth, an event only wakes */
	__u32 pad;
	__u64 since_ns; /* of that state */
	__u64 drop_bytes; /* of drops */
	__u64 lost; /* bytes dropped for want of headroom since the last pause began */
	__u64 lost_high; /* the most in one pause: headroom that was missing */
	__u64 spare[5];
};

/* Pause frames that a port took in, by class. */
struct gate {
	__u64 pfc_received;
	__u64 since_ns; /* when the first frame of a pause came; 0: none. Also the agent puts it to 0, when a pause ends */
	__u64 last_ns; /* when the last frame came, of either kind */
	__u64 lost; /* user space: packets that went into the class's queue here, and came out nowhere */
};

/* What the agent of a lab writes, by row. The programs read `watchdog`. */
struct agent {
	__u64 pfc_sent;
	__u64 closed_since_ns; /* 0: the gate is open */
	__u64 until_ns; /* when it is to open; written before it is closed, and put to 0 after it has been opened */
	__u64 paused_ns; /* sum of pauses that have ended */
	__u32 watchdog; /* 0: well; 1: storm, drop; 2: storm, forward */
	__u32 pad;
	__u64 storms;
	__u64 storm_since_ns;
	__u64 reactions;
	__u64 reaction_last_ns;
	__u64 reaction_max_ns;
	__u64 reaction_sum_ns;
	__u64 spare[5];
};

#define WATCHDOG_DROP 1
#define GATE_GRACE_NS 300000000ULL /* a gate that is closed so long after its time has nobody left to open it */
#define LINK_HOST 1
#define LINK_DOWN 2 /* user space: packets are neither counted in nor out, but dropped */

struct link {
	__u32 peer; /* the port at the other end; 0: this port is not ours */
	__u32 node; /* index in `switches` */
	__u32 local; /* index among the ports of its node, from 0 */
	__u32 ports_of_node;
	__u32 matrix_base; /* first cell of its node in `transit` */
	__u32 flags;
	__u64 rate; /* bit/s */
};

/* A switch's buffer. */
struct node {
	__u64 shared_used; /* what queues hold beyond their reserve, headroom apart */
	__u64 headroom_used; /* what ingress ports hold beyond xoff */
	__u64 used; /* everything */
	__u64 high_water; /* of used */
	__u64 peak;
	__u64 headroom_high;
	__u64 drops; /* packets, of any cause */
	__u64 spare;
};

#define POLICY_ECN 1
#define POLICY_AT_DEQUEUE 2
#define POLICY_PFC 4 /* the class is lossless, and may pause: charged to where it came in */
#define POLICY_RED 8 /* the kernel's RED marks, in the qdisc; what it marked is counted behind it */

/* What holds for a class of a port: as it leaves there, and (xoff to quanta) as it comes in. Twice: see `active`. */
struct policy {
	__u32 kind; /* 0: no class, 1: control, 2: lossless, 3: lossy */
	__u32 flags;
	__u64 kmin;
	__u64 kmax;
	__u64 pmax; /* 2^32: all */
	__u64 xoff;
	__u64 xon;
	__u64 headroom;
	__u64 reserve;
	__u64 alpha; /* 2^16: 1 */
	__u64 shared; /* bytes that the queues of the switch share beyond their reserves */
	__u64 buffer; /* of the switch; of a host's port: of this class */
	__u64 detect_ns; /* these four are the agent's */
	__u64 restore_ns;
	__u32 quanta;
	__u32 action;
	__u32 priority; /* skb->priority: the qdisc's class */
	__u32 fallback; /* the one to take when the class's gate has been left closed */
	__u32 frame; /* the longest of this port: Xon is sent when no more than one of these is left, whatever xon says */
	__u32 spare;
};

#define EVENT_XOFF 1 /* ask the peer of `port` to pause `class` */
#define EVENT_XON 2  /* and to go on */
#define EVENT_PFC 3  /* a pause frame came in by `port`; `class` is its vector, of lossless classes alone */

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
SHARED_MAP(links, struct link); /* port */
SHARED_MAP(switches, struct node); /* node; hosts have one that stays empty */
SHARED_MAP(transit, __u64); /* bytes by (ingress, egress, class) of a node; ingress 0: made by the switch itself */
SHARED_MAP(policies, struct policy); /* row * 2 + half */
SHARED_MAP(active, __u32); /* one cell, more by 1 with each change: its last bit is the half of `policies` that holds */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

#endif
