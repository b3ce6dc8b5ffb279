/* The state of a reliable connection. The reference is transports/rcstate.py and rc.py: both send the same packets for
 * the same events. PSNs are 24 bits on the wire and unbounded in a sender.
 */
#ifndef HEDDLE_RC_H
#define HEDDLE_RC_H

#include "memory.h"
#include "wire.h"

#define NEVER INT64_MAX

struct rc {
	i64 timeout_ns, ack_delay_ns;
	u32 mtu, retries;
};

struct message {
	const u8 *data;
	u64 va;
	u32 bytes, rkey, imm, packets;
	i64 first; /* PSN */
};

enum failure { FINE, NO_ANSWER, REFUSED };

struct sender {
	i64 una, next, tried, tail, deadline;
	struct message *queue; /* a ring: messages not completely acknowledged, oldest first */
	u32 head, count, room, unsent;
	u32 tries, failure, syndrome;
	u32 window;
	u64 sent, retransmitted, naks, timeouts;
};

struct receiver {
	u32 psn, msn, early;
	u32 nak_psn, nak;	     /* a NAK to send: its syndrome, or 0 */
	u8 nak_sent, asked, ack_due; /* asked: an acknowledgement was requested, and may be delayed */
	u32 unacked, ack_every;
	i64 ack_at;
	struct table *table; /* of the destination of the current message; NULL for none */
	u32 region, at, left, generation;
	u64 received, duplicates, out_of_order, invalid;
};

/* sender */

static inline struct message *queued(struct sender *s, u32 index)
{
	return &s->queue[(s->head + index) & (s->room - 1)];
}

static inline i64 sendable(const struct sender *s)
{
	i64 end = s->una + s->window;

	if (s->failure)
		return 0;
	return (s->tail < end ? s->tail : end) - s->next;
}

static inline int post_message(const struct rc *rc, struct sender *s, const u8 *data, u32 bytes, u64 va, u32 rkey,
			       u32 imm)
{
	struct message *more, *m;
	u32 packets = bytes ? (bytes + rc->mtu - 1) / rc->mtu : 1;

	if (s->count == s->room) {
		u32 room = s->room ? 2 * s->room : 16;

		more = malloc(room * sizeof(*more));
		if (!more)
			return -1;
		for (u32 i = 0; i < s->count; i++)
			more[i] = *queued(s, i);
		free(s->queue);
		s->queue = more;
		s->head = 0;
		s->room = room;
	}
	m = queued(s, s->count++);
	*m = (struct message){ data, va, bytes, rkey, imm, packets, s->tail };
	s->tail += packets;
	return 0;
}

static inline void fail(struct sender *s, u32 failure)
{
	s->failure = failure;
	s->deadline = NEVER;
}

static inline void rewind_sender(const struct rc *rc, struct sender *s, i64 now)
{
	s->next = s->una;
	s->unsent = 0;
	s->deadline = now + rc->timeout_ns;
}

static inline void advance(const struct rc *rc, struct sender *s, i64 una, i64 now)
{
	if (una <= s->una || una > s->tried)
		return; /* an outdated acknowledgement, or one for packets that were never sent */
	s->una = una;
	s->tries = 0;
	while (s->count && queued(s, 0)->first + queued(s, 0)->packets <= una) {
		s->head = (s->head + 1) & (s->room - 1);
		s->count--;
		s->unsent -= s->unsent > 0;
	}
	if (s->next <= una) { /* acknowledged during go-back-N: continue from there */
		s->next = una;
		s->unsent = 0;
	}
	s->deadline = s->una == s->next ? NEVER : now + rc->timeout_ns;
}

static inline void acknowledge(const struct rc *rc, struct sender *s, u32 psn, u32 syndrome, i64 now)
{
	i64 at = s->una + (i64)((psn - (u32)s->una + PSN_HALF) & PSN_MASK) - PSN_HALF;

	if (!(syndrome & 0x60)) {
		advance(rc, s, at + 1, now);
	} else if (syndrome == NAK_SEQUENCE) {
		s->naks++;
		advance(rc, s, at, now);
		if (at == s->una && s->una < s->tried)
			rewind_sender(rc, s, now);
	} else {
		s->syndrome = syndrome;
		fail(s, REFUSED);
	}
}

static inline i64 round_up_deadline(const struct rc *rc, i64 deadline)
{
	i64 step = rc->timeout_ns < TIMER_NS ? rc->timeout_ns : TIMER_NS;

	return deadline == NEVER ? NEVER : (deadline + step - 1) / step * step;
}

