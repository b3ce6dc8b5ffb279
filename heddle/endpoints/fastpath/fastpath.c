/* A compiled loop for the NICs of one worker: the same as nic/nic.py and transports/rc.py, for reliable connections,
 * and as congestion/ for DCQCN.
 *
 * Python creates an engine, its NICs and queue pairs, announces the messages that each rank expects, posts messages,
 * and calls hd_run, which returns when a message is complete, something failed, or the time is over.
 * In: frames of packet sockets. Out: frames, bytes in ranks' memory, events.
 * Every length that comes from a frame is checked against its buffer before it is used.
 */
#include "receive.h"
#include "send.h"

#define API __attribute__((visibility("default")))

API u32 hd_version(void) { return FASTPATH_VERSION; }

API struct engine *hd_engine(const struct rc *rc, const struct opcodes *ops, crc_fn crc, int version, u32 frame_bytes,
			     i64 moderation_ns)
{
	struct engine *e = calloc(1, sizeof(*e));
	/* Rows start at an offset that aligns the bytes after the BTH, as in FrameBuffer; so payloads are aligned, too. */
	u32 lead = -EXT_AT((u32)version) & 63;

	if (!e)
		return NULL;
	e->rc = *rc;
	e->ops = *ops;
	e->crc = crc;
	e->version = version;
	e->moderation_ns = moderation_ns;
	e->inbox.room = frame_bytes;
	e->inbox.stride = (lead + frame_bytes + 63) & ~63u;
	e->inbox.frames = calloc(BATCH + 1, e->inbox.stride);
	e->epfd = epoll_create1(02000000 /* EPOLL_CLOEXEC */);
	if (!e->inbox.frames || e->epfd < 0) {
		free(e->inbox.frames);
		free(e);
		return NULL;
	}
	for (u32 i = 0; i < BATCH; i++) {
		u8 *row = (u8 *)(((uintptr_t)e->inbox.frames + 63) & ~(uintptr_t)63);

		e->inbox.parts[i] = (struct iovec){ row + (u64)i * e->inbox.stride + lead, frame_bytes };
		e->inbox.messages[i].hdr.iov = &e->inbox.parts[i];
		e->inbox.messages[i].hdr.iovlen = 1;
	}
	return e;
}

/* Give all queue pairs that are created from now on DCQCN. */
API void hd_congestion(struct engine *e, const struct dcqcn_rule *rule)
{
	e->congestion = *rule;
}

/* Create a NIC on two packet sockets, with a line rate in bit/s; return its number, or -1. */
API int hd_nic(struct engine *e, int data_fd, int answer_fd, u32 rkey, u64 line_bps)
{
	struct nic *n = calloc(1, sizeof(*n));
	u32 *slots = calloc(16, sizeof(*slots));
	struct nic **more = realloc(e->nics, (e->count + 1) * sizeof(*more));
	struct epoll_event watch = { EPOLLIN, e->count };

	if (more)
		e->nics = more;
	if (!n || !slots || !more || epoll_ctl(e->epfd, EPOLL_CTL_ADD, data_fd, &watch)) {
		free(n);
		free(slots);
		return -1;
	}
	n->engine = e;
	n->index = e->count;
	n->data_fd = data_fd;
	n->answer_fd = answer_fd;
	n->memory.rkey = rkey;
	n->line_bps = (double)line_bps;
	n->timer = NEVER;
	n->slot_mask = 15;
	n->slots = slots;
	e->nics[e->count] = n;
	return (int)e->count++;
}

static void add_slot(struct nic *n, u32 index)
{
	u32 at = n->qps[index]->qpn * 2654435761u;

	while (n->slots[at & n->slot_mask])
		at++;
	n->slots[at & n->slot_mask] = index + 1;
}

/* Create one end of a queue pair. head: Ethernet to BTH of an empty packet to the peer; its lengths, opcode and PSN are
 * ignored. peer: required source address of its frames. window: packets that may be unacknowledged. delay_ns: from the
 * delivery of a frame until it counts as arrived. Returns its index in the NIC, or -1. */
