/* One NIC: its queue pairs and packet sockets. The same order of things as nic/nic.py, which is the reference.
 *
 * Data wait for the port: when the socket is full the NIC is `blocked` until it can be written. Answers have a socket of
 * their own. Timers stand still while the port takes no data at all.
 */
#ifndef HEDDLE_NIC_H
#define HEDDLE_NIC_H

#include "rc.h"

#define TURN 8	    /* packets that one QP sends before the next has its turn */
#define FILL 16	    /* frames that are made before they are handed to the socket */
#define READS 4	    /* full batches that are taken in before others have their turn */
#define BATCH 64    /* frames of one batch */
#define STILL_NS 20000000

enum kind { SENDER, RECEIVER };

struct qp {
	struct qp *next; /* in the round of those that have data, or that answer */
	struct qp *touched_next, *wait_next, *wait_before;
	struct flow flow;
	union {
		struct sender s;
		struct receiver r;
	};
	u64 packets, bytes, ce;
	u32 qpn;
	u8 peer[16];
	u8 kind, queued, touched, waits; /* waits: in the list of acknowledgements that may be put off */
};

struct list {
	struct qp *first, *last;
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
	struct qp **qps; /* in the order in which they were added */
	u32 *slots;	 /* QPN -> index in qps + 1, open addressing */
	u32 count, room, slot_mask, index;
	int data_fd, answer_fd, error;
	u8 blocked, eager, watched, shut; /* watched: the poll watches for room, too */
	i64 timer, took, looked; /* timer: no retransmission is due before */
	struct list round, answering, waiting;
	struct outbox data, answers;
	u64 malformed, icrc_errors, stray, queue_drops;
};

struct event {
	u32 kind, nic;
	u32 a, b;
};

enum { MESSAGE = 1, QP_FAILED, PORT_FAILED };

struct inbox {
	struct mmsghdr messages[BATCH];
	struct iovec parts[BATCH];
	u8 *frames;
	u32 stride, room;
};

