/* The sending part of a NIC: answers first, then data, queue pairs in turn. */
#ifndef HEDDLE_SEND_H
#define HEDDLE_SEND_H

#include "nic.h"

/* Send the built frames; return how many the kernel accepted. *code: the error that stopped it, 0 if all were sent. */
static inline u32 send_batch(int fd, struct outbox *box, int *code)
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

static inline void fill_msghdr(struct outbox *box, u32 slot)
{
	struct msghdr *h = &box->messages[slot].hdr;

	memset(h, 0, sizeof(*h));
	h->iov = box->made[slot].part;
	h->iovlen = box->made[slot].parts;
}

/* Build packet `index` of a message. */
static inline void make_data(struct engine *e, struct qp *q, struct outbox *box, u32 slot, const struct message *m,
			     u32 index, u32 psn)
{
	u32 mtu = e->rc.mtu, first = index == 0, last = index + 1 == m->packets, size = last ? m->bytes - index * mtu : mtu;
	u32 ask = last || (index + 1) % q->ack_every == 0, ext_bytes = 0;
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
	fill_msghdr(box, slot);
}

/* Build up to `limit` packets of a QP in slots from `slot` on; return their number. They count as sent. */
static inline u32 build_batch(struct engine *e, struct qp *q, struct outbox *box, u32 slot, u32 limit, i64 now)
{
	struct sender *s = &q->s;
	i64 start = s->next, ready = sendable(s), end = start + (ready < limit ? ready : limit);

	if (ready <= 0)
		return 0;
	for (i64 at = start; at < end; at++, slot++) {
		struct message *m = queued(s, s->unsent);

		make_data(e, q, box, slot, m, (u32)(at - m->first), (u32)at & PSN_MASK);
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

/* The same for a queue pair with congestion control: packet by packet while its rate is below the line rate. */
static inline u32 build_paced(struct engine *e, struct qp *q, struct outbox *box, u32 slot, u32 limit, i64 now)
{
	u32 taken = 0;

	while (taken < limit && ready(q)) {
		u64 before = q->bytes;
		int paced;
		u32 count;

		expire_rate(&e->congestion, q->pace->shaper, now);
		paced = is_paced(q->pace->shaper);
		if (paced && !has_turn(&e->congestion, q->pace, now))
			break;
		count = build_batch(e, q, box, slot + taken, paced ? 1 : limit - taken, now);
		frames_left(&e->congestion, q->pace, q->bytes - before, sendable(&q->s) > 0, now);
		taken += count;
	}
	return taken;
}

static inline void fill(struct nic *n, i64 now)
{
	struct outbox *box = &n->data;
	u32 slot = 0;

	while (n->round.first && slot < FILL) {
		struct qp *q = pop(&n->round);
		u32 most = FILL - slot < TURN ? FILL - slot : TURN;
		u32 count = (q->pace ? build_paced : build_batch)(n->engine, q, box, slot, most, now);
		i64 at = sender_deadline(&n->engine->rc, q);

		slot += count;
		if (at < n->timer)
			n->timer = at;
		if (count && ready(q))
			append(&n->round, q);
		else
			q->queued = 0;
	}
	box->filled = slot;
	box->sent = 0;
}

static inline void make_answer(struct nic *n, struct qp *q, u32 slot)
{
	static const u8 reserved[CNP_BYTES];
	struct receiver *r = &q->r;
	struct outbox *box = &n->answers;
	u32 psn = r->nak ? r->nak_psn : (r->psn - 1) & PSN_MASK;
	u8 ext[4];

	if (q->notify && q->notify->due) {
		build(&q->notify->flow, n->engine->crc, box->room[slot], OP_CNP, 0, reserved, CNP_BYTES, NULL, 0,
		      &box->made[slot]);
		fill_msghdr(box, slot);
		q->notify->due = 0;
		q->notify->cnps++;
		return;
	}
	put32(ext, (r->nak ? r->nak : ACK_NO_LIMIT) << 24 | r->msn);
	build(&q->flow, n->engine->crc, box->room[slot], OP_ACK, psn, ext, 4, NULL, 0, &box->made[slot]);
	fill_msghdr(box, slot);
	r->nak = 0;
	r->ack_due = r->asked = 0;
	r->unacked = 0;
	cancel_delayed_ack(n, q);
}

/* Send answers. Those that the socket does not accept are offered again in the next call. */
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
				if (answering(q)) { /* after a CNP: wait for the next turn */
					q->queued = 1;
					append(&n->answering, q);
				}
			}
		}
		send_batch(n->answer_fd, box, &code);
		if (code) {
			handle_socket_error(n, code);
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
		if (send_batch(n->data_fd, &n->data, &code))
			n->last_accepted = now;
		if (code) {
			handle_socket_error(n, code);
			/* A link that is down, or a full queue, causes no wake-up: the tick tries again. */
			n->blocked = code == EAGAIN;
			return;
		}
	}
}

#endif
