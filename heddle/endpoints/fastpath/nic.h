/* One NIC: its queue pairs and packet sockets. The same order of operations as nic/nic.py, which is the reference.
 *
 * Data wait for the port: when the socket is full, the NIC is `blocked` until the socket is writable. Answers have a
 * separate socket. Timers stop while the port accepts no data at all.
 */
#ifndef HEDDLE_NIC_H
#define HEDDLE_NIC_H

#include "dcqcn.h"
#include "rc.h"

#define LINES 16	/* different delays of one NIC's paths */
#define DELAYED_MAX 65536 /* maximum number of delayed frames of a NIC; further ones are not delayed */

struct qp {
	struct qp *next; /* in the list of those with data, or with answers */
	struct qp *touched_next, *wait_next, *wait_before;
	struct flow flow;
	union {
		struct sender s;
		struct receiver r;
	};
	union {
		struct pace *pace;     /* of a sender; NULL: no congestion control */
		struct notify *notify; /* of a receiver */
	};
	u64 packets, bytes, ce, damaged; /* damaged: arrived with a wrong ICRC */
	u32 qpn, ack_every; /* every ack_every-th packet of a message requests an acknowledgement */
	struct line *line;  /* the line of its delayed frames; NULL: no delay */
	u8 peer[16];
	u8 kind, queued, touched, waits; /* waits: in the list of delayed acknowledgements */
};

struct list {
	struct qp *first, *last;
};

/* A received frame that counts as arrived at `due`. */
struct delayed_frame {
	struct delayed_frame *next;
	struct qp *qp;
	i64 due;
	struct packet packet;
	u8 bytes[];
};

/* Frames of queue pairs whose paths have the same propagation delay, in the order of reception. */
struct line {
	i64 delay_ns;
	struct delayed_frame *first, *last;
};

struct outbox {
	u32 filled, sent;
	struct mmsghdr messages[FILL];
	struct made made[FILL];
	u8 room[FILL][HEADER_ROOM];
};

struct nic {
	struct engine *engine;
	struct memory memory;
	struct qp **qps; /* in the order of creation */
	u32 *slots;	 /* QPN -> index in qps + 1, open addressing */
	u32 count, room, slot_mask, index;
	int data_fd, answer_fd, error;
	u8 blocked, eager, watched, shut; /* watched: the poll also watches for writability */
	i64 timer, last_accepted, last_expire; /* timer: no retransmission is due before this time;
					  * last_accepted: when the socket last accepted data */
	struct list round, answering, waiting;
	struct line lines[LINES];
	struct delayed_frame *spare;
	u32 line_count, delayed_count;
	struct outbox data, answers;
	u64 malformed, icrc_errors, stray, queue_drops;
	double line_bps;
};

struct event {
	u32 kind, nic;
	u32 a, b;
};

struct inbox {
	struct mmsghdr messages[BATCH];
	struct iovec parts[BATCH];
	u8 *frames;
	u32 stride, room;
};

struct engine {
	struct rc rc;
	struct opcodes ops;
	struct dcqcn_rule congestion;
	crc_fn crc;
	struct inbox inbox;
	struct nic **nics;
	u32 count;
	int version, epfd;
	i64 moderation_ns, last_pass, next_tick;
	struct event *events;
	u32 event_count, event_room;
};

static inline void append(struct list *l, struct qp *q)
{
	q->next = NULL;
	if (l->last)
		l->last->next = q;
	else
		l->first = q;
	l->last = q;
}

static inline struct qp *pop(struct list *l)
{
	struct qp *q = l->first;

	l->first = q->next;
	if (!l->first)
		l->last = NULL;
	return q;
}

static inline void add_event(struct nic *n, u32 kind, u32 a, u32 b)
{
	struct engine *e = n->engine;
	struct event *more;

	if (e->event_count == e->event_room) {
		more = realloc(e->events, 2 * (e->event_room + 32) * sizeof(*more));
		if (!more)
			return;
		e->events = more;
		e->event_room = 2 * (e->event_room + 32);
	}
	e->events[e->event_count++] = (struct event){ kind, n->index, a, b };
}

/* A sender has failed: b has the oldest PSN not acknowledged, and the syndrome of the refusal, 0 for no answer. */
static inline void qp_failed(struct nic *n, const struct qp *q)
{
	add_event(n, QP_FAILED, q->qpn, ((u32)q->s.una & PSN_MASK) << 8 | q->s.syndrome);
}

/* Handle an error of a socket: temporary errors do not end the run. */
static inline void handle_socket_error(struct nic *n, int code)
{
	if (!code || code == EAGAIN || code == ENETDOWN)
		return;
	if (code == ENOBUFS)
		n->queue_drops++;
	else if (!n->error) {
		n->error = code;
		add_event(n, PORT_FAILED, (u32)code, 0);
	}
}

static inline struct qp *find_qp(const struct nic *n, u32 qpn)
{
	for (u32 at = qpn * 2654435761u;; at++) {
		u32 slot = n->slots[at & n->slot_mask];

		if (!slot)
			return NULL;
		if (n->qps[slot - 1]->qpn == qpn)
			return n->qps[slot - 1];
	}
}

static inline void wake(struct nic *n, struct qp *q)
{
	if (!q->queued) {
		q->queued = 1;
		append(&n->round, q);
	}
	n->eager = 1;
}

