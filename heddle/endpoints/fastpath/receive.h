/* The receiving part of a NIC: frames, delayed if their path has a propagation delay, and timers. */
#ifndef HEDDLE_RECEIVE_H
#define HEDDLE_RECEIVE_H

#include "nic.h"

static inline void touch(struct qp *q, struct qp **touched)
{
	if (!q->touched) {
		q->touched = 1;
		q->touched_next = *touched;
		*touched = q;
	}
}

/* Call update_queue() for all touched queue pairs, in the order in which they were touched. */
static inline void update_queues(struct nic *n, struct qp *touched)
{
	struct qp *in_order = NULL, *q;

	while ((q = touched)) { /* the list has the latest first */
		touched = q->touched_next;
		q->touched_next = in_order;
		in_order = q;
	}
	for (q = in_order; q; q = q->touched_next) {
		q->touched = 0;
		update_queue(n, q);
	}
}

/* Handle a valid packet for a queue pair. */
static inline void handle_packet(struct nic *n, struct qp *q, const struct packet *p, i64 now)
{
	struct engine *e = n->engine;
	struct region *done;

	q->ce += p->ce;
	if (q->kind == SENDER) {
		if (p->opcode == OP_CNP) {
			q->pace->cnps++;
			take_cnp(&e->congestion, q->pace->shaper, now);
			rate_changed(&e->congestion, q->pace, now);
			return;
		}
		if (q->s.failure)
			return;
		acknowledge(&e->rc, &q->s, p->psn, p->ext[0], now);
		if (q->s.failure)
			qp_failed(n, q);
		return;
	}
	done = handle_write(&e->rc, &q->r, &n->memory, p, now);
	if (q->notify && p->ce)
		marked(&e->congestion, q->notify, now);
	if (done && done->parts && !--done->parts) {
		struct table *t = n->memory.tables;

		t += done < t->regions || done >= t->regions + t->count;
		add_event(n, MESSAGE, t->epoch, (u32)(done - t->regions));
	}
}

/* Keep a frame until its delay has ended; return 0 if there is no room for it. */
static inline int delay_frame(struct nic *n, struct qp *q, const struct packet *p, const u8 *frame, u32 size, i64 now)
{
	struct delayed_frame *h = n->spare;
	u32 room = n->engine->inbox.room;

	if (n->delayed_count == DELAYED_MAX)
		return 0;
	if (h)
		n->spare = h->next;
	else if (!(h = malloc(sizeof(*h) + room)))
		return 0;
	n->delayed_count++;
	memcpy(h->bytes, frame, size < room ? size : room);
	h->qp = q;
	h->due = now + q->line->delay_ns;
	h->packet = *p;
	h->packet.ext = h->bytes + (p->ext - frame);
	h->packet.payload = h->bytes + (p->payload - frame);
	h->next = NULL;
	if (q->line->last)
		q->line->last->next = h;
	else
		q->line->first = h;
	q->line->last = h;
	return 1;
}

/* Handle the frames whose delay has ended. */
static inline void release_delayed(struct nic *n, i64 now)
{
	struct qp *touched = NULL;
	struct delayed_frame *h;

	for (u32 i = 0; i < n->line_count; i++) {
		struct line *l = &n->lines[i];

		while ((h = l->first) && h->due <= now) {
			l->first = h->next;
			if (!l->first)
				l->last = NULL;
			touch(h->qp, &touched);
			handle_packet(n, h->qp, &h->packet, now);
			h->next = n->spare;
			n->spare = h;
			n->delayed_count--;
		}
	}
	update_queues(n, touched);
}

static inline void handle_frame(struct nic *n, const u8 *frame, u32 size, i64 now, struct qp **touched)
{
	struct engine *e = n->engine;
	struct packet p;
	struct qp *q;
	enum verdict v = read_frame(&e->ops, e->crc, frame, size, e->inbox.room, e->version, &p);

	n->malformed += v == MALFORMED;
	n->icrc_errors += v == BAD_ICRC;
	q = v == MALFORMED ? NULL : find_qp(n, p.dqpn);
	if (q && memcmp(p.src, q->peer, e->version == 4 ? 4 : 16))
		q = NULL;
	if (q && v == BAD_ICRC)
		q->damaged++;
	if (v != SOUND)
		return;
	if (!q || (q->kind == SENDER ? p.opcode != OP_ACK && !(q->pace && p.opcode == OP_CNP) : p.opcode < WRITE_FIRST || p.opcode > WRITE_ONLY_IMM)) {
		n->stray++;
		return;
	}
	if (q->line && delay_frame(n, q, &p, frame, size, now))
		return;
	touch(q, touched);
	handle_packet(n, q, &p, now);
}

static inline int receive(struct nic *n, i64 now)
{
	struct engine *e = n->engine;
	struct inbox *in = &e->inbox;
	struct qp *touched = NULL;
	int taken = 0;

	for (int read = 0; read < READS; read++) {
		int count = recvmmsg(n->data_fd, in->messages, BATCH, MSG_DONTWAIT | MSG_TRUNC, NULL);

		if (count < 0) {
			handle_socket_error(n, last_error() == EINTR ? 0 : last_error());
			break;
		}
		taken += count;
		for (int i = 0; i < count; i++)
			handle_frame(n, in->parts[i].base, in->messages[i].len, now, &touched);
		if (count < BATCH)
			break;
	}
	update_queues(n, touched);
	return taken;
}

/* Apply the timers of one queue pair, but that of its delayed acknowledgement. */
static inline void expire_end(struct nic *n, struct qp *q, i64 now)
{
	struct engine *e = n->engine;

	if (q->kind != SENDER) {
		if (!q->notify || q->notify->deadline == FAR_NS)
			return;
		if (q->notify->deadline + LATE_NS <= now)
			cnp_due(&e->congestion, q->notify, now);
	} else if (sender_deadline(&e->rc, q) <= now) {
		if (!(q->pace && q->pace->waits)) {
			expire_sender(&e->rc, &q->s, now);
			if (q->s.failure)
				qp_failed(n, q);
		}
		if (q->pace) {
			expire_rate(&e->congestion, q->pace->shaper, now);
			rate_changed(&e->congestion, q->pace, now);
		}
	}
	update_queue(n, q);
}

/* Call the ends whose timers have expired. Timers stop while the port accepts nothing, as when it is paused: the
 * packets that they wait for are still in its queue, and a retransmission would only duplicate them. */
static inline void expire(struct nic *n, i64 now)
{
	struct qp *q;

	if (n->blocked && now - n->last_accepted > STALLED_NS) {
		i64 since = n->last_expire > n->last_accepted ? n->last_expire : n->last_accepted;

		for (u32 i = 0; i < n->count; i++)
			if (n->qps[i]->kind == SENDER && n->qps[i]->s.deadline != NEVER)
				n->qps[i]->s.deadline += now - since;
	}
	n->last_expire = now;
	release_delayed(n, now);
	while ((q = n->waiting.first) && q->r.ack_at <= now) {
		cancel_delayed_ack(n, q);
		q->r.ack_due = 1;
		update_queue(n, q);
	}
	while (n->timer <= now) { /* again if the timer of a transport, which stood while its packets waited, is due, too */
		n->timer = NEVER;
		for (u32 i = 0; i < n->count; i++)
			expire_end(n, n->qps[i], now);
	}
}

#endif