API int hd_qp(struct engine *e, u32 nic, int kind, u32 qpn, const u8 *head, const u8 *peer, u32 psn, u32 window,
	      u32 ack_every, i64 delay_ns)
{
	struct nic *n = e->nics[nic];
	struct qp *q = calloc(1, sizeof(*q));
	struct qp **more = n->qps;
	u32 *slots;

	if (n->count == n->room) {
		more = realloc(n->qps, 2 * (n->room + 8) * sizeof(*more));
		if (more) {
			n->qps = more;
			n->room = 2 * (n->room + 8);
		}
	}
	if (!q || !more || find_qp(n, qpn)) {
		free(q);
		return -1;
	}
	if (delay_ns > 0) {
		u32 i = 0;

		while (i < n->line_count && n->lines[i].delay_ns != delay_ns)
			i++;
		if (i == LINES) {
			free(q);
			return -1;
		}
		if (i == n->line_count)
			n->lines[n->line_count++].delay_ns = delay_ns;
		q->line = &n->lines[i];
	}
	q->kind = (u8)kind;
	q->qpn = qpn;
	q->ack_every = ack_every;
	memcpy(q->peer, peer, 16);
	memcpy(q->flow.head, head, EXT_AT((u32)e->version));
	prepare_flow(&q->flow, e->version);
	if (e->congestion.on && add_congestion(e, n, q)) {
		free(q);
		return -1;
	}
	if (kind == SENDER) {
		q->s.una = q->s.next = q->s.tried = q->s.tail = psn;
		q->s.deadline = NEVER;
		q->s.window = window;
	} else {
		q->r.ack_every = ack_every;
		q->r.psn = q->r.early = psn & PSN_MASK;
		q->r.ack_at = NEVER;
	}
	if (2 * (n->count + 1) > n->slot_mask) {
		slots = calloc(2 * (n->slot_mask + 1), sizeof(*slots));
		if (!slots) {
			if (q->kind == SENDER && q->pace)
				q->pace->shaper->users--;
			free_congestion(q);
			free(q);
			return -1;
		}
		free(n->slots);
		n->slots = slots;
		n->slot_mask = 2 * n->slot_mask + 1;
		for (u32 i = 0; i < n->count; i++)
			add_slot(n, i);
	}
	n->qps[n->count] = q;
	add_slot(n, n->count);
	return (int)n->count++;
}

/* Set the destinations of the `count` messages of an epoch, by ascending address. They replace those of the last epoch
 * but one. Returns 0, or -1. */
API int hd_expect(struct engine *e, u32 nic, u32 epoch, u32 count, const u64 *va, const u32 *bytes, const u32 *imm,
		  const u32 *parts)
{
	struct memory *m = &e->nics[nic]->memory;
	struct table *t = &m->tables[epoch & 1];
	struct region *more = t->regions;

	clear_table(m, t);
	if (count > t->room) {
		more = realloc(t->regions, count * sizeof(*more));
		if (!more)
			return -1;
		t->room = count;
	}
	t->regions = more;
	t->epoch = epoch & 0xFFFF;
	for (u32 i = 0; i < count; i++)
		t->regions[i] = (struct region){ va[i], bytes[i], imm[i], parts[i], NULL };
	t->count = count;
	return 0;
}

/* The bytes of a complete message, or NULL; the caller owns them until hd_used. */
API u8 *hd_message(struct engine *e, u32 nic, u32 epoch, u32 index)
{
	struct table *t = &e->nics[nic]->memory.tables[epoch & 1];

	return index < t->count && !t->regions[index].parts ? t->regions[index].data : NULL;
}

API void hd_used(struct engine *e, u32 nic, u32 epoch, u32 index)
{
	struct memory *m = &e->nics[nic]->memory;
	struct table *t = &m->tables[epoch & 1];

	if (index < t->count && !t->regions[index].parts) {
		free_buffer(&m->store, t->regions[index].data, t->regions[index].bytes);
		t->regions[index].data = NULL;
	}
}

/* Send `bytes` in parts of `part` bytes, the i-th by queue pair qps[i]. The caller must not change the bytes before the
 * NIC is idle. Returns 0, or -1. */