/* Delay an acknowledgement. All have the same delay, so the list is in order of time. */
static inline void delay_ack(struct nic *n, struct qp *q)
{
	q->waits = 1;
	q->wait_next = NULL;
	q->wait_before = n->waiting.last;
	if (n->waiting.last)
		n->waiting.last->wait_next = q;
	else
		n->waiting.first = q;
	n->waiting.last = q;
}

static inline void cancel_delayed_ack(struct nic *n, struct qp *q)
{
	q->r.ack_at = NEVER;
	if (!q->waits)
		return;
	q->waits = 0;
	*(q->wait_before ? &q->wait_before->wait_next : &n->waiting.first) = q->wait_next;
	*(q->wait_next ? &q->wait_next->wait_before : &n->waiting.last) = q->wait_before;
}

/* The time when `expire` must be called. */
static inline i64 deadline_of(const struct nic *n)
{
	i64 at = n->timer;

	if (n->waiting.first && n->waiting.first->r.ack_at < at)
		at = n->waiting.first->r.ack_at;
	for (u32 i = 0; i < n->line_count; i++)
		if (n->lines[i].first && n->lines[i].first->due < at)
			at = n->lines[i].first->due;
	return at;
}

/* Whether a sender may send now. */
static inline int ready(const struct qp *q)
{
	return sendable(&q->s) > 0 && !(q->pace && q->pace->waits);
}

/* Whether a receiver has a CNP or an answer to send. */
static inline int answering(const struct qp *q)
{
	return q->r.ack_due || q->r.nak || (q->notify && q->notify->due);
}

/* The time when `expire` must look at a sender. */
static inline i64 sender_deadline(const struct rc *rc, const struct qp *q)
{
	return q->pace && q->pace->waits ? q->pace->due + LATE_NS : round_up_deadline(rc, q->s.deadline);
}

/* Queue a QP if it has frames to send, and register its timer. */
static inline void update_queue(struct nic *n, struct qp *q)
{
	if (q->kind == SENDER) {
		i64 at = sender_deadline(&n->engine->rc, q);

		if (ready(q))
			wake(n, q);
		if (at < n->timer)
			n->timer = at;
		return;
	}
	if (q->notify && q->notify->deadline != FAR_NS && q->notify->deadline + LATE_NS < n->timer)
		n->timer = q->notify->deadline + LATE_NS;
	if (answering(q) && !q->queued) {
		q->queued = 1;
		append(&n->answering, q);
		n->eager = 1;
	}
	if (q->r.ack_at != NEVER && !q->waits)
		delay_ack(n, q);
}

/* Prepare a flow: lengths and checksum of its IPv4 header are 0, and the sum of the rest is computed. */
static inline void prepare_flow(struct flow *f, int version)
{
	f->version = (u8)version;
	f->plain_sum = 0;
	if (version != 4)
		return;
	put16(f->head + ETH_HLEN + 2, 0);
	put16(f->head + ETH_HLEN + 10, 0);
	for (u32 i = 0; i < 20; i += 2)
		f->plain_sum += get16(f->head + ETH_HLEN + i);
}

/* The shaper of an earlier sender to the same address; NULL if there is none. */
static inline struct shaper *find_shaper(const struct nic *n, const u8 *peer)
{
	for (u32 i = 0; i < n->count; i++)
		if (n->qps[i]->kind == SENDER && !memcmp(n->qps[i]->peer, peer, 16))
			return n->qps[i]->pace->shaper;
	return NULL;
}

static inline struct shaper *new_shaper(const struct dcqcn_rule *r, double line_bps)
{
	u32 room = r->steps + 1;
	struct shaper *s = calloc(1, sizeof(*s) + room * (sizeof(i64) + sizeof(double)));

	if (!s)
		return NULL;
	start_shaper(r, s, line_bps);
	s->times = (i64 *)(s + 1);
	s->rates = (double *)(s->times + room);
	return s;
}

static inline void free_congestion(struct qp *q)
{
	if (q->kind == SENDER && q->pace && q->pace->owner)
		free(q->pace->shaper);
	free(q->pace); /* or notify: a union */
}

/* Give an end its part of congestion control; return 0, or -1. */
static inline int add_congestion(struct engine *e, const struct nic *n, struct qp *q)
{
	const struct dcqcn_rule *r = &e->congestion;
	u8 *ip;

	if (q->kind == SENDER) {
		struct shaper *shared = r->coalesce ? find_shaper(n, q->peer) : NULL;

		q->pace = calloc(1, sizeof(*q->pace));
		if (!q->pace)
			return -1;
		q->pace->owner = !shared;
		q->pace->shaper = shared ? shared : new_shaper(r, n->line_bps);
		if (!q->pace->shaper) {
			free(q->pace);
			return -1;
		}
		q->pace->shaper->users++;
		q->pace->turn = -1;
		q->pace->at = q->pace->due = -FAR_NS;
		q->pace->held = &q->s.deadline;
		return 0;
	}
	q->notify = calloc(1, sizeof(*q->notify));
	if (!q->notify)
		return -1;
	q->notify->deadline = FAR_NS;
	q->notify->flow = q->flow;
	ip = q->notify->flow.head + ETH_HLEN;
	if (e->version == 4) {
		ip[1] = r->cnp_tos;
	} else {
		ip[0] = (u8)(0x60 | r->cnp_tos >> 4);
		ip[1] = (u8)(r->cnp_tos << 4);
	}
	ip[HEADER_BYTES((u32)e->version) + UDP_BYTES + 4] |= 0x40; /* BECN */
	prepare_flow(&q->notify->flow, e->version);
	return 0;
}

#endif
