/* The memory of this object. Python allocates and fills all of it: layouts.py has the same layouts. */
#ifndef HEDDLE_SWITCH_H
#define HEDDLE_SWITCH_H

#include "system.h"

#define API __attribute__((visibility("default")))
#define READY 16

/* A field of the rows of one of the lab's maps, which are mapped into memory. */
struct field {
	u8 *base;
	u64 stride;
};

/* A port, by id. */
struct port {
	double quantum_ns;
	int control; /* the socket for control frames; -1: its namespace is gone */
	u8 address[ADDRESS_BYTES];
	u8 mac[6];
	u8 pad[2];
};

/* A gate, by row. */
struct gate {
	int netlink, kicker; /* sockets; -1: there is no gate, or its namespace is gone */
	u32 opening_bytes, closing_bytes;
	u8 address[ADDRESS_BYTES];
	u8 opening[MESSAGE_BYTES], closing[MESSAGE_BYTES]; /* netlink messages */
};

/* bpf/queue.h */
struct event {
	u64 ns;
	u32 port;
	u8 kind;
	u8 class; /* of a pause frame: the vector of classes */
	u16 pad;
	u16 quanta[CLASSES];
};

/* Something for Python: a descriptor that is readable, or (fd -1) a deadline that has passed. */
struct work {
	int fd;
	u32 kind, row;
};

struct core {
	u32 rows, pending;
	int epoll, events_fd, timer, pad;
	i64 armed; /* when the kernel's timer expires; 0: it is not set, or its expiry has been read */
	u64 events, refused; /* counts: events taken, changes of gates that could not be sent */
	void *ring;
	int (*consume)(void *ring);
	volatile u64 *heartbeat;
	struct port *ports;
	struct gate *gates;
	/* deadlines, by key (kind * rows + row): position in the heap, from 1; moment */
	u32 *heap, *position;
	i64 *when;
	/* rules, by row */
	u8 *pfc;
	u32 *quanta;
	i64 *detect_ns;
	/* pfc/loop.py, by row */
	u8 *asked, *storming;
	i64 *heard, *waiting, *checked, *arrived, *shut;
	/* fields of the lab's maps, by row */
	struct field state, depth, last_out_ns, since_ns, pfc_sent, closed_since_ns, until_ns, paused_ns, reactions,
		reaction_last_ns, reaction_max_ns, reaction_sum_ns, histogram;
	u32 kick_bytes, pad2;
	u8 kick[64];
};

/* Of hd_rows_read. */
struct reader {
	u32 rows, words;
	struct field *taken; /* the words to copy */
	u8 *full;	     /* by row: it was not empty at the last reading */
	i64 *dropped;	     /* by row: drop_bytes at the last reading. A port that is down drops what it does not queue */
	struct field depth, peak, occupancy, occupancy_peak, closed_since_ns, last_ns, drop_bytes;
};

#endif