API int hd_post(struct engine *e, u32 nic, const u32 *qps, const u8 *data, u32 bytes, u32 part, u64 va, u32 rkey, u32 imm)
{
	struct nic *n = e->nics[nic];
	u32 at = 0;

	do {
		struct qp *q = n->qps[*qps++];
		u32 size = bytes - at < part ? bytes - at : part;

		if (post_message(&e->rc, &q->s, data + at, size, va + at, rkey, imm))
			return -1;
		wake(n, q);
		at += size;
	} while (at < bytes);
	return 0;
}

static void update_watch(struct engine *e, struct nic *n)
{
	struct epoll_event event = { EPOLLIN | (n->blocked ? EPOLLOUT : 0), n->index };

	if (n->watched != n->blocked && !epoll_ctl(e->epfd, EPOLL_CTL_MOD, n->data_fd, &event))
		n->watched = n->blocked;
}

/* Send all ready frames, without waiting. */
static void serve(struct engine *e, i64 now)
{
	for (u32 i = 0; i < e->count; i++) {
		if (e->nics[i]->eager && !e->nics[i]->error)
			transmit(e->nics[i], now);
		update_watch(e, e->nics[i]);
	}
}

/* Receive and check timers at time `now`, and send nothing: for the end of a run, when peers may have stopped. */
API void hd_take(struct engine *e, i64 now)
{
	for (u32 i = 0; i < e->count; i++)
		receive(e->nics[i], now);
	for (u32 i = 0; i < e->count; i++)
		expire(e->nics[i], now);
}

/* One pass at time `now`: receive, check timers, send. For tests: hd_run without its clock. */
API void hd_pass(struct engine *e, i64 now, int tick)
{
	hd_take(e, now);
	for (u32 i = 0; i < e->count && tick; i++) {
		e->nics[i]->blocked = 0;
		e->nics[i]->eager = 1;
	}
	serve(e, now);
}