static inline void expire_sender(const struct rc *rc, struct sender *s, i64 now)
{
	if (now < s->deadline)
		return;
	s->timeouts++;
	if (++s->tries > rc->retries)
		fail(s, NO_ANSWER);
	else
		rewind_sender(rc, s, now);
}

/* receiver */

static inline void nak(struct receiver *r, u32 syndrome)
{
	r->nak_sent = 1;
	r->nak_psn = r->psn;
	r->nak = syndrome;
}

/* Copy a payload to its destination; return 0, or the syndrome of an error. *done: set to the region of a message that
 * this packet completes. */
static inline u32 write_payload(const struct rc *rc, struct receiver *r, struct memory *m, const struct packet *p,
				int first, int last, struct region **done)
{
	struct region *region;

	if (first) {
		u64 va = get64(p->ext);
		struct table *t = &m->tables[va >> EPOCH_SHIFT & 1];

		if (r->table)
			return NAK_INVALID;
		region = get32(p->ext + 8) == m->rkey ? find_region(t, va, get32(p->ext + 12)) : NULL;
		if (region && !region->data)
			region->data = get_buffer(&m->store, region->bytes);
		if (!region || !region->data)
			return NAK_ACCESS;
		r->table = t;
		r->generation = t->generation;
		r->region = (u32)(region - t->regions);
		r->at = (u32)(va - region->va);
		r->left = get32(p->ext + 12);
	}
	if (!r->table || r->table->generation != r->generation || p->payload_bytes > r->left)
		return NAK_INVALID;
	if (last ? p->payload_bytes != r->left : p->payload_bytes != rc->mtu)
		return NAK_INVALID;
	region = &r->table->regions[r->region];
	if (!region->data)
		return NAK_INVALID;
	memcpy(region->data + r->at, p->payload, p->payload_bytes);
	r->at += p->payload_bytes;
	r->left -= p->payload_bytes;
	if (last) {
		r->table = NULL;
		*done = region;
	}
	return 0;
}

/* The missing packet has arrived. If its NAK is still unsent, change it to request the discarded packets after it. */
static inline void close_gap(struct receiver *r)
{
	int waits = r->nak == NAK_SEQUENCE;

	if (waits && ((r->early - r->psn) & PSN_MASK) < PSN_HALF) {
		r->nak_psn = r->psn;
		return;
	}
	r->nak_sent = 0;
	if (waits) {
		r->nak = 0;
		r->ack_due = 1;
	}
}

/* Handle a packet of a write. Returns the region if the packet completes a message, or a part of one. */
static inline struct region *handle_write(const struct rc *rc, struct receiver *r, struct memory *m,
					const struct packet *p, i64 now)
{
	int first = p->opcode == WRITE_FIRST || p->opcode >= WRITE_ONLY;
	int last = p->opcode >= WRITE_LAST, imm = p->opcode == WRITE_LAST_IMM || p->opcode == WRITE_ONLY_IMM;
	i64 ahead = (i64)((p->psn - r->psn + PSN_HALF) & PSN_MASK) - PSN_HALF;
	struct region *done = NULL;
	u32 problem;

	if (ahead < 0) {
		r->duplicates++;
		r->ack_due = 1; /* its ACK was lost, or the sender's timer expired too early: acknowledge again */
		return NULL;
	}
	if (ahead > 0) {
		r->out_of_order++;
		if (!r->nak_sent || ((p->psn - r->early) & PSN_MASK) < PSN_HALF)
			r->early = p->psn;
		if (!r->nak_sent) /* one NAK per gap, until the missing packet arrives */
			nak(r, NAK_SEQUENCE);
		return NULL;
	}
	problem = write_payload(rc, r, m, p, first, last, &done);
	if (problem) {
		r->invalid++;
		nak(r, problem);
		return NULL;
	}
	r->received++;
	r->psn = (r->psn + 1) & PSN_MASK;
	if (r->nak_sent)
		close_gap(r);
	r->unacked++;
	r->asked |= p->ack_request;
	if (r->asked && r->unacked >= r->ack_every)
		r->ack_due = 1;
	else if (r->asked && r->ack_at == NEVER)
		r->ack_at = now + rc->ack_delay_ns;
	if (last) {
		r->msn = (r->msn + 1) & PSN_MASK;
		if (imm && get32(p->ext + (first ? RETH_BYTES : 0)) == done->imm)
			return done;
	}
	return NULL;
}

#endif