struct engine {
	struct rc rc;
	struct opcodes ops;
	crc_fn crc;
	struct inbox inbox;
	struct nic **nics;
	u32 count;
	int version, epfd;
	i64 moderation_ns, last_pass, next_tick;
	struct event *events;
	u32 event_count, event_room;
	u64 passes, reads, frames;
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

static inline void tell(struct nic *n, u32 kind, u32 a, u32 b)
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

/* An acknowledgement is put off. All wait equally long, so the list is in order of time. */
static inline void put_off(struct nic *n, struct qp *q)
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

static inline void put_off_no_more(struct nic *n, struct qp *q)
{
	q->r.ack_at = NEVER;
	if (!q->waits)
		return;
	q->waits = 0;
	*(q->wait_before ? &q->wait_before->wait_next : &n->waiting.first) = q->wait_next;
	*(q->wait_next ? &q->wait_next->wait_before : &n->waiting.last) = q->wait_before;
}

/* When `expire` must be called. */
static inline i64 deadline_of(const struct nic *n)
{
	return n->waiting.first && n->waiting.first->r.ack_at < n->timer ? n->waiting.first->r.ack_at : n->timer;
}

/* Note what a QP has to send, and its timer. */
static inline void look(struct nic *n, struct qp *q)
{
	if (q->kind == SENDER) {
		i64 at = grained(q->s.deadline);

		if (sendable(&n->engine->rc, &q->s) > 0)
			wake(n, q);
		if (at < n->timer)
			n->timer = at;
		return;
	}
	if ((q->r.ack_due || q->r.nak) && !q->queued) {
		q->queued = 1;
		append(&n->answering, q);
		n->eager = 1;
	}
	if (q->r.ack_at != NEVER && !q->waits)
		put_off(n, q);
}

/* sending */

/* Hand over what is made; how many the kernel took. *code: why it took no more, 0 when it took all. */
static inline u32 hand_over(int fd, struct outbox *box, int *code)
{
	u32 before = box->sent;

	*code = 0;
	while (box->sent < box->filled) {
		int sent = sendmmsg(fd, box->messages + box->sent, box->filled - box->sent, MSG_DONTWAIT);

		if (sent > 0) {
			box->sent += (u32)sent;
			continue;
		}
		if (last_error() == EINTR)
			continue;
		*code = last_error();
		break;
	}
	return box->sent - before;
}

static inline void note(struct nic *n, int code)
{
	if (!code || code == EAGAIN || code == ENETDOWN)
		return;
	if (code == ENOBUFS)
		n->queue_drops++;
	else if (!n->error) {
		n->error = code;
		tell(n, PORT_FAILED, (u32)code, 0);
	}
}

static inline void box_up(struct outbox *box, u32 slot)
{
	struct msghdr *h = &box->messages[slot].hdr;

	memset(h, 0, sizeof(*h));
	h->iov = box->made[slot].part;
	h->iovlen = box->made[slot].parts;
}

/* One packet of a message: `index` of so many. */
static inline void make_data(struct engine *e, struct qp *q, struct outbox *box, u32 slot, const struct message *m,
			     u32 index, u32 psn)
{
	u32 mtu = e->rc.mtu, first = index == 0, last = index + 1 == m->packets, size = last ? m->bytes - index * mtu : mtu;
	u32 ask = last || (index + 1) % e->rc.ack_every == 0, ext_bytes = 0;
	u8 ext[RETH_BYTES + 4], opcode;

	opcode = first ? (last ? WRITE_ONLY_IMM : WRITE_FIRST) : (last ? WRITE_LAST_IMM : WRITE_MIDDLE);
	if (first) {
		put64(ext, m->va);
		put32(ext + 8, m->rkey);
		put32(ext + 12, m->bytes);
		ext_bytes = RETH_BYTES;
	}
	if (last) {
		put32(ext + ext_bytes, m->imm);
		ext_bytes += 4;
	}
	build(&q->flow, e->crc, box->room[slot], opcode, psn | ask << 31, ext, ext_bytes, m->data + (u64)index * mtu, size,
	      &box->made[slot]);
	box_up(box, slot);
}

/* Up to `limit` packets of a QP into slots from `slot` on; how many. They count as sent. */
static inline u32 take(struct engine *e, struct qp *q, struct outbox *box, u32 slot, u32 limit, i64 now)
{
	struct sender *s = &q->s;
	i64 start = s->next, ready = sendable(&e->rc, s), end = start + (ready < limit ? ready : limit);

	if (ready <= 0)
		return 0;
	for (i64 at = start; at < end; at++, slot++) {
		struct message *m = queued(s, s->unsent);

		make_data(e, q, box, slot, m, (u32)(at - m->first), (u32)at & MASK24);
		q->bytes += box->made[slot].frame_bytes;
		if (at + 1 == m->first + m->packets)
			s->unsent++;
	}
	s->next = end;
	s->sent += (u64)(end - start);
	if (start < s->tried)
		s->retransmitted += (u64)((s->tried < end ? s->tried : end) - start);
	if (end > s->tried)
		s->tried = end;
	if (s->deadline == NEVER)
		s->deadline = now + e->rc.timeout_ns;
	q->packets += (u64)(end - start);
	return (u32)(end - start);
}

static inline void fill(struct nic *n, i64 now)
{
	struct outbox *box = &n->data;
	u32 slot = 0;

	while (n->round.first && slot < FILL) {
		struct qp *q = pop(&n->round);
		u32 most = FILL - slot < TURN ? FILL - slot : TURN, count = take(n->engine, q, box, slot, most, now);
		i64 at = grained(q->s.deadline);

		slot += count;
		if (at < n->timer)
			n->timer = at;
		if (count && sendable(&n->engine->rc, &q->s) > 0)
			append(&n->round, q);
		else
			q->queued = 0;
	}
	box->filled = slot;
	box->sent = 0;
}

static inline void make_answer(struct nic *n, struct qp *q, u32 slot)
{
	struct receiver *r = &q->r;
	struct outbox *box = &n->answers;
	u32 psn = r->nak ? r->nak_psn : (r->psn - 1) & MASK24;
	u8 ext[4];

	put32(ext, (r->nak ? r->nak : ACK_NO_LIMIT) << 24 | r->msn);
	build(&q->flow, n->engine->crc, box->room[slot], OP_ACK, psn, ext, 4, NULL, 0, &box->made[slot]);
	box_up(box, slot);
	r->nak = 0;
	r->ack_due = r->asked = 0;
	r->unacked = 0;
	put_off_no_more(n, q);
}

/* What the socket does not take is offered again with the next call. */
static inline void send_answers(struct nic *n)
{
	struct outbox *box = &n->answers;
	int code;

	while (n->answering.first || box->sent < box->filled) {
		if (box->sent == box->filled) {
			box->filled = box->sent = 0;
			while (n->answering.first && box->filled < FILL) {
				struct qp *q = pop(&n->answering);

				q->queued = 0;
				make_answer(n, q, box->filled++);
			}
		}
		hand_over(n->answer_fd, box, &code);
		if (code) {
			note(n, code);
			return;
		}
	}
}

/* Send all answers, then data until there is no more, or the socket is full (`blocked`). */
static inline void transmit(struct nic *n, i64 now)
{
	int code;

	send_answers(n);
	while (!n->blocked) {
		if (n->data.sent == n->data.filled) {
			fill(n, now);
			if (!n->data.filled) {
				n->eager = n->answering.first || n->answers.sent < n->answers.filled;
				return;
			}
		}
		if (hand_over(n->data_fd, &n->data, &code))
			n->took = now;
		if (code) {
			note(n, code);
			/* A link that is down or a queue that refuses gives no wake-up: the tick tries again. */
			n->blocked = code == EAGAIN;
			return;
		}
	}
}

/* receiving */

static inline void take_frame(struct nic *n, const u8 *frame, u32 size, i64 now, struct qp **touched)
{
	struct engine *e = n->engine;
	struct packet p;
	struct region *done;
	struct qp *q;
	enum verdict v = read_frame(&e->ops, e->crc, frame, size, e->inbox.room, e->version, &p);

	if (v != SOUND) {
		n->malformed += v == MALFORMED;
		n->icrc_errors += v == BAD_ICRC;
		return;
	}
	q = find_qp(n, p.dqpn);
	if (!q || memcmp(p.src, q->peer, e->version == 4 ? 4 : 16) ||
	    (q->kind == SENDER ? p.opcode != OP_ACK : p.opcode < WRITE_FIRST || p.opcode > WRITE_ONLY_IMM)) {
		n->stray++;
		return;
	}
	q->ce += p.ce;
	if (!q->touched) {
		q->touched = 1;
		q->touched_next = *touched;
		*touched = q;
	}
	if (q->kind == SENDER) {
		if (q->s.failure)
			return;
		acknowledge(&e->rc, &q->s, p.psn, p.ext[0], now);
		if (q->s.failure)
			tell(n, QP_FAILED, q->qpn, q->s.failure << 8 | q->s.syndrome);
		return;
	}
	done = take_write(&e->rc, &q->r, &n->memory, &p, now);
	if (done && done->parts && !--done->parts) {
		struct table *t = n->memory.tables;

		t += done < t->regions || done >= t->regions + t->count;
		tell(n, MESSAGE, t->epoch, (u32)(done - t->regions));
	}
}

static inline int receive(struct nic *n, i64 now)
{
	struct engine *e = n->engine;
	struct inbox *in = &e->inbox;
	struct qp *touched = NULL, *in_order = NULL, *q;
	int taken = 0;

	for (int read = 0; read < READS; read++) {
		int count = recvmmsg(n->data_fd, in->messages, BATCH, MSG_DONTWAIT | MSG_TRUNC, NULL);

		e->reads++;
		if (count < 0) {
			note(n, last_error() == EINTR ? 0 : last_error());
			break;
		}
		taken += count;
		for (int i = 0; i < count; i++)
			take_frame(n, in->parts[i].base, in->messages[i].len, now, &touched);
		if (count < BATCH)
			break;
	}
	e->frames += (u64)taken;
	while ((q = touched)) { /* the list has the latest first */
		touched = q->touched_next;
		q->touched_next = in_order;
		in_order = q;
	}
	for (q = in_order; q; q = q->touched_next) {
		q->touched = 0;
		look(n, q);
	}
	return taken;
}

/* Timers stand still while the port takes nothing, as it does when it is paused: what they wait for is still in it, and
 * sending that again would only double it. */
static inline void expire(struct nic *n, i64 now)
{
	struct qp *q;

	if (n->blocked && now - n->took > STILL_NS) {
		i64 since = n->looked > n->took ? n->looked : n->took;

		for (u32 i = 0; i < n->count; i++)
			if (n->qps[i]->kind == SENDER && n->qps[i]->s.deadline != NEVER)
				n->qps[i]->s.deadline += now - since;
	}
	n->looked = now;
	while ((q = n->waiting.first) && q->r.ack_at <= now) {
		put_off_no_more(n, q);
		q->r.ack_due = 1;
		look(n, q);
	}
	if (now < n->timer)
		return;
	n->timer = NEVER;
	for (u32 i = 0; i < n->count; i++) {
		q = n->qps[i];
		if (q->kind != SENDER)
			continue;
		if (grained(q->s.deadline) <= now) {
			expire_sender(&n->engine->rc, &q->s, now);
			if (q->s.failure)
				tell(n, QP_FAILED, q->qpn, q->s.failure << 8 | q->s.syndrome);
		}
		look(n, q);
	}
}

#endif