static void wait_until(i64 at)
{
	struct timespec until = { at / 1000000000, at % 1000000000 };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

/* Move the events so far to `out`, oldest first; return their number. */
API int hd_drain(struct engine *e, struct event *out, int room)
{
	int count = e->event_count < (u32)room ? (int)e->event_count : room;

	memcpy(out, e->events, (size_t)count * sizeof(*out));
	e->event_count -= (u32)count;
	memmove(e->events, e->events + count, e->event_count * sizeof(*out));
	return count;
}

/* Drive all NICs until there are events (returns their number), `until` is reached (0), or `stop_fd` is readable (-1).
 *
 * Two passes begin at least moderation_ns after each other, like the interrupts of a NIC. The first pass after a pause
 * begins at once.
 */
API int hd_run(struct engine *e, i64 until, int stop_fd, i64 tick_ns, struct event *out, int room)
{
	struct epoll_event ready[64];
	struct pollfd fds[2] = { { e->epfd, POLLIN, 0 }, { stop_fd, POLLIN, 0 } };

	for (;;) {
		i64 now = clock_ns(), due = until < e->next_tick ? until : e->next_tick, left;
		struct timespec timeout = { 0, 0 };
		int count;

		serve(e, now);
		if (e->event_count)
			return hd_drain(e, out, room);
		for (u32 i = 0; i < e->count; i++)
			if (deadline_of(e->nics[i]) < due)
				due = deadline_of(e->nics[i]);
		if (now < e->last_pass + e->moderation_ns && now < until) {
			wait_until(e->last_pass + e->moderation_ns < until ? e->last_pass + e->moderation_ns : until);
			now = clock_ns();
		}
		left = due > now ? due - now : 0;
		timeout.sec = left / 1000000000;
		timeout.nsec = left % 1000000000;
		count = ppoll(fds, 2, &timeout, NULL);
		if (count > 0 && fds[1].revents)
			return -1;
		now = e->last_pass = clock_ns();
		count = count > 0 ? epoll_wait(e->epfd, ready, 64, 0) : 0;
		for (int i = 0; i < count; i++) {
			struct nic *n = e->nics[ready[i].data];

			if (ready[i].events & (EPOLLIN | EPOLLERR))
				receive(n, now);
			if (ready[i].events & EPOLLOUT)
				n->blocked = 0, n->eager = 1;
		}
		if (now >= e->next_tick) {
			e->next_tick = now + tick_ns;
			for (u32 i = 0; i < e->count; i++) {
				expire(e->nics[i], now);
				e->nics[i]->blocked = 0;
				e->nics[i]->eager = 1;
			}
		}
		for (u32 i = 0; i < e->count; i++)
			if (deadline_of(e->nics[i]) <= now)
				expire(e->nics[i], now);
		if (e->event_count) {
			serve(e, now);
			return hd_drain(e, out, room);
		}
		if (now >= until)
			return 0;
	}
}

/* True when a NIC has nothing to send and nothing unacknowledged. */
API int hd_idle(const struct engine *e, u32 nic)
{
	const struct nic *n = e->nics[nic];

	if (n->answering.first || n->answers.sent < n->answers.filled || n->data.sent < n->data.filled)
		return 0;
	for (u32 i = 0; i < n->count; i++)
		if (n->qps[i]->kind == SENDER && n->qps[i]->s.una != n->qps[i]->s.tail)
			return 0;
	return 1;
}

/* Counters of a queue pair: packets, bytes, ce; of a sender retransmitted, naks, timeouts; of a receiver out_of_order,
 * duplicates, received; CNPs: of a sender received, of a receiver sent; the oldest PSN not acknowledged, or not arrived;
 * frames that arrived with a wrong ICRC. */
API void hd_qp_counters(const struct engine *e, u32 nic, u32 index, u64 out[9])
{
	const struct qp *q = e->nics[nic]->qps[index];

	out[0] = q->packets;
	out[1] = q->bytes;
	out[2] = q->ce;
	out[3] = q->kind == SENDER ? q->s.retransmitted : q->r.out_of_order;
	out[4] = q->kind == SENDER ? q->s.naks : q->r.duplicates;
	out[5] = q->kind == SENDER ? q->s.timeouts : q->r.received;
	out[6] = !q->pace ? 0 : q->kind == SENDER ? q->pace->cnps : q->notify->cnps;
	out[7] = (q->kind == SENDER ? (u32)q->s.una : q->r.psn) & PSN_MASK;
	out[8] = q->damaged;
}

/* The share of a sending queue pair in its shaper's rate over time: rates[i] bit/s from times[i] on, at most `room`
 * steps; their number. At the line rate nothing is shared. */
API u32 hd_rates(const struct engine *e, u32 nic, u32 index, i64 *times, double *rates, u32 room)
{
	const struct qp *q = e->nics[nic]->qps[index];
	const struct shaper *s;
	u32 count;

	if (q->kind != SENDER || !q->pace)
		return 0;
	s = q->pace->shaper;
	count = s->count < room ? s->count : room;
	memcpy(times, s->times, count * sizeof(*times));
	for (u32 i = 0; i < count; i++)
		rates[i] = s->rates[i] >= s->line ? s->rates[i] : s->rates[i] / s->users;
	return count;
}

/* Frames that a NIC rejected: malformed, icrc_errors, stray; and how often its port's queue refused a frame. */
API void hd_nic_counters(const struct engine *e, u32 nic, u64 out[4])
{
	const struct nic *n = e->nics[nic];

	out[0] = n->malformed;
	out[1] = n->icrc_errors;
	out[2] = n->stray;
	out[3] = n->queue_drops;
}

API void hd_close(struct engine *e)
{
	for (u32 i = 0; i < e->count; i++) {
		struct nic *n = e->nics[i];

		for (int t = 0; t < 2; t++) {
			clear_table(&n->memory, &n->memory.tables[t]);
			free(n->memory.tables[t].regions);
		}
		while (n->memory.store.count)
			free(n->memory.store.free[--n->memory.store.count]);
		free(n->memory.store.free);
		for (u32 q = 0; q < n->count; q++) {
			if (n->qps[q]->kind == SENDER)
				free(n->qps[q]->s.queue);
			free_congestion(n->qps[q]);
			free(n->qps[q]);
		}
		for (u32 l = 0; l <= n->line_count; l++) {
			struct delayed_frame *h = l < n->line_count ? n->lines[l].first : n->spare, *next;

			for (; h; h = next) {
				next = h->next;
				free(h);
			}
		}
		free(n->qps);
		free(n->slots);
		free(n);
	}
	close(e->epfd);
	free(e->nics);
	free(e->events);
	free(e->inbox.frames);
	free(e);
}
